//! Tests with tokens as an adversary would make them.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// Time at which all tests take place, in seconds since 1970-01-01 UTC.
const NOW: i64 = 1_800_000_000;

fn key(text: &str) -> Secret {
    Secret::new(text.to_owned())
}

fn claims() -> Value {
    json!({"worker_id": "w1", "jti": "j-1", "aud": AUDIENCE, "iat": NOW, "exp": NOW + 300})
}

/// Returns the claims with one of them changed, or removed by null.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    if claims[name].is_null() {
        claims.as_object_mut().unwrap().remove(name);
    }
    claims
}

/// Returns a token over this text, signed with `key`.
fn signed(json: &str, key_text: &str) -> String {
    let head = format!("{FORM}{}", BASE64URL.encode(json));
    let signature = mac(&key(key_text)).chain_update(&head).finalize().into_bytes();
    format!("{head}.{}", BASE64URL.encode(signature))
}

fn outcome(token: &str, now: i64) -> Result<Claims, Fault> {
    verify(token, [&key("today"), &key("yesterday")], &["gone".to_owned()], now * 1000)
}

#[track_caller]
fn check(claims: &Value, expected: Result<(), Fault>) {
    assert_eq!(outcome(&signed(&claims.to_string(), "today"), NOW).map(|_| ()), expected, "{claims}");
}

#[test]
fn what_is_signed_is_accepted_also_by_an_earlier_key() {
    let made = Claims {
        worker_id: "w1".to_owned(),
        jti: "j-1".to_owned(),
        aud: AUDIENCE.to_owned(),
        iat: NOW,
        nbf: Some(NOW),
        exp: NOW + 900,
        scopes: None,
    };
    for text in ["today", "yesterday"] {
        let token = sign(&made, &key(text));
        assert_eq!(outcome(&token, NOW), Ok(made.clone()));
        assert_eq!(read(&token), Ok(made.clone()));
    }
    assert_eq!(outcome(&sign(&made, &key("tomorrow")), NOW), Err(Fault::Signature));
    assert_eq!(verify(&sign(&made, &key("")), [], &[], NOW * 1000), Err(Fault::Signature), "no key, no token");
}

/// A token made by another program, so that the form itself cannot drift.
#[test]
fn the_form_is_the_one_that_was_decided() {
    let token = "tidebox-worker-v1.eyJ3b3JrZXJfaWQiOiJ3MSIsImp0aSI6ImotMSIsImF1ZCI6Indvcmtlcjpjb250cm9sLXBsYW5lIiwiaWF0IjoxODAwMDAwMDAwLCJleHAiOjE4MDAwMDAzMDB9.B-Ntv7-xp_-MkgZ0TPmsCMRu50HAPX6j2GdAbjMImhY";
    assert_eq!(outcome(token, NOW).map(|claims| claims.worker_id), Ok("w1".to_owned()));
}

#[test]
fn each_claim_must_be_there_and_be_what_it_is() {
    check(&claims(), Ok(()));
    for name in ["worker_id", "jti", "aud", "iat", "exp"] {
        check(&with(name, Value::Null), Err(Fault::Claims));
        check(&with(name, json!({"a": 1})), Err(Fault::Claims));
        check(&with(name, json!(1.5)), Err(Fault::Claims));
    }
    for name in ["iat", "exp", "nbf"] {
        check(&with(name, json!(NOW.to_string())), Err(Fault::Claims));
        check(&with(name, json!(1e300)), Err(Fault::Claims));
    }
    for bad in ["", "a b", "a/b", "é", "a\n", &"x".repeat(129)] {
        check(&with("jti", json!(bad)), Err(Fault::Claims));
        check(&with("worker_id", json!(bad)), Err(Fault::Claims));
    }
    check(&with("aud", json!("worker:other")), Err(Fault::Audience));
    check(&with("aud", json!("")), Err(Fault::Audience));
    check(&with("aud", json!([AUDIENCE])), Err(Fault::Claims));
    check(&with("jti", json!("gone")), Err(Fault::Revoked));
    check(&with("alg", json!("none")), Ok(()));
}

#[test]
fn times_are_held_to_with_half_a_minute_of_grace() {
    let at = |claims: &Value, now| outcome(&signed(&claims.to_string(), "today"), now).map(|_| ());
    let plain = claims();
    for (now, expected) in [
        (NOW - 30, Ok(())),
        (NOW - 31, Err(Fault::NotYet)),
        (NOW + 300, Ok(())),
        (NOW + 329, Ok(())),
        (NOW + 330, Err(Fault::Expired)),
        (NOW + 1_000_000, Err(Fault::Expired)),
    ] {
        assert_eq!(at(&plain, now), expected, "{}", now - NOW);
    }
    let later = with("nbf", json!(NOW + 100));
    assert_eq!(at(&later, NOW + 69), Err(Fault::NotYet));
    assert_eq!(at(&later, NOW + 70), Ok(()));
    // An `nbf` before `iat` does not make a token valid earlier.
    assert_eq!(at(&with("nbf", json!(0)), NOW - 31), Err(Fault::NotYet));
    check(&with("exp", json!(NOW + 900)), Ok(()));
    for exp in [NOW + 901, NOW, NOW - 1, 0, -1, i64::MAX, i64::MIN] {
        check(&with("exp", json!(exp)), Err(Fault::Lifetime));
    }
    for iat in [i64::MIN, i64::MAX, 0] {
        check(&with("iat", json!(iat)), Err(Fault::Lifetime));
    }
    let far = json!({"worker_id": "w1", "jti": "j", "aud": AUDIENCE, "iat": i64::MAX - 10, "exp": i64::MAX});
    check(&far, Err(Fault::NotYet));
    let old = json!({"worker_id": "w1", "jti": "j", "aud": AUDIENCE, "iat": i64::MIN, "exp": i64::MIN + 10});
    check(&old, Err(Fault::Expired));
}

