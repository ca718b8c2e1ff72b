//! Pages for people in place of the errors of a preview.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::http::error::Failure;

/// Rule for the pages: nothing is loaded and nothing runs.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em;\
                     color-scheme:light dark}h1{font-size:1.4em}code{font-size:.95em}small{opacity:.7}";

/// Makes an error of the server into a page if the client is a browser that shows one.
pub async fn pass(request: Request, next: Next) -> Response {
    let is_person = accepts_html(request.headers());
    let mut response = next.run(request).await;
    // What a program answers has none.
    let Some(Failure(error)) = response.extensions().get().cloned() else { return response };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    if !is_person {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let retry = parts.headers.get(header::RETRY_AFTER).filter(|_| parts.status.is_server_error());
    let page = page(parts.status, error.code(), &error.message(), retry.and_then(|after| after.to_str().ok()));
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(page))
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let mut accepted = headers.get_all(header::ACCEPT).iter().filter_map(|line| line.to_str().ok());
    accepted.any(|line| line.split(',').any(|kind| kind.trim().to_ascii_lowercase().starts_with("text/html")))
}

/// Returns the page; it is loaded again after `retry_s` seconds.
fn page(status: StatusCode, code: &str, message: &str, retry_s: Option<&str>) -> String {
    let title = match code {
        "unauthorized" => "This preview requires a key",
        "not_found" => "This sandbox is gone",
        "conflict" => "This sandbox is not running",
        "bad_request" => "This is not the address of a preview",
        "bad_gateway" if retry_s.is_some() => "Nothing listens here yet",
        _ => status.canonical_reason().unwrap_or("This preview failed"),
    };
    let refresh = retry_s.map(|after| format!("<meta http-equiv=\"refresh\" content=\"{}\">", escaped(after)));
    let hint = retry_s.map_or("", |_| "<p>This page retries automatically.</p>");
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\">{}<title>{title}</title><style>{STYLE}</style></head><body><h1>{title}</h1>\
         <p>{}</p>{hint}<p><small>{} from Tidebox</small></p></body></html>\n",
        refresh.unwrap_or_default(),
        escaped(message),
        status.as_u16(),
    )
}

fn escaped(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, character| {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            _ => escaped.push(character),
        }
        escaped
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_a_caller_wrote_cannot_become_markup() {
        let page = page(StatusCode::default(), "bad_request", "<script>alert('1')&\"", Some("1\"><b>"));
        assert!(page.contains("&lt;script&gt;alert(&#39;1&#39;)&amp;&quot;"), "{page}");
        assert!(!page.contains("<script") && !page.contains("<b>"), "{page}");
    }

    #[test]
    fn only_a_browser_that_shows_a_page_gets_one() {
        for (accept, expected) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", true),
            ("application/json, TEXT/HTML;q=0.5", true),
            ("*/*", false),
            ("application/json", false),
        ] {
            assert_eq!(accepts_html(&HeaderMap::from_iter([(header::ACCEPT, accept.parse().unwrap())])), expected);
        }
        assert!(!accepts_html(&HeaderMap::new()));
    }
}
