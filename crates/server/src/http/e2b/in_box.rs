//! The sandbox and the user that a request to the data plane is for.

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt;
use futures_util::stream;

use super::address::Addressed;
use super::admission::Proven;
use super::connect::{Cut, Messages};
use crate::control::Error;
use crate::http::error::{ApiError, Refusal, Result, RpcCode, rpc};
use crate::http::state::Api;

/// User of commands and files where neither a request nor the template names one.
pub const USER: &str = "user";

/// Id of the sandbox that a request is to, which runs and whose token was right.
#[derive(Debug, Clone)]
pub struct InBox(pub String);

impl FromRequestParts<Api> for InBox {
    type Rejection = ApiError;

    /// Finds the sandbox, and resumes a paused one if its terms allow it.
    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self> {
        let addressed = parts.extensions.get::<Addressed>().ok_or(Refusal::Internal)?;
        let id = addressed.sandbox.clone().unwrap_or_default();
        if parts.extensions.get::<Proven>().is_none() {
            return Err(Refusal::NoSandbox(id).into());
        }
        match api.control.may_exec(&id).await {
            Ok(()) => {}
            Err(Error::NotFound(..) | Error::Conflict(_)) => return Err(Refusal::NoSandbox(id).into()),
            Err(error) => return Err(error.into()),
        }
        Ok(Self(id))
    }
}

/// Unix user that a remote procedure call names: that of `Authorization: Basic`, whose password is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User(pub Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        let Some(value) = parts.headers.get(header::AUTHORIZATION) else { return Ok(Self(None)) };
        let malformed = || rpc(RpcCode::Unauthenticated, "`Authorization` must be `Basic` with `<user>:` in base64");
        let text = value.to_str().ok().and_then(|text| text.strip_prefix("Basic ")).ok_or_else(malformed)?;
        let bytes = BASE64.decode(text.trim()).map_err(|_| malformed())?;
        let pair = String::from_utf8(bytes).map_err(|_| malformed())?;
        let (user, _) = pair.split_once(':').ok_or_else(malformed)?;
        Ok(Self(Some(user.to_owned()).filter(|user| !user.is_empty())))
    }
}

/// Returns the messages of a stream, which breaks off when its sandbox ends or is paused.
pub fn while_it_runs<M: Send + 'static>(api: &Api, sandbox: &str, messages: Messages<M>) -> Messages<M> {
    let (control, sandbox) = (std::sync::Arc::clone(&api.control), sandbox.to_owned());
    let stands_still = stream::once(async move {
        control.stands_still(&sandbox).await;
        Err(Cut::Gone)
    });
    // The end of the messages is the end of the stream; one side alone does not keep it open.
    let ended = messages.map(Some).chain(stream::once(async { None }));
    stream::select(ended, stands_still.map(Some))
        .take_while(|message| std::future::ready(message.is_some()))
        .filter_map(std::future::ready)
        .boxed()
}
