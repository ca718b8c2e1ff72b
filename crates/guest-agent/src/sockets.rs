//! Sockets that listen on the network that the box sees.

mod diag;
mod proc;
mod socket;

use std::cell::RefCell;
use std::os::fd::OwnedFd;

pub(crate) use self::diag::open;
pub(crate) use self::socket::Socket;
use crate::failure::Result;

/// List of the sockets that listen.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// Socket of netlink, until it fails.
    diag: RefCell<Option<OwnedFd>>,
}

impl Sockets {
    pub(crate) fn new(diag: Option<OwnedFd>) -> Sockets {
        Sockets { diag: RefCell::new(diag) }
    }

    /// Returns the sockets that listen, at most [`guest_protocol::PORTS_MAX`], sorted.
    ///
    /// # Errors
    /// Internal if the kernel shows none.
    pub(crate) fn listening(&self) -> Result<Vec<Socket>> {
        let mut diag = self.diag.borrow_mut();
        let mut sockets = match diag.as_ref().map(diag::listening) {
            Some(Ok(sockets)) => sockets,
            // A kernel without the module, or one that is not Linux.
            Some(Err(_)) => {
                *diag = None;
                proc::listening()?
            }
            None => proc::listening()?,
        };
        sockets.sort_unstable();
        Ok(sockets)
    }
}

#[cfg(test)]
mod test {
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    #[test]
    fn both_ways_list_the_same_sockets() {
        let listeners = ["127.0.0.1:0", "0.0.0.0:0", "127.0.0.2:0", "[::1]:0", "[::]:0", "[::ffff:127.0.0.3]:0"];
        let listeners: Vec<_> = listeners.iter().filter_map(|address| TcpListener::bind(address).ok()).collect();
        let mut expected: Vec<_> = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        for expected in &mut expected {
            expected.set_ip(expected.ip().to_canonical());
        }
        expected.sort_by_key(|address| (address.port(), address.ip()));
        let found = |diag| {
            let sockets = Sockets::new(diag).listening().unwrap();
            let ours = sockets.into_iter().filter(|it| expected.iter().any(|ours| ours.port() == it.port));
            ours.collect::<Vec<_>>()
        };
        let slow = found(None);
        assert_eq!(slow.iter().map(|it| SocketAddr::new(it.address, it.port)).collect::<Vec<_>>(), expected);
        assert_eq!(found(Some(open().unwrap())), slow);
    }

    #[test]
    fn a_socket_of_netlink_that_fails_is_given_up() {
        let sockets = Sockets::new(Some(std::fs::File::open("/dev/null").unwrap().into()));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(sockets.listening().unwrap().iter().any(|it| it.port == port));
        assert!(sockets.diag.borrow().is_none());
    }
}
