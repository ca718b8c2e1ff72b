//! `/events`: server-sent events about sandboxes and the server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use super::wire;
use crate::control::{Error, Unavailable};
use crate::events::subscription::{Next, Subscription};
use crate::http::caller::Caller;
use crate::http::error::{Result, malformed};
use crate::http::request::Params;
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};
use crate::http::stream::streamed::streamed;

/// Interval of keep-alive comments: proxies cut connections that seem dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Memory held for a reader: the events that it takes at once, with long paths.
const READER_BYTES: usize = 64 * 1024;
const LAST_EVENT_ID: &str = "last-event-id";
/// Highest id: the largest integer that every JSON reader keeps exact.
const ID_MAX: u64 = (1 << 53) - 1;
/// Type of an event that no filter holds back.
const GAP: &str = api::Event::GAP;

/// Stream events
///
/// Server-sent events with `id`, `event` (the type) and `data`, a JSON object with `id`, `type`, `sandbox_id`,
/// `timestamp` and `data`. A comment is sent every 15 seconds. The server keeps the latest 1,000 events; if events are
/// missing, an `events.gap` event gives their number.
#[utoipa::path(get, path = "/api/v1/events",
    operation_id = "stream_events", tag = "events",
    params(
        ("type" = Option<api::EventTypes>, Query,
            description = "Only events of these types, separated by commas; may be repeated"),
        ("sandbox_id" = Option<String>, Query, pattern = "^sb-[a-z2-7]{16}$",
            description = "Only events of this sandbox"),
        ("last_event_id" = Option<u64>, Query, minimum = 0, maximum = 9_007_199_254_740_991_u64,
            description = "Start after this event id instead of now; 0 for all kept events"),
        ("follow" = Option<bool>, Query, description = "`false` to end the stream instead of waiting for new events"),
        ("Last-Event-ID" = Option<u64>, Header, minimum = 0, maximum = 9_007_199_254_740_991_u64,
            description = "Same as `last_event_id`, and takes precedence over it")),
    responses(
        (status = 200, body = api::ServerSentEvent, content_type = "text/event-stream", description = "Stream of events"),
        (status = 400, body = api::ErrorBody, description = "Unknown event type, or invalid event id"),
        (status = 503, body = api::ErrorBody, description = "Too many subscribers")))]
pub async fn stream(
    State(api): State<Api>,
    caller: Caller,
    headers: HeaderMap,
    meter: Meter,
    Params(pairs): Params<Vec<(String, String)>>,
) -> Result<Response> {
    let query = Query::read(&pairs, &headers)?;
    let filter = wire::event_filter(&query.types, query.sandbox_id)?;
    let holders = meter.account().holders();
    let subscription = Subscription::begin(api.control.events(), filter, query.after, query.follow, holders);
    let subscription = subscription.map_err(|full| Error::from(Unavailable::TooManyReaders(full)))?;
    let outflow = Outflow::new(meter.account().reserve(READER_BYTES)?, 0);
    let reader = Reader { api, told: None, subscription, outflow, caller };
    let frames = futures_util::stream::unfold(Some(reader), |reader| async {
        let mut reader = reader?;
        // Without memory, events wait in the history that all readers share.
        reader.outflow.room(OUTFLOW_BYTES, 0).await;
        let (text, goes_on) = reader.read().await;
        let counted = text.capacity();
        Some((Ok::<_, Infallible>(reader.outflow.hand_out(text, counted)), goes_on.then_some(reader)))
    });
    Ok(event_stream(Body::from_stream(frames)))
}

/// Returns a response of server-sent events.
pub fn event_stream(frames: Body) -> Response {
    streamed(frames, HeaderValue::from_static("text/event-stream"))
}

/// Parsed query of a request.
#[derive(Debug, PartialEq)]
struct Query<'a> {
    types: Vec<String>,
    sandbox_id: Option<&'a str>,
    after: Option<u64>,
    follow: bool,
}

impl<'a> Query<'a> {
    fn read(pairs: &'a [(String, String)], headers: &HeaderMap) -> Result<Self> {
        let mut query = Query { types: Vec::new(), sandbox_id: None, after: None, follow: true };
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in pairs {
            let name = name.as_str();
            if name != "type" && seen.contains(&name) {
                return Err(malformed(format!("the query: `{name}` is given twice")));
            }
            seen.push(name);
            match name {
                "type" => query.types.extend(value.split(',').map(|kind| kind.trim().to_owned())),
                "sandbox_id" => query.sandbox_id = Some(value),
                "last_event_id" => query.after = Some(event_id(value)?),
                "follow" => {
                    query.follow =
                        value.parse().map_err(|_| malformed("`follow` must be `true` or `false`, or omitted"))?;
                }
                _ => {
                    return Err(malformed(format!(
                        "the query: unknown parameter `{}`; use `type`, `sandbox_id`, `last_event_id` or `follow`",
                        name.chars().take(40).collect::<String>()
                    )));
                }
            }
        }
        // A browser that reconnects repeats the query. Its header is newer.
        if let Some(header) = headers.get(LAST_EVENT_ID) {
            query.after = Some(event_id(header.to_str().unwrap_or("?"))?);
        }
        Ok(query)
    }
}

fn event_id(text: &str) -> Result<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| is_number && *id <= ID_MAX).ok_or_else(|| {
        malformed("the id of the last event must be a whole number; omit it to start now, or use 0 for all kept events")
    })
}

