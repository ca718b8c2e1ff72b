//! Content that is streamed to another service.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{ByteStream, Error};

/// Progress of an upload.
pub(crate) struct Upload {
    /// Time when the other service last took a piece; `None` while it waits for the content.
    taken: Mutex<Option<Instant>>,
    failure: Mutex<Option<Error>>,
}

/// Returns content as the body of a request, with its progress.
pub(crate) fn watched(content: ByteStream) -> (BoxStream<'static, io::Result<Bytes>>, Arc<Upload>) {
    let state = Arc::new(Upload { taken: Mutex::new(Some(Instant::now())), failure: Mutex::new(None) });
    let content = stream::unfold((content, Arc::clone(&state)), |(mut content, state)| async move {
        // Until the piece arrives, the service is not the one to wait for.
        state.set_taken(None);
        let piece = content.next().await;
        state.set_taken(Some(Instant::now()));
        let piece = match piece? {
            Ok(piece) => Ok(piece),
            Err(error) => {
                *state.failure.lock() = Some(error);
                Err(io::Error::other("the content failed"))
            }
        };
        Some((piece, (content, state)))
    });
    (content.boxed(), state)
}

impl Upload {
    fn set_taken(&self, at: Option<Instant>) {
        *self.taken.lock() = at;
    }

    /// Takes the error of the content, if it has failed.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.lock().take()
    }

    /// Waits until the other service has done nothing for `timeout`.
    pub(crate) async fn stalled(&self, timeout: Duration) {
        loop {
            let taken = *self.taken.lock();
            let due = taken.unwrap_or_else(Instant::now) + timeout;
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}
