//! The members of a layer, read one after the other, with bounds on everything
//! that is kept in memory.
//!
//! Not with `tar::Archive`: that reads a long name or a pax header into memory
//! whatever its size, takes pax records for lines (the value of a file's
//! capabilities may hold a line's end), and knows no sparse files in pax form.

use std::io::{self, Read};

use super::pax::{self, Part, Pax};
use crate::{Error, Result};

const BLOCK: usize = 512;
/// Longer pax headers are refused: the largest attribute is 64 KiB.
const PAX_MAX: u64 = 1 << 20;
/// Longer names are refused: no path of Linux is longer than 4,096 bytes.
const NAME_MAX: u64 = 4096 + 1;
/// More headers than this before one member are refused: it takes a long name, a long
/// link and a pax header at the most, and an archive's own comment.
const HEADERS_MAX: usize = 16;

/// A refusal for which the image is to blame.
pub(super) fn refuse(text: impl Into<String>) -> Error {
    Error::Invalid(text.into())
}

/// What kind of file a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    Fifo,
    Device,
}

/// A member of a layer, without its content.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) mtime: (i64, u32),
    /// Of the file as it will be, holes counted.
    pub(super) size: u64,
    /// Sorted by name.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the content goes in a sparse file.
    pub(super) parts: Option<Vec<Part>>,
}

/// The members of a layer.
#[derive(Debug)]
pub(super) struct Archive<R> {
    input: R,
    /// Content of the current member that is not read yet, and what fills its
    /// last block.
    left: u64,
    fill: u64,
    ended: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Self {
        Archive { input, left: 0, fill: 0, ended: false }
    }

    /// The next member; its content is read with [`Archive::read`]. After the
    /// last one the input is read to its very end.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut pax = Pax::default();
        let (mut long_path, mut long_link) = (None, None);
        for _ in 0..=HEADERS_MAX {
            self.skip()?;
            let Some(block) = self.header()? else { return Ok(None) };
            let size = size_of(&block)?;
            let kind = block[156];
            match kind {
                b'x' | b'X' => pax = Pax::parse(&self.extension(size, PAX_MAX)?)?,
                // Of the whole archive: comments of programs that make archives.
                b'g' => drop(self.extension(size, PAX_MAX)?),
                b'L' => long_path = Some(until_nul(&self.extension(size, NAME_MAX)?).to_vec()),
                b'K' => long_link = Some(until_nul(&self.extension(size, NAME_MAX)?).to_vec()),
                _ => return self.member(&block, kind, pax, long_path, long_link).map(Some),
            }
        }
        Err(refuse(format!("a member has more than {HEADERS_MAX} headers")))
    }

    fn member(
        &mut self,
        block: &[u8; BLOCK],
        kind: u8,
        pax: Pax,
        long_path: Option<Vec<u8>>,
        long_link: Option<Vec<u8>>,
    ) -> Result<Member> {
        let header = tar::Header::from_byte_slice(block);
        let path = pax.sparse.name.or(long_path).or(pax.path).unwrap_or_else(|| header.path_bytes().into_owned());
        let link = long_link.or(pax.link).unwrap_or_else(|| until_nul(&block[157..257]).to_vec());
        if path.contains(&0) || link.contains(&0) {
            return Err(refuse("a name holds a zero byte"));
        }
        let stored = match pax.size {
            Some(size) => size,
            None => size_of(block)?,
        };
        let kind = match kind {
            // Old archives know no directories.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                return Err(refuse(format!("a member is of a kind that is not known ({:?})", char::from(other))));
            }
        };
        let content = if kind == Kind::File { stored } else { 0 };
        self.left = content;
        self.fill = content.wrapping_neg() % BLOCK as u64;
        let mut member = Member {
            path,
            link,
            kind,
            mode: u32::try_from(number(&block[100..108])? & 0o7777).unwrap_or_default(),
            uid: positive(pax.uid, &block[108..116])?,
            gid: positive(pax.gid, &block[116..124])?,
            mtime: match pax.mtime {
                Some(mtime) => mtime,
                None => (number(&block[136..148])?, 0),
            },
            size: content,
            xattrs: pax.xattrs,
            parts: None,
        };
        if kind == Kind::File {
            if block[156] == b'S' {
                let (parts, size) = self.gnu_parts(block)?;
                self.sparse(&mut member, parts, size)?;
            } else if let Some(size) = pax.sparse.size {
                let parts = if pax.sparse.inside { self.parts_inside()? } else { pax.sparse.parts.unwrap_or_default() };
                self.sparse(&mut member, parts, size)?;
            }
        }
        Ok(member)
    }

    fn sparse(&self, member: &mut Member, mut parts: Vec<Part>, size: u64) -> Result<()> {
        parts.retain(|part| part.length > 0);
        if pax::check(&parts, size)? != self.left {
            return Err(refuse("the map of a sparse file does not fit its content"));
        }
        member.size = size;
        member.parts = Some(parts);
        Ok(())
    }

    /// The map of a sparse file in the older form: in the header, and in blocks
    /// after it, which do not count as content.
    fn gnu_parts(&mut self, block: &[u8; BLOCK]) -> Result<(Vec<Part>, u64)> {
        let header = tar::Header::from_byte_slice(block);
        let Some(gnu) = header.as_gnu() else { return Err(refuse("a sparse file without its map")) };
        let mut parts = Vec::new();
        let size = unsigned(&gnu.realsize)?;
        let mut more = gnu.isextended[0] == 1;
        let mut add = |slots: &[tar::GnuSparseHeader]| -> Result<()> {
            for slot in slots.iter().take_while(|slot| slot.numbytes[0] != 0) {
                parts.push(Part { offset: unsigned(&slot.offset)?, length: unsigned(&slot.numbytes)? });
            }
            // What they say is checked once, when all of them are there.
            pax::bounded(parts.len())
        };
        add(&gnu.sparse)?;
        while more {
            let mut extension = tar::GnuExtSparseHeader::new();
            exactly(&mut self.input, extension.as_mut_bytes())?;
            add(&extension.sparse)?;
            more = extension.isextended[0] == 1;
        }
        Ok((parts, size))
    }

    /// The map of a sparse file that stands in whole blocks before its content.
    fn parts_inside(&mut self) -> Result<Vec<Part>> {
        let mut map = pax::MapInside::default();
        let mut read = 0;
        while self.left >= BLOCK as u64 && read < PAX_MAX {
            let mut block = [0; BLOCK];
            exactly(&mut self.input, &mut block)?;
            self.left -= BLOCK as u64;
            read += BLOCK as u64;
            if let Some(parts) = map.add(&block)? {
                return Ok(parts);
            }
        }
        Err(refuse("the map of a sparse file is malformed"))
    }

    /// Content of the current member; nothing at its end.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let got = read_some(&mut self.input, &mut buffer[..most])?;
        if got == 0 {
            return Err(cut_short());
        }
        self.left -= got as u64;
        Ok(got)
    }

    /// What is left of the current member.
    fn skip(&mut self) -> Result<()> {
        let rest = self.left + self.fill;
        self.discard(Some(rest))?;
        (self.left, self.fill) = (0, 0);
        Ok(())
    }

    /// Throws away so many bytes, or all there are.
    fn discard(&mut self, count: Option<u64>) -> Result<()> {
        let mut buffer = [0; 16 * 1024];
        let mut left = count.unwrap_or(u64::MAX);
        while left > 0 {
            let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
            let got = read_some(&mut self.input, &mut buffer[..most])?;
            if got == 0 {
                return if count.is_none() { Ok(()) } else { Err(cut_short()) };
            }
            left -= got as u64;
        }
        Ok(())
    }

    /// The next header, or `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        if self.ended || !whole(&mut self.input, &mut block)? {
            return Ok(None);
        }
        if block == [0; BLOCK] {
            // Two of them end an archive, or one where nothing follows.
            let second = whole(&mut self.input, &mut block)?;
            if second && block != [0; BLOCK] {
                return Err(refuse("there are members after the end of the archive"));
            }
            self.ended = true;
            self.discard(None)?;
            return Ok(None);
        }
        let stated = number(&block[148..156]).ok();
        let others = || block[..148].iter().chain(&block[156..]);
        let unsigned: i64 = others().map(|byte| i64::from(*byte)).sum::<i64>() + 8 * 32;
        // As some old programs did it.
        let signed: i64 = others().map(|byte| i64::from(byte.cast_signed())).sum::<i64>() + 8 * 32;
        if stated != Some(unsigned) && stated != Some(signed) {
            return Err(refuse("a header's checksum is wrong: this is no tar archive, or a damaged one"));
        }
        Ok(Some(block))
    }

    /// The content of a header that says more of the next member.
    fn extension(&mut self, size: u64, most: u64) -> Result<Vec<u8>> {
        if size > most {
            return Err(refuse(format!("a name or a header is longer than {most} bytes")));
        }
        let mut content = vec![0; usize::try_from(size).unwrap_or_default()];
        exactly(&mut self.input, &mut content)?;
        self.fill = size.wrapping_neg() % BLOCK as u64;
        Ok(content)
    }
}

