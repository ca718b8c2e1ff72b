//! Addresses of the hosts that boxes ask for.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::Host;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Most look-ups at once. Each takes a thread of the system's resolver, which cannot be
/// interrupted.
const LOOKUPS_MAX: usize = 64;
/// Most addresses of a name that are tried.
const ADDRESSES_MAX: usize = 16;

/// Reason why a host has no address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unresolved {
    /// The name does not exist.
    Unknown,
    /// The resolver does not answer in time.
    Timeout,
}

/// Resolver of host names: the operator's table, then that of the system.
#[derive(Debug)]
pub(super) struct Resolver {
    hosts: BTreeMap<String, Vec<IpAddr>>,
    lookups: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(hosts: BTreeMap<String, Vec<IpAddr>>) -> Resolver {
        Resolver { hosts, lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// Returns the addresses of a host, each once, in the order to try them in.
    pub(super) async fn addresses(&self, host: &Host, within: Duration) -> Result<Vec<IpAddr>, Unresolved> {
        let name = match host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        if let Some(addresses) = self.hosts.get(name) {
            return Ok(addresses.clone());
        }
        let lookup = self.lookup(name.clone());
        let found = timeout(within, lookup).await.map_err(|_| Unresolved::Timeout)??;
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in found.into_iter().map(|address| address.to_canonical()) {
            if !addresses.contains(&address) && addresses.len() < ADDRESSES_MAX {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(Unresolved::Unknown) } else { Ok(addresses) }
    }

    async fn lookup(&self, name: String) -> Result<Vec<IpAddr>, Unresolved> {
        let permit = Arc::clone(&self.lookups).acquire_owned().await.map_err(|_| Unresolved::Timeout)?;
        // A look-up whose caller has gone keeps its place, since its thread runs on.
        let lookup = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let found = std::net::ToSocketAddrs::to_socket_addrs(&(name.as_str(), 0));
            found.map(|addresses| addresses.map(|address| address.ip()).collect())
        });
        lookup.await.ok().and_then(Result::ok).ok_or(Unresolved::Unknown)
    }
}
