//! Links to upload files for a build. SDKs send no key with an upload, so the link holds what opens it: the owner, the end
//! and a signature.

use axum::extract::Request;
use axum::http::Uri;
use domain::{OwnerId, base32};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use subtle::ConstantTimeEq;

use super::admission::Proven;
use super::query::Query;
use crate::auth::preview::PreviewKey;
use crate::auth::{Denied, Principal};
use crate::http::state::Api;

/// Seconds for which a link is valid: SDKs upload for an hour at most.
const VALID_S: i64 = 2 * 3600;

/// Returns the query of a link for an owner's files with a digest.
pub fn sign(api: &Api, digest: &str, owner: Option<&OwnerId>) -> String {
    let owner = owner.map_or("", OwnerId::as_str);
    let expires = api.control.now().as_second() + VALID_S;
    let signature = signature(&api.settings.preview_key, digest, owner, expires);
    let owner = utf8_percent_encode(owner, NON_ALPHANUMERIC);
    format!("owner={owner}&expires={expires}&signature={signature}")
}

fn signature(key: &PreviewKey, digest: &str, owner: &str, expires: i64) -> String {
    base32(&key.mac(&format!("tidebox upload 1\0{digest}\0{owner}\0{expires}")))
}

/// Checks the link that a request comes by. The request is then its owner's.
///
/// # Errors
/// [`Denied`] for a link that was not signed, or has expired.
pub fn admit(api: &Api, request: &mut Request) -> Result<Principal, Denied> {
    let owner = checked(&api.settings.preview_key, request.uri(), api.control.now().as_second());
    let owner = owner.map_err(|message| Denied::of(message, None))?;
    request.extensions_mut().insert(Proven { owner });
    Ok(Principal::Anonymous)
}

fn checked(key: &PreviewKey, uri: &Uri, now_s: i64) -> Result<Option<OwnerId>, &'static str> {
    let query = Query::of(uri);
    let digest = uri.path().rsplit('/').next().unwrap_or_default();
    let owner = query.get("owner").unwrap_or_default();
    let expires: i64 = query.get("expires").and_then(|text| text.parse().ok()).unwrap_or(0);
    let right = signature(key, digest, owner, expires);
    let tried = query.get("signature").unwrap_or_default();
    if !bool::from(right.as_bytes().ct_eq(tried.as_bytes())) {
        return Err("the link to upload files is not valid; ask for another with GET /templates/{id}/files/{hash}");
    }
    if expires < now_s {
        return Err("the link to upload files has expired; ask for another with GET /templates/{id}/files/{hash}");
    }
    Ok((!owner.is_empty()).then(|| OwnerId::stored(owner.to_owned())))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::auth::preview::KEY_BYTES;

    #[test]
    fn a_link_is_valid_for_its_files_its_owner_and_its_time_alone() {
        let key = PreviewKey::new([7; KEY_BYTES]);
        let good =
            format!("/templates/t/files/abc?owner=ann&expires=1000&signature={}", signature(&key, "abc", "ann", 1000));
        let tried =
            |text: &str| checked(&key, &text.parse().unwrap(), 1000).map(|owner| owner.map(|owner| owner.to_string()));
        assert_eq!(tried(&good), Ok(Some("ann".to_owned())));
        for (from, to) in [
            ("abc?", "abd?"),
            ("ann", "bob"),
            ("owner=ann&", ""),
            ("expires=1000", "expires=2000"),
            ("signature=", "signature=a"),
        ] {
            tried(&good.replace(from, to)).unwrap_err();
        }
        assert!(checked(&key, &good.parse().unwrap(), 1001).unwrap_err().contains("expired"));
        let other = PreviewKey::new([8; KEY_BYTES]);
        checked(&other, &good.parse().unwrap(), 1000).unwrap_err();
    }
}
