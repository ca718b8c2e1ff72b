//! Signed worker tokens: `tidebox-worker-v1.<claims>.<signature>`, both parts
//! base64url without padding, the signature HMAC-SHA256 over all before the last
//! dot. Nothing in a token chooses how it is checked.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::config::Secret;

/// What every signed token begins with.
const FORM: &str = "tidebox-worker-v1.";
/// Whom a token is for.
pub const AUDIENCE: &str = "worker:control-plane";
/// The longest life of a token.
pub const LIFETIME_MAX: Duration = Duration::from_secs(15 * 60);
/// By how much the clocks of two machines may differ.
const SKEW_S: i64 = 30;
/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 4096;
/// The longest worker id and the longest `jti`, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// What a worker may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Say that it is there.
    Heartbeat,
    /// Keep its leases.
    Lease,
}

impl Scope {
    /// Every scope: what a token has that names none.
    pub const ALL: [Scope; 2] = [Scope::Heartbeat, Scope::Lease];

    /// Its name in a token.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Heartbeat => "worker:heartbeat",
            Scope::Lease => "worker:lease",
        }
    }
}

/// What a token says. Times are seconds since 1970-01-01 UTC. Claims beside
/// these are ignored, so that versions can differ; one given twice is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// Whose it is.
    pub worker_id: String,
    /// Its own name, by which it can be revoked.
    pub jti: String,
    /// Whom it is for.
    pub aud: String,
    /// When it was made.
    pub iat: i64,
    /// From when on it counts; at once if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbf: Option<i64>,
    /// Until when it counts.
    pub exp: i64,
    /// What its worker may do; everything if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scopes: Option<ScopeNames>,
}

/// Names of scopes, as a list or as one text with spaces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ScopeNames {
    /// `["worker:heartbeat"]`
    List(Vec<String>),
    /// `"worker:heartbeat worker:lease"`
    Text(String),
}

impl Claims {
    /// What the worker may do. Names that are not known grant nothing.
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

/// Why a token is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is no signed token.
    Form,
    /// No key made this signature over these claims.
    Signature,
    /// The claims are not what they must be.
    Claims,
    /// It is for somebody else.
    Audience,
    /// It lives longer than allowed.
    Lifetime,
    /// Its time has not come.
    NotYet,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

impl Fault {
    /// What to tell whoever sent it. Repeats nothing of the token.
    #[must_use]
    pub fn message(self) -> &'static str {
        match self {
            Fault::Form => "the token does not have the form tidebox-worker-v1.<claims>.<signature>",
            Fault::Signature => "the token's signature is not of a key that is accepted here",
            Fault::Claims => {
                "the token's claims must be an object with `worker_id`, `jti`, `aud`, `iat` and `exp`, each once, \
                 ids of 1 to 128 letters, digits, `.`, `_` or `-`, times in whole seconds"
            }
            Fault::Audience => "the token is for another audience than `worker:control-plane`",
            Fault::Lifetime => "the token's `exp` must lie after its `iat`, and at most 15 minutes after it",
            Fault::NotYet => "the token is not valid yet; compare the clocks of both machines",
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

/// Whether this is meant to be a signed token.
#[must_use]
pub fn is_signed(token: &str) -> bool {
    token.starts_with(FORM)
}

/// Whether a worker or a token may be called so: 1 to 128 letters, digits, `.`,
/// `_` and `-`. Another `jti` could not be revoked.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Signs these claims.
///
/// # Panics
/// Never: the claims are texts and numbers, and any key will do.
#[must_use]
pub fn sign(claims: &Claims, key: &Secret) -> String {
    let json = serde_json::to_vec(claims).expect("claims are JSON");
    let signed = format!("{FORM}{}", BASE64URL.encode(json));
    let signature = mac(key).chain_update(&signed).finalize().into_bytes();
    format!("{signed}.{}", BASE64URL.encode(signature))
}

/// Reads a token without believing it.
///
/// # Errors
/// [`Fault::Form`] and [`Fault::Claims`].
pub fn read(token: &str) -> Result<Claims, Fault> {
    let (claims, _) = parts(token)?;
    parse(&claims)
}

/// Reads a token that one of `keys` signed and that counts at `now_ms`
/// (milliseconds since 1970-01-01 UTC). Whose it is remains to be compared.
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
    let is_ours = |key| mac(key).chain_update(signed).verify_slice(&signature).is_ok();
    if !keys.into_iter().any(is_ours) {
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
    let ms = |seconds: i64| seconds.saturating_mul(1000);
    let begins = claims.nbf.map_or(claims.iat, |nbf| nbf.max(claims.iat));
    if now_ms < ms(begins.saturating_sub(SKEW_S)) {
        return Err(Fault::NotYet);
    }
    if now_ms >= ms(claims.exp.saturating_add(SKEW_S)) {
        return Err(Fault::Expired);
    }
    if revoked.contains(&claims.jti) {
        return Err(Fault::Revoked);
    }
    Ok(claims)
}

/// The claims and the signature, both decoded. There is one way only to write
/// the same bytes.
fn parts(token: &str) -> Result<(Vec<u8>, Vec<u8>), Fault> {
    let rest = token.strip_prefix(FORM).filter(|_| token.len() <= TOKEN_BYTES_MAX).ok_or(Fault::Form)?;
    let (claims, signature) = rest.split_once('.').ok_or(Fault::Form)?;
    let decoded = |text| BASE64URL.decode(text).map_err(|_| Fault::Form);
    Ok((decoded(claims)?, decoded(signature)?))
}

fn parse(json: &[u8]) -> Result<Claims, Fault> {
    // The reader would take a list for the fields in their order.
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
