//! Renewal of the files that show the size of the box, while its commands run.
//!
//! A watch would tell when a program opens one of the files. But the kernel takes some 12 milliseconds to
//! remove a watch, and the end of each box would take as much longer.

use std::rc::Rc;
use std::time::Duration;

use crate::agent::Agent;

use super::AGE;

/// Longest pause between two renewals.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Divisor of the time since the box was last used, which gives the pause: most programs look when they
/// start, and a box with a program that runs for days must cost nothing.
const PAUSE_SHARE: u32 = 10;

/// Renews the files from the begin of a command until no command is left.
pub(crate) async fn follow(agent: Rc<Agent>) {
    let Some(size) = &agent.size else { return };
    loop {
        size.used.notified().await;
        while !agent.reapers.is_empty() {
            // Another command, or input, begins the short pauses again.
            let _ = tokio::time::timeout(pause(size.last_used.get().elapsed()), size.used.notified()).await;
            size.renew_if_old();
        }
    }
}

/// Returns the pause in a box that was last used so long ago.
fn pause(unused: Duration) -> Duration {
    (unused / PAUSE_SHARE).clamp(AGE, PAUSE_MAX)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_longer_a_command_runs_alone_the_longer_are_the_pauses() {
        let pauses = [0, 9, 30, 3600].map(|seconds| pause(Duration::from_secs(seconds)).as_secs());
        assert_eq!(pauses, [1, 1, 3, 60]);
    }
}
