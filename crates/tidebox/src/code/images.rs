//! Images of code: in terminals that can show them, in files where they cannot.

use std::fmt::Write as _;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::sixel;

/// MIME types of the images, in order of preference.
const TYPES: [(&str, Format); 2] = [("image/png", Format::Png), ("image/jpeg", Format::Jpeg)];
/// Most files that one run of code writes, because code decides how many images it displays.
const FILES_MAX: usize = 100;
/// Number at which the search for a file name ends.
const NUMBER_MAX: u32 = 100_000;
/// Variable that names the protocol of a terminal which its other variables do not tell.
const PROTOCOL_VARIABLE: &str = "TIDEBOX_IMAGES";
/// Most base64 characters in one sequence of kitty's protocol.
const KITTY_CHUNK: usize = 4096;

/// Format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Png,
    Jpeg,
}

impl Format {
    const fn extension(self) -> &'static str {
        match self {
            Format::Png => "png",
            Format::Jpeg => "jpg",
        }
    }

    /// Returns the bytes with which every image of the format begins.
    const fn signature(self) -> &'static [u8] {
        match self {
            Format::Png => b"\x89PNG\r\n\x1a\n",
            Format::Jpeg => b"\xff\xd8\xff",
        }
    }
}

/// An image.
#[derive(Debug)]
pub struct Image {
    mime: &'static str,
    format: Format,
    bytes: Vec<u8>,
}

impl Image {
    /// Returns the image among the representations of a result.
    pub fn of(data: &serde_json::Map<String, serde_json::Value>) -> Option<Image> {
        TYPES.into_iter().find_map(|(mime, format)| {
            // Interpreters break the lines of base64.
            let text: String = data.get(mime)?.as_str()?.split_ascii_whitespace().collect();
            let bytes = STANDARD.decode(text).ok()?;
            // A terminal guesses the format of other bytes.
            bytes.starts_with(format.signature()).then_some(Image { mime, format, bytes })
        })
    }

    /// Describes the image for a person.
    pub fn description(&self) -> String {
        match self.bytes.len() {
            bytes @ ..1000 => format!("{}, {bytes} bytes", self.mime),
            bytes => format!("{}, {} kB", self.mime, bytes.div_ceil(1000)),
        }
    }
}

/// Protocol by which a terminal shows images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    /// Kitty's graphics protocol.
    Kitty,
    /// Inline images of iTerm2.
    ITerm2,
    /// Sixel graphics.
    Sixel,
}

/// Returns the protocol of the terminal that has these variables.
fn protocol(variable: impl Fn(&str) -> Option<String>) -> Option<Protocol> {
    match variable(PROTOCOL_VARIABLE).as_deref() {
        Some("kitty") => return Some(Protocol::Kitty),
        Some("iterm2") => return Some(Protocol::ITerm2),
        Some("sixel") => return Some(Protocol::Sixel),
        Some("none") => return None,
        Some(_) | None => {}
    }
    let has = |name| variable(name).is_some_and(|value| !value.is_empty());
    let term = variable("TERM").unwrap_or_default();
    // A multiplexer inherits the variables of the terminal around it, but shows no images.
    if has("TMUX") || has("STY") || term.starts_with("screen") || term.starts_with("tmux") {
        return None;
    }
    let program = variable("TERM_PROGRAM").unwrap_or_default();
    if matches!(program.as_str(), "iTerm.app" | "WezTerm" | "mintty")
        || variable("LC_TERMINAL").is_some_and(|name| name == "iTerm2")
    {
        return Some(Protocol::ITerm2);
    }
    // Konsole has the protocol since 22.04.
    let konsole = variable("KONSOLE_VERSION").and_then(|version| version.parse::<u32>().ok());
    let is_kitty = has("KITTY_WINDOW_ID")
        || matches!(term.as_str(), "xterm-kitty" | "xterm-ghostty")
        || program == "ghostty"
        || konsole.is_some_and(|version| version >= 220_400);
    if is_kitty {
        return Some(Protocol::Kitty);
    }
    let is_sixel = term.starts_with("foot") || term.starts_with("mlterm") || term.starts_with("contour");
    is_sixel.then_some(Protocol::Sixel)
}

impl Protocol {
    /// Returns the bytes that show an image; `None` for a format that the terminal does not decode.
    fn sequence(self, image: &Image) -> Option<String> {
        match (self, image.format) {
            (Protocol::Kitty, Format::Png) => Some(kitty(&STANDARD.encode(&image.bytes))),
            (Protocol::Sixel, Format::Png) => Some(sixel::sequence(&image.bytes)? + "\n"),
            (Protocol::Kitty | Protocol::Sixel, Format::Jpeg) => None,
            (Protocol::ITerm2, Format::Png | Format::Jpeg) => {
                let (size, encoded) = (image.bytes.len(), STANDARD.encode(&image.bytes));
                Some(format!("\x1b]1337;File=inline=1;size={size}:{encoded}\x07\n"))
            }
        }
    }
}