/// State of one event stream. It holds no events: those not fetched yet stay in the history, or
/// are lost to it.
struct Reader {
    api: Api,
    subscription: Subscription,
    outflow: Outflow,
    /// Last id that the client was sent, from which it would resume.
    told: Option<u64>,
    caller: Caller,
}

impl Reader {
    /// Returns the next piece of the stream, and whether another follows.
    async fn read(&mut self) -> (String, bool) {
        let mut text = String::new();
        if self.told.is_none() {
            // Sent at once, so that a client knows that its subscription is active.
            self.comment(&mut text, "listening");
            return (text, true);
        }
        match self.next().await {
            None => self.comment(&mut text, "still here"),
            Some(Next::Events(events)) => {
                for event in &events {
                    self.event(&mut text, &wire::event(event));
                }
            }
            Some(Next::Lost { id, count, is_exact }) => {
                let why = if is_exact { "behind" } else { "restart" };
                // How many of the lost events were the owner's is not known, and the others are not its business.
                let is_restricted = self.caller.restricted_to().is_some();
                let (lost, exact) = if is_restricted { (0, false) } else { (count, is_exact) };
                self.gap(&mut text, id, &json!({"lost": lost, "exact": exact, "reason": why}));
            }
            Some(Next::Ahead { id }) => {
                self.gap(&mut text, id, &json!({"lost": 0, "exact": false, "reason": "unknown_id"}));
            }
            Some(Next::End) => return (text, false),
        }
        (text, true)
    }

    /// Returns the next item that the caller may see; `None` after [`KEEP_ALIVE`] without one.
    async fn next(&mut self) -> Option<Next> {
        let deadline = Instant::now() + KEEP_ALIVE;
        loop {
            let next = timeout_at(deadline, self.subscription.next()).await.ok()?;
            let (Some(owner), Next::Events(events)) = (self.caller.restricted_to(), &next) else { return Some(next) };
            let mut seen = Vec::new();
            for event in events {
                // An event whose owner cannot be found out is not shown.
                if self.api.control.is_event_of(event, owner).await.unwrap_or(false) {
                    seen.push(Arc::clone(event));
                }
            }
            if !seen.is_empty() {
                return Some(Next::Events(seen));
            }
            // Events of others may come without a pause.
            if Instant::now() >= deadline {
                return None;
            }
        }
    }

    /// Writes a comment, and the id up to which nothing is missing: a client whose filter holds
    /// much back resumes from there, without a false gap.
    fn comment(&mut self, text: &mut String, words: &str) {
        text.push_str(&format!(": {words}\n"));
        let cursor = self.subscription.cursor();
        if self.told.is_some_and(|told| told < cursor) {
            text.push_str(&format!("id: {cursor}\n"));
        }
        text.push('\n');
        self.told = Some(cursor);
    }

    fn event(&mut self, text: &mut String, event: &api::Event) {
        let data = serde_json::to_string(event).expect("an event is JSON");
        text.push_str(&format!("id: {}\nevent: {}\ndata: {data}\n\n", event.id, event.kind));
        self.told = Some(event.id);
    }

    fn gap(&mut self, text: &mut String, id: u64, data: &Value) {
        let gap = api::Event {
            id,
            kind: GAP.to_owned(),
            sandbox_id: None,
            timestamp: wire::time(self.api.control.now()),
            data: data.as_object().cloned().unwrap_or_else(Map::new),
        };
        self.event(text, &gap);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn read(query: &[(&str, &str)], header: Option<&str>) -> std::result::Result<(Vec<String>, Option<u64>), String> {
        let pairs: Vec<(String, String)> = query.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let headers = header.map(|id| (LAST_EVENT_ID.parse().unwrap(), HeaderValue::from_str(id).unwrap()));
        Query::read(&pairs, &headers.into_iter().collect())
            .map(|query| (query.types, query.after))
            .map_err(|error| error.message())
    }

    #[test]
    fn the_description_names_every_type() {
        let known = crate::events::EventType::ALL.map(crate::events::EventType::as_str);
        assert_eq!(known, api::Event::TYPES);
        assert!(!known.contains(&GAP));
    }

    #[test]
    fn types_are_separated_by_commas_or_repeated() {
        let expected = (vec!["a.b".to_owned(), "c.d".to_owned(), "e.f".to_owned()], None);
        assert_eq!(read(&[("type", "a.b, c.d"), ("type", "e.f")], None), Ok(expected));
    }

    #[test]
    fn the_header_of_a_client_that_comes_back_wins_over_the_query() {
        assert_eq!(read(&[("last_event_id", "7")], None), Ok((vec![], Some(7))));
        assert_eq!(read(&[("last_event_id", "7")], Some("9")), Ok((vec![], Some(9))));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for id in ["", "-1", "+1", "1.5", "abc", "18446744073709551616", "9007199254740992", "1 "] {
            assert!(read(&[("last_event_id", id)], None).unwrap_err().contains("whole number"), "{id}");
        }
        assert!(read(&[("typ", "x")], None).unwrap_err().contains("`type`"));
        assert!(read(&[("follow", "yes")], None).unwrap_err().contains("`follow`"));
        assert!(read(&[("sandbox_id", "a"), ("sandbox_id", "b")], None).unwrap_err().contains("twice"));
    }
}
