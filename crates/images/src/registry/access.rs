//! Authorization for registries: the exchange of a login, or of none, for a token.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use reqwest::{StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::source::{Fault, Source, authority, bounded, is_loopback, retry_after, slow, unreachable};
use crate::login::{Login, Logins};

/// Timeout for the request for a token.
const TOKEN_WAIT_MAX: Duration = Duration::from_secs(30);

/// Largest answer of a token service, in bytes.
const TOKEN_BYTES_MAX: u64 = 256 * 1024;

/// Lifetime of a token that states none, as the protocol has it; also the shortest lifetime
/// assumed for any token.
const TOKEN_LIFE: Duration = Duration::from_secs(60);

/// Time before its end in which a token is not used.
const TOKEN_MARGIN: Duration = Duration::from_secs(15);

/// Most authorization headers kept.
const KEYS_MAX: usize = 1024;

/// Logins, and the authorization headers obtained with them.
#[derive(Debug)]
pub(super) struct Access {
    logins: Logins,
    keys: Mutex<HashMap<(String, String), Key>>,
}

#[derive(Debug)]
struct Key {
    /// Value marked as sensitive, so that it is never shown.
    header: HeaderValue,
    until: Instant,
}

/// Scheme of authorization that a registry asks for.
#[derive(Debug, PartialEq, Eq)]
enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

#[derive(Deserialize)]
struct Token {
    token: Option<SecretString>,
    access_token: Option<SecretString>,
    expires_in: Option<u64>,
}

impl Access {
    pub(super) fn new(logins: Logins) -> Self {
        Self { logins, keys: Mutex::default() }
    }

    /// Returns the header that worked the last time, unless it has expired.
    pub(super) fn known(&self, source: &Source) -> Option<HeaderValue> {
        let keys = self.keys.lock();
        keys.get(&place(source)).filter(|key| key.until > Instant::now()).map(|key| key.header.clone())
    }

    /// Drops a header that does not work any more.
    pub(super) fn forget(&self, source: &Source) {
        self.keys.lock().remove(&place(source));
    }

    /// Obtains a header for a registry that asks for one. `refused` is the header that it did not
    /// take.
    pub(super) async fn earn(
        &self,
        source: &Source,
        challenge: &HeaderMap,
        refused: Option<&HeaderValue>,
    ) -> Result<HeaderValue, Fault> {
        // Another request may have obtained one meanwhile.
        if let Some(known) = self.known(source)
            && Some(&known) != refused
        {
            return Ok(known);
        }
        self.forget(source);
        let login = self.logins.find(&source.registry).await.map_err(|error| Fault::Ours(error.into()))?;
        let challenge = read(challenge)
            .ok_or_else(|| Fault::Broken(format!("`{}` requires a login of an unknown kind", source.registry)))?;
        let (header, life) = match (&challenge, &login) {
            (_, Some(Login::Bearer(token))) => (bearer(token)?, Duration::MAX),
            (Challenge::Basic, Some(Login::Password { username, password })) => {
                (basic(username, password)?, Duration::MAX)
            }
            (Challenge::Basic, Some(Login::Identity(_))) => {
                let text =
                    format!("`{}` requires a user name and a password, but the login is a token", source.registry);
                return Err(Fault::Refused(text));
            }
            (Challenge::Basic, None) => return Err(wants_login(source)),
            (Challenge::Bearer { realm, service, scope }, login) => {
                let scope = scope.clone().unwrap_or_else(|| format!("repository:{}:pull", source.repository));
                let token = ask(source, realm, service.as_deref(), &scope, login.as_ref());
                tokio::time::timeout(TOKEN_WAIT_MAX, token).await.unwrap_or_else(|_| Err(slow(source)))?
            }
        };
        let now = Instant::now();
        let until = now + life.clamp(TOKEN_LIFE, Duration::from_secs(3600)).saturating_sub(TOKEN_MARGIN);
        let mut keys = self.keys.lock();
        keys.retain(|_, key| key.until > now);
        if keys.len() >= KEYS_MAX {
            keys.clear();
        }
        keys.insert(place(source), Key { header: header.clone(), until });
        Ok(header)
    }
}

/// Returns what a header is kept for: the address and the repository.
fn place(source: &Source) -> (String, String) {
    (source.base.to_string(), source.repository.clone())
}

fn wants_login(source: &Source) -> Fault {
    let registry = &source.registry;
    Fault::Refused(format!(
        "`{registry}` requires a login; set its `username` and `password` under `images.registries`, or run `docker \
         login {registry}`"
    ))
}

fn basic(username: &str, password: &SecretString) -> Result<HeaderValue, Fault> {
    let pair = STANDARD.encode(format!("{username}:{}", password.expose_secret()));
    header(&format!("Basic {pair}"))
}

fn bearer(token: &SecretString) -> Result<HeaderValue, Fault> {
    header(&format!("Bearer {}", token.expose_secret()))
}

fn header(text: &str) -> Result<HeaderValue, Fault> {
    let mut header = HeaderValue::from_str(text)
        .map_err(|_| Fault::Refused("the login or token has bytes that are not allowed in a header".to_owned()))?;
    header.set_sensitive(true);
    Ok(header)
}

/// Returns the challenge to answer: a token goes before a password.
fn read(headers: &HeaderMap) -> Option<Challenge> {
    let mut basic = None;
    for header in headers.get_all(WWW_AUTHENTICATE) {
        let Ok(text) = header.to_str() else { continue };
        for challenge in http_auth::parser::ChallengeParser::new(text) {
            let Ok(challenge) = challenge else { break };
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Challenge::Basic);
            }
            if challenge.scheme.eq_ignore_ascii_case("bearer")
                && let Some(realm) = parameter(&challenge, "realm")
            {
                let service = parameter(&challenge, "service");
                return Some(Challenge::Bearer { realm, service, scope: parameter(&challenge, "scope") });
            }
        }
    }
    basic
}

