//! Table of contents of an archive of whole images.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::archive::{Archive, Kind};
use super::layer::Compression;
use super::stream::{decoder, fault};
use super::unpack::clean;
use crate::digest::finish;
use crate::error::{Error, Result, refuse, stopped};
use crate::processors::Pace;

/// Most members recorded of an archive; the names of those beyond it are not kept.
const MEMBERS_MAX: u64 = 20_000;
/// Most links followed from one member to another.
const LINKS_MAX: usize = 16;

/// Table of contents of an archive.
#[derive(Debug)]
pub(crate) struct Contents {
    places: HashMap<Vec<u8>, Place>,
    /// Number of members, including those not recorded.
    pub(crate) members: u64,
    /// Digest of all uncompressed bytes.
    pub(crate) digest: String,
}

#[derive(Debug)]
enum Place {
    /// Offset of the content in the uncompressed archive, and its size, in bytes.
    File(u64, u64),
    /// Name of the member that has the content.
    Link(Vec<u8>),
}

impl Contents {
    /// Reads an archive of at most `bytes_max` uncompressed bytes; fails once `stop` is
    /// cancelled.
    pub(crate) fn read(
        input: impl BufRead + Send,
        compression: Compression,
        bytes_max: u64,
        stop: &CancellationToken,
    ) -> Result<Contents> {
        let state = Rc::new(RefCell::new(State { bytes: 0, hash: Sha256::new(), fault: None }));
        let plain = Watched {
            input: decoder(input, compression)?,
            bytes_max,
            stop,
            pace: Pace::default(),
            state: Rc::clone(&state),
        };
        let listed = list(plain, &state);
        let mut state = state.borrow_mut();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        let (places, members) = listed?;
        let digest = finish(std::mem::take(&mut state.hash));
        Ok(Contents { places, members, digest })
    }

    /// Returns the offset and the size of a member's content. Links lead only to members of the
    /// archive.
    pub(crate) fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = clean(name.as_bytes()).join(&b'/');
        for _ in 0..LINKS_MAX {
            match self.places.get(&name)? {
                Place::File(offset, size) => return Some((*offset, *size)),
                Place::Link(target) => name.clone_from(target),
            }
        }
        None
    }
}

fn list(plain: Watched<'_>, state: &RefCell<State>) -> Result<(HashMap<Vec<u8>, Place>, u64)> {
    let mut archive = Archive::new(plain);
    let mut places = HashMap::new();
    let mut members = 0;
    while let Some(member) = archive.next()? {
        members += 1;
        if members > MEMBERS_MAX {
            continue;
        }
        let steps = clean(&member.path);
        let name = steps.join(&b'/');
        let place = match member.kind {
            Kind::File if member.parts.is_none() => Place::File(state.borrow().bytes, member.size),
            Kind::Hardlink => Place::Link(clean(&member.link).join(&b'/')),
            Kind::Symlink => {
                let above = steps.split_last().map_or(&[][..], |(_, above)| above).join(&b'/');
                let target = if member.link.starts_with(b"/") {
                    member.link.clone()
                } else {
                    [&above[..], b"/", &member.link].concat()
                };
                Place::Link(clean(&target).join(&b'/'))
            }
            Kind::File | Kind::Directory | Kind::Fifo | Kind::Device => continue,
        };
        // Of members with one name, the last one counts.
        places.insert(name, place);
    }
    Ok((places, members))
}

/// Bytes that [`compression_of`] needs.
pub(crate) const HEAD: usize = 10;

/// Detects the compression from the first bytes; fails for a format that is not supported.
pub(crate) fn compression_of(head: &[u8]) -> Result<Compression> {
    // The magic number alone could be the start of a file's name.
    let bzip2 = head.starts_with(b"BZh") && head.get(4..10) == Some(b"\x31\x41\x59\x26\x53\x59");
    let other = match head {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        _ if bzip2 => "bzip2",
        [0x04, 0x22, 0x4d, 0x18, ..] => "lz4",
        [b'P', b'K', 3, 4, ..] => "zip",
        [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => "7-Zip",
        [0x1f, 0x8b, ..] => return Ok(Compression::Gzip),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return Ok(Compression::Zstd),
        _ => return Ok(Compression::None),
    };
    Err(refuse(format!("it is compressed with {other}; use plain tar, gzip or zstd")))
}

struct State {
    bytes: u64,
    hash: Sha256,
    fault: Option<Error>,
}

/// Reader that counts and hashes the bytes, up to a limit.
struct Watched<'a> {
    input: Box<dyn Read + Send + 'a>,
    bytes_max: u64,
    stop: &'a CancellationToken,
    pace: Pace,
    state: Rc<RefCell<State>>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        if self.stop.is_cancelled() {
            state.fault = Some(stopped());
            return Err(io::Error::other("the import was stopped"));
        }
        let got = match self.input.read(buffer) {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                state.fault = Some(fault(error));
                return Err(io::Error::other("the archive cannot be read"));
            }
        };
        state.hash.update(&buffer[..got]);
        state.bytes += got as u64;
        self.pace.count(got);
        if state.bytes > self.bytes_max {
            let most = self.bytes_max;
            state.fault = Some(Error::TooLarge(format!(
                "it is larger than {most} bytes unpacked, the limit for images; raise `images.max_image_mb` to accept \
                 it"
            )));
            return Err(io::Error::other("the archive is too large"));
        }
        Ok(got)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_packed_an_archive_is_seen_by_its_first_bytes() {
        let of = |head: &[u8]| compression_of(head).map_err(|error| error.to_string());
        assert_eq!(of(b"\x1f\x8b\x08"), Ok(Compression::Gzip));
        assert_eq!(of(b"\x28\xb5\x2f\xfd\x00"), Ok(Compression::Zstd));
        // A file of such a name may come first.
        for plain in [&b""[..], b"etc/passwd", b"BZh9-notes.txt", b"7z"] {
            assert_eq!(of(plain), Ok(Compression::None), "{plain:?}");
        }
        for (head, name) in [
            (&b"\xfd7zXZ\x00\x00\x04"[..], "xz"),
            (b"BZh91AY&SY\x00", "bzip2"),
            (b"PK\x03\x04", "zip"),
            (b"\x04\x22\x4d\x18", "lz4"),
        ] {
            let why = of(head).unwrap_err();
            assert!(why.contains(&format!("compressed with {name};")) && why.contains("gzip or zstd"), "{why}");
        }
    }
}
