//! Headers that two neighbours of a chain of HTTP say to each other, and that a proxy does not pass on.
//! RFC 9110 §7.6.1.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::{Body, Frame, SizeHint};

/// Headers that are between two neighbours only.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];
/// Headers that make no sense behind a body: they frame it, say what it is, or tell whose the message is
/// (RFC 9110 §6.5.1).
const NOT_IN_TRAILERS: [HeaderName; 13] = [
    header::AUTHORIZATION,
    header::CACHE_CONTROL,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_RANGE,
    header::CONTENT_TYPE,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    header::LOCATION,
    header::SET_COOKIE,
    header::TRAILER,
    header::WWW_AUTHENTICATE,
];
/// Headers that a `Connection` cannot take away.
const LASTING: [HeaderName; 2] = [header::HOST, header::CONTENT_LENGTH];

/// Returns the protocol that a client wants to switch to.
pub fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = listed(headers, header::CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"));
    headers.get(header::UPGRADE).filter(|_| asks).cloned()
}

/// Returns the items of a header whose lines are lists.
pub fn listed(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

/// Removes the headers that are for the neighbour only, and those that `Connection` names.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> =
        listed(headers, header::CONNECTION).filter_map(|name| HeaderName::try_from(name).ok()).collect();
    for name in named.into_iter().filter(|name| !LASTING.contains(name)).chain(HOP_BY_HOP) {
        headers.remove(name);
    }
}

/// Removes from the trailers of a message what only its head may have.
pub fn remove_from_trailers(trailers: &mut HeaderMap) {
    remove_hop_by_hop(trailers);
    for name in NOT_IN_TRAILERS {
        trailers.remove(name);
    }
}

/// Body whose trailers are changed on their way.
pub struct Trailed<B> {
    body: B,
    change: Box<dyn Fn(&mut HeaderMap) + Send>,
}

impl<B> Trailed<B> {
    /// Wraps a body. `change` is applied after [`remove_from_trailers`].
    pub fn new(body: B, change: impl Fn(&mut HeaderMap) + Send + 'static) -> Self {
        Self { body, change: Box::new(change) }
    }
}

impl<B: Body + Unpin> Body for Trailed<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        polled.map(|frame| {
            frame.map(|frame| {
                frame.map(|mut frame| {
                    if let Some(trailers) = frame.trailers_mut() {
                        remove_from_trailers(trailers);
                        (self.change)(trailers);
                    }
                    frame
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns whether an answer tells its length in two ways, which two readers could take for two
/// answers.
pub fn is_framed_twice(headers: &HeaderMap) -> bool {
    headers.contains_key(header::CONTENT_LENGTH) && headers.contains_key(header::TRANSFER_ENCODING)
}