fn parameter(challenge: &http_auth::ChallengeRef<'_>, name: &str) -> Option<String> {
    let found = challenge.params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.to_unescaped())
}

/// Checks whether a registry may send this server, with its login, to a token service at `realm`;
/// the error is the reason why not.
fn may_ask(registry: &Url, realm: &Url) -> Result<(), &'static str> {
    if !realm.username().is_empty() || realm.password().is_some() {
        return Err("has a login in its address");
    }
    match (realm.scheme(), registry.scheme()) {
        ("https", _) => Ok(()),
        // A registry on this machine needs no TLS, but a token service across the network does.
        ("http", "http") if is_loopback(&authority(registry)) && !is_loopback(&authority(realm)) => {
            Err("is on another machine and does not use TLS")
        }
        ("http", "http") => Ok(()),
        ("http", _) => Err("does not use TLS, but the registry itself does"),
        _ => Err("has an address that is not HTTP"),
    }
}

fn broken_service(source: &Source, why: &str) -> Fault {
    Fault::Broken(format!("the token service of `{}` {why}", source.registry))
}

/// Requests a token from the service that the registry names.
async fn ask(
    source: &Source,
    realm: &str,
    service: Option<&str>,
    scope: &str,
    login: Option<&Login>,
) -> Result<(HeaderValue, Duration), Fault> {
    let mut url = Url::parse(realm).map_err(|_| broken_service(source, "has an invalid address"))?;
    may_ask(&source.base, &url).map_err(|why| broken_service(source, why))?;
    let mut fields: Vec<(&str, &str)> = vec![("scope", scope)];
    fields.extend(service.map(|service| ("service", service)));
    let request = if let Some(Login::Identity(token)) = login {
        fields.extend([
            ("grant_type", "refresh_token"),
            ("refresh_token", token.expose_secret()),
            ("client_id", "tidebox"),
        ]);
        let body: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
            .collect();
        source.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body.join("&"))
    } else {
        if let Some(Login::Password { username, .. }) = login {
            fields.push(("account", username));
        }
        url.query_pairs_mut().extend_pairs(fields);
        let request = source.client.get(url);
        match login {
            Some(Login::Password { username, password }) => request.header(AUTHORIZATION, basic(username, password)?),
            Some(Login::Identity(_) | Login::Bearer(_)) | None => request,
        }
    };
    let response = request.send().await.map_err(|error| unreachable(source, &error))?;
    let status = response.status();
    match status {
        StatusCode::OK => {}
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if login.is_some() => {
            return Err(Fault::Refused(format!("`{}` rejects the login that is configured for it", source.registry)));
        }
        StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(wants_login(source)),
        _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
            let text = format!("the token service of `{}` answers {}", source.registry, status.as_u16());
            return Err(Fault::Passing(text, retry_after(&response)));
        }
        _ => return Err(broken_service(source, &format!("answers {}", status.as_u16()))),
    }
    let bytes = bounded(response, TOKEN_BYTES_MAX).await?;
    let token: Token =
        serde_json::from_slice(&bytes).map_err(|_| broken_service(source, "did not answer with a token"))?;
    let life = token.expires_in.map_or(TOKEN_LIFE, Duration::from_secs);
    let token = token.token.or(token.access_token).ok_or_else(|| broken_service(source, "answers without a token"))?;
    Ok((bearer(&token)?, life))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn no_registry_sends_its_login_over_less_than_it_is_reached_by() {
        for (registry, realm, may) in [
            ("https://r.io", "https://auth.io/t", true),
            ("https://r.io", "http://r.io/t", false),
            ("https://localhost:5000", "http://localhost:5000/t", false),
            ("http://r.lan:5000", "https://auth.io/t", true),
            ("http://r.lan:5000", "http://auth.lan/t", true),
            ("http://localhost:5000", "http://127.0.0.1:5001/t", true),
            ("http://127.0.0.1:5000", "http://auth.lan/t", false),
            ("http://r.lan", "ftp://r.lan/t", false),
            ("https://r.io", "https://me:pw@auth.io/t", false),
        ] {
            let (registry, realm) = (Url::parse(registry).unwrap(), Url::parse(realm).unwrap());
            assert_eq!(may_ask(&registry, &realm).is_ok(), may, "{registry} names {realm}");
        }
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        for (lines, challenge) in [
            (vec!["Basic realm=\"x\""], Some(Challenge::Basic)),
            (
                vec![r#"Bearer realm="https://a/t",service="s",scope="repository:l/p:pull,push""#],
                Some(bearer("https://a/t", Some("s"), Some("repository:l/p:pull,push"))),
            ),
            (vec![r#"Basic realm="x", Bearer realm="https://a/t""#], Some(bearer("https://a/t", None, None))),
            (vec!["Basic realm=\"x\"", r#"bearer realm="https://a/t""#], Some(bearer("https://a/t", None, None))),
            (vec!["Negotiate"], None),
            (vec!["Bearer service=\"x\""], None),
            (vec!["\"\"\",,,="], None),
            (vec![], None),
        ] {
            let mut headers = HeaderMap::new();
            for line in &lines {
                headers.append(WWW_AUTHENTICATE, HeaderValue::from_static(line));
            }
            assert_eq!(read(&headers), challenge, "{lines:?}");
        }
    }
}
