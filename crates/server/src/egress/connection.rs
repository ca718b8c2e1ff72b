//! One connection: decided, dialled, and passed on.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use domain::{Dialled, Host, decide_address, decide_host};
use futures_util::StreamExt;
use providers::{EgressAnswer, EgressReason, EgressRequest, EgressRequests};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::account::{Account, InForce, Receiving};
use super::interception::Interception;
use super::ledger::Verdict;
use super::refused::Refused;
use super::relay::{self, Cut};
use super::resolve::Unresolved;

impl Account {
    /// Answers the requests of the box until their stream ends, and passes bytes on until the
    /// connections have ended.
    pub(super) async fn serve(self: &Arc<Self>, mut requests: EgressRequests, receiving: Receiving) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                request = requests.next() => match request {
                    Some(Ok(request)) => drop(connections.spawn(Arc::clone(self).answer(request))),
                    Some(Err(error)) => {
                        tracing::debug!(id = %self.id, error = %providers::Chain(&error), "egress requests broke");
                        break;
                    }
                    None => break,
                },
                Some(_) = connections.join_next() => {}
            }
        }
        drop(receiving);
        while connections.join_next().await.is_some() {}
    }

    /// Makes a connection, or refuses it, and passes its bytes on.
    async fn answer(self: Arc<Self>, request: EgressRequest) {
        let EgressRequest { host: text, port, answer } = request;
        // Before the decision, so that no change is missed.
        let changes = self.in_force.subscribe();
        let made = async {
            let permit = self.admit()?;
            let host = Host::parse(&text)
                .map_err(|error| Refused::failed(EgressReason::Malformed, format!("the host {error}"), None))?;
            let secrets = self.interception(&host, port).await?;
            let dialled = secrets.as_ref().map_or(port, |secrets| secrets.port);
            let (stream, address) = self.dial(&host, dialled).await?;
            Ok((permit, host, stream, address, secrets))
        };
        let shown = printable(&text);
        match made.await {
            Ok((_permit, host, stream, address, secrets)) => {
                self.note(&shown, port, Some(address), Verdict::Allowed, None);
                let _open = self.ledger.open(&self.shared.totals);
                let dialled = self.shared.dialled(address, secrets.as_ref().map_or(port, |secrets| secrets.port));
                let relay = self.relay((&host, port), stream, answer, secrets);
                if let Some(words) = self.while_allowed(&host, dialled, relay, changes).await {
                    self.note(&shown, port, Some(address), Verdict::Denied, Some(words));
                }
            }
            Err(Refused { verdict, reason, words, address }) => {
                let message = format!("egress to {shown}:{port} is refused: {words}");
                self.note(&shown, port, address, verdict, Some(words));
                // A process that has gone needs no answer.
                let _ = answer.refuse(reason, &message).await;
            }
        }
    }

    /// Takes the place of a connection within the limits of the box.
    fn admit(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let limits = self.limits();
        let permit = Arc::clone(&self.connections).try_acquire_owned().map_err(|_| {
            Refused::busy(format!("the sandbox already has its maximum of {} open connections", limits.connections))
        })?;
        if !self.ledger.may_connect() {
            let most = limits.connections_per_second;
            return Err(Refused::busy(format!("the sandbox opens more than {most} connections a second; slow down")));
        }
        if !self.has_bytes_left() {
            return Err(Refused::denied("the sandbox has used up the bytes that it may exchange", None));
        }
        Ok(permit)
    }

    /// Decides on the host and on each of its addresses, and connects to the first that accepts.
    async fn dial(&self, host: &Host, port: u16) -> Result<(TcpStream, IpAddr), Refused> {
        let in_force = self.in_force.borrow().clone();
        let rules = in_force.rules();
        decide_host(&rules, host, port).map_err(|denial| Refused::denied(denial, None))?;
        let deadline = Instant::now() + self.limits().connect;
        let addresses = self.shared.resolver.addresses(host, self.limits().connect).await;
        let addresses = addresses.map_err(|unresolved| match unresolved {
            Unresolved::Unknown => Refused::failed(EgressReason::Unreachable, "the name does not resolve", None),
            Unresolved::Timeout => Refused::failed(EgressReason::Timeout, "the name was not resolved in time", None),
        })?;
        let mut denied = None;
        let mut failed = None;
        for address in addresses {
            if let Err(denial) = decide_address(&rules, &self.shared.internal, host, self.shared.dialled(address, port))
            {
                denied.get_or_insert_with(|| Refused::denied(denial, Some(address)));
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match timeout(left, TcpStream::connect((address, port))).await {
                Ok(Ok(stream)) => return Ok((stream, address)),
                Ok(Err(error)) => {
                    failed = Some(Refused::failed(EgressReason::Unreachable, unreachable_words(&error), Some(address)));
                }
                Err(_) => {
                    let words = "the host did not answer in time";
                    failed = Some(Refused::failed(EgressReason::Timeout, words, Some(address)));
                    break;
                }
            }
        }
        Err(failed
            .or(denied)
            .unwrap_or_else(|| Refused::failed(EgressReason::Unreachable, "the name has no address", None)))
    }

    /// Passes bytes on until the end. Requests to a host that secrets are bound to are changed on the
    /// way.
    async fn relay(
        self: &Arc<Self>,
        (host, port): (&Host, u16),
        stream: TcpStream,
        answer: Box<dyn EgressAnswer>,
        secrets: Option<Interception>,
    ) -> Option<Cut> {
        let Some(secrets) = secrets else { return relay::run(self, host, port, stream.into(), answer).await };
        let Ok((passed, intercepted)) = UnixStream::pair() else { return Some(Cut::Broken) };
        let interception = secrets.serve(self, host, intercepted, stream);
        let mut relay = pin!(relay::run(self, host, port, passed.into(), answer));
        tokio::select! {
            cut = relay.as_mut() => cut,
            () = interception => relay.await,
        }
    }

    /// Waits for the end of `relay`. Returns the reason if a policy or a limit ended it.
    async fn while_allowed(
        &self,
        host: &Host,
        dialled: Dialled,
        relay: impl Future<Output = Option<Cut>>,
        mut changes: watch::Receiver<InForce>,
    ) -> Option<String> {
        let refusal = async {
            loop {
                let in_force = changes.borrow_and_update().clone();
                if let Err(denial) = decide_address(&in_force.rules(), &self.shared.internal, host, dialled) {
                    return format!("the policy has changed: {denial}");
                }
                if changes.changed().await.is_err() {
                    return "the policy no longer exists".to_owned();
                }
            }
        };
        tokio::select! {
            cut = relay => match cut? {
                Cut::Name(words) => Some(words),
                Cut::Spent => Some("the sandbox has used up the bytes that it may exchange".to_owned()),
                Cut::Memory => Some("too much data from sandboxes is waiting for hosts".to_owned()),
                Cut::Idle | Cut::Broken => None,
            },
            words = refusal => Some(words),
        }
    }
}

/// Returns a host as a process wrote it, without what a log or a terminal would act on.
fn printable(host: &str) -> String {
    host.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

fn unreachable_words(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let kind = error.kind();
    if kind == ConnectionRefused {
        "the host refuses the connection"
    } else if kind == NetworkUnreachable || kind == HostUnreachable {
        "the host cannot be reached"
    } else {
        "cannot connect to the host"
    }
}
