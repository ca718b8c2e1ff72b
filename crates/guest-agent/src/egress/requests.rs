//! Connections that processes have asked for and that wait for the server's answer.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{EGRESS_CONNECTIONS_MAX, EGRESS_WAIT, EgressRefuse, EgressRow, Failure};
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};

use super::inside;
use super::names::{Found, Names};
use super::output::Output;
use super::refusal::Refusal;
use super::target::Target;
use crate::failure::{Result, not_found};

/// Longest wait for a server that receives: one that restarts is back by then.
const RECEIVER_WAIT: Duration = Duration::from_secs(5);

/// Connections that wait for an answer, and the server that receives them.
#[derive(Debug)]
pub(super) struct Requests {
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Answer>>>,
    receiver: watch::Sender<Option<mpsc::Sender<Bytes>>>,
    /// True once there was a receiver.
    had_receiver: Cell<bool>,
    /// Port of the proxy, if what listens at its loopback is the box's alone.
    own_port: Cell<Option<u16>>,
    /// Names that processes know by an address of the agent's, if they are led to it.
    names: Option<Rc<Names>>,
}

type Answer = Result<Accepted, Refusal>;

/// A connection that the server makes.
#[derive(Debug)]
pub(super) struct Accepted {
    /// Bytes that the host sends.
    pub(super) input: Incoming,
    /// Takes the bytes that the process sends.
    pub(super) reply: oneshot::Sender<Output>,
}

impl Default for Requests {
    fn default() -> Requests {
        Requests {
            next: Cell::default(),
            waiting: RefCell::default(),
            receiver: watch::Sender::new(None),
            had_receiver: Cell::default(),
            own_port: Cell::default(),
            names: None,
        }
    }
}

impl Requests {
    pub(super) fn new(names: Option<Rc<Names>>) -> Requests {
        Requests { names, ..Requests::default() }
    }

    pub(super) fn names(&self) -> Option<&Rc<Names>> {
        self.names.as_ref()
    }

    /// Allows connections to processes of the box itself. `own` is the port of the proxy.
    pub(super) fn allow_inside(&self, own: u16) {
        self.own_port.set(Some(own));
    }

    /// Connects to a process of the box itself; `None` if the target is none.
    pub(super) async fn dial_inside(&self, target: &Target) -> Option<TcpStream> {
        inside::dial(target, self.own_port.get()?).await
    }

    /// Asks the server for a connection. Dropping the future takes the request back.
    pub(super) async fn ask(&self, target: &Target) -> Answer {
        if !self.had_receiver.get() {
            let is_the_box = self.own_port.get().is_some() && inside::is_the_box(&target.host);
            return Err(if is_the_box {
                Refusal::nothing_listens(&target.host, target.port)
            } else {
                Refusal::no_network()
            });
        }
        let host = self.host(target)?;
        let id = self.next.get();
        self.next.set(id + 1);
        let (sender, answer) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, sender);
        let _waiting = Waiting { requests: self, id };
        let row = EgressRow { id, host, port: target.port };
        let mut row = serde_json::to_vec(&row).map_err(|_| Refusal::malformed("the host is not text"))?;
        row.push(b'\n');
        tokio::select! {
            biased;
            answer = answer => answer.unwrap_or_else(|_| Err(Refusal::late())),
            refusal = self.offer(row.into()) => Err(refusal),
            () = sleep(EGRESS_WAIT) => Err(Refusal::late()),
        }
    }

    /// Returns the host to ask the server for: the name, if the process knows it by an address of the
    /// agent's.
    fn host(&self, target: &Target) -> Result<String, Refusal> {
        let address = self.names.as_ref().zip(target.host.parse().ok());
        match address.map(|(names, address)| names.name_of(address)) {
            Some(Found::Name(name)) => Ok(name.to_string()),
            Some(Found::Gone) => Err(Refusal::forgotten(&target.host)),
            Some(Found::NoName) | None => Ok(target.host.clone()),
        }
    }

    /// Hands the row to the receiver, and to each later one. Returns only if there is none.
    async fn offer(&self, row: Bytes) -> Refusal {
        let mut receivers = self.receiver.subscribe();
        loop {
            let is_taken = match timeout(RECEIVER_WAIT, receivers.wait_for(Option::is_some)).await {
                // It has room for a row of every connection that there can be. Only rows of processes
                // that have hung up can fill it.
                Ok(Ok(receiver)) => receiver.as_ref().is_some_and(|it| it.try_send(row.clone()).is_ok()),
                Ok(Err(_)) | Err(_) => false,
            };
            if !is_taken || receivers.changed().await.is_err() {
                return Refusal::no_service();
            }
        }
    }

    /// Begins to hand over what processes ask for, and ends the earlier receiver.
    pub(super) fn receive(self: &Rc<Self>) -> Rows {
        let (sender, rows) = mpsc::channel(EGRESS_CONNECTIONS_MAX);
        self.had_receiver.set(true);
        self.receiver.send_replace(Some(sender));
        Rows { rows, requests: Rc::clone(self) }
    }

    /// Answers a process that its connection is made, and waits until the process has it.
    pub(super) async fn accept(&self, id: u64, input: Incoming) -> Result<Output> {
        let (reply, output) = oneshot::channel();
        self.answer(id, Ok(Accepted { input, reply }))?;
        output.await.map_err(|_| gone())
    }

    /// Answers a process that its connection is not made.
    pub(super) fn refuse(&self, refuse: EgressRefuse) -> Result<()> {
        self.answer(refuse.id, Err(refuse.into()))
    }

    fn answer(&self, id: u64, answer: Answer) -> Result<()> {
        let waiting = self.waiting.borrow_mut().remove(&id).ok_or_else(gone)?;
        waiting.send(answer).map_err(|_| gone())
    }
}

