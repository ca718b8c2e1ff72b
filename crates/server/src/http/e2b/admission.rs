//! Admission to the data plane of a sandbox: by its token, or by a signature made with the token.

use axum::extract::Request;
use axum::http::HeaderMap;
use domain::OwnerId;

use super::address::{ACCESS_TOKEN, Addressed};
use super::signature::Signed;
use crate::auth::box_token::{self, Purpose};
use crate::auth::{Denied, Principal};
use crate::http::policy::Proof;
use crate::http::preview::admission::{Admission, by_terms};
use crate::http::state::Api;

/// Mark of a request whose proof is right, an extension of it. One without it is let through only to be told that its
/// sandbox is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proven {
    /// Owner of the sandbox, by whom the request is counted; `None` if it has none.
    pub owner: Option<OwnerId>,
}

/// Checks the proof of a request. An address that the request lacks is completed by the signature.
///
/// # Errors
/// [`Denied`] for wrong proof for a sandbox that is there.
pub async fn admit(api: &Api, proof: Proof, request: &mut Request) -> Result<Principal, Denied> {
    let proven = match proof {
        Proof::Nothing => Ok(()),
        Proof::Token => by_token(api, request).unwrap_or(Err(MISSING)),
        Proof::TokenOrSignature => match by_token(api, request) {
            Some(proven) => proven,
            None => by_signature(api, request).await,
        },
        Proof::TokenOrPort => match by_token(api, request) {
            Some(proven) => proven,
            None => {
                let (id, headers) = (address(request).map(str::to_owned), request.headers().clone());
                by_port(api, id.as_deref(), &headers).await
            }
        },
    };
    match proven {
        Ok(()) => {
            let owner = match (proof, address(request)) {
                (Proof::Nothing, _) | (_, None) => None,
                (Proof::Token | Proof::TokenOrSignature | Proof::TokenOrPort, Some(id)) => {
                    api.control.owner_of_sandbox(id).await
                }
            };
            request.extensions_mut().insert(Proven { owner });
        }
        Err(message) => {
            let is_there = match address(request) {
                Some(id) => api.control.sandbox(id).await.is_ok(),
                None => true,
            };
            if is_there {
                return Err(Denied::of(message, None));
            }
        }
    }
    Ok(Principal::Anonymous)
}

const MISSING: &str = "send the token of the sandbox as `X-Access-Token`; it is `envdAccessToken` of the sandbox";
const NO_TRAFFIC_TOKEN: &str = "send the header `e2b-traffic-access-token`; it is `trafficAccessToken` of the sandbox";
const WRONG: &str = "`X-Access-Token` is not the token of this sandbox";
const BAD_SIGNATURE: &str = "the signature is not valid for this path, operation and user";
/// Words that clients look for.
const EXPIRED: &str = "signature is already expired";

/// Checks the token; `None` if there is none.
fn by_token(api: &Api, request: &Request) -> Option<Result<(), &'static str>> {
    let tried = sent_once(request.headers())?;
    let id = address(request);
    let opens = |id: &str| box_token::opens(&api.settings.preview_key, Purpose::Access, id, tried);
    Some(if id.is_some_and(opens) { Ok(()) } else { Err(WRONG) })
}

fn sent_once(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(ACCESS_TOKEN).iter();
    let first = values.next()?;
    // Of two, none is right.
    Some(if values.next().is_some() { b"" } else { first.as_bytes() })
}

fn address(request: &Request) -> Option<&str> {
    request.extensions().get::<Addressed>().and_then(|addressed| addressed.sandbox.as_deref())
}

/// Checks what the ports of the sandbox ask for.
async fn by_port(api: &Api, id: Option<&str>, headers: &HeaderMap) -> Result<(), &'static str> {
    match by_terms(api, id.ok_or(MISSING)?, headers).await {
        Some(Admission::Terms) => Ok(()),
        Some(_) => Err(NO_TRAFFIC_TOKEN),
        None => Err(MISSING),
    }
}

async fn by_signature(api: &Api, request: &mut Request) -> Result<(), &'static str> {
    let Some(signed) = Signed::of(request.method(), request.uri()) else { return Err(MISSING) };
    if signed.has_expired(api.control.now().as_second()) {
        return Err(EXPIRED);
    }
    let is_of = |id: &str| signed.is_by(&box_token::token(&api.settings.preview_key, Purpose::Access, id));
    if let Some(id) = address(request) {
        return if is_of(id) { Ok(()) } else { Err(BAD_SIGNATURE) };
    }
    // A URL without a host name of its own does not name its sandbox, and each that runs is tried.
    let running = api.control.running_ids().await.map_err(|_| BAD_SIGNATURE)?;
    let found = running.into_iter().find(|id| is_of(id.as_str())).ok_or(BAD_SIGNATURE)?;
    request.extensions_mut().insert(Addressed::by_headers(Some(found.to_string())));
    Ok(())
}
