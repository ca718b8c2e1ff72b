//! Signatures of links to files: `v1_` and the SHA-256 of path, operation, user, token and expiry.

use axum::http::{Method, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD as BASE64;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::query::Query;

/// A request with a signature.
#[derive(Debug)]
pub struct Signed {
    operation: &'static str,
    path: String,
    user: String,
    signature: String,
    /// Seconds since 1970, as written; `None` for a signature without an end.
    expires: Option<String>,
}

impl Signed {
    /// Reads the signature in a query; `None` without one.
    pub fn of(method: &Method, uri: &Uri) -> Option<Self> {
        let query = Query::of(uri);
        Some(Self {
            operation: if *method == Method::POST { "write" } else { "read" },
            path: query.get("path").unwrap_or_default().to_owned(),
            user: query.get("username").unwrap_or_default().to_owned(),
            signature: query.get("signature")?.to_owned(),
            expires: query.get("signature_expiration").map(str::to_owned),
        })
    }

    /// Returns whether the signature was valid for a time that is over at `now_s`, or that cannot be read.
    pub fn has_expired(&self, now_s: i64) -> bool {
        self.expires.as_ref().is_some_and(|expires| expires.parse::<i64>().ok().is_none_or(|expires| expires < now_s))
    }

    /// Returns whether the signature was made with a token.
    pub fn is_by(&self, token: &str) -> bool {
        let Self { operation, path, user, expires, .. } = self;
        let end = expires.as_ref().map_or_else(String::new, |expires| format!(":{expires}"));
        let hash = Sha256::digest(format!("{path}:{operation}:{user}:{token}{end}"));
        let right = format!("v1_{}", BASE64.encode(hash));
        bool::from(right.as_bytes().ct_eq(self.signature.as_bytes()))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn signed(method: Method, query: &str) -> Option<Signed> {
        Signed::of(&method, &format!("/files?{query}").parse().unwrap())
    }

    fn made(text: &str) -> String {
        let hash = BASE64.encode(Sha256::digest(text));
        percent_encoding::utf8_percent_encode(&format!("v1_{hash}"), percent_encoding::NON_ALPHANUMERIC).to_string()
    }

    #[test]
    fn a_signature_holds_for_its_path_operation_user_and_end_and_nothing_else() {
        let good = made("/a b:read::token:2000");
        let query = format!("path=%2Fa+b&signature={good}&signature_expiration=2000");
        let is_by = |method, query: &str, token| signed(method, query).unwrap().is_by(token);
        assert!(is_by(Method::GET, &query, "token"));
        assert!(!is_by(Method::POST, &query, "token"));
        assert!(!is_by(Method::GET, &query, "another"));
        assert!(!is_by(Method::GET, &query.replace("%2Fa", "%2Fb"), "token"));
        assert!(!is_by(Method::GET, &query.replace("2000", "2001"), "token"));
        assert!(!is_by(Method::GET, &format!("{query}&username=root"), "token"));
        assert!(!is_by(Method::GET, &query.replace("&signature_exp", "%3D&signature_exp"), "token"), "padded");
        assert!(is_by(Method::POST, &format!("path=x&username=u&signature={}", made("x:write:u:token")), "token"));
    }

    #[test]
    fn a_signature_ends_when_it_says_and_one_whose_end_cannot_be_read_has_ended() {
        for (end, expected) in [("1000", false), ("999", true), ("", true), ("1e9", true), ("-1", true)] {
            let signed = signed(Method::GET, &format!("signature=x&signature_expiration={end}")).unwrap();
            assert_eq!(signed.has_expired(1000), expected, "{end}");
        }
        assert!(!signed(Method::GET, "signature=x").unwrap().has_expired(i64::MAX));
        assert!(signed(Method::GET, "path=x").is_none());
    }
}