fn gone() -> Failure {
    not_found("no process is waiting for this connection: it has hung up or was already answered")
}

/// Place of a process that waits.
struct Waiting<'a> {
    requests: &'a Requests,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.requests.waiting.borrow_mut().remove(&self.id);
    }
}

/// Lines of the connections that processes ask for, until a later receiver takes over.
#[derive(Debug)]
pub(crate) struct Rows {
    rows: mpsc::Receiver<Bytes>,
    requests: Rc<Requests>,
}

impl Rows {
    /// Returns the next line; `None` if there is another receiver.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.rows.poll_recv(cx)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.rows.close();
        self.requests.receiver.send_if_modified(|receiver| {
            let is_this = receiver.as_ref().is_some_and(mpsc::Sender::is_closed);
            if is_this {
                *receiver = None;
            }
            is_this
        });
    }
}

#[cfg(test)]
mod test {
    use std::future::poll_fn;

    use guest_protocol::EgressReason;
    use tokio::time::Instant;

    use super::*;

    fn target() -> Target {
        Target::parse("a.example:443", None).unwrap()
    }

    async fn refused(requests: &Requests) -> (u16, Duration) {
        let started = Instant::now();
        (requests.ask(&target()).await.unwrap_err().status(), started.elapsed())
    }

    async fn row(rows: &mut Rows) -> EgressRow {
        serde_json::from_slice(&poll_fn(|cx| rows.poll_piece(cx)).await.unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn every_wait_for_a_server_ends() {
        let requests = Rc::new(Requests::default());
        assert_eq!(refused(&requests).await, (403, Duration::ZERO));
        let rows = requests.receive();
        assert_eq!(refused(&requests).await, (504, EGRESS_WAIT));
        drop(rows);
        assert_eq!(refused(&requests).await, (503, RECEIVER_WAIT));
        assert!(requests.waiting.borrow().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_receiver_leaves_unanswered_is_asked_of_the_next_one() {
        let requests = Rc::new(Requests::default());
        let mut first = requests.receive();
        let process = refused(&requests);
        let server = async {
            let asked = row(&mut first).await;
            drop(first);
            tokio::time::sleep(RECEIVER_WAIT / 2).await;
            let mut second = requests.receive();
            assert_eq!(row(&mut second).await, asked);
            let mut third = requests.receive();
            assert!(poll_fn(|cx| second.poll_piece(cx)).await.is_none());
            // Its end is not that of the third.
            drop(second);
            assert_eq!(row(&mut third).await, asked);
            let refuse = EgressRefuse { id: asked.id, reason: EgressReason::Busy, message: String::new() };
            requests.refuse(refuse).unwrap();
            third
        };
        let ((status, _), _third) = tokio::join!(process, server);
        assert_eq!(status, 429);
    }

    #[tokio::test(start_paused = true)]
    async fn processes_that_hang_up_fill_a_queue_of_bounded_length() {
        let requests = Rc::new(Requests::default());
        let mut rows = requests.receive();
        for _ in 0..EGRESS_CONNECTIONS_MAX {
            assert!(timeout(Duration::ZERO, requests.ask(&target())).await.is_err());
        }
        assert!(requests.waiting.borrow().is_empty());
        assert_eq!(refused(&requests).await, (503, Duration::ZERO));
        row(&mut rows).await;
        // There is a place again.
        assert!(timeout(Duration::ZERO, requests.ask(&target())).await.is_err());
    }
}
