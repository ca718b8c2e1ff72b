//! Conversions of the audit history: its query and its rows.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::Timestamp;
use serde::Deserialize;

use super::scalars::{given, shortened, time};
use crate::control::AuditEntry;
use crate::control::AuditFilter;
use crate::http::error::{ApiError, malformed};

/// Rows of a page whose query has no `limit`.
const LIMIT: u32 = 100;
/// Most rows of a page.
const LIMIT_MAX: u32 = 1000;

/// Query of the audit history.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuditQuery {
    actor: Option<String>,
    action: Option<String>,
    method: Option<String>,
    status: Option<String>,
    path: Option<String>,
    since: Option<String>,
    until: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
    format: Option<String>,
}

impl AuditQuery {
    /// Returns the filter of the rows.
    pub fn filter(&self) -> Result<AuditFilter, ApiError> {
        let status = self.status.as_deref().map(|text| {
            let status = text.parse().ok().filter(|status| (100..=999).contains(status));
            status.ok_or_else(|| malformed(format!("`status`: `{}` is not a status such as 401", shortened(text))))
        });
        let filter = AuditFilter {
            actor: given("actor", self.actor.clone())?,
            action: given("action", self.action.clone())?,
            method: given("method", self.method.clone())?.map(|method| method.to_ascii_uppercase()),
            status: status.transpose()?,
            path: given("path", self.path.clone())?,
            since: instant("since", self.since.as_deref())?,
            until: instant("until", self.until.as_deref())?,
        };
        if let (Some(since), Some(until)) = (filter.since, filter.until)
            && since > until
        {
            return Err(malformed("`since` must not be later than `until`"));
        }
        Ok(filter)
    }

    /// Returns the row id of the cursor, before which the page begins.
    pub fn before(&self) -> Result<Option<u64>, ApiError> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let id = id_of_cursor(text).ok_or_else(|| {
            malformed("`cursor` is not valid; take it from `X-Next-Cursor`, or omit it to start over")
        })?;
        Ok(Some(id))
    }

    /// Returns the number of rows of a page.
    pub fn limit(&self) -> Result<u32, ApiError> {
        let Some(text) = self.limit.as_deref() else { return Ok(LIMIT) };
        let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| malformed(format!("`limit` is a number from 1 to {LIMIT_MAX}")))
    }

    /// Returns whether rows are wanted as CSV.
    pub fn wants_csv(&self) -> Result<bool, ApiError> {
        match self.format.as_deref() {
            None | Some("json") => Ok(false),
            Some("csv") => Ok(true),
            Some(_) => Err(malformed("`format` is `json` or `csv`")),
        }
    }
}

/// Returns the cursor of the page after the row `id`.
pub fn audit_cursor(id: u64) -> String {
    URL_SAFE_NO_PAD.encode(id.to_be_bytes())
}

/// Reads what [`audit_cursor`] wrote.
fn id_of_cursor(text: &str) -> Option<u64> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn instant(field: &str, text: Option<&str>) -> Result<Option<Timestamp>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let text = shortened(text);
        malformed(format!("`{field}`: `{text}` is not an RFC 3339 time such as 2026-01-31T12:00:00Z; write `+` as %2B"))
    })
}

/// Converts a row to the API.
pub fn audit_entry(row: AuditEntry) -> api::AuditEntry {
    let entry = row.entry;
    api::AuditEntry {
        id: row.id,
        created_at: time(entry.created_at),
        actor: entry.actor,
        action: entry.action,
        method: entry.method,
        path: entry.path,
        status: entry.status,
        duration_ms: entry.duration_ms,
        request_id: entry.request_id,
        remote_addr: entry.remote_addr,
        user_agent: entry.user_agent,
        detail: entry.detail,
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn query(change: impl FnOnce(&mut AuditQuery)) -> AuditQuery {
        let mut query = AuditQuery::default();
        change(&mut query);
        query
    }

    #[test]
    fn a_cursor_is_read_back_and_another_text_is_refused() {
        for id in [0, 1, u64::MAX] {
            assert_eq!(query(|q| q.cursor = Some(audit_cursor(id))).before().unwrap(), Some(id));
        }
        for text in ["", "1", "AAAA", "AAAAAAAAAAA=", "%", "AAAAAAAAAAAAAAAA"] {
            assert!(query(|q| q.cursor = Some(text.to_owned())).before().is_err(), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        let refusal = |query: AuditQuery| {
            let error = query.filter().map(drop).and_then(|()| query.limit().map(drop));
            error.and_then(|()| query.wants_csv().map(drop)).unwrap_err().message()
        };
        assert!(refusal(query(|q| q.status = Some("x".into()))).contains("`status`"));
        assert!(refusal(query(|q| q.status = Some("9".into()))).contains("`status`"));
        assert!(refusal(query(|q| q.since = Some("yesterday".into()))).contains("`since`"));
        assert!(refusal(query(|q| q.until = Some("2026-01-31".into()))).contains("`until`"));
        assert!(refusal(query(|q| q.limit = Some("0".into()))).contains("`limit`"));
        assert!(refusal(query(|q| q.limit = Some("1001".into()))).contains("`limit`"));
        assert!(refusal(query(|q| q.format = Some("xml".into()))).contains("`format`"));
        assert!(refusal(query(|q| q.actor = Some(String::new()))).contains("`actor`"));
        let turned = query(|q| {
            q.since = Some("2026-01-02T00:00:00Z".into());
            q.until = Some("2026-01-01T00:00:00Z".into());
        });
        assert!(refusal(turned).contains("later"));
    }

    #[test]
    fn times_may_have_any_offset() {
        let filter = query(|q| q.since = Some("2026-01-31T12:00:00+02:00".into())).filter().unwrap();
        assert_eq!(filter.since.map(time).as_deref(), Some("2026-01-31T10:00:00.000Z"));
    }
}
