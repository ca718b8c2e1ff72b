//! The Unix socket. Only the server's own user and root may connect. The socket of a dead
//! server is replaced, that of a live one is left alone, and the server's own is removed at the
//! end.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixStream};

/// Permissions of the socket: the server's own user, and root.
const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Connections of each listener that may wait in the kernel to be accepted; it may allow fewer
/// (`net.core.somaxconn`). A TCP client beyond them tries again after a second.
pub const BACKLOG: i32 = 4096;

/// Reason why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on the socket `{path}`: {reason}; change `server.unix_socket`")]
pub struct SocketFault {
    path: String,
    reason: String,
}

impl SocketFault {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.display().to_string(), reason: reason.to_string() }
    }
}

/// Listening socket. Its file is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file, so that only the server's own is removed.
    file: (u64, u64),
}

impl Socket {
    /// Listens at `path`, with mode 0600.
    ///
    /// # Errors
    /// [`SocketFault`] if the path holds something else or the socket of a live server, or if
    /// it cannot be used.
    pub fn bind(path: &Path) -> Result<Self, SocketFault> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| SocketFault::new(path, "the path is too long for a socket; use at most 107 bytes"))?;
        // Lock on the folder: of two servers that start at once and find a dead socket, the
        // second must not take the first's new socket for the dead one.
        let folder = path.parent().unwrap_or(path);
        let folder =
            rustix::fs::openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(|errno| SocketFault::new(path, format!("its folder: {}", io::Error::from(errno))))?;
        if rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(SocketFault::new(path, "its folder is locked by another program"));
        }
        make_way(path).map_err(|reason| SocketFault::new(path, reason))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.map_err(|errno| SocketFault::new(path, io::Error::from(errno)))?;
        rustix::net::bind(&socket, &address).map_err(|errno| SocketFault::new(path, io::Error::from(errno)))?;
        let made = std::fs::symlink_metadata(path).map_err(|error| SocketFault::new(path, error))?;
        // No client can connect before `listen`.
        let listening = rustix::fs::chmod(path, MODE).and_then(|()| rustix::net::listen(&socket, BACKLOG));
        let listener = listening.map_err(io::Error::from).and_then(|()| UnixListener::from_std(socket.into()));
        match listener {
            Ok(listener) => Ok(Self { listener, path: path.to_owned(), file: (made.dev(), made.ino()) }),
            Err(error) => {
                let _ = std::fs::remove_file(path);
                Err(SocketFault::new(path, error))
            }
        }
    }

    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        self.listener.accept().await.map(|(stream, _)| stream)
    }
}

/// Removes the socket of a dead server. Returns the reason if something else is at the path.
fn make_way(path: &Path) -> Result<(), String> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if !found.file_type().is_socket() {
        return Err("the path exists and is not a socket; it is not removed".to_owned());
    }
    match Probe::connect(path) {
        Ok(_) => Err("another server listens there; stop it".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(path = %path.display(), "replacing the socket of a server that no longer runs");
            std::fs::remove_file(path).map_err(|error| error.to_string())
        }
        Err(error) => Err(format!("cannot determine whether a server listens there: {error}")),
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn reason(path: &Path) -> String {
        Socket::bind(path).unwrap_err().to_string()
    }

    #[tokio::test]
    async fn it_is_ours_alone_and_goes_with_us() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_dead_servers_socket_is_replaced_and_a_live_ones_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let live = Socket::bind(&path).unwrap();
        assert!(reason(&path).contains("another server listens there"), "{}", reason(&path));
        assert!(Probe::connect(&path).is_ok());
        drop(live);
        let _again = Socket::bind(&path).unwrap();
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        std::fs::write(&path, "precious").unwrap();
        assert!(reason(&path).contains("not a socket"), "{}", reason(&path));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let link = dir.path().join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(reason(&link).contains("not a socket"), "{}", reason(&link));
    }

    #[tokio::test]
    async fn anothers_socket_is_not_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let socket = Socket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(socket);
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_path_that_cannot_be_used_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = reason(&dir.path().join("none/s"));
        assert!(nowhere.contains("folder") && nowhere.contains("server.unix_socket"), "{nowhere}");
        let long = reason(&dir.path().join("x".repeat(120)));
        assert!(long.contains("107"), "{long}");
    }
}