/// Returns the sequences that transfer and show a PNG. The terminal does not answer, because nothing reads its answer.
fn kitty(encoded: &str) -> String {
    let mut sequences = String::with_capacity(encoded.len() + encoded.len() / 256);
    let mut rest = encoded;
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(rest.len().min(KITTY_CHUNK));
        let first = if rest.len() == encoded.len() { "a=T,f=100,q=2," } else { "" };
        let more = u8::from(!after.is_empty());
        let _ = write!(sequences, "\x1b_G{first}m={more};{chunk}\x1b\\");
        rest = after;
    }
    sequences + "\n"
}

/// Place in which an image can be seen.
#[derive(Debug, PartialEq, Eq)]
pub enum Shown {
    /// The terminal shows it after these bytes, and it was saved in this file.
    InTerminal(String, Option<PathBuf>),
    Saved(PathBuf),
    /// It is in no file, because none is wanted.
    Nowhere,
    /// It is in no file, because the run has displayed too many.
    TooMany,
}

/// Ways to show images.
#[derive(Debug)]
pub struct Images {
    protocol: Option<Protocol>,
    /// Directory to save images in; `None` to save none.
    folder: Option<PathBuf>,
    /// True to save also images that the terminal shows.
    saves_all: bool,
    saved: usize,
}

impl Images {
    /// Chooses by what stdout is: a terminal that shows images, another terminal, or something else.
    pub fn new(folder: Option<PathBuf>) -> Images {
        let is_terminal = std::io::stdout().is_terminal();
        let protocol = if is_terminal { protocol(|name| std::env::var(name).ok()) } else { None };
        let saves_all = folder.is_some();
        let folder = folder.or_else(|| is_terminal.then(|| PathBuf::from(".")));
        Images { protocol, folder, saves_all, saved: 0 }
    }

    /// Forgets how many files were written, for the next run.
    pub fn begin_run(&mut self) {
        self.saved = 0;
    }

    /// Saves an image, or returns the bytes for the terminal.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn show(&mut self, image: &Image) -> std::io::Result<Shown> {
        let sequence = self.protocol.and_then(|protocol| protocol.sequence(image));
        let folder = self.folder.as_deref().filter(|_| sequence.is_none() || self.saves_all);
        let file = match folder {
            Some(_) if self.saved >= FILES_MAX => return Ok(sequence.map_or(Shown::TooMany, in_terminal_only)),
            Some(folder) => Some(save(folder, image)?),
            None => None,
        };
        self.saved += usize::from(file.is_some());
        Ok(match (sequence, file) {
            (Some(sequence), file) => Shown::InTerminal(sequence, file),
            (None, Some(file)) => Shown::Saved(file),
            (None, None) => Shown::Nowhere,
        })
    }
}

fn in_terminal_only(sequence: String) -> Shown {
    Shown::InTerminal(sequence, None)
}

