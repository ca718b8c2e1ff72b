//! Address of a request of E2B's SDKs: the control plane, the data plane of a sandbox, or one of its ports.
//!
//! A host name below the domain decides first: all paths there are those of a program in a sandbox, whatever they are
//! called. On other hosts the path and the key decide before the routing headers, because old SDKs send those along with
//! requests to the control plane. The token comes last, which names its sandbox.

use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, Request, Uri, header};
use domain::SandboxId;

use crate::auth::box_token;
use crate::http::authority::{Named, named};
use crate::http::preview::target::{self, Asked, NamedBy, Target};

/// Port that stands for the data plane in host names and headers.
pub const DATA_PORT: u16 = 49983;
/// Port that stands for the code interpreter.
const INTERPRETER_PORT: u16 = 49999;
const SANDBOX_ID: &str = "e2b-sandbox-id";
const SANDBOX_PORT: &str = "e2b-sandbox-port";
/// Header with the token of a sandbox.
pub const ACCESS_TOKEN: &str = "x-access-token";

/// First segments of the paths of the control plane, after the version if they have one.
const CONTROL: [&str; 5] = ["sandboxes", "snapshots", "templates", "volumes", "secrets"];
/// First segments of the paths of the data plane.
const DATA: [&str; 6] = ["process.Process", "filesystem.Filesystem", "files", "health", "metrics", "envs"];

/// Part of the front that a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plane {
    Control,
    /// Data plane of a sandbox.
    Data(Addressed),
    /// Code interpreter of a sandbox.
    Interpreter(Addressed),
    /// Port of a sandbox.
    Port(Target),
}

/// Sandbox that a request to the data plane names; an extension of every such request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addressed {
    /// Id of the sandbox; `None` if the request names none.
    pub sandbox: Option<String>,
    /// True if the host of the request names it.
    pub by_host: bool,
}

impl Addressed {
    fn by_host(sandbox: String) -> Self {
        Self { sandbox: Some(sandbox), by_host: true }
    }

    /// Returns the address of a request whose headers name the sandbox, or nothing does.
    pub fn by_headers(sandbox: Option<String>) -> Self {
        Self { sandbox, by_host: false }
    }
}

/// Returns the part of the front that a request is for; `None` if it is for another front.
pub fn of<B>(request: &Request<B>, domain: &str) -> Option<Plane> {
    match target::of(request, domain) {
        Some(Asked::Port(Target { sandbox, port: DATA_PORT, permit: None, .. })) => {
            return Some(Plane::Data(Addressed::by_host(sandbox)));
        }
        Some(Asked::Port(Target { sandbox, port: INTERPRETER_PORT, permit: None, .. })) => {
            return Some(Plane::Interpreter(Addressed::by_host(sandbox)));
        }
        Some(_) => return None,
        None => {}
    }
    match in_host(request, domain) {
        Some((DATA_PORT, id)) => return Some(Plane::Data(Addressed::by_host(id))),
        Some((INTERPRETER_PORT, id)) => return Some(Plane::Interpreter(Addressed::by_host(id))),
        Some(_) | None => {}
    }
    let path = collapsed(request.uri().path());
    let headers = request.headers();
    let is_control = is_control(&path);
    let has_key = headers.contains_key("x-api-key") || headers.contains_key(header::AUTHORIZATION);
    if is_control && has_key && !headers.contains_key(ACCESS_TOKEN) {
        return Some(Plane::Control);
    }
    if path.starts_with("/api/v1/") {
        return None;
    }
    if let Some(id) = text(headers, SANDBOX_ID) {
        let port = text(headers, SANDBOX_PORT).map_or(Some(DATA_PORT), |port| port.parse().ok());
        return Some(match port {
            Some(INTERPRETER_PORT) => Plane::Interpreter(Addressed::by_headers(Some(id.to_owned()))),
            Some(port) if port != DATA_PORT && SandboxId::parse(id).is_ok() => {
                Plane::Port(Target { named_by: NamedBy::Headers, ..Target::of(id.to_owned(), port) })
            }
            _ => Plane::Data(Addressed::by_headers(Some(id.to_owned()))),
        });
    }
    if is_control {
        return Some(Plane::Control);
    }
    let is_data = DATA.contains(&first_segment(&path));
    is_data.then(|| {
        let token = text(headers, ACCESS_TOKEN).and_then(box_token::named);
        Plane::Data(Addressed::by_headers(token.map(str::to_owned)))
    })
}

