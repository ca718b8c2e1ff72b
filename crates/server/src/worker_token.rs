//! Signing and inspection of worker tokens from the configuration alone: no server has to run.

use std::time::Duration;

use domain::parse_duration;

use crate::auth::token::{self, AUDIENCE, Claims, Fault, LIFETIME_MAX, Scope, ScopeNames};
use crate::config::Auth;
use store::clock::{Clock, SteadyClock, from_ms};

/// A newly signed token.
#[derive(Clone)]
pub struct Minted {
    /// The token itself: a secret while it lives.
    pub token: String,
    /// Id of the token, for `auth.worker_revoked_token_ids`.
    pub jti: String,
    /// Time at which it expires, RFC 3339.
    pub expires_at: String,
}

impl std::fmt::Debug for Minted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minted").field("jti", &self.jti).field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Contents of a token, and whether a server with this configuration would accept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspected {
    /// Reason why it would be refused; `None` if it would be accepted.
    pub refusal: Option<&'static str>,
    /// Claims, as far as they can be read; to be trusted only if the token would be accepted.
    pub claims: Option<Said>,
}

/// Claims of a token as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Id of the worker that it is for.
    pub worker_id: String,
    /// Id of the token.
    pub jti: String,
    /// Audience that it is for.
    pub audience: String,
    /// Time at which it was signed, RFC 3339.
    pub issued_at: String,
    /// Time from which it is valid, RFC 3339, if it states one.
    pub not_before: Option<String>,
    /// Time at which it expires, RFC 3339.
    pub expires_at: String,
    /// Names of the scopes that it grants.
    pub scopes: Vec<&'static str>,
}

/// Signs a token for the worker `id` that is valid for `lifetime` (such as `5m`) from now on,
/// with these scopes, or with all if there are none.
///
/// # Errors
/// A text that states what to change.
pub fn mint(auth: &Auth, id: &str, lifetime: &str, scopes: &[String]) -> Result<Minted, String> {
    let Some(key) = &auth.worker_signing_key else {
        return Err(
            "there is no key to sign with; set `auth.worker_signing_key` or `auth.worker_signing_key_file`".to_owned()
        );
    };
    if !token::is_name(id) {
        return Err("a worker id has 1 to 128 letters, digits, `.`, `_` or `-`".to_owned());
    }
    if id == "local" {
        return Err("the worker `local` is the server itself and needs no token".to_owned());
    }
    let known = Scope::ALL.map(Scope::as_str);
    if let Some(unknown) = scopes.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("there is no scope `{unknown}`; the scopes are {}", known.join(" and ")));
    }
    let lifetime_s = whole_seconds(lifetime)?;
    let iat = SteadyClock::start().now().as_second();
    let claims = Claims {
        worker_id: id.to_owned(),
        jti: format!("{:032x}", rand::random::<u128>()),
        aud: AUDIENCE.to_owned(),
        iat,
        nbf: Some(iat),
        exp: iat + lifetime_s,
        scopes: (!scopes.is_empty()).then(|| ScopeNames::List(scopes.to_vec())),
    };
    Ok(Minted { token: token::sign(&claims, key), expires_at: time(claims.exp), jti: claims.jti })
}

/// Inspects a token as a server with this configuration would.
#[must_use]
pub fn inspect(auth: &Auth, text: &str) -> Inspected {
    let keys: Vec<_> = auth.worker_signing_key.iter().chain(&auth.worker_signing_keys).collect();
    let now_ms = SteadyClock::start().now().as_millisecond();
    let verified = token::verify(text, keys.iter().copied(), &auth.worker_revoked_token_ids, now_ms);
    let refusal = match &verified {
        Err(Fault::Signature) if keys.is_empty() => {
            Some("there is no key to verify with; set `auth.worker_signing_key` or `auth.worker_signing_key_file`")
        }
        Err(fault) => Some(fault.message()),
        Ok(claims) if claims.worker_id == "local" => Some("the worker `local` is the server itself"),
        Ok(_) => None,
    };
    Inspected { refusal, claims: token::read(text).ok().map(said) }
}

fn said(claims: Claims) -> Said {
    Said {
        scopes: claims.granted().into_iter().map(Scope::as_str).collect(),
        worker_id: claims.worker_id,
        jti: claims.jti,
        audience: claims.aud,
        issued_at: time(claims.iat),
        not_before: claims.nbf.map(time),
        expires_at: time(claims.exp),
    }
}

