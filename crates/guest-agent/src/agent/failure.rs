//! Why something was not done, in words for the caller.

use guest_protocol::{Failure, FailureKind};
use rustix::io::Errno;

/// The result of a request.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// A request that makes no sense, or that the box's own rules forbid.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    Failure { kind: FailureKind::Invalid, message: message.into() }
}

/// A failure of `kind`.
pub(crate) fn failure(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into() }
}

/// What the kernel's answer to work on `path` means to the caller.
pub(crate) fn refused(path: &str, errno: Errno) -> Failure {
    let kind = match errno {
        Errno::NOENT => return failure(FailureKind::NotFound, path),
        Errno::NOSPC | Errno::DQUOT => FailureKind::NoSpace,
        Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::AGAIN => FailureKind::Exhausted,
        Errno::IO => FailureKind::Internal,
        _ => FailureKind::Invalid,
    };
    let reason = match errno {
        Errno::ACCESS | Errno::PERM => "permission denied in the sandbox",
        Errno::ROFS => "the file system is read-only",
        Errno::NOTDIR => "a part of the path is not a directory",
        Errno::ISDIR => "is a directory",
        Errno::NOTEMPTY => "the directory is not empty; set `recursive` to remove it with its contents",
        Errno::NAMETOOLONG => "a name in the path is longer than 255 bytes, or the path than 4096",
        Errno::LOOP => "too many symbolic links",
        Errno::XDEV => "the two paths lie on different file systems",
        Errno::BUSY => "is in use by the system",
        Errno::INVAL => "the operation makes no sense here",
        Errno::NOSPC | Errno::DQUOT => "no space left in the sandbox",
        Errno::TXTBSY => "is being executed",
        Errno::FBIG => "the file would become too large",
        _ => return failure(kind, format!("{path}: {errno}")),
    };
    failure(kind, format!("{path}: {reason}"))
}