/// Collapses the doubled slashes that an SDK makes of a base with a slash at its end.
pub fn tidy(uri: &mut Uri) {
    if !uri.path().contains("//") {
        return;
    }
    let query = uri.query().map_or_else(String::new, |query| format!("?{query}"));
    let mut parts = uri.clone().into_parts();
    if let Ok(path) = PathAndQuery::try_from(format!("{}{query}", collapsed(uri.path()))) {
        parts.path_and_query = Some(path);
        if let Ok(tidied) = Uri::from_parts(parts) {
            *uri = tidied;
        }
    }
}

fn collapsed(path: &str) -> String {
    let mut collapsed = String::with_capacity(path.len());
    for character in path.chars() {
        if character != '/' || !collapsed.ends_with('/') {
            collapsed.push(character);
        }
    }
    collapsed
}

fn first_segment(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}

fn is_control(path: &str) -> bool {
    let first = first_segment(path);
    let is_version = matches!(first, "v2" | "v3");
    let named = if is_version {
        first_segment(path.trim_start_matches('/').strip_prefix(first).unwrap_or_default())
    } else {
        first
    };
    CONTROL.contains(&named)
}

/// Returns the port and what stands for a sandbox in the host `<port>-<sandbox id>.<domain>` and cannot be the id of
/// one.
fn in_host<B>(request: &Request<B>, domain: &str) -> Option<(u16, String)> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let authority = host.or_else(|| request.uri().authority().map(|authority| authority.as_str()))?;
    let Some(Named::Name(name)) = named(authority) else { return None };
    let label = name.strip_suffix(domain)?.strip_suffix('.')?;
    let (port, id) = label.split_once('-')?;
    let port = port.parse().ok()?;
    (!id.contains('.')).then(|| (port, id.to_owned()))
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod test {
    use axum::body::Body;

    use super::*;

    const ID: &str = "sb-mzxw6ytbojtg633c";
    const TOKEN: &str = "sb-mzxw6ytbojtg633c_abc";

    fn asked(path: &str, headers: &[(&str, &str)]) -> Option<Plane> {
        let mut request = Request::get(path).header("host", "127.0.0.1:7423");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        of(&request.body(Body::empty()).unwrap(), "box.example")
    }

    fn data(id: &str) -> Option<Plane> {
        Some(Plane::Data(Addressed::by_headers(Some(id.to_owned()))))
    }

    fn interpreter(id: &str) -> Option<Plane> {
        Some(Plane::Interpreter(Addressed::by_headers(Some(id.to_owned()))))
    }

    fn data_of_host(id: &str) -> Option<Plane> {
        Some(Plane::Data(Addressed::by_host(id.to_owned())))
    }

    fn port(number: u16) -> Option<Plane> {
        Some(Plane::Port(Target { named_by: NamedBy::Headers, ..Target::of(ID.to_owned(), number) }))
    }

    #[test]
    fn the_path_and_the_key_decide_before_the_headers_and_the_token_comes_last() {
        const KEY: (&str, &str) = ("x-api-key", "k");
        const BOX: (&str, &str) = ("e2b-sandbox-id", ID);
        const DATA: (&str, &str) = ("e2b-sandbox-port", "49983");
        const PORT: (&str, &str) = ("e2b-sandbox-port", "3000");
        const CODE: (&str, &str) = ("e2b-sandbox-port", "49999");
        const OPEN: (&str, &str) = ("x-access-token", TOKEN);
        let control = || Some(Plane::Control);
        for (path, headers, expected) in [
            ("/sandboxes", &[][..], control()),
            ("/v2/sandboxes", &[KEY], control()),
            ("//v2//sandboxes/x", &[], control()),
            ("/v3/templates", &[], control()),
            ("/snapshots", &[], control()),
            // As old SDKs ask the control plane to connect.
            ("/sandboxes/x/connect", &[KEY, BOX, DATA], control()),
            ("/sandboxes/x", &[BOX, PORT], port(3000)),
            ("/sandboxes/x", &[KEY, OPEN, BOX, PORT], port(3000)),
            ("/health", &[BOX, PORT], port(3000)),
            ("/execute", &[BOX, CODE, OPEN], interpreter(ID)),
            ("/health", &[BOX, CODE], interpreter(ID)),
            ("/contexts", &[("e2b-sandbox-id", "gone"), CODE], interpreter("gone")),
            (
                "/x",
                &[("host", "49999-never.box.example")],
                Some(Plane::Interpreter(Addressed::by_host("never".to_owned()))),
            ),
            (
                "/x",
                &[("host", "49999-sb-mzxw6ytbojtg633c.box.example")],
                Some(Plane::Interpreter(Addressed::by_host(ID.to_owned()))),
            ),
            ("/health", &[BOX, DATA], data(ID)),
            ("/anything", &[BOX], data(ID)),
            ("/health", &[("e2b-sandbox-id", "gone"), PORT], data("gone")),
            ("/process.Process/Start", &[OPEN], data(ID)),
            ("/files", &[OPEN], data(ID)),
            ("//files", &[OPEN], data(ID)),
            ("/files", &[("x-access-token", "nonsense")], Some(Plane::Data(Addressed::by_headers(None)))),
            ("/files", &[], Some(Plane::Data(Addressed::by_headers(None)))),
            ("/x", &[("host", "49983-sb-mzxw6ytbojtg633c.box.example:80")], data_of_host(ID)),
            ("/sandboxes", &[KEY, ("host", "49983-sb-mzxw6ytbojtg633c.box.example")], data_of_host(ID)),
            ("/x", &[("host", "49983-never.box.example")], data_of_host("never")),
            // Paths of a program in a sandbox are its own.
            ("/health", &[("host", "3000-sb-mzxw6ytbojtg633c.box.example")], None),
            ("/v2/sandboxes", &[KEY, ("host", "3000-sb-mzxw6ytbojtg633c.box.example")], None),
            ("/process.Process/Start", &[OPEN, ("host", "3000-sb-mzxw6ytbojtg633c.box.example")], None),
            ("/", &[BOX, PORT, ("host", "3000-sb-aaaaaaaaaaaaaaaa.box.example")], None),
            ("/health", &[("host", "x-sb-aaaaaaaaaaaaaaaa.box.example")], None),
            ("/sandboxes", &[KEY, ("host", "api.box.example")], control()),
            ("/x", &[("host", "49984-never.box.example")], None),
            ("/api/v1/sandboxes", &[], None),
            ("/api/v1/sandboxes", &[KEY, BOX], None),
            ("/", &[], None),
            ("/v2", &[], None),
            ("/sandboxesx", &[], None),
        ] {
            let mut request = Request::get(path).body(Body::empty()).unwrap();
            for (name, value) in headers {
                request.headers_mut().insert(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
            }
            assert_eq!(of(&request, "box.example"), expected, "{path} {headers:?}");
        }
        assert_eq!(asked("/v2/sandboxes", &[]), control());
    }

    #[test]
    fn doubled_slashes_collapse_and_the_query_stays() {
        for (uri, expected) in [
            ("//process.Process/Start", "/process.Process/Start"),
            ("/files?path=//a//b", "/files?path=//a//b"),
            ("//files?path=//a", "/files?path=//a"),
            ("///", "/"),
        ] {
            let mut uri: Uri = uri.parse().unwrap();
            tidy(&mut uri);
            assert_eq!(uri.to_string(), expected);
        }
    }
}