/// Writes an image to the first file name that is free.
fn save(folder: &Path, image: &Image) -> std::io::Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    for number in 1..=NUMBER_MAX {
        let name = format!("tidebox-{number}.{}", image.format.extension());
        let path = if folder == Path::new(".") { PathBuf::from(name) } else { folder.join(name) };
        match std::fs::File::create_new(&path) {
            Ok(mut file) => return file.write_all(&image.bytes).map(|()| path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(std::io::Error::new(ErrorKind::AlreadyExists, "every file name is taken; remove old images"))
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    fn image(mime: &str, bytes: &[u8]) -> Option<Image> {
        // As Python's base64 breaks its lines.
        let text = STANDARD.encode(bytes) + "\n";
        Image::of(json!({ "text/plain": "<Figure>", mime: text }).as_object().unwrap())
    }

    fn png(len: usize) -> Image {
        let bytes: Vec<u8> = Format::Png.signature().iter().copied().chain((0..=255).cycle()).take(len).collect();
        image("image/png", &bytes).unwrap()
    }

    fn jpeg() -> Image {
        image("image/jpeg", b"\xff\xd8\xff\xe0").unwrap()
    }

    #[test]
    fn only_an_image_of_its_type_is_an_image() {
        assert_eq!(png(999).description(), "image/png, 999 bytes");
        assert_eq!(png(1001).description(), "image/png, 2 kB");
        assert!(image("image/png", b"\x1b]0;title\x07").is_none());
        assert!(image("image/png", b"\xff\xd8\xff\xe0").is_none());
        assert!(image("image/svg+xml", b"<svg/>").is_none());
        assert!(Image::of(json!({"image/png": "%"}).as_object().unwrap()).is_none());
    }

    #[test]
    fn terminals_are_known_by_their_variables() {
        let found = |pairs: &[(&str, &str)]| {
            protocol(|name| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        for (pairs, expected) in [
            (&[("TERM", "xterm-256color")][..], None),
            (&[("KITTY_WINDOW_ID", "1")], Some(Protocol::Kitty)),
            (&[("TERM", "xterm-kitty")], Some(Protocol::Kitty)),
            (&[("TERM", "xterm-ghostty")], Some(Protocol::Kitty)),
            (&[("KONSOLE_VERSION", "230805")], Some(Protocol::Kitty)),
            (&[("KONSOLE_VERSION", "210805")], None),
            (&[("TERM_PROGRAM", "iTerm.app")], Some(Protocol::ITerm2)),
            (&[("TERM_PROGRAM", "WezTerm")], Some(Protocol::ITerm2)),
            (&[("TERM_PROGRAM", "mintty")], Some(Protocol::ITerm2)),
            (&[("LC_TERMINAL", "iTerm2")], Some(Protocol::ITerm2)),
            (&[("KITTY_WINDOW_ID", "1"), ("TMUX", "/tmp/tmux")], None),
            (&[("KITTY_WINDOW_ID", "1"), ("TERM", "screen-256color")], None),
            (&[("TERM", "foot")], Some(Protocol::Sixel)),
            (&[("TERM", "mlterm-256color")], Some(Protocol::Sixel)),
            (&[("TERM", "xterm-256color"), ("TIDEBOX_IMAGES", "sixel")], Some(Protocol::Sixel)),
            (&[("TERM", "tmux-256color"), ("TIDEBOX_IMAGES", "iterm2")], Some(Protocol::ITerm2)),
            (&[("TERM", "foot"), ("TIDEBOX_IMAGES", "none")], None),
        ] {
            assert_eq!(found(pairs), expected, "{pairs:?}");
        }
    }

    #[test]
    fn kitty_gets_a_png_in_pieces_and_does_not_answer() {
        let small = Protocol::Kitty.sequence(&png(8)).unwrap();
        assert_eq!(small, "\x1b_Ga=T,f=100,q=2,m=0;iVBORw0KGgo=\x1b\\\n");
        let large = png(7000);
        let sequence = Protocol::Kitty.sequence(&large).unwrap();
        let pieces: Vec<&str> = sequence.trim_end().split_terminator("\x1b\\").collect();
        let heads: Vec<&str> = pieces.iter().map(|piece| piece.split_once(';').unwrap().0).collect();
        assert_eq!(heads, ["\x1b_Ga=T,f=100,q=2,m=1", "\x1b_Gm=1", "\x1b_Gm=0"]);
        let encoded: String = pieces.iter().map(|piece| piece.split_once(';').unwrap().1).collect();
        assert_eq!(STANDARD.decode(encoded).unwrap(), large.bytes);
        assert_eq!(Protocol::Kitty.sequence(&jpeg()), None, "kitty does not decode JPEG");
    }

    #[test]
    fn iterm2_gets_the_whole_image() {
        let sequence = Protocol::ITerm2.sequence(&png(8)).unwrap();
        assert_eq!(sequence, "\x1b]1337;File=inline=1;size=8:iVBORw0KGgo=\x07\n");
        let sequence = Protocol::ITerm2.sequence(&jpeg()).unwrap();
        assert_eq!(sequence, "\x1b]1337;File=inline=1;size=4:/9j/4A==\x07\n");
    }

    #[test]
    fn no_file_is_overwritten_and_a_run_writes_no_more_than_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("plots");
        let mut images = Images { protocol: None, folder: Some(inside.clone()), saves_all: true, saved: 0 };
        std::fs::create_dir(&inside).unwrap();
        std::fs::write(inside.join("tidebox-1.png"), "mine").unwrap();
        assert_eq!(images.show(&png(9)).unwrap(), Shown::Saved(inside.join("tidebox-2.png")));
        assert_eq!(images.show(&jpeg()).unwrap(), Shown::Saved(inside.join("tidebox-1.jpg")));
        assert_eq!(std::fs::read(inside.join("tidebox-1.png")).unwrap(), b"mine");
        assert_eq!(std::fs::read(inside.join("tidebox-2.png")).unwrap(), png(9).bytes);
        images.saved = FILES_MAX;
        assert_eq!(images.show(&png(9)).unwrap(), Shown::TooMany);
        images.begin_run();
        assert_eq!(images.show(&png(9)).unwrap(), Shown::Saved(inside.join("tidebox-3.png")));
    }

    #[test]
    fn a_terminal_that_shows_an_image_saves_it_only_on_demand() {
        let folder = tempfile::tempdir().unwrap();
        let here = Some(folder.path().to_owned());
        let mut images = Images { protocol: Some(Protocol::Kitty), folder: here, saves_all: false, saved: 0 };
        assert!(matches!(images.show(&png(9)).unwrap(), Shown::InTerminal(_, None)));
        assert!(matches!(images.show(&jpeg()).unwrap(), Shown::Saved(_)), "it cannot show this one");
        images.saves_all = true;
        assert!(matches!(images.show(&png(9)).unwrap(), Shown::InTerminal(_, Some(_))));
        let mut images = Images { protocol: None, folder: None, saves_all: false, saved: 0 };
        assert_eq!(images.show(&png(9)).unwrap(), Shown::Nowhere);
    }
}
