//! Target of a preview: the port and the sandbox that its host name stands for.

use axum::http::{HeaderMap, Request, header};
use domain::SandboxId;

use crate::auth::preview::PERMIT_CHARS;
use crate::http::authority::{Named, named};

/// Port of a sandbox that a request is to; an extension of every request to a preview.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    Port(Target),
    /// Host name that is nearly that of a preview, or several hosts.
    Malformed,
}

/// Port of a sandbox, from `<port>-<sandbox id>.<domain>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub sandbox: String,
    pub port: u16,
    /// Permit in the name: `<port>-<sandbox id>-<permit>.<domain>`.
    pub permit: Option<String>,
    /// Part of the request that stands for it.
    pub named_by: NamedBy,
}

/// Part of a request that stands for a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedBy {
    /// The host name. Pages of the port have an origin of their own.
    Host,
    /// This beginning of the path, on the API's own host.
    Path(String),
    /// Headers of E2B's SDKs, on the API's own host.
    Headers,
}

impl Target {
    /// Returns the target that a sandbox and a port make.
    pub fn of(sandbox: String, port: u16) -> Self {
        Self { sandbox, port, permit: None, named_by: NamedBy::Host }
    }

    /// Returns whether the port has a host name of its own, and does not share the API's.
    pub fn has_own_host(&self) -> bool {
        self.named_by == NamedBy::Host
    }
}

/// Returns the target of a request; `None` for a request that is not to a preview.
pub fn of<B>(request: &Request<B>, domain: &str) -> Option<Asked> {
    let hosts = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut named = hosts.chain(request.uri().authority().map(|authority| authority.as_str()));
    let first = in_authority(named.next()?, domain);
    // A host that differs from another could be taken for the one by a proxy, and for the other here.
    if named.all(|authority| in_authority(authority, domain) == first) { first } else { Some(Asked::Malformed) }
}

/// Returns the target in the path of a request, `/proxy/<sandbox id>/<port>/…`; `None` for another
/// path.
pub fn in_path(path: &str) -> Option<Asked> {
    let (sandbox, rest) = path.strip_prefix("/proxy/")?.split_once('/').unwrap_or_default();
    let port = rest.split('/').next().unwrap_or_default();
    let target = in_label(&format!("{port}-{sandbox}")).filter(|target| target.permit.is_none());
    let named_by = NamedBy::Path(format!("/proxy/{sandbox}/{port}"));
    Some(target.map_or(Asked::Malformed, |target| Asked::Port(Target { named_by, ..target })))
}

/// Returns whether the page that sends a request is of the same sandbox, or is none: other pages
/// must not use the cookie of a person. A browser regards all sandboxes as one site.
pub fn is_of_same_sandbox(headers: &HeaderMap, target: &Target, domain: &str) -> bool {
    if let Some(origin) = text(headers, "origin") {
        return is_in_same_sandbox(origin, target, domain);
    }
    let referer = text(headers, "referer");
    let is_referred = referer.is_some_and(|page| is_in_same_sandbox(page, target, domain));
    if let Some(site) = text(headers, "sec-fetch-site") {
        // A frame is a navigation too, and shows the person nothing of where it leads.
        let is_followed = text(headers, "sec-fetch-mode") == Some("navigate")
            && text(headers, "sec-fetch-dest").is_none_or(|shown_in| shown_in == "document");
        return matches!(site, "same-origin" | "none") || is_followed || is_referred;
    }
    // Browsers tell the site over HTTPS and to localhost alone. Elsewhere a page can hide that it is
    // the one that refers, but cannot make its requests look like a person's, who follows a link.
    is_referred || text(headers, "upgrade-insecure-requests") == Some("1")
}

/// Returns the text of a header; an empty one if it is not ASCII.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default())
}

/// Returns whether a page is in the sandbox of `target`.
fn is_in_same_sandbox(page: &str, target: &Target, domain: &str) -> bool {
    let authority = page.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let asked = authority.and_then(|authority| in_authority(authority, domain));
    matches!(asked, Some(Asked::Port(from)) if from.sandbox == target.sandbox)
}

/// Returns whether an authority is that of a preview, or nearly.
pub fn is_of_preview(authority: &str, domain: &str) -> bool {
    in_authority(authority, domain).is_some()
}

/// Returns whether the name in an authority is below the domain, or cannot be read.
pub fn is_below(authority: &str, domain: &str) -> bool {
    match named(authority) {
        Some(Named::Name(name)) => name.strip_suffix(domain).is_some_and(|label| label.ends_with('.')),
        Some(Named::Address(_)) => false,
        None => true,
    }
}