fn cut_short() -> Error {
    refuse("the archive is cut short")
}

fn size_of(block: &[u8; BLOCK]) -> Result<u64> {
    unsigned(&block[124..136])
}

fn unsigned(field: &[u8]) -> Result<u64> {
    u64::try_from(number(field)?).map_err(|_| refuse("a header holds a size below zero"))
}

fn positive(pax: Option<u64>, field: &[u8]) -> Result<u64> {
    match pax {
        Some(number) => Ok(number),
        None => u64::try_from(number(field)?).map_err(|_| refuse("a header holds an owner below zero")),
    }
}

/// A number of a header: octal, or binary where the first bit is set.
fn number(field: &[u8]) -> Result<i64> {
    let none = || refuse("a header holds a number that is none");
    if let Some(first) = field.first().filter(|first| **first & 0x80 != 0) {
        // Two's complement, with the first bit as a mark.
        let negative = first & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 { if negative { byte | 0x80 } else { byte & 0x7f } } else { *byte };
            value = value.checked_mul(256).and_then(|value| value.checked_add(i128::from(byte))).ok_or_else(none)?;
        }
        return i64::try_from(value).map_err(|_| none());
    }
    let digits = until_nul(field).trim_ascii();
    if digits.is_empty() {
        return Ok(0);
    }
    let text = std::str::from_utf8(digits).map_err(|_| none())?;
    if text.starts_with(['+', '-']) {
        return Err(none());
    }
    i64::from_str_radix(text, 8).map_err(|_| none())
}

fn until_nul(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn read_some(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    loop {
        match input.read(buffer) {
            Ok(got) => return Ok(got),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::failed("read a layer", error)),
        }
    }
}

/// Whether all of `buffer` could be read; an error if only a part of it.
fn whole(input: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    let mut got = 0;
    while got < buffer.len() {
        match read_some(input, &mut buffer[got..])? {
            0 if got == 0 => return Ok(false),
            0 => return Err(cut_short()),
            more => got += more,
        }
    }
    Ok(true)
}

fn exactly(input: &mut impl Read, buffer: &mut [u8]) -> Result<()> {
    if buffer.is_empty() || whole(input, buffer)? { Ok(()) } else { Err(cut_short()) }
}
