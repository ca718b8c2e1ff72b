//! Connections out of the box: the proxy that processes ask for them, and the server's answers.

mod datagram;
mod dns;
mod forward;
mod http;
mod inside;
mod name_server;
mod names;
mod output;
mod proxy;
mod refusal;
mod requests;
mod socks;
mod target;
mod transparent;
mod upstream;
mod variables;

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use guest_protocol::{EgressAccept, EgressRefuse, Network};
use hyper::body::Incoming;

pub(crate) use self::output::Output;
use self::proxy::Proxy;
use self::requests::Requests;
pub(crate) use self::requests::Rows;
use crate::diverted::{DivertedSockets, is_in_the_box};
use crate::failure::{Result, internal};

/// The proxy of the box.
#[derive(Debug)]
pub(crate) struct Egress {
    network: Network,
    requests: Rc<Requests>,
    diverted: RefCell<Option<DivertedSockets>>,
    open: OnceCell<Open>,
}

/// A proxy that listens.
#[derive(Debug)]
struct Open {
    proxy: Rc<Proxy>,
    variables: Vec<(&'static str, String)>,
    /// Rule by which the kernel leads connections to the proxy.
    _rule: Option<OwnedFd>,
}

impl Egress {
    pub(crate) fn new(network: Network, diverted: Option<DivertedSockets>) -> Egress {
        let names = diverted.as_ref().map(|_| Rc::default());
        let requests = Rc::new(Requests::new(names));
        Egress { network, requests, diverted: RefCell::new(diverted), open: OnceCell::new() }
    }

    /// Starts to listen, if the box has no other way out. With another network the proxy is there
    /// once a server receives from it.
    pub(crate) fn begin(&self) -> std::io::Result<()> {
        if self.network == Network::Loopback { self.listen() } else { Ok(()) }
    }

    fn listen(&self) -> std::io::Result<()> {
        if self.open.get().is_none() {
            let (proxy, rule) = match self.diverted.take() {
                Some(DivertedSockets { rule, tcp, udp }) => {
                    let proxy = Proxy::listen_on(tcp, Rc::clone(&self.requests))?;
                    if let Some(names) = self.requests.names() {
                        name_server::listen(udp, names)?;
                    }
                    (proxy, Some(rule))
                }
                None => (Proxy::listen(self.network, Rc::clone(&self.requests))?, None),
            };
            let variables = variables::variables(proxy.port(), proxy.password());
            // It was not there above.
            let _ = self.open.set(Open { proxy, variables, _rule: rule });
        }
        Ok(())
    }

    /// Returns the variables by which programs find the proxy.
    pub(crate) fn variables(&self) -> &[(&'static str, String)] {
        self.open.get().map_or(&[], |open| &open.variables)
    }

    /// Returns whether a connection to this address reaches a process of the box, if one listens there.
    pub(crate) fn is_in_the_box(&self, address: IpAddr) -> bool {
        self.requests.names().is_none() || is_in_the_box(address)
    }

    /// Returns whether the proxy itself listens at this address.
    pub(crate) fn is_own(&self, address: IpAddr, port: u16) -> bool {
        self.open.get().is_some_and(|open| open.proxy.is_at(address, port))
    }

    /// Begins the list of the connections that processes ask for, and ends an earlier one.
    ///
    /// # Errors
    /// Internal if the proxy cannot listen.
    pub(crate) fn receive(&self) -> Result<Rows> {
        self.listen().map_err(|error| internal(format!("the proxy of the sandbox cannot listen: {error}")))?;
        Ok(self.requests.receive())
    }

    /// Makes a connection that a process has asked for, with `input` as what the host sends. Returns
    /// what the process sends.
    ///
    /// # Errors
    /// Not found if no process waits for it.
    pub(crate) async fn accept(&self, accept: EgressAccept, input: Incoming) -> Result<Output> {
        self.requests.accept(accept.id, input).await
    }

    /// Refuses a connection that a process has asked for.
    ///
    /// # Errors
    /// Not found if no process waits for it.
    pub(crate) fn refuse(&self, refuse: EgressRefuse) -> Result<()> {
        self.requests.refuse(refuse)
    }
}