/// Formats seconds since 1970 as RFC 3339; the end of the calendar if they lie beyond.
fn time(seconds: i64) -> String {
    format!("{:.0}", from_ms(seconds.saturating_mul(1000)))
}

fn whole_seconds(text: &str) -> Result<i64, String> {
    let lifetime = parse_duration(text).map_err(|error| format!("the lifetime `{text}` {error}"))?;
    if lifetime.subsec_nanos() != 0 || lifetime > LIFETIME_MAX || lifetime < Duration::from_secs(1) {
        return Err("the lifetime must be whole seconds, at least 1s and at most 15m".to_owned());
    }
    Ok(i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::config::{Config, Inputs, load};

    /// Returns the configuration with these variables.
    fn config(variables: &[(&str, &str)]) -> Config {
        let env = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let folder = "/nonexistent".into();
        let inputs =
            Inputs { config_file: None, of_machine: None, home: None, current_dir: folder, env, is_root: true };
        load(&inputs).unwrap().config
    }

    fn signing(key: &str) -> Auth {
        config(&[("TIDEBOX_AUTH_WORKER_SIGNING_KEY", key)]).auth
    }

    #[test]
    fn what_is_made_is_accepted_and_says_what_was_asked_for() {
        let auth = signing("key");
        let minted = mint(&auth, "w1", "5m", &["worker:lease".to_owned()]).unwrap();
        let inspected = inspect(&auth, &minted.token);
        assert_eq!(inspected.refusal, None);
        let said = inspected.claims.unwrap();
        assert_eq!((said.worker_id.as_str(), said.scopes), ("w1", vec!["worker:lease"]));
        assert_eq!((said.jti, said.expires_at), (minted.jti.clone(), minted.expires_at.clone()));
        assert_eq!(inspect(&auth, &mint(&auth, "w1", "15m", &[]).unwrap().token).refusal, None);
        let revoked = Auth { worker_revoked_token_ids: vec![minted.jti.clone()], ..auth };
        assert_eq!(inspect(&revoked, &minted.token).refusal, Some("the token has been revoked"));
        assert!(!format!("{minted:?}").contains(&minted.token));
    }

    #[test]
    fn a_token_is_checked_with_earlier_keys_and_made_with_the_present_one() {
        let minted = mint(&signing("old"), "w1", "1m", &[]).unwrap();
        let rotated =
            config(&[("TIDEBOX_AUTH_WORKER_SIGNING_KEY", "new"), ("TIDEBOX_AUTH_WORKER_SIGNING_KEYS", "older,old")]);
        assert_eq!(inspect(&rotated.auth, &minted.token).refusal, None);
        assert!(inspect(&signing("new"), &minted.token).refusal.unwrap().contains("is not signed with a key"));
        let without = inspect(&config(&[]).auth, &minted.token);
        assert!(without.refusal.unwrap().contains("set `auth.worker_signing_key`"));
        assert_eq!(without.claims.map(|said| said.worker_id), Some("w1".to_owned()), "it can be looked at");
        assert_eq!(inspect(&config(&[]).auth, "x").claims, None);
    }

    #[test]
    fn what_no_server_would_accept_is_not_made() {
        let auth = signing("key");
        for (id, lifetime, scope, words) in [
            ("", "5m", None, "worker id"),
            ("a/b", "5m", None, "worker id"),
            ("local", "5m", None, "the server itself"),
            ("w1", "15m1s", None, "at most 15m"),
            ("w1", "0s", None, "at least 1s"),
            ("w1", "1500ms", None, "whole seconds"),
            ("w1", "soon", None, "is not a duration"),
            ("w1", "5m", Some("admin"), "there is no scope `admin`"),
        ] {
            let scopes: Vec<String> = scope.into_iter().map(str::to_owned).collect();
            let refusal = mint(&auth, id, lifetime, &scopes).unwrap_err();
            assert!(refusal.contains(words), "{id} {lifetime}: {refusal}");
        }
        assert!(mint(&config(&[]).auth, "w1", "5m", &[]).unwrap_err().contains("auth.worker_signing_key"));
    }
}
