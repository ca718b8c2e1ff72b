//! Tests of every rule about keys, as tables.

use std::time::Duration;

use axum::http::HeaderValue;
use domain::{KeyScope, OwnerId, OwnerKeyId, Timestamp};
use store::OwnerKey;
use store::clock::{Clock, SteadyClock, after};

use super::*;
use crate::config::Secret;
use crate::owner_keys;

/// Builds the access rules with `api` and `admin` as the configured keys.
fn access(enabled: bool, api: Option<&str>, admin: Option<&str>, fallback: bool) -> Access {
    let hash = |key: &str| KeyHash::of(&Secret::new(key.to_owned()));
    Access {
        enabled,
        api_key: api.map(hash),
        admin_key: admin.map(hash),
        fallback,
        admin_only: Vec::new(),
        workers: Workers::default(),
        owner_keys: Arc::new(OwnerKeys::new(Arc::new(SteadyClock::start()))),
    }
}

/// Adds a key of the owner `ann`.
fn add_key(access: &Access, text: &str, scopes: &[KeyScope], change: impl FnOnce(&mut OwnerKey)) {
    let now = SteadyClock::start().now();
    let mut row = OwnerKey {
        id: OwnerKeyId::from_entropy(owner_keys::hash(text.as_bytes())[..10].try_into().unwrap()),
        name: None,
        owner: OwnerId::parse("ann").unwrap(),
        scopes: scopes.iter().copied().collect(),
        hash: owner_keys::hash(text.as_bytes()),
        prefix: String::new(),
        created_at: now,
        expires_at: Some(after(now, Duration::from_secs(600))),
        revoked_at: None,
        last_used_at: None,
    };
    change(&mut row);
    access.owner_keys.insert([row]);
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

/// Returns the kind of caller that these headers identify, or the message of the refusal.
fn outcome(access: &Access, demand: Demand, lines: &[(&'static str, &str)]) -> Result<&'static str, &'static str> {
    match access.authorize(access.authenticate(&headers(lines)), demand) {
        Ok(Principal::Anonymous) => Ok("anonymous"),
        Ok(Principal::ApiKey(_)) => Ok("api"),
        Ok(Principal::Admin(_)) => Ok("admin"),
        Ok(Principal::Worker(_)) => Ok("worker"),
        Ok(Principal::Owner(_)) => Ok("owner"),
        Err(denied) => Err(denied.message),
    }
}

#[track_caller]
fn opens(access: &Access, demand: Demand, lines: &[(&'static str, &str)], who: &str) {
    assert_eq!(outcome(access, demand, lines), Ok(who), "{lines:?}");
}

#[track_caller]
fn refuses(access: &Access, demand: Demand, lines: &[(&'static str, &str)], words: &str) {
    let message = outcome(access, demand, lines).expect_err("it is refused");
    assert!(message.contains(words), "{lines:?}: {message}");
}

#[test]
fn a_key_opens_what_it_is_for_in_each_of_its_headers() {
    let access = access(true, Some("k-api"), Some("k-admin"), true);
    opens(&access, Demand::Key, &[("x-api-key", "k-api")], "api");
    opens(&access, Demand::Key, &[("authorization", "Bearer k-api")], "api");
    opens(&access, Demand::Key, &[("authorization", "bearer   k-api ")], "api");
    opens(&access, Demand::Key, &[("x-api-key", "k-admin")], "admin");
    opens(&access, Demand::Key, &[("x-admin-api-key", "k-admin")], "admin");
    opens(&access, Demand::Key, &[("x-api-key", "k-api"), ("x-admin-api-key", "k-admin")], "admin");
    opens(&access, Demand::Key, &[("x-api-key", "k-api"), ("authorization", "Bearer k-api")], "api");
    opens(&access, Demand::Key, &[("x-api-key", "k-api"), ("authorization", "Basic dTpw")], "api");
    opens(&access, Demand::AdminKey, &[("x-admin-api-key", "k-admin")], "admin");
    opens(&access, Demand::AdminKey, &[("x-api-key", "k-admin")], "admin");
    opens(&access, Demand::AdminKey, &[("authorization", "Bearer k-admin")], "admin");
}

#[test]
fn everything_else_is_refused_and_says_what_to_send() {
    let access = access(true, Some("k-api"), Some("k-admin"), true);
    for demand in [Demand::Key, Demand::AdminKey] {
        refuses(&access, demand, &[], "requires ");
        refuses(&access, demand, &[("x-api-key", "wrong")], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", "k-ap")], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", "k-api\u{e9}")], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", "K-API")], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", "k-api, k-api")], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", "")], "`X-API-Key` is empty");
        refuses(&access, demand, &[("x-api-key", "  ")], "`X-API-Key` is empty");
        refuses(&access, demand, &[("x-admin-api-key", "")], "`X-Admin-API-Key` is empty");
        refuses(&access, demand, &[("authorization", "")], "`Authorization` is empty");
        refuses(&access, demand, &[("authorization", "Bearer")], "contains no key");
        refuses(&access, demand, &[("authorization", "k-api")], "requires ");
        refuses(&access, demand, &[("authorization", "Basic ay1hcGk=")], "requires ");
        refuses(&access, demand, &[("x-admin-api-key", "wrong")], "not the admin key");
        refuses(&access, demand, &[("x-admin-api-key", "k-api")], "send that as `X-API-Key`");
        refuses(&access, demand, &[("x-user-id", "k-admin")], "requires ");
        refuses(&access, demand, &[("x-worker-token", "k-admin")], "requires ");
    }
    refuses(&access, Demand::AdminKey, &[("x-api-key", "k-api")], "does not give access to this route");
}

#[test]
fn what_can_be_read_two_ways_is_refused() {
    let access = access(true, Some("k-api"), Some("k-admin"), true);
    for demand in [Demand::Key, Demand::AdminKey] {
        let right = "k-admin";
        refuses(&access, demand, &[("x-api-key", right), ("x-api-key", "wrong")], "given twice");
        refuses(&access, demand, &[("x-api-key", right), ("x-api-key", right)], "given twice");
        refuses(&access, demand, &[("x-admin-api-key", right), ("x-admin-api-key", right)], "given twice");
        refuses(&access, demand, &[("authorization", "Bearer k-admin"), ("authorization", "Basic x")], "given twice");
        refuses(&access, demand, &[("x-api-key", right), ("authorization", "Bearer wrong")], "different keys");
        refuses(&access, demand, &[("x-api-key", "wrong"), ("x-admin-api-key", right)], "not valid for this service");
        refuses(&access, demand, &[("x-api-key", right), ("x-admin-api-key", "wrong")], "not the admin key");
    }
}

#[test]
fn the_api_key_opens_admin_routes_only_while_there_is_no_admin_key() {
    let fallback = access(true, Some("k-api"), None, true);
    opens(&fallback, Demand::AdminKey, &[("x-api-key", "k-api")], "admin");
    opens(&fallback, Demand::AdminKey, &[("x-admin-api-key", "k-api")], "admin");
    refuses(&fallback, Demand::AdminKey, &[], "requires the admin key");
    let closed = access(true, Some("k-api"), None, false);
    for lines in [&[][..], &[("x-api-key", "k-api")], &[("x-admin-api-key", "k-api")]] {
        refuses(&closed, Demand::AdminKey, lines, "`auth.admin_fallback_enabled` is false");
    }
    opens(&closed, Demand::Key, &[("x-api-key", "k-api")], "api");
}

#[test]
fn the_admin_key_is_asked_for_whether_or_not_the_api_key_is() {
    let access = access(false, None, Some("k-admin"), true);
    opens(&access, Demand::Key, &[], "anonymous");
    opens(&access, Demand::Key, &[("x-api-key", "wrong")], "anonymous");
    opens(&access, Demand::Key, &[("x-admin-api-key", "k-admin")], "admin");
    opens(&access, Demand::AdminKey, &[("x-admin-api-key", "k-admin")], "admin");
    refuses(&access, Demand::AdminKey, &[], "requires the admin key");
    refuses(&access, Demand::AdminKey, &[("x-api-key", "wrong")], "not valid for this service");
}

#[test]
fn without_any_key_admin_routes_are_as_open_as_the_others() {
    let open = access(false, None, None, true);
    opens(&open, Demand::AdminKey, &[], "anonymous");
    let closed = access(false, None, None, false);
    refuses(&closed, Demand::AdminKey, &[], "this route is closed");
    // A configured key is one that the operator relies on.
    let configured = access(false, Some("k-api"), None, true);
    opens(&configured, Demand::Key, &[], "anonymous");
    refuses(&configured, Demand::AdminKey, &[], "requires the admin key");
    opens(&configured, Demand::AdminKey, &[("x-api-key", "k-api")], "admin");
}

#[test]
fn a_group_that_is_closed_opens_to_the_admin_key_alone() {
    let mut access = access(true, Some("k-api"), Some("k-admin"), true);
    access.admin_only = vec![RouteGroup::Quotas];
    let (quotas, events) = (Demand::Group(RouteGroup::Quotas), Demand::Group(RouteGroup::Events));
    refuses(&access, quotas, &[("x-api-key", "k-api")], "does not give access to this route");
    opens(&access, quotas, &[("x-admin-api-key", "k-admin")], "admin");
    opens(&access, events, &[("x-api-key", "k-api")], "api");
    access.enabled = false;
    refuses(&access, quotas, &[], "requires the admin key");
    opens(&access, events, &[], "anonymous");
}

#[test]
fn an_open_route_knows_whom_it_tells_more_and_a_wrong_key_is_known() {
    let access = access(true, Some("k-api"), None, true);
    let found = |lines| access.authenticate(&headers(lines));
    let principal = |lines| access.authorize(found(lines), Demand::Nothing).unwrap();
    assert!(!access.tells_all(&principal(&[])));
    assert!(!access.tells_all(&principal(&[("x-api-key", "wrong")])));
    assert!(access.tells_all(&principal(&[("x-api-key", "k-api")])));
    assert!(found(&[("x-api-key", "wrong")]).unwrap_err().tried.is_some());
}

#[test]
fn nothing_shows_a_key() {
    let access = access(true, Some("k-api"), Some("k-admin"), true);
    let principal = access.authenticate(&headers(&[("x-api-key", "k-api")])).unwrap();
    let id = principal.key_id().unwrap().to_string();
    assert!(id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    let denied = access.authenticate(&headers(&[("x-api-key", "s3cret")])).unwrap_err();
    let shown = format!("{access:?} {principal:?} {denied:?}");
    assert!(!shown.contains("k-api") && !shown.contains("k-admin") && !shown.contains("s3cret"), "{shown}");
    assert_ne!(principal.key_id(), denied.tried.as_ref(), "two keys have two names");
}

#[test]
fn what_is_asked_for_is_what_opens() {
    let demands = [Demand::Nothing, Demand::Key, Demand::AdminKey, Demand::Group(RouteGroup::Quotas)];
    for (enabled, api, admin, fallback) in [
        (false, None, None, true),
        (false, None, None, false),
        (false, Some("api"), None, true),
        (false, None, Some("admin"), true),
        (true, Some("api"), None, true),
        (true, Some("api"), None, false),
        (true, Some("api"), Some("admin"), true),
    ] {
        for admin_only in [vec![], vec![RouteGroup::Quotas]] {
            let access = Access { admin_only, ..access(enabled, api, admin, fallback) };
            for demand in demands {
                let what = format!("{access:?} {demand:?}");
                let asked = access.asks(demand);
                assert_eq!(asked == Asked::Nothing, outcome(&access, demand, &[]).is_ok(), "{what}");
                if let (Some(api), true) = (api, asked != Asked::AdminKey) {
                    assert!(outcome(&access, demand, &[("x-api-key", api)]).is_ok(), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_key_of_an_owner_is_accepted_where_the_api_key_is() {
    for enabled in [true, false] {
        let access = access(enabled, Some("k-api"), Some("k-admin"), true);
        add_key(&access, "k-ann", &KeyScope::ALL, |_| {});
        for demand in [Demand::Nothing, Demand::Key, Demand::AdminKey, Demand::Group(RouteGroup::Events)] {
            opens(&access, demand, &[("x-api-key", "k-ann")], "owner");
            opens(&access, demand, &[("authorization", "Bearer k-ann")], "owner");
        }
        opens(&access, Demand::Key, &[("x-api-key", "k-ann"), ("x-admin-api-key", "k-admin")], "admin");
        refuses(&access, Demand::AdminKey, &[("x-admin-api-key", "k-ann")], "holds a key of an owner");
    }
}

#[test]
fn a_key_of_an_owner_that_has_ended_is_refused_even_where_no_key_is_required() {
    for enabled in [true, false] {
        let access = access(enabled, Some("k-api"), None, true);
        add_key(&access, "k-old", &KeyScope::ALL, |row| row.expires_at = Some(row.created_at));
        add_key(&access, "k-gone", &KeyScope::ALL, |row| row.revoked_at = Some(Timestamp::UNIX_EPOCH));
        for demand in [Demand::Key, Demand::AdminKey, Demand::Group(RouteGroup::Events)] {
            refuses(&access, demand, &[("x-api-key", "k-old")], "has expired");
            refuses(&access, demand, &[("authorization", "Bearer k-gone")], "was revoked");
        }
        opens(&access, Demand::Nothing, &[("x-api-key", "k-gone")], "anonymous");
        let denied = access.authenticate(&headers(&[("x-api-key", "k-gone")])).unwrap_err();
        assert!(denied.tried.unwrap().as_str().starts_with("key-"));
        refuses(&access, Demand::AdminKey, &[("x-api-key", "k-gon")], "not valid for this service");
    }
}

#[test]
fn a_key_of_an_owner_opens_what_its_scopes_name_and_nothing_of_the_operator() {
    let mut access = access(true, Some("k-api"), Some("k-admin"), true);
    access.admin_only = vec![RouteGroup::Templates];
    add_key(&access, "k-ann", &[KeyScope::Templates, KeyScope::SandboxesWrite], |_| {});
    let owner = access.authenticate(&headers(&[("x-api-key", "k-ann")])).unwrap();
    let (group, closed) = (Demand::Group(RouteGroup::Templates), Err("the operator's"));
    for (demand, rule, expected) in [
        (Demand::Key, OwnerAccess::Any, Ok(())),
        (Demand::Key, OwnerAccess::Closed, closed),
        (Demand::AdminKey, OwnerAccess::Closed, closed),
        (Demand::Nothing, OwnerAccess::Closed, Ok(())),
        (Demand::Key, OwnerAccess::Scope(KeyScope::Templates), Ok(())),
        (Demand::AdminKey, OwnerAccess::Scope(KeyScope::Templates), Ok(())),
        (Demand::Key, OwnerAccess::Scope(KeyScope::SandboxesRead), Ok(())),
        (Demand::Key, OwnerAccess::Scope(KeyScope::Events), Err("scope `events`")),
        (group, OwnerAccess::Scope(KeyScope::Templates), closed),
        (Demand::Group(RouteGroup::Events), OwnerAccess::Scope(KeyScope::Templates), Ok(())),
    ] {
        let outcome = access.check_owner_access(&owner, demand, rule);
        match (outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(message), Err(words)) => assert!(message.contains(words), "{rule:?}: {message}"),
            (outcome, _) => panic!("{demand:?} {rule:?}: {outcome:?}"),
        }
    }
    for scope in KeyScope::ALL {
        assert!(lacks(scope).contains(&format!("scope `{scope}`")));
    }
    let other = access.authenticate(&headers(&[("x-api-key", "k-api")])).unwrap();
    assert_eq!(access.check_owner_access(&other, Demand::Key, OwnerAccess::Closed), Ok(()));
    assert!(!access.tells_all(&owner));
}

#[test]
fn a_key_of_an_owner_never_reaches_a_program() {
    let access = access(true, Some("k-api"), None, true);
    add_key(&access, "k-ann", &KeyScope::ALL, |_| {});
    add_key(&access, "k-gone", &KeyScope::ALL, |row| row.revoked_at = Some(Timestamp::UNIX_EPOCH));
    for (key, is_passed_on) in [("k-ann", false), ("k-gone", false), ("k-other", true)] {
        let mut passed = headers(&[("authorization", &format!("Bearer {key}"))]);
        access.remove_keys(&mut passed);
        assert_eq!(passed.contains_key("authorization"), is_passed_on, "{key}");
    }
}
