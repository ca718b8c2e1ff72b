//! A socket.

use std::net::IpAddr;

/// A socket that listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Socket {
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
    pub(crate) inode: u64,
}
