//! Signed worker tokens: `tidebox-worker-v1.<claims>.<signature>`, both parts base64url without
//! padding. The signature is HMAC-SHA256 over everything before the last dot. Nothing in a
//! token chooses how it is checked.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::config::Secret;

/// Prefix of every signed token.
const FORM: &str = "tidebox-worker-v1.";
/// Audience of a token (`aud`).
pub const AUDIENCE: &str = "worker:control-plane";
/// Longest lifetime of a token.
pub const LIFETIME_MAX: Duration = Duration::from_secs(15 * 60);
/// Tolerated difference between the clocks of two machines, in seconds.
const SKEW_S: i64 = 30;
/// Longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;
/// Longest worker id and longest `jti`, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Permissions of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Sending heartbeats.
    Heartbeat,
    /// Renewing leases.
    Lease,
}

impl Scope {
    /// All scopes. A token without `scopes` has them.
    pub const ALL: [Scope; 2] = [Scope::Heartbeat, Scope::Lease];

    /// Returns the name of the scope in a token.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Heartbeat => "worker:heartbeat",
            Scope::Lease => "worker:lease",
        }
    }
}

/// Claims of a token. Times are seconds since 1970-01-01 UTC. Unknown claims are ignored, so
/// that versions can differ; one given twice is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Id of the worker.
    pub worker_id: String,
    /// Id of the token, by which it can be revoked.
    pub jti: String,
    /// Audience; must be [`AUDIENCE`].
    pub aud: String,
    /// Time of issue.
    pub iat: i64,
    /// Start of validity, if later than `iat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    /// End of validity.
    pub exp: i64,
    /// Scopes of the worker; all of them if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<ScopeNames>,
}

/// Names of scopes, as a list or as one text with spaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ScopeNames {
    /// A list such as `["worker:heartbeat"]`.
    List(Vec<String>),
    /// A text such as `"worker:heartbeat worker:lease"`.
    Text(String),
}

impl Claims {
    /// Returns the scopes of the worker. Unknown names grant nothing.
    #[must_use]
    pub fn granted(&self) -> Vec<Scope> {
        let names: Vec<&str> = match &self.scopes {
            None => return Scope::ALL.to_vec(),
            Some(ScopeNames::List(names)) => names.iter().map(String::as_str).collect(),
            Some(ScopeNames::Text(text)) => text.split(' ').collect(),
        };
        Scope::ALL.into_iter().filter(|scope| names.contains(&scope.as_str())).collect()
    }
}

/// Reason why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Malformed token.
    Form,
    /// Signature by none of the accepted keys.
    Signature,
    /// Missing or malformed claims.
    Claims,
    /// Token for another audience.
    Audience,
    /// Lifetime longer than [`LIFETIME_MAX`], or not above zero.
    Lifetime,
    /// Token that is not valid yet.
    NotYet,
    /// Expired token.
    Expired,
    /// Revoked token.
    Revoked,
}

