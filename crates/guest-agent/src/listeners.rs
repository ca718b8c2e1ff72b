//! Ports of the box that a caller listens on, and the connections that wait for the caller.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use guest_protocol::{LISTEN_CONNECTIONS_MAX, LISTENERS_MAX, Listen, ListenAccept, ListenRefuse, ListenRow, Network};
use hyper::body::Incoming;
use rustix::io::Errno;
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::sleep;

use crate::failure::{Result, conflict, exhausted, internal, invalid, not_found, not_supported};
use crate::link::{Link, Output};
use crate::tcp::bind;

/// Pause before the next accept when no descriptor is left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Ports that are listened on for callers.
#[derive(Debug)]
pub(crate) struct Listeners {
    next: Cell<u64>,
    /// Addresses that are listened on, by the number of the listener.
    addresses: RefCell<HashMap<u64, Vec<SocketAddr>>>,
    /// Connections that wait, by their numbers.
    waiting: RefCell<HashMap<u64, Waiting>>,
    /// Places for connections, which wait or are open.
    places: Arc<Semaphore>,
}

/// A connection that waits for the caller.
#[derive(Debug)]
struct Waiting {
    stream: TcpStream,
    permit: OwnedSemaphorePermit,
    listener: u64,
}

impl Default for Listeners {
    fn default() -> Listeners {
        Listeners {
            next: Cell::default(),
            addresses: RefCell::default(),
            waiting: RefCell::default(),
            places: Arc::new(Semaphore::new(LISTEN_CONNECTIONS_MAX)),
        }
    }
}

impl Listeners {
    /// Returns whether the agent listens at this address for a caller.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        self.addresses.borrow().values().flatten().any(|own| *own == SocketAddr::new(address, port))
    }

    /// Begins to listen on the loopback of the box. `is_agents` says whether the agent itself listens
    /// there.
    ///
    /// # Errors
    /// Conflict if a process of the box listens on the port, invalid if the agent may not or does
    /// itself, exhausted if there are too many listeners, not supported on a network that is shared.
    pub(crate) fn listen(
        self: &Rc<Self>,
        request: Listen,
        network: Network,
        is_agents: impl Fn(IpAddr, u16) -> bool,
    ) -> Result<Rows> {
        let Listen { port } = request;
        if port == 0 {
            return Err(invalid("port 0 does not exist; ports are numbered from 1"));
        }
        if network == Network::Shared {
            return Err(not_supported(
                "the box shares the network of its host, where every program could connect to the port",
            ));
        }
        if is_agents(Ipv4Addr::LOCALHOST.into(), port) {
            return Err(invalid(format!("port {port} is used by the sandbox's own proxy; choose another")));
        }
        if self.addresses.borrow().len() >= LISTENERS_MAX {
            return Err(exhausted(format!(
                "callers already listen on {LISTENERS_MAX} ports of the sandbox, the maximum; close some"
            )));
        }
        let first = bind(Ipv4Addr::LOCALHOST.into(), port).map_err(|error| refused(port, &error))?;
        let second = match bind(Ipv6Addr::LOCALHOST.into(), port) {
            Ok(second) => Some(second),
            // A program that looks up `localhost` may find this one instead.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::ADDRINUSE) => return Err(refused(port, &error)),
            // A box without IPv6.
            Err(_) => None,
        };
        let number = self.number();
        let addresses = [Some(&first), second.as_ref()].into_iter().flatten();
        let addresses = addresses.map(TcpListener::local_addr).collect::<io::Result<_>>();
        let addresses = addresses.map_err(|error| internal(format!("port {port}: {error}")))?;
        self.addresses.borrow_mut().insert(number, addresses);
        // Each row has a connection with a place.
        let (sender, rows) = mpsc::channel(LISTEN_CONNECTIONS_MAX);
        let tasks = [Some(first), second].into_iter().flatten();
        let tasks = tasks
            .map(|listener| spawn_local(accept(Rc::clone(self), number, listener, sender.clone())).abort_handle())
            .collect();
        Ok(Rows { rows, tasks, number, listeners: Rc::clone(self) })
    }

    /// Opens a connection that waits, with `input` as what the caller sends. Returns what the process
    /// sends.
    ///
    /// # Errors
    /// Not found if it does not wait.
    pub(crate) fn accept(&self, accept: ListenAccept, input: Incoming) -> Result<Output> {
        let waiting = self.waiting.borrow_mut().remove(&accept.id);
        let Waiting { stream, permit, .. } = waiting.ok_or_else(gone)?;
        Ok(Link::open(stream, Bytes::new(), input, Rc::new(permit)))
    }

    /// Resets a connection that waits.
    ///
    /// # Errors
    /// Not found if it does not wait.
    pub(crate) fn refuse(&self, refuse: ListenRefuse) -> Result<()> {
        let waiting = self.waiting.borrow_mut().remove(&refuse.id);
        waiting.map(|waiting| reset(&waiting.stream)).ok_or_else(gone)
    }

    fn number(&self) -> u64 {
        let number = self.next.get();
        self.next.set(number + 1);
        number
    }
}

fn gone() -> guest_protocol::Failure {
    not_found("no such connection is waiting: it was already accepted or refused, or the listener has closed")
}

fn refused(port: u16, error: &io::Error) -> guest_protocol::Failure {
    match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => {
            conflict(format!("port {port} is in use in the box; end the program that listens on it, or choose another"))
        }
        Some(Errno::ACCESS | Errno::PERM) => invalid(format!(
            "port {port} is below 1024 and needs a privilege that this sandbox does not have; choose another"
        )),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => exhausted("the sandbox has no descriptors or memory left"),
        _ => internal(format!("port {port}: {error}")),
    }
}

/// Closes a connection so that its process sees an error and not an end.
fn reset(stream: &TcpStream) {
    // On failure the process sees an end.
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Accepts connections as long as there are places, and lists them.
async fn accept(listeners: Rc<Listeners>, number: u64, listener: TcpListener, to: mpsc::Sender<Bytes>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // Beyond the limit it waits, and those after it as with any program that does not accept. A
        // listener without connections holds no place.
        let Ok(permit) = Arc::clone(&listeners.places).acquire_owned().await else { return };
        let id = listeners.number();
        let Ok(mut row) = serde_json::to_vec(&ListenRow { id }) else { continue };
        row.push(b'\n');
        listeners.waiting.borrow_mut().insert(id, Waiting { stream, permit, listener: number });
        if to.send(row.into()).await.is_err() {
            return;
        }
    }
}

/// Lines of the connections to a port. Dropping them ends the listening, and resets what waits.
#[derive(Debug)]
pub(crate) struct Rows {
    rows: mpsc::Receiver<Bytes>,
    tasks: Vec<AbortHandle>,
    number: u64,
    listeners: Rc<Listeners>,
}

impl Rows {
    /// Returns the next line.
    pub(crate) fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.rows.poll_recv(cx)
    }
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.listeners.addresses.borrow_mut().remove(&self.number);
        self.listeners.waiting.borrow_mut().retain(|_, waiting| {
            let stays = waiting.listener != self.number;
            if !stays {
                reset(&waiting.stream);
            }
            stays
        });
    }
}
