//! The way of stdin.

use bytes::Bytes;
use guest_protocol::frame::{Decoder, Kind};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;

/// Passes on what the request brings, at the speed of the command. A command
/// that has closed its stdin does not read the rest, and that is no fault.
pub(super) async fn feed(pipe: Sender, mut body: Incoming, mut decoder: Decoder) {
    let mut pipe = Some(pipe);
    loop {
        while let Ok(Some(frame)) = decoder.next_frame() {
            match (frame.kind, &mut pipe) {
                (Kind::Stdin, Some(open)) => {
                    let written = open.write_all(&frame.payload).await;
                    pipe = pipe.filter(|_| written.is_ok());
                }
                (Kind::StdinEnd, _) => pipe = None,
                _ => {}
            }
        }
        match body.frame().await {
            Some(Ok(frame)) => decoder.feed(&frame.into_data().unwrap_or_else(|_| Bytes::new())),
            Some(Err(_)) | None => return,
        }
    }
}
