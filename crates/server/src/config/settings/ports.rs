//! Settings of the ports of sandboxes.

use std::time::Duration;

use super::super::declare::section;
use super::super::read::ANY_SPAN;

section! {
    /// Ports of sandboxes.
    pub struct Ports {
        /// Interval between checks for listening ports in a sandbox, for the events `ports.opened`
        /// and `ports.closed`; `0` turns off checks and events.
        pub watch_interval: Duration = "1s" as ANY_SPAN,
        /// True to let callers listen on ports of their sandboxes, so that programs there can reach what the
        /// caller forwards connections to. The server itself makes no connections for this.
        pub reverse: bool = "true",
    }
}
