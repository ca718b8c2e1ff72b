//! Tools for files.

use api::{FileInfo, SearchRequest, TextEncoding, WriteFileRequest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use client::FileStream;
use rmcp::model::ContentBlock;

use crate::arguments::{EditFile, ListFiles, ReadFile, SearchFiles, WriteFile};
use crate::bounds::BASE64_CHARS_MAX;
use crate::call::{Call, Target};
use crate::failure::{Failure, Result};
use crate::text::{CHARS_MAX, Utf8};

/// Directory of a sandbox for what is worked on.
const WORKSPACE: &str = "/workspace";
const LINES: u64 = 1000;
/// Largest image that is shown, in bytes.
const IMAGE_BYTES_MAX: usize = BASE64_CHARS_MAX / 4 * 3;
/// Largest file that is edited, in bytes.
const EDITED_BYTES_MAX: usize = 8 << 20;
/// Most entries of a list.
const ENTRIES_MAX: usize = 500;
/// Most matches of a search.
const MATCHES_MAX: u32 = 100;
/// Most characters of a line that a search found.
const MATCH_CHARS_MAX: usize = 300;
pub(super) async fn read(call: &Call, arguments: ReadFile) -> Result<Vec<ContentBlock>> {
    let ReadFile { path, first_line, lines, sandbox } = arguments;
    let (first, count) = (first_line.unwrap_or(1), lines.unwrap_or(LINES));
    if first == 0 || count == 0 {
        return Err(Failure::new("`first_line` and `lines` count from 1"));
    }
    let target = call.target(sandbox).await?;
    let mut file = call.client.read_file(&target.id, &path, None).await?;
    let size = file.size().or(file.length());
    let Some(start) = file.next().await? else { return Ok(target.text("[the file is empty]")) };
    if let Some(kind) = image_type(&start) {
        let image = whole(file, start, IMAGE_BYTES_MAX).await?;
        let image = image.ok_or_else(|| {
            Failure::new(format!("the image has more than {IMAGE_BYTES_MAX} bytes: make a smaller copy, and read that"))
        })?;
        return Ok(vec![ContentBlock::image(STANDARD.encode(image), kind)]);
    }
    if start.contains(&0) {
        let size = size.map_or(String::new(), |bytes| format!(" of {bytes} bytes"));
        return Err(Failure::new(format!(
            "{path} is a binary file{size}: look at it with a command, such as `file` or `xxd`"
        )));
    }
    let mut excerpt = Excerpt::new(first, count);
    let mut piece = Some(start);
    while let Some(bytes) = piece {
        if excerpt.push(&bytes) {
            break;
        }
        piece = call.unless_cancelled(file.next()).await??;
    }
    Ok(target.text(excerpt.into_text()))
}

/// Returns the type of an image that models can see, by its first bytes.
fn image_type(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        // Sound and video have the same container.
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// Reads the rest of a file. Returns `None` if it is larger than `bytes_max`.
async fn whole(mut file: FileStream, start: Bytes, bytes_max: usize) -> Result<Option<Bytes>> {
    let mut content = BytesMut::from(start);
    while content.len() <= bytes_max {
        match file.next().await? {
            Some(piece) => content.extend_from_slice(&piece),
            None => return Ok(Some(content.freeze())),
        }
    }
    Ok(None)
}

/// Lines of a file.
struct Excerpt {
    decoder: Utf8,
    first: u64,
    count: u64,
    /// Number of the line that is read.
    line: u64,
    text: String,
    chars: usize,
    /// True if the file goes on.
    is_cut: bool,
}

impl Excerpt {
    fn new(first: u64, count: u64) -> Self {
        Self { decoder: Utf8::default(), first, count, line: 1, text: String::new(), chars: 0, is_cut: false }
    }

    /// Takes bytes of the file. Returns true if it has all that it wants.
    fn push(&mut self, bytes: &[u8]) -> bool {
        for letter in self.decoder.push(bytes).chars() {
            if self.line >= self.first.saturating_add(self.count) || self.chars == CHARS_MAX {
                self.is_cut = true;
                return true;
            }
            if self.line >= self.first {
                self.text.push(letter);
                self.chars += 1;
            }
            self.line += u64::from(letter == '\n');
        }
        false
    }

    fn into_text(self) -> String {
        let Self { first, line, text, is_cut, chars, .. } = self;
        if text.is_empty() {
            return format!("[the file has {} lines]", line - 1);
        }
        if !is_cut {
            return text;
        }
        let is_within_line = chars == CHARS_MAX && !text.ends_with('\n');
        if is_within_line && line == first {
            return format!(
                "{text}\n[line {line} goes on: it is longer than can be shown; use a command, such as `cut`]"
            );
        }
        // A line that was cut is read again whole.
        let end = if is_within_line { text.rfind('\n').map_or(text.len(), |at| at + 1) } else { text.len() };
        format!("{}[the file goes on: read_file with `first_line`: {line}]", &text[..end])
    }
}

pub(super) async fn write(call: &Call, WriteFile { path, content, sandbox }: WriteFile) -> Result<Vec<ContentBlock>> {
    let target = call.target(sandbox).await?;
    let bytes = content.len();
    write_whole(call, &target, &path, content, None).await?;
    Ok(target.text(format!("{path} is written: {bytes} bytes.")))
}

async fn write_whole(call: &Call, target: &Target, path: &str, content: String, mode: Option<String>) -> Result<()> {
    let request = WriteFileRequest { path: path.to_owned(), content, mode, encoding: TextEncoding::default() };
    call.client.write_file_whole(&target.id, &request).await?;
    Ok(())
}

pub(super) async fn edit(call: &Call, arguments: EditFile) -> Result<Vec<ContentBlock>> {
    let EditFile { path, old_text, new_text, replace_all, sandbox } = arguments;
    if old_text.is_empty() {
        return Err(Failure::new("`old_text` is empty: use write_file for a new file"));
    }
    let target = call.target(sandbox).await?;
    let mut file = call.client.read_file(&target.id, &path, None).await?;
    let mode = file.mode().map(str::to_owned);
    let start = file.next().await?.unwrap_or_default();
    let content = whole(file, start, EDITED_BYTES_MAX).await?.ok_or_else(|| {
        Failure::new(format!("{path} has more than {EDITED_BYTES_MAX} bytes: edit it with a command, such as `sed`"))
    })?;
    let content = String::from_utf8(content.into())
        .map_err(|_| Failure::new(format!("{path} is no text: edit it with a command")))?;
    let edited = replaced(&content, &old_text, &new_text, replace_all.unwrap_or(false))?;
    write_whole(call, &target, &path, edited.content, mode).await?;
    let places = if edited.count == 1 { String::new() } else { format!("{} places, the first at ", edited.count) };
    Ok(target.text(format!("{path} is edited: {places}line {}.", edited.line)))
}

/// Content after an edit.
#[derive(Debug)]
struct Edited {
    content: String,
    count: usize,
    /// Line of the first place.
    line: usize,
}

fn replaced(content: &str, old: &str, new: &str, is_all: bool) -> Result<Edited> {
    let count = content.matches(old).count();
    let Some(at) = content.find(old) else {
        let hint = if content.contains(old.trim()) { "; it occurs with other white space around it" } else { "" };
        return Err(Failure::new(format!(
            "`old_text` does not occur in the file{hint}: read the file, and copy the text"
        )));
    };
    if count > 1 && !is_all {
        return Err(Failure::new(format!(
            "`old_text` occurs {count} times: add surrounding lines until it is unique, or set `replace_all`"
        )));
    }
    let line = content[..at].matches('\n').count() + 1;
    Ok(Edited { content: content.replace(old, new), count, line })
}

pub(super) async fn list(call: &Call, ListFiles { path, sandbox }: ListFiles) -> Result<Vec<ContentBlock>> {
    let path = path.unwrap_or_else(|| WORKSPACE.to_owned());
    let target = call.target(sandbox).await?;
    let entries = call.client.list_files(&target.id, &path).await?;
    let mut lines: Vec<String> = entries.iter().take(ENTRIES_MAX).map(entry).collect();
    if entries.len() > ENTRIES_MAX {
        lines.push(format!("[{} more; list a subdirectory, or use search_files]", entries.len() - ENTRIES_MAX));
    }
    Ok(target.text(if lines.is_empty() { format!("[{path} is empty]") } else { lines.join("\n") }))
}

fn entry(file: &FileInfo) -> String {
    match (&file.target, file.is_dir) {
        (Some(target), _) => format!("link {} -> {target}", file.name),
        (None, true) => format!("dir  {}/", file.name),
        (None, false) => format!("file {} {}", file.size, file.name),
    }
}

pub(super) async fn search(call: &Call, arguments: SearchFiles) -> Result<Vec<ContentBlock>> {
    let target = call.target(arguments.sandbox).await?;
    let request = SearchRequest {
        pattern: arguments.pattern,
        path: Some(arguments.path.unwrap_or_else(|| WORKSPACE.to_owned())),
        include: arguments.include.unwrap_or_default(),
        gitignore: true,
        max_matches: Some(MATCHES_MAX),
        ..SearchRequest::default()
    };
    let found = call.unless_cancelled(call.client.search_files(&target.id, &request)).await??;
    let lines = found.matches.iter().map(|found| {
        let line: String = found.text.chars().take(MATCH_CHARS_MAX).collect();
        format!("{}:{}: {}", found.path, found.line, line.trim_end())
    });
    let mut lines: Vec<String> = lines.collect();
    if found.truncated {
        lines.push("[there is more: search with a narrower pattern, `path` or `include`]".to_owned());
    }
    Ok(target.text(match lines.is_empty() {
        true => format!("[no match in {} files]", found.files_searched),
        false => lines.join("\n"),
    }))
}

#[cfg(test)]
mod test {
    use super::*;

    fn excerpt(content: &str, first: u64, count: u64) -> String {
        let mut excerpt = Excerpt::new(first, count);
        // As pieces that end within characters.
        let _ = content.as_bytes().chunks(7).any(|piece| excerpt.push(piece));
        excerpt.into_text()
    }

    #[test]
    fn lines_of_a_file_are_read_and_read_on() {
        let content: String = (1..=10).map(|line| format!("ä{line}\n")).collect();
        assert_eq!(excerpt(&content, 1, 1000), content);
        assert_eq!(excerpt(&content, 3, 2), "ä3\nä4\n[the file goes on: read_file with `first_line`: 5]");
        assert_eq!(excerpt(&content, 9, 2), "ä9\nä10\n");
        assert_eq!(excerpt(&content, 12, 2), "[the file has 10 lines]");
    }

    #[test]
    fn a_long_file_is_cut_at_the_end_of_a_line() {
        let content: String = (1..=10_000).map(|line| format!("line {line}\n")).collect();
        let mut read = String::new();
        let mut first = 1;
        loop {
            let text = excerpt(&content, first, u64::MAX);
            let Some((lines, rest)) = text.rsplit_once("[the file goes on: read_file with `first_line`: ") else {
                read.push_str(&text);
                break;
            };
            read.push_str(lines);
            first = rest.trim_end_matches(']').parse().unwrap();
        }
        assert_eq!(read, content);
        let text = excerpt(&"x".repeat(100_000), 1, 10);
        assert!(text.ends_with("use a command, such as `cut`]") && text.len() < CHARS_MAX + 200);
    }

    #[test]
    fn images_are_known_by_their_first_bytes_and_sound_is_none() {
        assert_eq!(image_type(b"\x89PNG\r\n\x1a\nrest"), Some("image/png"));
        assert_eq!(image_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(image_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(image_type(b"RIFF\x24\0\0\0WEBPVP8 "), Some("image/webp"));
        for other in [&b"RIFF\x24\0\0\0WAVEfmt "[..], b"RIFF", b"\x89PN", b"", b"text"] {
            assert_eq!(image_type(other), None, "{other:?}");
        }
    }

    #[test]
    fn an_edit_names_what_is_wrong_with_its_text() {
        let content = "fn a() {}\nfn b() {}\n";
        let edited = replaced(content, "b()", "c()", false).unwrap();
        assert_eq!((edited.content.as_str(), edited.count, edited.line), ("fn a() {}\nfn c() {}\n", 1, 2));
        let fault = |old| replaced(content, old, "", false).unwrap_err().to_string();
        assert!(fault("fn").contains("occurs 2 times"));
        assert!(fault("fn d").contains("does not occur"));
        assert!(fault("  fn a").contains("other white space"));
        assert_eq!(replaced(content, "fn", "def", true).unwrap().count, 2);
    }
}
