//! Mapping of the kernel's errors to those of the protocol.

use std::fmt::Display;

use guest_protocol::{Failure, FailureKind};
use rustix::io::Errno;

/// Result of the agent's operations.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

fn failure(kind: FailureKind, message: impl Into<String>) -> Failure {
    Failure { kind, message: message.into() }
}

/// Returns the failure of a request that is invalid here.
pub(crate) fn invalid(message: impl Into<String>) -> Failure {
    failure(FailureKind::Invalid, message)
}

/// Returns the failure of a request for a file that does not exist.
pub(crate) fn not_found(message: impl Into<String>) -> Failure {
    failure(FailureKind::NotFound, message)
}

/// Returns the failure of a request for which the box has no resource left.
pub(crate) fn exhausted(message: impl Into<String>) -> Failure {
    failure(FailureKind::Exhausted, message)
}

/// Returns the failure of a request for what something else in the box has.
pub(crate) fn conflict(message: impl Into<String>) -> Failure {
    failure(FailureKind::Conflict, message)
}

/// Returns the failure of a request that this box can never carry out.
pub(crate) fn not_supported(message: impl Into<String>) -> Failure {
    failure(FailureKind::NotSupported, message)
}

/// Returns the failure of the agent itself.
pub(crate) fn internal(message: impl Into<String>) -> Failure {
    failure(FailureKind::Internal, message)
}

/// Returns the failure for the kernel's error on `subject`, mostly a path.
pub(crate) fn refused(subject: impl Display, errno: Errno) -> Failure {
    let kind = match errno {
        Errno::NOENT => FailureKind::NotFound,
        Errno::NOSPC | Errno::DQUOT => FailureKind::NoSpace,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN => FailureKind::Exhausted,
        Errno::IO | Errno::FAULT | Errno::BADF | Errno::NOSYS => FailureKind::Internal,
        // All other errors mean that this path, kind of file or permission does not fit.
        _ => FailureKind::Invalid,
    };
    failure(kind, format!("{subject}: {}", reason(errno)))
}

/// Returns the failure like [`refused`], for a path that is looked up: one that leads through a
/// file that is not a directory does not exist.
pub(crate) fn lookup_refused(subject: impl Display, errno: Errno) -> Failure {
    if errno == Errno::NOTDIR { refused(subject, Errno::NOENT) } else { refused(subject, errno) }
}

/// Returns the text of a kernel error.
pub(crate) fn reason(errno: Errno) -> String {
    let text = match errno {
        Errno::NOENT => "no such file or directory",
        Errno::NOSPC => "no space left in the box",
        Errno::DQUOT => "the disk quota is used up",
        Errno::ACCESS => "permission denied",
        Errno::PERM => "operation not permitted",
        Errno::ROFS => "the file system is read-only",
        Errno::ISDIR => "is a directory",
        Errno::NOTDIR => "not a directory",
        Errno::NAMETOOLONG => "the name is too long",
        Errno::LOOP => "too many levels of symbolic links",
        Errno::NOTEMPTY | Errno::EXIST => "the directory is not empty",
        Errno::INVAL => "not possible with this path",
        Errno::XDEV => "the two paths are on different file systems",
        Errno::BUSY => "in use by the box itself",
        Errno::TXTBSY => "being executed",
        Errno::NXIO | Errno::NODEV => "not a regular file",
        Errno::FBIG => "the file is too large",
        Errno::MFILE | Errno::NFILE => "too many open files",
        Errno::NOMEM => "no memory left",
        _ => return std::io::Error::from_raw_os_error(errno.raw_os_error()).to_string(),
    };
    text.to_owned()
}
