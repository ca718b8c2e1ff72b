//! `/admin/audit`: the audit history of requests.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::wire::{self, AuditQuery};
use crate::http::error;
use crate::http::error::Result;
use crate::http::request::Params;
use crate::http::state::Api;

const NEXT_CURSOR: HeaderName = HeaderName::from_static("x-next-cursor");
/// Columns of the CSV: the fields of a row.
const COLUMNS: [&str; 12] = [
    "id",
    "created_at",
    "actor",
    "action",
    "method",
    "path",
    "status",
    "duration_ms",
    "request_id",
    "remote_addr",
    "user_agent",
    "detail",
];

/// Read the audit history, newest first
#[utoipa::path(get, path = "/api/v1/admin/audit",
    operation_id = "list_audit_entries", tag = "admin",
    params(
        ("actor" = Option<String>, Query, min_length = 1,
            description = "`admin`, `api_key`, `anonymous`, `owner:<id>` or `worker:<id>`"),
        ("action" = Option<String>, Query, min_length = 1, description = "For example, `quotas.update`"),
        ("method" = Option<String>, Query, min_length = 1, description = "Such as `PUT`"),
        ("status" = Option<u16>, Query, minimum = 100, maximum = 999, description = "Such as 401"),
        ("path" = Option<String>, Query, min_length = 1, description = "Part of the path, compared literally"),
        ("since" = Option<String>, Query, format = DateTime, description = "At or after this RFC 3339 time"),
        ("until" = Option<String>, Query, format = DateTime, description = "Before this RFC 3339 time"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000,
            description = "Rows per page; 100 by default, at most 1,000"),
        ("cursor" = Option<String>, Query, description = "`X-Next-Cursor` of the previous page"),
        ("format" = Option<String>, Query, pattern = "^(json|csv)$", description = "`json`, or `csv`")),
    responses(
        (status = 200, description = "A page of the audit history",
            content((Vec<api::AuditEntry> = "application/json"), (String = "text/csv")),
            headers(("X-Next-Cursor" = String, description = "Cursor of the next page; absent on the last page"))),
        (status = 400, body = api::ErrorBody, description = "Invalid query"),
        (status = 503, body = api::ErrorBody, description = "The store is unavailable")))]
pub async fn list(State(api): State<Api>, Params(query): Params<AuditQuery>) -> Result<Response> {
    let filter = query.filter()?;
    let before = query.before()?;
    let limit = query.limit()?;
    let as_csv = query.wants_csv()?;
    let mut rows = api.control.audit(&filter, before, limit + 1).await?;
    let is_last = rows.len() <= limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| !is_last).map(|row| wire::audit_cursor(row.id));
    let rows: Vec<api::AuditEntry> = rows.into_iter().map(wire::audit_entry).collect();
    let mut response = if as_csv {
        let headers = [
            (header::CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
            (header::CONTENT_DISPOSITION, "attachment; filename=\"tidebox-audit.csv\""),
        ];
        (headers, csv(&rows)?).into_response()
    } else {
        Json(rows).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(next) = next.and_then(|next| HeaderValue::try_from(next).ok()) {
        headers.insert(NEXT_CURSOR, next);
    }
    Ok(response)
}

/// Writes the rows as RFC 4180 CSV, with a header row.
fn csv(rows: &[api::AuditEntry]) -> Result<Vec<u8>> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    let mut written = writer.write_record(COLUMNS);
    for row in rows {
        written = written.and_then(|()| {
            writer.write_record([
                row.id.to_string(),
                defused(&row.created_at),
                defused(&row.actor),
                defused(&row.action),
                defused(&row.method),
                defused(&row.path),
                row.status.to_string(),
                row.duration_ms.to_string(),
                defused(&row.request_id),
                defused(row.remote_addr.as_deref().unwrap_or_default()),
                defused(row.user_agent.as_deref().unwrap_or_default()),
                defused(row.detail.as_deref().unwrap_or_default()),
            ])
        });
    }
    // Writing to a vector does not fail.
    written.map_err(|_| error::Refusal::Internal)?;
    Ok(writer.into_inner().map_err(|_| error::Refusal::Internal)?)
}

/// Returns the cell with an apostrophe in front if a spreadsheet would take it for a formula.
fn defused(cell: &str) -> String {
    let runs = cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']);
    if runs { format!("'{cell}") } else { cell.to_owned() }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    fn row(text: &str) -> api::AuditEntry {
        api::AuditEntry {
            id: 7,
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
            actor: text.to_owned(),
            action: text.to_owned(),
            method: text.to_owned(),
            path: text.to_owned(),
            status: 200,
            duration_ms: 3,
            request_id: text.to_owned(),
            remote_addr: None,
            user_agent: Some(text.to_owned()),
            detail: Some(text.to_owned()),
        }
    }

    #[test]
    fn the_columns_are_the_fields_of_a_row() {
        let json = serde_json::to_string(&row("x")).unwrap();
        let places: Vec<usize> = COLUMNS.iter().map(|name| json.find(&format!("\"{name}\":")).unwrap()).collect();
        assert!(places.is_sorted(), "{json}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap().as_object().unwrap().len(), COLUMNS.len());
    }

    #[test]
    fn a_row_is_quoted_as_the_standard_says() {
        let text = String::from_utf8(csv(&[row("a,\"b\"\r\nc")]).unwrap()).unwrap();
        let cell = "\"a,\"\"b\"\"\r\nc\"";
        let expected = format!(
            "{}\r\n7,2026-01-01T00:00:00.000Z,{cell},{cell},{cell},{cell},200,3,{cell},,{cell},{cell}\r\n",
            COLUMNS.join(",")
        );
        assert_eq!(text, expected);
    }

    proptest! {
        #[test]
        fn any_text_is_read_back_and_none_is_run(
            text in prop_oneof![any::<String>(), "[=+\\-@\t\r\n＝,\"';|a]{0,8}"],
        ) {
            let written = csv(&[row(&text)]).unwrap();
            let mut reader = ::csv::Reader::from_reader(&written[..]);
            let records: Vec<::csv::StringRecord> = reader.records().collect::<std::result::Result<_, _>>().unwrap();
            prop_assert_eq!(records.len(), 1);
            for column in [2, 3, 4, 5, 8, 10, 11] {
                let cell = &records[0][column];
                prop_assert!(!cell.starts_with(['=', '+', '-', '@', '\t', '\r', '\n', '＝', '＋', '－', '＠']));
                prop_assert_eq!(cell.strip_prefix('\'').filter(|_| !text.starts_with('\'')).unwrap_or(cell), &text);
            }
        }
    }
}
