//! Event stream and audit history.

use std::fmt::Display;
use std::time::Duration;

use api::{AuditEntry, Event};
use reqwest::{Method, Response};
use tokio::time::timeout;

use crate::connection::{Patience, Size};
use crate::error::innermost;
use crate::line::{LINE_BYTES_MAX, LineTooLong, Lines};
use crate::path::query;
use crate::{Client, Error, Result};

/// A selection of events, for [`Client::events`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Types to receive, of [`api::Event::TYPES`]; every type if empty. An [`api::Event::GAP`]
    /// comes in any case.
    pub types: Vec<String>,
    /// Sandbox whose events to receive; all events if absent.
    pub sandbox_id: Option<String>,
    /// Id after which to begin, instead of now; 0 for all that are kept.
    pub after: Option<u64>,
    /// True to end the stream after the kept events, instead of waiting for new ones.
    pub only_kept: bool,
}

/// A selection of rows of the audit history; absent fields match every row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// Caller: `admin`, `api_key`, `anonymous`, `owner:<id>` for a key of an owner, or `worker:<id>`.
    pub actor: Option<String>,
    /// Action, such as `quotas.update`.
    pub action: Option<String>,
    /// HTTP method, such as `PUT`.
    pub method: Option<String>,
    /// HTTP status of the answer.
    pub status: Option<u16>,
    /// Part of the path, compared literally.
    pub path: Option<String>,
    /// Earliest time, included (RFC 3339).
    pub since: Option<String>,
    /// Latest time, excluded (RFC 3339).
    pub until: Option<String>,
    /// Maximum number of rows, 1 to 1,000; 100 if absent.
    pub limit: Option<u32>,
    /// Cursor of the page before, from [`Client::audit`].
    pub cursor: Option<String>,
}

impl AuditQuery {
    fn path(&self, format: Option<&str>) -> String {
        let pairs = [
            ("actor", self.actor.clone()),
            ("action", self.action.clone()),
            ("method", self.method.clone()),
            ("status", self.status.map(|status| status.to_string())),
            ("path", self.path.clone()),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("cursor", self.cursor.clone()),
            ("format", format.map(str::to_owned)),
        ];
        let given: Vec<(&str, &str)> =
            pairs.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
        format!("/admin/audit{}", query(&given))
    }
}

/// Events and the audit history.
impl Client {
    /// Opens the stream of events.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn events(&self, asked: &EventQuery) -> Result<EventStream> {
        let types = asked.types.join(",");
        let after = asked.after.map(|id| id.to_string());
        let mut pairs = Vec::new();
        if !types.is_empty() {
            pairs.push(("type", types.as_str()));
        }
        pairs.extend(asked.sandbox_id.as_deref().map(|id| ("sandbox_id", id)));
        pairs.extend(after.as_deref().map(|id| ("last_event_id", id)));
        if asked.only_kept {
            pairs.push(("follow", "false"));
        }
        let response =
            self.send(self.request(Method::GET, &format!("/events{}", query(&pairs)), Patience::Long)).await?;
        let fields = Fields::default();
        Ok(EventStream { client: self.clone(), response, lines: Lines::default(), fields, last_id: asked.after })
    }

    /// Returns a page of the audit history, newest first, and the cursor of the next page, `None`
    /// at the end.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn audit(&self, asked: &AuditQuery) -> Result<(Vec<AuditEntry>, Option<String>)> {
        let response = self.send(self.request(Method::GET, &asked.path(None), Patience::Short)).await?;
        let next = next_cursor(&response);
        Ok((self.json(response, Size::List).await?, next))
    }

    /// Returns the page of [`Client::audit`] as CSV with a header row, at most 32 MiB, and the
    /// cursor of the next page.
    ///
    /// # Errors
    /// [`Error::Api`] if the server refuses, another [`Error`] if no answer comes.
    pub async fn audit_csv(&self, asked: &AuditQuery) -> Result<(String, Option<String>)> {
        let response = self.send(self.request(Method::GET, &asked.path(Some("csv")), Patience::Short)).await?;
        let next = next_cursor(&response);
        Ok((self.text(response).await?, next))
    }
}

fn next_cursor(response: &Response) -> Option<String> {
    response.headers().get("x-next-cursor").and_then(|cursor| cursor.to_str().ok()).map(str::to_owned)
}

/// Stream of events, as they happen.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    response: Response,
    lines: Lines,
    fields: Fields,
    last_id: Option<u64>,
}

/// Fields of the event that is being read.
#[derive(Debug, Default)]
struct Fields {
    id: Option<u64>,
    data: Option<String>,
}

impl EventStream {
    /// Longest silence of a stream: 60 seconds, in which the server sends four comments.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// Returns the id up to which no event is missing, to resume from as [`EventQuery::after`];
    /// `None` before the first event of a stream that began at no id.
    #[must_use]
    pub fn last_id(&self) -> Option<u64> {
        self.last_id
    }

    /// Returns the next event; `None` if the server ended the stream. Cancel-safe: no event is lost
    /// by dropping this future.
    ///
    /// # Errors
    /// [`Error::Cut`] if the connection broke, [`Error::Timeout`] if the server sent nothing for
    /// [`EventStream::SILENCE_MAX`], [`Error::Protocol`] for an event that cannot be read.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            let line = self.lines.next().map_err(|LineTooLong| {
                self.client.protocol(format!("an event line is longer than {LINE_BYTES_MAX} bytes"))
            })?;
            match line {
                Some(line) => {
                    if let Some(event) = self.line(&line)? {
                        return Ok(Some(event));
                    }
                }
                None => {
                    let chunk = timeout(Self::SILENCE_MAX, self.response.chunk())
                        .await
                        .map_err(|_| Error::Timeout { after: Self::SILENCE_MAX })?
                        .map_err(|error| Error::Cut { what: "the next event", reason: innermost(&error) })?;
                    match chunk {
                        Some(chunk) => self.lines.push(chunk),
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Parses a line and returns the event that it completes, if any.
    fn line(&mut self, line: &[u8]) -> Result<Option<Event>> {
        let line = std::str::from_utf8(line).map_err(|error| self.unparsable(&error))?;
        let line = line.strip_suffix('\r').unwrap_or(line);
        if !line.is_empty() {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "id" => self.fields.id = value.parse().ok(),
                "data" => match &mut self.fields.data {
                    Some(data) => {
                        data.push('\n');
                        data.push_str(value);
                    }
                    None => self.fields.data = Some(value.to_owned()),
                },
                // The type is in the data too; comments only keep the connection alive.
                _ => {}
            }
            return Ok(None);
        }
        let Fields { id, data } = std::mem::take(&mut self.fields);
        let event = match data {
            Some(data) => Some(serde_json::from_str(&data).map_err(|error| self.unparsable(&error))?),
            None => None,
        };
        self.last_id = id.or(self.last_id);
        Ok(event)
    }

    fn unparsable(&self, reason: &dyn Display) -> Error {
        self.client.protocol(format!("cannot parse an event: {reason}"))
    }
}