#[test]
fn a_claim_given_twice_trailing_data_and_what_is_no_object_are_refused() {
    let plain = claims().to_string();
    let inner = plain.trim_start_matches('{');
    for json in [
        format!(r#"{{"worker_id":"w2",{inner}"#),
        format!(r#"{{"exp":1,{inner}"#),
        format!("{plain} {{}}"),
        format!("{plain}x"),
        format!("[{plain}]"),
        format!(r#"["w1","j-1","{AUDIENCE}",{NOW},null,{},null]"#, NOW + 300),
        String::new(),
        "null".to_owned(),
        "\"w1\"".to_owned(),
        plain.replace("w1", "w\u{0}1"),
    ] {
        assert_eq!(outcome(&signed(&json, "today"), NOW), Err(Fault::Claims), "{json}");
    }
}

#[test]
fn a_changed_token_is_refused() {
    let token = signed(&claims().to_string(), "today");
    let signature = token.rsplit('.').next().unwrap();
    let other = format!("{FORM}{}.{signature}", BASE64URL.encode(with("worker_id", json!("w2")).to_string()));
    assert_eq!(outcome(&other, NOW), Err(Fault::Signature));
    for changed in [
        token.trim_end_matches(signature).to_owned(),
        format!("{}.", token.trim_end_matches(signature)),
        format!("{token}="),
        format!("{token}A"),
        format!("{token}.{signature}"),
        format!(" {token}"),
        format!("{token}\n"),
        token.replacen("v1", "v2", 1),
        token.replacen("tidebox", "Tidebox", 1),
        token.replacen("tidebox-worker-v1.", "", 1),
        token.to_uppercase(),
        format!("{FORM}.{signature}"),
        FORM.to_owned(),
        String::new(),
        format!("{FORM}{}", "A".repeat(5000)),
    ] {
        assert!(matches!(outcome(&changed, NOW), Err(Fault::Form | Fault::Signature)), "{changed}");
    }
}

/// A signature of 32 bytes leaves two bits of its last letter unused; only one value of them is
/// accepted.
#[test]
fn the_same_signature_cannot_be_written_in_two_ways() {
    let token = signed(&claims().to_string(), "today");
    let (head, last) = token.split_at(token.len() - 1);
    let right = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        .chars()
        .filter(|letter| outcome(&format!("{head}{letter}"), NOW).is_ok())
        .collect::<String>();
    assert_eq!(right, last);
}

/// Tokens of other kinds, whose headers choose how they are checked.
#[test]
fn no_token_chooses_how_it_is_checked() {
    let body = BASE64URL.encode(claims().to_string());
    for alg in ["none", "None", "HS256", "RS256", ""] {
        let head = BASE64URL.encode(format!(r#"{{"alg":"{alg}","typ":"JWT"}}"#));
        for token in [format!("{head}.{body}."), format!("{head}.{body}"), format!("{FORM}{head}.{body}.")] {
            assert!(matches!(outcome(&token, NOW), Err(Fault::Form | Fault::Signature)), "{token}");
        }
    }
}

#[test]
fn scopes_that_are_not_known_grant_nothing() {
    let granted =
        |scopes: Value| outcome(&signed(&with("scopes", scopes).to_string(), "today"), NOW).unwrap().granted();
    assert_eq!(granted(Value::Null), Scope::ALL);
    assert_eq!(granted(json!(["worker:lease"])), [Scope::Lease]);
    assert_eq!(granted(json!("worker:heartbeat worker:lease")), Scope::ALL);
    for nothing in [json!([]), json!(""), json!(["admin", "*", "worker:*", "WORKER:LEASE"]), json!("worker:leases")] {
        assert_eq!(granted(nothing), []);
    }
    check(&with("scopes", json!(5)), Err(Fault::Claims));
    check(&with("scopes", json!([5])), Err(Fault::Claims));
}

proptest! {
    #[test]
    fn no_text_is_a_token_by_chance(text in "\\PC{0,80}", tail in "[A-Za-z0-9._=-]{0,80}") {
        prop_assert!(outcome(&text, NOW).is_err());
        let with_head = FORM.to_owned() + &tail;
        prop_assert!(outcome(&with_head, NOW).is_err());
    }

    #[test]
    fn no_changed_byte_goes_unnoticed(at in 0usize..200, byte in 0x21u8..0x7f) {
        let mut token = signed(&claims().to_string(), "today").into_bytes();
        let at = at % token.len();
        prop_assume!(token[at] != byte);
        token[at] = byte;
        prop_assert!(outcome(&String::from_utf8(token).unwrap(), NOW).is_err());
    }
}
