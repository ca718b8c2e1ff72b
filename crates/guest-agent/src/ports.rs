//! TCP ports of the box: the list of those that listen, its changes, and connections to them.

mod listening;
mod watch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::{Connect, Network};
use hyper::body::Incoming;
use rustix::io::Errno;
use tokio::net::TcpStream;

pub(crate) use self::listening::ports;
pub(crate) use self::watch::{Changes, watch};
use crate::agent::Agent;
use crate::failure::{Result, exhausted, invalid, not_found, refused};
use crate::link::{Link, Output};

/// Connects to the port and begins to pass `input` on. Returns what the process sends.
///
/// # Errors
/// Not found if no process of the box listens on the port.
pub(crate) async fn connect(agent: &Rc<Agent>, request: Connect, input: Incoming) -> Result<Output> {
    let Connect { port } = request;
    if port == 0 {
        return Err(invalid("port 0 does not exist; ports are numbered from 1"));
    }
    let permit = Arc::clone(&agent.connections).try_acquire_owned();
    let permit =
        permit.map_err(|_| exhausted("the sandbox has the maximum number of connections to its ports; close some"))?;
    let stream = dial(agent, port).await?;
    Ok(Link::open(stream, Bytes::new(), input, Rc::new(permit)))
}

async fn dial(agent: &Agent, port: u16) -> Result<TcpStream> {
    let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    // On a network that is shared, what listens on loopback may not be the box's.
    if agent.boot.network != Network::Shared
        && let Some(stream) = first(agent, &loopback, port).await?
    {
        return Ok(stream);
    }
    let bound = listening::addresses(agent, port)?;
    first(agent, &bound, port).await?.ok_or_else(|| not_found(format!("nothing listens on port {port} in the box")))
}

/// Connects to the first of the addresses that accepts and is not the agent's own; `None` if none
/// does.
async fn first(agent: &Agent, addresses: &[IpAddr], port: u16) -> Result<Option<TcpStream>> {
    for address in addresses.iter().filter(|address| !agent.is_own(**address, port)) {
        match TcpStream::connect((*address, port)).await {
            Ok(stream) if is_itself(&stream) => {}
            Ok(stream) => return Ok(Some(stream)),
            Err(error) => match Errno::from_io_error(&error) {
                // With the last four, the box has no address of this family.
                Some(
                    Errno::CONNREFUSED
                    | Errno::CONNRESET
                    | Errno::ADDRNOTAVAIL
                    | Errno::NETUNREACH
                    | Errno::HOSTUNREACH
                    | Errno::AFNOSUPPORT,
                ) => {}
                Some(errno) => return Err(refused(format!("port {port}"), errno)),
                None => return Err(crate::failure::internal(format!("port {port}: {error}"))),
            },
        }
    }
    Ok(None)
}

/// Returns whether a socket is connected to itself, as the kernel does it when nothing listens and
/// the port that it picks for this side happens to be the other side's.
fn is_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

#[cfg(test)]
mod test {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_has_found_no_process() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let any = (Ipv4Addr::LOCALHOST, 0).into();
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(any).unwrap();
            let own = socket.local_addr().unwrap();
            assert!(is_itself(&socket.connect(own).await.unwrap()));
            let listener = TcpListener::bind(any).await.unwrap();
            let address = listener.local_addr().unwrap();
            assert!(!is_itself(&TcpStream::connect(address).await.unwrap()));
        });
    }
}