impl Fault {
    /// Returns the message for the sender. It repeats nothing of the token.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Fault::Form => "the token does not have the form tidebox-worker-v1.<claims>.<signature>",
            Fault::Signature => "the token is not signed with a key that this server accepts",
            Fault::Claims => {
                "the token's claims must be an object with `worker_id`, `jti`, `aud`, `iat` and `exp`, each exactly \
                 once; ids are 1 to 128 letters, digits, `.`, `_` or `-`, and times are whole seconds"
            }
            Fault::Audience => "the token's audience is not `worker:control-plane`",
            Fault::Lifetime => "the token's `exp` must be after its `iat`, by at most 15 minutes",
            Fault::NotYet => "the token is not valid yet; check the clocks of both machines",
            Fault::Expired => "the token has expired; make a new one",
            Fault::Revoked => "the token has been revoked",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for Fault {}

/// Returns whether the text has the prefix of signed tokens.
#[must_use]
pub fn is_signed(token: &str) -> bool {
    token.starts_with(FORM)
}

/// Returns whether the text is valid as the id of a worker or a token: 1 to 128 letters,
/// digits, `.`, `_` and `-`. A `jti` outside of this form could not be revoked.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Signs these claims.
///
/// # Panics
/// Never: the claims are texts and numbers, and a key may have any length.
#[must_use]
pub fn sign(claims: &Claims, key: &Secret) -> String {
    let json = serde_json::to_vec(claims).expect("claims are JSON");
    let signed = format!("{FORM}{}", BASE64URL.encode(json));
    let signature = mac(key).chain_update(&signed).finalize().into_bytes();
    format!("{signed}.{}", BASE64URL.encode(signature))
}

/// Decodes a token without verifying it.
///
/// # Errors
/// [`Fault::Form`] and [`Fault::Claims`].
pub fn read(token: &str) -> Result<Claims, Fault> {
    let (claims, _) = parts(token)?;
    parse(&claims)
}

/// Decodes a token that one of `keys` signed and that is valid at `now_ms` (milliseconds since
/// 1970-01-01 UTC). The caller has to compare `worker_id`.
///
/// # Errors
/// Every [`Fault`].
pub fn verify<'a>(
    token: &str,
    keys: impl IntoIterator<Item = &'a Secret>,
    revoked: &[String],
    now_ms: i64,
) -> Result<Claims, Fault> {
    let (claims, signature) = parts(token)?;
    let signed = token.rsplit_once('.').map_or("", |(signed, _)| signed);
    let mut keys = keys.into_iter();
    if !keys.any(|key| mac(key).chain_update(signed).verify_slice(&signature).is_ok()) {
        return Err(Fault::Signature);
    }
    let claims = parse(&claims)?;
    if claims.aud != AUDIENCE {
        return Err(Fault::Audience);
    }
    let lifetime_s = claims.exp.checked_sub(claims.iat).and_then(|lifetime| u64::try_from(lifetime).ok());
    if !lifetime_s.is_some_and(|lifetime| (1..=LIFETIME_MAX.as_secs()).contains(&lifetime)) {
        return Err(Fault::Lifetime);
    }

    let begins = claims.nbf.map_or(claims.iat, |nbf| nbf.max(claims.iat));
    if now_ms < milliseconds(begins.saturating_sub(SKEW_S)) {
        return Err(Fault::NotYet);
    }
    if now_ms >= milliseconds(claims.exp.saturating_add(SKEW_S)) {
        return Err(Fault::Expired);
    }
    if revoked.contains(&claims.jti) {
        return Err(Fault::Revoked);
    }
    Ok(claims)
}

fn milliseconds(seconds: i64) -> i64 {
    seconds.saturating_mul(1000)
}

/// Returns the claims and the signature, both decoded. The decoder accepts only one encoding of
/// the same bytes.
fn parts(token: &str) -> Result<(Vec<u8>, Vec<u8>), Fault> {
    let rest = token.strip_prefix(FORM).filter(|_| token.len() <= TOKEN_BYTES_MAX).ok_or(Fault::Form)?;
    let (claims, signature) = rest.split_once('.').ok_or(Fault::Form)?;
    Ok((decoded(claims)?, decoded(signature)?))
}

fn decoded(text: &str) -> Result<Vec<u8>, Fault> {
    BASE64URL.decode(text).map_err(|_| Fault::Form)
}

fn parse(json: &[u8]) -> Result<Claims, Fault> {
    // serde would accept a list with the fields in their order.
    if json.first() != Some(&b'{') {
        return Err(Fault::Claims);
    }
    let claims: Claims = serde_json::from_slice(json).map_err(|_| Fault::Claims)?;
    if is_name(&claims.jti) && is_name(&claims.worker_id) { Ok(claims) } else { Err(Fault::Claims) }
}

fn mac(key: &Secret) -> Hmac<Sha256> {
    <Hmac<Sha256> as KeyInit>::new_from_slice(key.expose().as_bytes()).expect("a key of any length will do")
}

#[cfg(test)]
mod test;
