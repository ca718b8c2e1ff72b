//! Extended attributes of files, where a service keeps what its clients say of them.

use guest_protocol::{NewXattrs, XATTR_PATHS_MAX, XATTRS_BYTES_MAX, Xattrs, XattrsOf};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    XattrFlags, flistxattr, flistxattr_query, fremovexattr, fsetxattr, lgetxattr, llistxattr, llistxattr_query,
};
use rustix::io::Errno;

use super::path::check;
use crate::failure::{Result, invalid};

/// Maximum size of the names of a file's attributes, from the kernel's `XATTR_LIST_MAX`.
const NAMES_BYTES_MAX: usize = 64 * 1024;

/// Returns the attributes of each file; none for a file that is not there, has none, or may not be read.
///
/// # Errors
/// Invalid for more than [`XATTR_PATHS_MAX`] paths, or one that is no path.
pub(crate) fn read(request: &XattrsOf) -> Result<Vec<Xattrs>> {
    if request.paths.len() > XATTR_PATHS_MAX {
        return Err(invalid(format!("at most {XATTR_PATHS_MAX} paths may be asked for at once")));
    }
    let mut names = Vec::new();
    request.paths.iter().map(|path| Ok(of(check(path)?.bytes(), &request.prefix, &mut names))).collect()
}

/// Returns the attributes with a prefix of a file. `names` is a buffer.
fn of(path: &[u8], prefix: &str, names: &mut Vec<u8>) -> Xattrs {
    let mut found = Xattrs::new();
    // Most files have none, which costs no buffer.
    if !matches!(llistxattr_query(path), Ok(1..)) {
        return found;
    }
    names.resize(NAMES_BYTES_MAX, 0);
    let length = llistxattr(path, &mut names[..]).unwrap_or(0);
    let mut value = [0; XATTRS_BYTES_MAX];
    let mut left = XATTRS_BYTES_MAX;
    for name in own(&names[..length], prefix) {
        let Ok(length) = lgetxattr(path, name, &mut value[..]) else { continue };
        let (Ok(text), rest) = (std::str::from_utf8(&value[..length]), &name[prefix.len()..]) else { continue };
        let Some(remaining) = left.checked_sub(rest.len() + text.len()) else { break };
        left = remaining;
        found.insert(rest.to_owned(), text.to_owned());
    }
    found
}

/// Returns the names with a prefix, sorted.
fn own<'a>(names: &'a [u8], prefix: &str) -> Vec<&'a str> {
    let names = names.split(|byte| *byte == 0).filter_map(|name| std::str::from_utf8(name).ok());
    let mut own: Vec<_> = names.filter(|name| name.len() > prefix.len() && name.starts_with(prefix)).collect();
    own.sort_unstable();
    own
}

/// Gives a file these attributes instead of those with their prefix.
///
/// # Errors
/// Those of the system calls; `NOTSUP` where the file system keeps no attributes and there are some.
pub(super) fn replace(file: &OwnedFd, new: &NewXattrs) -> Result<(), Errno> {
    let NewXattrs { prefix, values } = new;
    for name in own(&names(file.as_fd())?, prefix) {
        if !values.contains_key(&name[prefix.len()..]) {
            match fremovexattr(file, name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    values
        .iter()
        .try_for_each(|(name, value)| fsetxattr(file, format!("{prefix}{name}"), value.as_bytes(), XattrFlags::empty()))
}

/// Returns the names of the attributes of a file, each with a zero byte behind it.
fn names(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    match flistxattr_query(&file) {
        Ok(0) | Err(Errno::NOTSUP) => return Ok(Vec::new()),
        found => found?,
    };
    let mut names = vec![0; NAMES_BYTES_MAX];
    let length = flistxattr(&file, &mut names[..])?;
    names.truncate(length);
    Ok(names)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_names_behind_the_prefix_are_taken() {
        let names = b"user.tool.b\0user.tool.\0user.tool\0security.x\0user.tool.a\0user.t\xff\0";
        assert_eq!(own(names, "user.tool."), ["user.tool.a", "user.tool.b"]);
        assert!(own(b"", "user.tool.").is_empty());
    }
}
