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
        /// True to let callers listen on ports of their sandboxes, so that programs there reach what the
        /// caller passes the connections on to. The server itself connects to nothing for it.
        pub reverse: bool = "true",
    }
}
