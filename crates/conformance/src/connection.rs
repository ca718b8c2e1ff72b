//! Connection with a process of a box.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::ByteStream;
use tokio::sync::mpsc;

use super::subject::soon;

/// A connection under test.
pub(super) struct Connection {
    /// Taken at the end of what is sent.
    pub(super) sender: Option<mpsc::Sender<Bytes>>,
    pub(super) output: ByteStream,
}

/// Makes a stream of what the sender is given.
pub(super) fn input() -> (mpsc::Sender<Bytes>, ByteStream) {
    let (sender, receiver) = mpsc::channel(1);
    let input = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
        Some((Ok(receiver.recv().await?), receiver))
    });
    (sender, input.boxed())
}

impl Connection {
    pub(super) fn new(sender: mpsc::Sender<Bytes>, output: ByteStream) -> Connection {
        Connection { sender: Some(sender), output }
    }

    pub(super) async fn send(&mut self, bytes: impl Into<Bytes>) {
        soon("a send", self.sender.as_ref().unwrap().send(bytes.into())).await.unwrap();
    }

    /// Reads `count` bytes.
    pub(super) async fn read(&mut self, count: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend_from_slice(&soon("bytes", self.output.next()).await.unwrap().unwrap());
        }
        assert_eq!(all.len(), count);
        all
    }

    /// Checks that a process which sends back what it reads is there.
    pub(super) async fn echo(&mut self) {
        self.send("hello").await;
        assert_eq!(self.read(5).await, b"hello");
    }

    /// Sends all these bytes and then the end, and checks that the same come back meanwhile.
    pub(super) async fn exchange(&mut self, bytes: &[u8]) {
        let sender = self.sender.take().unwrap();
        let pieces: Vec<Bytes> = bytes.chunks(70_000).map(Bytes::copy_from_slice).collect();
        let sending = async move {
            for piece in pieces {
                sender.send(piece).await.unwrap();
            }
        };
        let ((), read) = tokio::join!(sending, self.read(bytes.len()));
        assert!(read == bytes);
    }

    /// Reads to the end.
    pub(super) async fn rest(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = soon("the rest", self.output.next()).await {
            all.extend_from_slice(&piece.unwrap());
        }
        all
    }
}
