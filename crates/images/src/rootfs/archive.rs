//! Reader of the members of a layer, in order, with bounds on everything kept in memory.
//!
//! `tar::Archive` is not used: it reads a long name or a pax header into memory whole, splits pax
//! records at line ends (the value of a file's capabilities may contain one), and does not know
//! sparse files in pax form.

use std::io::{self, Read};

use super::pax::{self, Part, Pax};
use crate::error::{Error, Result, refuse};

const BLOCK: usize = 512;
/// Largest accepted pax header, in bytes: the largest attribute is 64 KiB.
const PAX_MAX: u64 = 1 << 20;
/// Longest accepted name, in bytes: no path of Linux is longer than 4,096.
const NAME_MAX: u64 = 4096 + 1;
/// Most headers before one member: it takes a long name, a long link, a pax header and the
/// archive's own comment at most.
const HEADERS_MAX: usize = 16;

/// File type of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    Symlink,
    Hardlink,
    Fifo,
    Device,
}

/// Member of a layer, without its content.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: Kind,
    pub(super) mode: u32,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) mtime: (i64, u32),
    /// Size of the resulting file, with its holes, in bytes.
    pub(super) size: u64,
    /// Extended attributes, sorted by name.
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Parts of a sparse file that have content.
    pub(super) parts: Option<Vec<Part>>,
}

/// Reader of the members of a layer.
#[derive(Debug)]
pub(super) struct Archive<R> {
    input: R,
    /// Unread bytes of the current member's content.
    left: u64,
    /// Bytes that pad its last block.
    fill: u64,
    ended: bool,
}

impl<R: Read> Archive<R> {
    pub(super) fn new(input: R) -> Self {
        Archive { input, left: 0, fill: 0, ended: false }
    }

    /// Reads the next member; its content is read with [`Archive::read`]. After the last member
    /// the input is read to its end.
    pub(super) fn next(&mut self) -> Result<Option<Member>> {
        let mut pax = Pax::default();
        let mut long_path = None;
        let mut long_link = None;
        for _ in 0..=HEADERS_MAX {
            self.skip()?;
            let Some(block) = self.header()? else { return Ok(None) };
            let size = size_of(&block)?;
            let kind = block[156];
            match kind {
                b'x' | b'X' => pax = Pax::parse(&self.extension(size, PAX_MAX)?)?,
                // Headers of the whole archive: comments of programs that make archives.
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
            return Err(refuse("a name contains a zero byte"));
        }
        let stored = match pax.size {
            Some(size) => size,
            None => size_of(block)?,
        };
        let kind = match kind {
            // Old archives have no type for directories.
            0 if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::Hardlink,
            b'2' => Kind::Symlink,
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                return Err(refuse(format!("a member has an unknown type ({:?})", char::from(other))));
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
            return Err(refuse("the map of a sparse file does not match its content"));
        }
        member.size = size;
        member.parts = Some(parts);
        Ok(())
    }

    /// Reads the map of a sparse file in the older form: in the header, and in blocks after it,
    /// which do not count as content.
    fn gnu_parts(&mut self, block: &[u8; BLOCK]) -> Result<(Vec<Part>, u64)> {
        let header = tar::Header::from_byte_slice(block);
        let Some(gnu) = header.as_gnu() else { return Err(refuse("a sparse file has no map")) };
        let mut parts = Vec::new();
        let size = unsigned(&gnu.realsize)?;
        let mut more = gnu.isextended[0] == 1;
        add_parts(&mut parts, &gnu.sparse)?;
        while more {
            let mut extension = tar::GnuExtSparseHeader::new();
            exactly(&mut self.input, extension.as_mut_bytes())?;
            add_parts(&mut parts, &extension.sparse)?;
            more = extension.isextended[0] == 1;
        }
        Ok((parts, size))
    }

    /// Reads the map of a sparse file that comes in whole blocks before its content.
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

    /// Reads content of the current member; returns 0 at its end.
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

    /// Skips the rest of the current member.
    fn skip(&mut self) -> Result<()> {
        let rest = self.left + self.fill;
        self.discard(Some(rest))?;
        (self.left, self.fill) = (0, 0);
        Ok(())
    }

    /// Discards `count` bytes, or all up to the end.
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

    /// Reads the next header; `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        if self.ended || !whole(&mut self.input, &mut block)? {
            return Ok(None);
        }
        if block == [0; BLOCK] {
            // Two zero blocks end an archive, or one before the end of the input.
            let second = whole(&mut self.input, &mut block)?;
            if second && block != [0; BLOCK] {
                return Err(refuse("there are members after the end of the archive"));
            }
            self.ended = true;
            self.discard(None)?;
            return Ok(None);
        }
        let stated = number(&block[148..156]).ok();
        let others = block[..148].iter().chain(&block[156..]);
        let unsigned: i64 = others.clone().map(|byte| i64::from(*byte)).sum::<i64>() + 8 * 32;
        // Some old programs sum the bytes as signed.
        let signed: i64 = others.map(|byte| i64::from(byte.cast_signed())).sum::<i64>() + 8 * 32;
        if stated != Some(unsigned) && stated != Some(signed) {
            return Err(refuse("a header's checksum is wrong: this is not a tar archive, or it is damaged"));
        }
        Ok(Some(block))
    }

    /// Reads the content of a header that extends the next member.
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

/// Adds the parts in slots of a map. They are checked once, after the last one.
fn add_parts(parts: &mut Vec<Part>, slots: &[tar::GnuSparseHeader]) -> Result<()> {
    for slot in slots.iter().take_while(|slot| slot.numbytes[0] != 0) {
        parts.push(Part { offset: unsigned(&slot.offset)?, length: unsigned(&slot.numbytes)? });
    }
    pax::bounded(parts.len())
}

fn invalid_number() -> Error {
    refuse("a header has an invalid number")
}

fn cut_short() -> Error {
    refuse("the archive is truncated")
}

fn size_of(block: &[u8; BLOCK]) -> Result<u64> {
    unsigned(&block[124..136])
}

fn unsigned(field: &[u8]) -> Result<u64> {
    u64::try_from(number(field)?).map_err(|_| refuse("a header has a negative size"))
}

fn positive(pax: Option<u64>, field: &[u8]) -> Result<u64> {
    match pax {
        Some(number) => Ok(number),
        None => u64::try_from(number(field)?).map_err(|_| refuse("a header has a negative owner")),
    }
}

/// Parses a number of a header: octal, or binary if the first bit is set.
fn number(field: &[u8]) -> Result<i64> {
    if let Some(first) = field.first().filter(|first| **first & 0x80 != 0) {
        // Two's complement; the first bit is a mark.
        let negative = first & 0x40 != 0;
        let mut value: i128 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 { if negative { byte | 0x80 } else { byte & 0x7f } } else { *byte };
            value = value
                .checked_mul(256)
                .and_then(|value| value.checked_add(i128::from(byte)))
                .ok_or_else(invalid_number)?;
        }
        return i64::try_from(value).map_err(|_| invalid_number());
    }
    let digits = until_nul(field).trim_ascii();
    if digits.is_empty() {
        return Ok(0);
    }
    let text = std::str::from_utf8(digits).map_err(|_| invalid_number())?;
    if text.starts_with(['+', '-']) {
        return Err(invalid_number());
    }
    i64::from_str_radix(text, 8).map_err(|_| invalid_number())
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

/// Fills `buffer`; returns `false` at the end of the input, and fails if only a part can be read.
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
