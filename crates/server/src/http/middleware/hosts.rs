//! The check of the headers `Host` and `Origin`.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::{Method, Version, header};

use super::cors::{Cors, Standing};
use crate::http::authority::{Named, named};
use crate::http::error::{ApiError, Refusal, malformed};
use crate::http::peer::Peer;
use crate::http::strict_json::is_json;

/// Accepted `Host` headers.
///
/// Without a key, a server on loopback is protected only by its address: a web page whose name
/// resolves to loopback (DNS rebinding) must not reach it.
#[derive(Debug, Clone)]
pub struct Hosts {
    asks_for_key: bool,
    /// Names besides the loopback ones; `None` if every name is accepted.
    allowed: Option<Vec<String>>,
}

impl Hosts {
    /// Builds the rule for a server bound to `bind` with the given `names`. A server that
    /// requires a key accepts any name: no page has the key.
    #[must_use]
    pub fn for_bind(bind: IpAddr, asks_for_key: bool, names: impl IntoIterator<Item = String>) -> Self {
        let is_bound = bind.is_loopback() && !asks_for_key;
        let allowed = is_bound.then(|| names.into_iter().map(|name| name.to_ascii_lowercase()).collect());
        Self { asks_for_key, allowed }
    }

    /// Returns whether `authority` (`name`, `name:port`, `[::1]:port`) is accepted.
    fn serves(&self, authority: &str) -> bool {
        let Some(allowed) = &self.allowed else { return true };
        match named(authority) {
            Some(Named::Address(address)) => address.is_loopback() || allowed.contains(&address.to_string()),
            Some(Named::Name(name)) => name == "localhost" || allowed.contains(&name),
            None => false,
        }
    }

    /// Refuses a request whose `Host` or `Origin` is not accepted.
    pub(super) fn check(&self, request: &Request, cors: &Cors, sender: Sender) -> Result<(), ApiError> {
        self.check_name(request)?;
        self.check_origin(request, cors, sender)
    }

    /// Refuses a request whose `Host` is not accepted.
    pub(super) fn check_name(&self, request: &Request) -> Result<(), ApiError> {
        let hosts = request.headers().get_all(header::HOST).iter().count();
        if hosts > 1 || hosts == 0 && request.version() > Version::HTTP_10 {
            return Err(malformed("send the header `Host` once"));
        }
        let host = request.headers().get(header::HOST).map(|value| value.to_str().unwrap_or(""));
        let authority = request.uri().authority().map(|authority| authority.as_str());
        // A Unix socket gets requests of pages through a proxy alone, which may name any host.
        let via_unix = request.extensions().get::<Peer>().is_some_and(|peer| peer.via_unix);
        if !via_unix && [authority, host].into_iter().flatten().any(|authority| !self.serves(authority)) {
            return Err(Refusal::Host.into());
        }
        Ok(())
    }

    /// Refuses a request whose `Origin` is not accepted. Programs in sandboxes have pages of their own, which must never
    /// use the service.
    pub(super) fn check_origin(&self, request: &Request, cors: &Cors, sender: Sender) -> Result<(), ApiError> {
        let host = request.headers().get(header::HOST).map(|value| value.to_str().unwrap_or(""));
        let authority = request.uri().authority().map(|authority| authority.as_str());
        match cors.standing(request.headers(), host.or(authority)) {
            Standing::Sandbox => Err(Refusal::SandboxOrigin.into()),
            // Without a key, a page is kept out by its origin alone: it may send a POST without a preflight.
            Standing::Foreign if !self.asks_for_key && writes(request, sender) => Err(Refusal::Origin.into()),
            Standing::Absent | Standing::Own | Standing::Listed | Standing::Any | Standing::Foreign => Ok(()),
        }
    }
}

/// Sender of a request, as far as its origin matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    /// Client of the service.
    Client,
    /// Client of a program in a sandbox, on the API's own host. The program decides by its own answer to a preflight
    /// what pages may send it.
    ClientOfProgram,
    /// Holder of the token of a sandbox, which pages do not have.
    HolderOfToken,
}

/// Returns whether a request may change something although no page was asked for its consent.
fn writes(request: &Request, sender: Sender) -> bool {
    let is_kept_out = match sender {
        Sender::Client => false,
        Sender::ClientOfProgram => request.method() != Method::POST || is_json(request.headers()),
        Sender::HolderOfToken => true,
    };
    !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) && !is_kept_out
}

#[cfg(test)]
mod test {
    use super::*;

    #[track_caller]
    fn check(bind: &str, host: &str, expected: bool) {
        let hosts = Hosts::for_bind(bind.parse().unwrap(), false, ["Box.Example".to_owned()]);
        assert_eq!(hosts.serves(host), expected, "{bind} {host}");
    }

    #[test]
    fn a_loopback_server_answers_only_to_its_own_names() {
        for host in [
            "localhost",
            "LocalHost:7423",
            "localhost.",
            "127.0.0.1:7423",
            "127.8.8.8",
            "[::1]:7423",
            "[::1]",
            "box.example:80",
        ] {
            check("127.0.0.1", host, true);
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:7423",
            "evil.example:localhost",
            "10.0.0.1",
            "[::2]:1",
            "[::1",
            "127.0.0.1.evil.example",
            // Begins or ends like an accepted name.
            "127.0.0.1:1@evil.example",
            "127.0.0.1@evil.example",
            "localhost:80@evil.example",
            "user@localhost",
            "[::1]evil",
            "[::1]evil:7423",
            "[::1].evil.example",
            "[::1]:7423@evil.example",
            "[::1%25lo]",
            "[127.0.0.1]",
            "::1",
            "localhost:",
            "localhost:x",
            "localhost:+80",
            "localhost:65536",
            "localhost:80:80",
            "localhost..",
            ".localhost",
            "localhost ",
            " localhost",
            "localhost/",
            "localhost\\evil",
            "localhost#",
            "127.1",
            "0x7f.0.0.1",
            "127.0.0.1.",
            "l\u{f6}calhost",
        ] {
            check("127.0.0.1", host, false);
        }
    }

    #[test]
    fn a_server_that_is_open_to_the_network_answers_to_any_name() {
        check("0.0.0.0", "evil.example", true);
    }

    #[test]
    fn a_server_that_asks_for_a_key_answers_to_any_name() {
        assert!(Hosts::for_bind("127.0.0.1".parse().unwrap(), true, []).serves("evil.example"));
    }
}
