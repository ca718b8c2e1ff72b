//! What an archive holds, and where in it: for archives that are whole images.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use sha2::{Digest, Sha256};

use super::Compression;
use super::archive::{Archive, Kind, refuse};
use super::stream::{decoder, fault, hex};
use super::unpack::clean;
use crate::{Error, Result};

/// An archive of images has no more members than this; the names of those beyond it
/// are not remembered.
const MEMBERS_MAX: u64 = 20_000;
/// Links in an archive that lead from one to the next.
const LINKS_MAX: usize = 16;

/// What an archive holds.
#[derive(Debug)]
pub(in crate::images) struct Contents {
    places: HashMap<Vec<u8>, Place>,
    /// How many members there are.
    pub(in crate::images) members: u64,
    /// The digest of all its uncompressed bytes.
    pub(in crate::images) digest: String,
}

#[derive(Debug)]
enum Place {
    /// Where in the uncompressed archive the content begins, and its size.
    File(u64, u64),
    /// The member that has the content.
    Link(Vec<u8>),
}

impl Contents {
    /// Reads an archive, of at most `bytes_max` uncompressed bytes.
    pub(in crate::images) fn read(
        input: impl BufRead + Send,
        compression: Compression,
        bytes_max: u64,
    ) -> Result<Contents> {
        let state = Rc::new(RefCell::new(State { bytes: 0, hash: Sha256::new(), fault: None }));
        let plain = Watched { input: decoder(input, compression)?, bytes_max, state: Rc::clone(&state) };
        let listed = list(plain, &state);
        let mut state = state.borrow_mut();
        if let Some(fault) = state.fault.take() {
            return Err(fault);
        }
        let (places, members) = listed?;
        let digest = format!("sha256:{}", hex(&std::mem::take(&mut state.hash).finalize()));
        Ok(Contents { places, members, digest })
    }

    /// Where the content of a member is, and its size. Links in the archive lead to
    /// members of the archive, and nowhere else.
    pub(in crate::images) fn find(&self, name: &str) -> Option<(u64, u64)> {
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
        // Of members with one name the last one counts.
        places.insert(name, place);
    }
    Ok((places, members))
}

/// How bytes are compressed, as they show themselves.
pub(in crate::images) fn compression_of(head: &[u8]) -> Compression {
    if head.starts_with(&[0x1f, 0x8b]) {
        Compression::Gzip
    } else if head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Compression::Zstd
    } else {
        Compression::None
    }
}

struct State {
    bytes: u64,
    hash: Sha256,
    fault: Option<Error>,
}

/// Counts and hashes what passes, up to a bound.
struct Watched<'a> {
    input: Box<dyn Read + Send + 'a>,
    bytes_max: u64,
    state: Rc<RefCell<State>>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
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
        if state.bytes > self.bytes_max {
            let most = self.bytes_max;
            state.fault = Some(refuse(format!("it is larger than {most} bytes, the most that images may be here")));
            return Err(io::Error::other("the archive is too large"));
        }
        Ok(got)
    }
}
