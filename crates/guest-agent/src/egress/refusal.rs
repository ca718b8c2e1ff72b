//! Refusals, as processes see them.

use bytes::Bytes;
use guest_protocol::{EGRESS_MESSAGE_BYTES_MAX, EgressReason, EgressRefuse};
use http_body_util::{Either, Full};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, PROXY_AUTHENTICATE};
use hyper::{Response, StatusCode};

/// Header with the name of the reason.
const REASON_HEADER: HeaderName = HeaderName::from_static("tidebox-egress");
/// Codes of SOCKS5.
const SOCKS_FAILURE: u8 = 1;
const SOCKS_NOT_ALLOWED: u8 = 2;
const SOCKS_HOST_UNREACHABLE: u8 = 4;
const SOCKS_EXPIRED: u8 = 6;

/// A refused connection.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    status: u16,
    name: &'static str,
    message: String,
}

impl Refusal {
    fn of(reason: EgressReason, message: impl Into<String>) -> Refusal {
        Refusal { status: reason.status(), name: reason.name(), message: message.into() }
    }

    /// Makes the refusal of a request that names nothing that can be connected to.
    pub(super) fn malformed(message: impl Into<String>) -> Refusal {
        Refusal::of(EgressReason::Malformed, message)
    }

    /// Makes the refusal of a connection that was made and is of no use.
    pub(super) fn unreachable(message: impl Into<String>) -> Refusal {
        Refusal::of(EgressReason::Unreachable, message)
    }

    /// Makes the refusal of a connection for which the server found no answer in time.
    pub(super) fn late() -> Refusal {
        Refusal::of(EgressReason::Timeout, "the connection was neither made nor refused in time; try again")
    }

    /// Makes the refusal of all connections of a box that no server ever made one for.
    pub(super) fn no_network() -> Refusal {
        let message = "this sandbox has no network; spawn it with an egress policy, or ask its operator for one";
        Refusal { status: 403, name: "no-network", message: message.to_owned() }
    }

    /// Makes the refusal of a connection to the box itself, where nothing takes it.
    pub(super) fn nothing_listens(host: &str, port: u16) -> Refusal {
        Refusal::unreachable(format!("nothing listens at {host}:{port} in this sandbox"))
    }

    /// Makes the refusal while no server receives.
    pub(super) fn no_service() -> Refusal {
        let message = "the service that makes connections for this sandbox is not available; try again";
        Refusal { status: 503, name: "no-service", message: message.to_owned() }
    }

    /// Makes the refusal of an address that stands for no name, or no longer.
    pub(super) fn forgotten(address: &str) -> Refusal {
        Refusal::unreachable(format!(
            "{address} does not stand for a name in this sandbox, or no longer does; look the name up again"
        ))
    }

    /// Makes the refusal of a process that does not know the proxy's password.
    pub(super) fn no_password() -> Refusal {
        let message = "this proxy belongs to a sandbox; use the user and the password from its HTTP_PROXY";
        Refusal { status: 407, name: "no-password", message: message.to_owned() }
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> u16 {
        self.status
    }

    /// Returns the code of SOCKS5 that comes nearest.
    pub(super) fn socks(&self) -> u8 {
        match self.status {
            403 => SOCKS_NOT_ALLOWED,
            502 => SOCKS_HOST_UNREACHABLE,
            504 => SOCKS_EXPIRED,
            _ => SOCKS_FAILURE,
        }
    }

    /// Returns the bytes of the answer of HTTP, to a process that believes to be connected to its host.
    pub(super) fn answer(&self, has_body: bool) -> Vec<u8> {
        let status = self.status;
        let name = self.name;
        let message = self.line();
        let mut answer = format!(
            "HTTP/1.1 {status} {message}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\
             {REASON_HEADER}: {name}\r\n\r\n",
            message.len() + 1
        );
        if has_body {
            answer.push_str(&message);
            answer.push('\n');
        }
        answer.into_bytes()
    }

    /// Returns the message as one printable line.
    fn line(&self) -> String {
        let plain = self.message.chars().map(|char| if is_plain(char) { char } else { '?' });
        plain.take(EGRESS_MESSAGE_BYTES_MAX).collect()
    }

    /// Returns the answer of HTTP. The message is in its first line too: of the answer to a
    /// `CONNECT`, most programs show nothing else.
    pub(super) fn response<B>(&self) -> Response<Either<B, Full<Bytes>>> {
        let message = self.line();
        let mut response = Response::new(Either::Right(Full::new(Bytes::from(format!("{message}\n")))));
        *response.status_mut() = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert(REASON_HEADER, HeaderValue::from_static(self.name));
        if self.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED.as_u16() {
            headers.insert(PROXY_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"tidebox\""));
        }
        if let Ok(phrase) = ReasonPhrase::try_from(message) {
            response.extensions_mut().insert(phrase);
        }
        response
    }
}

impl From<EgressRefuse> for Refusal {
    fn from(refuse: EgressRefuse) -> Refusal {
        Refusal::of(refuse.reason, refuse.message)
    }
}

/// Returns whether a character can stand in the first line of an answer.
fn is_plain(char: char) -> bool {
    char.is_ascii_graphic() || char == ' '
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_message_is_one_printable_line_of_bounded_length() {
        let refusal = Refusal::malformed(format!("a\r\nX: y\u{1b}ü{}", "z".repeat(5000)));
        let response = refusal.response::<Full<Bytes>>();
        let phrase = response.extensions().get::<ReasonPhrase>().unwrap().as_bytes();
        assert!(phrase.starts_with(b"a??X: y??zz"));
        assert_eq!(phrase.len(), EGRESS_MESSAGE_BYTES_MAX);
    }

    #[test]
    fn each_refusal_has_a_code_of_socks() {
        let codes = [Refusal::no_network(), Refusal::unreachable(""), Refusal::late(), Refusal::no_service()];
        assert_eq!(codes.map(|refusal| refusal.socks()), [2, 4, 6, 1]);
    }
}
