//! What the kernel of this host has once for all boxes, and counts to no limit of one.

/// Something of the kernel that boxes share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelShare {
    /// Bytes that wait in connections which no program has accepted.
    TcpBytes,
    /// Connections that were closed with data which the other end does not take.
    TcpOrphans,
    /// Open files, sockets and timers.
    OpenFiles,
    /// Files that are watched by `epoll`: the kernel counts them for a user of the host.
    Watches,
}