fn in_authority(authority: &str, domain: &str) -> Option<Asked> {
    let name = match named(authority) {
        Some(Named::Name(name)) => name,
        Some(Named::Address(_)) => return None,
        None => {
            let authority = authority.to_ascii_lowercase();
            return (authority.contains("-sb-") && authority.contains(domain)).then_some(Asked::Malformed);
        }
    };
    let label = name.strip_suffix(domain)?.strip_suffix('.')?;
    let is_near = label.contains("-sb-") || label.starts_with("sb-");
    is_near.then(|| in_label(label).map_or(Asked::Malformed, Asked::Port))
}

fn in_label(label: &str) -> Option<Target> {
    let (port, rest) = label.split_once('-')?;
    // One spelling for each port, so that there is one origin for it.
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && !port.starts_with('0');
    let port = port.parse().ok().filter(|_| is_port)?;
    let (sandbox, permit) = match rest.match_indices('-').nth(1) {
        Some((at, _)) => (&rest[..at], Some(rest[at + 1..].to_owned())),
        None => (rest, None),
    };
    SandboxId::parse(sandbox).ok()?;
    let is_permit = permit.as_ref().is_none_or(|permit| permit.len() == PERMIT_CHARS);
    is_permit.then(|| Target { permit, ..Target::of(sandbox.to_owned(), port) })
}

#[cfg(test)]
mod test {
    use super::*;

    const ID: &str = "sb-mzxw6ytbojtg633c";

    fn asked(authority: &str) -> Option<Asked> {
        in_authority(authority, "box.example")
    }

    #[test]
    fn a_host_name_stands_for_a_port_of_a_sandbox() {
        let target = |port, permit: Option<&str>| {
            let permit = permit.map(str::to_owned);
            Some(Asked::Port(Target { permit, ..Target::of(ID.to_owned(), port) }))
        };
        for (host, expected) in [
            (format!("3000-{ID}.box.example"), target(3000, None)),
            (format!("3000-{ID}.box.example:7423"), target(3000, None)),
            (format!("3000-{ID}.box.example."), target(3000, None)),
            (format!("3000-{}.Box.EXAMPLE:80", ID.to_uppercase()), target(3000, None)),
            (format!("65535-{ID}.box.example"), target(65535, None)),
            (format!("1-{ID}-{}.box.example", "a".repeat(PERMIT_CHARS)), target(1, Some(&"a".repeat(PERMIT_CHARS)))),
        ] {
            assert_eq!(asked(&host), expected, "{host}");
        }
    }

    #[test]
    fn a_name_that_is_nearly_one_is_neither_a_preview_nor_the_api() {
        for label in [
            format!("0-{ID}"),
            format!("65536-{ID}"),
            format!("+80-{ID}"),
            format!("080-{ID}"),
            format!("-{ID}"),
            ID.to_owned(),
            format!("{ID}-3000"),
            format!("3000--{ID}"),
            format!("3000-{ID}x"),
            format!("3000-{ID}-"),
            format!("3000-{ID}-short"),
            format!("a.3000-{ID}"),
            format!("3000-{ID}.b"),
            "3000-sb-".to_owned(),
            "3000-sb-short".to_owned(),
            format!("user@3000-{ID}"),
            format!("3000-{ID}%00"),
            format!("3000-{ID}:80:80#"),
        ] {
            assert_eq!(asked(&format!("{label}.box.example")), Some(Asked::Malformed), "{label}");
        }
        assert_eq!(asked(&format!("3000-{ID}.box.example:x")), Some(Asked::Malformed));
        assert_eq!(asked(&format!("3000-{ID}.box.example..")), Some(Asked::Malformed));
    }

    #[test]
    fn any_other_host_is_that_of_the_api() {
        for host in [
            "box.example".to_owned(),
            "api.box.example".to_owned(),
            format!("3000-{ID}.evil.example"),
            format!("3000-{ID}box.example"),
            format!("3000-{ID}.box.example.evil"),
            "127.0.0.1:7423".to_owned(),
            "[::1]:7423".to_owned(),
            String::new(),
        ] {
            assert_eq!(asked(&host), None, "{host}");
        }
    }

