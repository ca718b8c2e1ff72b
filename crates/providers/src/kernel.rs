//! Kernel resources of this host that all boxes share and that no limit of a single box covers.

/// Kernel resource shared by all boxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelShare {
    /// Bytes queued in connections that no program has accepted.
    TcpBytes,
    /// Connections closed with data that the other end does not take.
    TcpOrphans,
    /// Open files, sockets and timers.
    OpenFiles,
    /// Files watched by `epoll`: the kernel counts them per user of the host.
    Watches,
}
