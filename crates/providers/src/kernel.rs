//! Kernel resources of this host that all boxes share and that no limit of a single box covers.

/// Kernel resource shared by all boxes, with the unit that its use is measured in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelShare {
    /// Bytes queued in connections that no program has accepted.
    TcpBytes,
    /// Number of connections closed with data that the other end does not take.
    TcpOrphans,
    /// Number of open files, sockets and timers.
    OpenFiles,
    /// Number of files watched by `epoll`, which the kernel counts per user of the host.
    Watches,
}