    #[test]
    fn a_path_stands_for_a_port_too() {
        let named_by = NamedBy::Path(format!("/proxy/{ID}/3000"));
        let target = Asked::Port(Target { named_by, ..Target::of(ID.to_owned(), 3000) });
        for rest in ["", "/", "/a/b", "//a"] {
            assert_eq!(in_path(&format!("/proxy/{ID}/3000{rest}")), Some(target.clone()), "{rest}");
        }
        let permit = "a".repeat(PERMIT_CHARS);
        for path in [
            "/proxy/",
            "/proxy/a/b",
            &format!("/proxy/{ID}"),
            &format!("/proxy/{ID}/0/"),
            &format!("/proxy/{ID}-{permit}/1"),
        ] {
            assert_eq!(in_path(path), Some(Asked::Malformed), "{path}");
        }
        assert_eq!(in_path("/api/v1/proxy/"), None);
    }

    #[test]
    fn a_request_with_two_targets_has_none() {
        let request = |uri: String, hosts: &[String]| {
            let request = hosts.iter().fold(Request::builder().uri(uri), |request, host| request.header("host", host));
            of(&request.body(()).unwrap(), "box.example")
        };
        let (one, other) = (format!("3000-{ID}.box.example"), format!("3001-{ID}.box.example"));
        let plain = || "/".to_owned();
        assert!(matches!(request(plain(), std::slice::from_ref(&one)), Some(Asked::Port(_))));
        assert_eq!(request(plain(), &[one.clone(), other.clone()]), Some(Asked::Malformed));
        assert_eq!(request(plain(), &["api.example".to_owned(), one.clone()]), Some(Asked::Malformed));
        assert_eq!(request(format!("http://{other}/"), std::slice::from_ref(&one)), Some(Asked::Malformed));
        assert_eq!(request("http://api.example/".to_owned(), std::slice::from_ref(&one)), Some(Asked::Malformed));
        assert!(matches!(request(format!("http://{one}/"), &[one]), Some(Asked::Port(_))));
        assert_eq!(request(plain(), &[]), None);
    }

    /// Returns the headers of a navigation from a page of that site, shown in this element.
    fn navigation(site: &str, shown_in: &str) -> Vec<(&'static str, String)> {
        let headers = [("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", shown_in)];
        headers.map(|(name, value)| (name, value.to_owned())).to_vec()
    }

    #[test]
    fn only_pages_of_the_same_sandbox_use_the_cookie_of_a_person() {
        let target = Target::of(ID.to_owned(), 3000);
        for (headers, expected) in [
            // Over plain HTTP.
            (vec![], false),
            (vec![("referer", format!("http://3000-{ID}.box.example:7423/a?b"))], true),
            (vec![("referer", format!("http://8000-{ID}.box.example"))], true),
            (vec![("referer", "http://3000-sb-aaaaaaaaaaaaaaaa.box.example/".to_owned())], false),
            (vec![("referer", format!("http://evil.example/http://3000-{ID}.box.example/"))], false),
            (vec![("referer", format!("http://3000-{ID}.box.example@evil.example/"))], false),
            (vec![("referer", String::new())], false),
            (vec![("upgrade-insecure-requests", "1".to_owned())], true),
            (vec![("origin", format!("http://3000-{ID}.box.example:7423"))], true),
            (vec![("origin", format!("https://8000-{ID}.box.example"))], true),
            (vec![("origin", "http://3000-sb-aaaaaaaaaaaaaaaa.box.example".to_owned())], false),
            (vec![("origin", "https://box.example".to_owned())], false),
            (vec![("origin", "null".to_owned())], false),
            (vec![("sec-fetch-site", "same-origin".to_owned())], true),
            (vec![("sec-fetch-site", "same-site".to_owned())], false),
            (vec![("sec-fetch-site", "same-site".to_owned()), ("upgrade-insecure-requests", "1".to_owned())], false),
            (vec![("sec-fetch-site", "cross-site".to_owned()), ("sec-fetch-mode", "no-cors".to_owned())], false),
            (vec![("sec-fetch-site", "cross-site".to_owned()), ("sec-fetch-mode", "navigate".to_owned())], true),
            (navigation("same-site", "document"), true),
            (navigation("same-site", "iframe"), false),
            (navigation("same-site", "frame"), false),
            (navigation("cross-site", "object"), false),
            (navigation("cross-site", "embed"), false),
            (navigation("same-origin", "iframe"), true),
            (
                [navigation("same-site", "iframe"), vec![("referer", format!("http://8000-{ID}.box.example/"))]]
                    .concat(),
                true,
            ),
        ] {
            let map = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
            assert_eq!(is_of_same_sandbox(&map, &target, "box.example"), expected, "{headers:?}");
        }
    }
}
