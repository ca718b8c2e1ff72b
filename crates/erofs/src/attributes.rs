//! Extended attributes of an inode.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{fgetxattr, flistxattr};
use rustix::io::Errno;

use super::format::{ATTRIBUTES_BYTES_MAX, ATTRIBUTES_HEAD};
use super::tree::{Ids, Unfit};

/// Prefixes of names, each with the number that stands for it.
const PREFIXES: [(&str, u8); 4] = [("user.", 1), ("trusted.", 4), ("lustre.", 5), ("security.", 6)];
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";
/// Attributes in which an overlay notes where a file was copied from. In another tree that is not
/// true any more, and none of them changes what a reader sees.
const OF_ONE_OVERLAY: [&[u8]; 4] =
    [b"user.overlay.origin", b"user.overlay.impure", b"user.overlay.nlink", b"user.overlay.uuid"];
/// Bytes of the names that are usual.
const USUAL_BYTES: usize = 256;
/// Bytes of all names of an inode, and of one value: the most that the kernel takes.
const BYTES_MAX: usize = 64 * 1024;

/// Returns the attributes of a file or directory as they follow its inode; empty if there are none.
pub(crate) fn of(file: BorrowedFd<'_>, ids: Ids) -> io::Result<Vec<u8>> {
    let mut names = [0u8; USUAL_BYTES];
    let mut many;
    let names = match flistxattr(file, &mut names[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Ok(count) => &names[..count],
        Err(Errno::RANGE) => {
            many = vec![0u8; BYTES_MAX];
            let count = flistxattr(file, &mut many[..]).map_err(too_many)?;
            &many[..count]
        }
        Err(errno) => return Err(errno.into()),
    };
    let mut encoded = vec![0; ATTRIBUTES_HEAD];
    let mut value = vec![0u8; BYTES_MAX];
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let Some((number, short)) = split(name) else { continue };
        let count = match fgetxattr(file, name, &mut value[..]) {
            Ok(count) => count,
            Err(Errno::NODATA) => continue,
            Err(errno) => return Err(errno.into()),
        };
        let value = shifted(name, &value[..count], ids);
        let lengths = (u8::try_from(short.len()), u16::try_from(value.len()));
        let (Ok(name_bytes), Ok(value_bytes)) = lengths else { return Err(Unfit::TooManyAttributes.into()) };
        encoded.extend_from_slice(&[name_bytes, number]);
        encoded.extend_from_slice(&value_bytes.to_le_bytes());
        encoded.extend_from_slice(short);
        encoded.extend_from_slice(&value);
        encoded.resize(encoded.len().next_multiple_of(4), 0);
        if encoded.len() > ATTRIBUTES_BYTES_MAX {
            return Err(Unfit::TooManyAttributes.into());
        }
    }
    if encoded.len() == ATTRIBUTES_HEAD {
        encoded.clear();
    }
    Ok(encoded)
}

fn too_many(errno: Errno) -> io::Error {
    if errno == Errno::TOOBIG { Unfit::TooManyAttributes.into() } else { errno.into() }
}

/// Returns the number of a name's prefix, and the rest; `None` for one that is left out.
fn split(name: &[u8]) -> Option<(u8, &[u8])> {
    match name {
        ACCESS_LIST => return Some((2, &[])),
        DEFAULT_LIST => return Some((3, &[])),
        _ => {}
    }
    if OF_ONE_OVERLAY.contains(&name) {
        return None;
    }
    PREFIXES.iter().find_map(|(prefix, number)| Some((*number, name.strip_prefix(prefix.as_bytes())?)))
}

/// Returns a value with the ids in it as the image has them.
fn shifted(name: &[u8], value: &[u8], ids: Ids) -> Vec<u8> {
    match name {
        ACCESS_LIST | DEFAULT_LIST => shifted_list(value, ids),
        CAPABILITY => shifted_capability(value, ids),
        _ => value.to_owned(),
    }
}

/// Shifts the users and groups of an access list: a version, then entries of a tag, the permissions
/// and an id. See `linux/posix_acl_xattr.h`.
fn shifted_list(value: &[u8], ids: Ids) -> Vec<u8> {
    const NAMES_USER: u16 = 0x02;
    const NAMES_GROUP: u16 = 0x08;
    let mut value = value.to_owned();
    for entry in value.get_mut(4..).unwrap_or_default().chunks_exact_mut(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if tag == NAMES_USER || tag == NAMES_GROUP {
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&ids.shifted(id).to_le_bytes());
        }
    }
    value
}

/// Makes the capabilities that count for the root of a box those that count for the root of any
/// reader: version 3 names that root at its end, and version 2 does not. See `linux/capability.h`.
fn shifted_capability(value: &[u8], ids: Ids) -> Vec<u8> {
    const VERSION_2: u32 = 0x0200_0000;
    const VERSION_3: u32 = 0x0300_0000;
    const VERSION: u32 = 0xff00_0000;
    match (number_at(value, 0), number_at(value, 20)) {
        (Some(head), Some(root)) if head & VERSION == VERSION_3 && root == ids.base => {
            let mut value = value[..20].to_owned();
            value[..4].copy_from_slice(&(head & !VERSION | VERSION_2).to_le_bytes());
            value
        }
        _ => value.to_owned(),
    }
}

fn number_at(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
}
