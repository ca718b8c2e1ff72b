//! Tests of the three kinds of credentials together.

use axum::http::HeaderValue;

use super::*;
use crate::auth::token::{AUDIENCE, Claims};

const NOW_S: i64 = 1_800_000_000;

fn secret(text: &str) -> Secret {
    Secret::new(text.to_owned())
}

fn hash(text: &str) -> KeyHash {
    KeyHash::of(&secret(text))
}

/// Returns credentials of every kind. `w1` has a token of its own.
fn workers() -> Workers {
    Workers {
        signing: vec![secret("signing")],
        revoked: vec!["gone".to_owned()],
        own: BTreeMap::from([("w1".to_owned(), hash("own-of-w1"))]),
        shared: Some(hash("shared")),
    }
}

fn signed(id: &str, jti: &str) -> String {
    let claims = Claims {
        worker_id: id.to_owned(),
        jti: jti.to_owned(),
        aud: AUDIENCE.to_owned(),
        iat: NOW_S,
        nbf: None,
        exp: NOW_S + 60,
        scopes: Some(token::ScopeNames::List(vec!["worker:lease".to_owned()])),
    };
    token::sign(&claims, &secret("signing"))
}

/// Verifies a request with this worker in its path and these headers. Returns its scopes, or
/// the message of the refusal.
fn outcome(workers: &Workers, path: &str, lines: &[(&HeaderName, &str)]) -> Result<Vec<Scope>, &'static str> {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let now = Timestamp::from_second(NOW_S).unwrap();
    let claims = workers.verify(path, &headers, now).map_err(|denied| denied.message)?;
    assert_eq!(claims.id, path);
    Ok(claims.scopes)
}

#[track_caller]
fn accepts(workers: &Workers, id: &str, token: &str, scopes: &[Scope]) {
    let lines = [(&WORKER_ID, id), (&WORKER_TOKEN, token)];
    assert_eq!(outcome(workers, id, &lines).as_deref(), Ok(scopes), "{id} {token}");
}

#[track_caller]
fn refuses(workers: &Workers, path: &str, lines: &[(&HeaderName, &str)], words: &str) {
    let message = outcome(workers, path, lines).expect_err("it is refused");
    assert!(message.contains(words), "{path} {lines:?}: {message}");
}

#[test]
fn each_kind_of_credential_is_accepted() {
    let workers = workers();
    accepts(&workers, "w1", "own-of-w1", &Scope::ALL);
    accepts(&workers, "w2", "shared", &Scope::ALL);
    accepts(&workers, "w1", &signed("w1", "j"), &[Scope::Lease]);
    accepts(&workers, "w2", &signed("w2", "j"), &[Scope::Lease]);
}

#[test]
fn a_worker_with_a_token_of_its_own_may_not_use_the_shared_one() {
    refuses(&workers(), "w1", &[(&WORKER_ID, "w1"), (&WORKER_TOKEN, "shared")], "cannot use the shared one");
}

#[test]
fn a_token_of_another_worker_is_refused() {
    let workers = workers();
    refuses(&workers, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, "own-of-w1")], "that this server accepts");
    refuses(&workers, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, &signed("w1", "j"))], "belongs to another worker");
    refuses(&workers, "w1", &[(&WORKER_ID, "w1"), (&WORKER_TOKEN, &signed("w1", "gone"))], "revoked");
}

#[test]
fn the_header_must_name_the_worker_of_the_path() {
    let workers = workers();
    for id in ["w1", "W2", "w2 x", "w"] {
        refuses(&workers, "w2", &[(&WORKER_ID, id), (&WORKER_TOKEN, "shared")], "not the worker named in the path");
    }
    refuses(&workers, "w2", &[(&WORKER_TOKEN, "shared")], "send `X-Worker-ID`");
    refuses(&workers, "w2", &[(&WORKER_ID, "w2")], "`X-Worker-Token`");
    refuses(&workers, "w2", &[], "requires a worker's credentials");
    refuses(&workers, "w2", &[(&WORKER_ID, ""), (&WORKER_TOKEN, "shared")], "`X-Worker-ID` is empty");
    refuses(&workers, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, "")], "`X-Worker-Token` is empty");
    refuses(&workers, "w2", &[(&WORKER_ID, "w2"), (&WORKER_ID, "w2"), (&WORKER_TOKEN, "shared")], "given twice");
    refuses(&workers, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, "shared"), (&WORKER_TOKEN, "x")], "given twice");
    refuses(&workers, "", &[(&WORKER_ID, ""), (&WORKER_TOKEN, "shared")], "empty");
}

#[test]
fn nobody_is_the_worker_of_this_server_itself() {
    refuses(&workers(), "local", &[(&WORKER_ID, "local"), (&WORKER_TOKEN, "shared")], "this server itself");
}

#[test]
fn without_any_credential_configured_nobody_gets_in() {
    let none = Workers::default();
    for token in ["shared", "", "x", &signed("w2", "j")] {
        outcome(&none, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, token)]).expect_err("it is refused");
    }
    let unsigned = Workers { signing: Vec::new(), ..workers() };
    let token = signed("w2", "j");
    refuses(&unsigned, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, &token)], "`auth.worker_signing_key` is not set");
    let own_only = Workers { shared: None, signing: Vec::new(), ..workers() };
    refuses(&own_only, "w2", &[(&WORKER_ID, "w2"), (&WORKER_TOKEN, "own-of-w1")], "no token is configured");
}

#[test]
fn nothing_shows_a_credential() {
    let shown = format!("{:?}", workers());
    assert!(!shown.contains("signing\"") && !shown.contains("own-of-w1") && !shown.contains("shared\""), "{shown}");
    assert!(shown.contains("[hidden]"));
}
