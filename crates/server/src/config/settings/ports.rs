//! Settings of the ports of sandboxes.

use std::time::Duration;

use super::super::declare::section;
use super::super::read::ANY_SPAN;

section! {
    /// Ports of sandboxes.
    pub struct Ports {
        /// Time between two looks at the ports that listen in a sandbox, for the events
        /// `ports.opened` and `ports.closed`; `0` for neither looks nor events.
        pub watch_interval: Duration = "1s" as ANY_SPAN,
    }
}
