//! What happens, and who asked for what.

use std::time::Duration;

use api::{AuditEntry, Event};
use reqwest::{Method, Response};
use tokio::time::timeout;

use crate::connection::{Patience, Size};
use crate::error::innermost;
use crate::line::{LINE_BYTES_MAX, LineTooLong, Lines};
use crate::path::query;
use crate::{Client, Error, Result};

/// Which events.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Only of these types; of every type if empty.
    pub types: Vec<String>,
    /// Only what happened to this sandbox.
    pub sandbox_id: Option<String>,
    /// Begin after this id instead of now; 0 for all that is kept.
    pub after: Option<u64>,
    /// Whether to end where the stream would wait for what is to come.
    pub only_kept: bool,
}

/// Which rows of the audit history; what is left out does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditQuery {
    /// `admin`, `api_key`, `anonymous` or `worker:<id>`.
    pub actor: Option<String>,
    /// Such as `quotas.update`.
    pub action: Option<String>,
    /// Such as `PUT`.
    pub method: Option<String>,
    /// The status of the answer.
    pub status: Option<u16>,
    /// A part of the path, character by character.
    pub path: Option<String>,
    /// Not before this RFC 3339 time.
    pub since: Option<String>,
    /// Before this RFC 3339 time.
    pub until: Option<String>,
    /// The most rows; 100 if left out.
    pub limit: Option<u32>,
    /// Where the page before ended.
    pub cursor: Option<String>,
}

impl AuditQuery {
    fn path(&self, format: Option<&str>) -> String {
        let number = |value: Option<u32>| value.map(|value| value.to_string());
        let pairs = [
            ("actor", self.actor.clone()),
            ("action", self.action.clone()),
            ("method", self.method.clone()),
            ("status", number(self.status.map(u32::from))),
            ("path", self.path.clone()),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
            ("limit", number(self.limit)),
            ("cursor", self.cursor.clone()),
            ("format", format.map(str::to_owned)),
        ];
        let given: Vec<(&str, &str)> =
            pairs.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect();
        format!("/admin/audit{}", query(&given))
    }
}

impl Client {
    /// Listens to what happens.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn events(&self, asked: &EventQuery) -> Result<EventStream> {
        let (types, after) = (asked.types.join(","), asked.after.map(|id| id.to_string()));
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

    /// A page of the audit history, newest first, and where the next one begins.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn audit(&self, asked: &AuditQuery) -> Result<(Vec<AuditEntry>, Option<String>)> {
        let response = self.send(self.request(Method::GET, &asked.path(None), Patience::Short)).await?;
        let next = next_cursor(&response);
        Ok((self.json(response, Size::List).await?, next))
    }

    /// The same as CSV with a header row.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn audit_csv(&self, asked: &AuditQuery) -> Result<(String, Option<String>)> {
        let response = self.send(self.request(Method::GET, &asked.path(Some("csv")), Patience::Short)).await?;
        let next = next_cursor(&response);
        Ok((self.text(response).await?, next))
    }
}

fn next_cursor(response: &Response) -> Option<String> {
    response.headers().get("x-next-cursor").and_then(|cursor| cursor.to_str().ok()).map(str::to_owned)
}

/// What happens, as it happens.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    response: Response,
    lines: Lines,
    fields: Fields,
    last_id: Option<u64>,
}

/// The fields of the event that is being read.
#[derive(Debug, Default)]
struct Fields {
    id: Option<u64>,
    data: Option<String>,
}

impl EventStream {
    /// How long a stream may say nothing: four of the comments that the server
    /// sends every 15 seconds.
    pub const SILENCE_MAX: Duration = Duration::from_secs(60);

    /// The id up to which nothing is missing: where to begin again.
    #[must_use]
    pub fn last_id(&self) -> Option<u64> {
        self.last_id
    }

    /// What happened next; none if the server ended the stream. Safe to cancel:
    /// no event is lost by dropping this future.
    ///
    /// # Errors
    /// [`Error::Cut`] if the connection broke, [`Error::Timeout`] if the server
    /// fell silent, [`Error::Protocol`] for what is no event.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            let line = self.lines.next().map_err(|LineTooLong| {
                self.client.protocol(format!("a line of an event of more than {LINE_BYTES_MAX} bytes"))
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

    /// Takes a line; the event that it completes.
    fn line(&mut self, line: &[u8]) -> Result<Option<Event>> {
        let wrong = |reason: String| self.client.protocol(format!("an event that cannot be read: {reason}"));
        let line = std::str::from_utf8(line).map_err(|error| wrong(error.to_string()))?;
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
                // The type is in the data too; comments are for the connection.
                _ => {}
            }
            return Ok(None);
        }
        let Fields { id, data } = std::mem::take(&mut self.fields);
        let event =
            data.map(|data| serde_json::from_str(&data).map_err(|error| wrong(error.to_string()))).transpose()?;
        self.last_id = id.or(self.last_id);
        Ok(event)
    }
}
