//! The boxes that are kept ready, each entry in a task of its own: an image that is not there delays
//! no other.

use std::sync::Arc;
use std::time::Duration;

use super::job::interval;
use crate::control::Control;

/// Interval at which an entry is looked at if none of its boxes is taken: its template or image may have
/// changed, and its boxes grow old.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// First pause after boxes could not be made; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause after boxes could not be made.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Keeps the boxes of an entry ready.
pub(super) async fn keep(control: Arc<Control>, entry: usize) {
    let mut look = interval(LOOK_EVERY);
    let mut pause = PAUSE_MIN;
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = control.warm_wanted(entry) => {}
        }
        if control.keep_warm(entry).await.is_ok() {
            pause = PAUSE_MIN;
        } else {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
