//! `/sandboxes/{id}/contexts` and `/sandboxes/{id}/run`.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use providers::STREAM_BYTES_MAX;

use super::output::KEEP_ALIVE;
use crate::control::{CodeRequest, ContextId, Outcome, RunEnd, Target};
use crate::http::api::wire;
use crate::http::error::Result;
use crate::http::request::{Json as Body, Name, Names};
use crate::http::request_memory::{LIST_BYTES, Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};
use crate::http::stream::run_lines::{self, Form, Line};

/// Make a context
///
/// Starts an interpreter, which keeps its state between runs.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/contexts",
    operation_id = "create_context", tag = "contexts", params(("id" = String, Path)),
    request_body = api::ContextRequest,
    responses(
        (status = 201, body = api::Context, description = "It waits for code"),
        (status = 400, body = api::ErrorBody, description = "Invalid request, or the sandbox has no interpreter for the language"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "Too many processes"),
        (status = 503, body = api::ErrorBody, description = "The interpreter did not start in time")))]
pub async fn create(
    State(api): State<Api>,
    Name(id): Name,
    Body(body): Body<api::ContextRequest>,
) -> Result<(StatusCode, Json<api::Context>)> {
    let context = api.control.create_context(&id, wire::new_context(body)?).await?;
    Ok((StatusCode::CREATED, Json(wire::context(context))))
}

/// List the contexts
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/contexts",
    operation_id = "list_contexts", tag = "contexts", params(("id" = String, Path)),
    responses(
        (status = 200, body = Vec<api::Context>, description = "Contexts of the sandbox, the oldest first"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn list(State(api): State<Api>, Name(id): Name, meter: Meter) -> Result<Json<Vec<api::Context>>> {
    meter.hold(LIST_BYTES).await?;
    Ok(Json(api.control.contexts(&id).await?.into_iter().map(wire::context).collect()))
}

/// Get a context
#[utoipa::path(get, path = "/api/v1/sandboxes/{id}/contexts/{context}",
    operation_id = "get_context", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    responses(
        (status = 200, body = api::Context, description = "State of the context"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn get(State(api): State<Api>, Names((id, context)): Names<(String, String)>) -> Result<Json<api::Context>> {
    Ok(Json(wire::context(api.control.context(&id, &ContextId::named(&context)?).await?)))
}

/// Delete a context
///
/// Ends its interpreter with all that it started.
#[utoipa::path(delete, path = "/api/v1/sandboxes/{id}/contexts/{context}",
    operation_id = "delete_context", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    responses(
        (status = 200, body = api::Status, description = "Ended and forgotten"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn delete(
    State(api): State<Api>,
    Names((id, context)): Names<(String, String)>,
) -> Result<Json<api::Status>> {
    api.control.delete_context(&id, &ContextId::named(&context)?).await?;
    Ok(wire::status("deleted"))
}

/// Restart a context
///
/// Replaces its interpreter; the state is lost. Code that runs in it is ended.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/contexts/{context}/restart",
    operation_id = "restart_context", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    responses(
        (status = 200, body = api::Context, description = "It waits for code"),
        (status = 400, body = api::ErrorBody, description = "The sandbox no longer has an interpreter for the language"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 503, body = api::ErrorBody, description = "The interpreter did not start in time")))]
pub async fn restart(
    State(api): State<Api>,
    Names((id, context)): Names<(String, String)>,
) -> Result<Json<api::Context>> {
    Ok(Json(wire::context(api.control.restart_context(&id, &ContextId::named(&context)?).await?)))
}

/// Interrupt a context
///
/// Interrupts the code that it runs, as Ctrl-C does; its state stays.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/contexts/{context}/interrupt",
    operation_id = "interrupt_context", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    responses(
        (status = 200, body = api::Status, description = "`interrupted`, or `idle` if it runs no code"),
        (status = 400, body = api::ErrorBody, description = "The provider does not support background processes"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running")))]
pub async fn interrupt(
    State(api): State<Api>,
    Names((id, context)): Names<(String, String)>,
) -> Result<Json<api::Status>> {
    let has_run = api.control.interrupt_context(&id, &ContextId::named(&context)?).await?;
    Ok(wire::status(if has_run { "interrupted" } else { "idle" }))
}

/// Complete code
///
/// By the interpreter of a context, after the code that it runs.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/contexts/{context}/complete",
    operation_id = "complete_code", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    request_body = api::CompleteRequest,
    responses(
        (status = 200, body = api::Completions, description = "Texts for what is before the cursor"),
        (status = 400, body = api::ErrorBody, description = "Invalid code or cursor"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "Too many runs wait for the context")))]
pub async fn complete(
    State(api): State<Api>,
    Names((id, context)): Names<(String, String)>,
    meter: Meter,
    Body(body): Body<api::CompleteRequest>,
) -> Result<Json<api::Completions>> {
    let context = ContextId::named(&context)?;
    let (code, cursor) = wire::code_to_complete(body);
    let completions = api.control.complete_code(&id, &context, code, cursor, meter.account().clone()).await?;
    Ok(Json(wire::completions(completions)))
}

/// Run code in a context
///
/// NDJSON: a line for each event, as it happens. Disconnecting interrupts the code. Runs in one context wait for one
/// another.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/contexts/{context}/run",
    operation_id = "run_in_context", tag = "contexts",
    params(("id" = String, Path), ("context" = String, Path, description = "Id of the context")),
    request_body = api::RunRequest,
    responses(
        (status = 200, body = api::RunLine, content_type = "application/x-ndjson", description = "Events of the run, even if the code failed"),
        (status = 400, body = api::ErrorBody, description = "Invalid code"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox or context"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "The deadline is above the maximum, or too many runs wait for the context"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn run(
    State(api): State<Api>,
    Names((id, context)): Names<(String, String)>,
    meter: Meter,
    Body(body): Body<api::RunRequest>,
) -> Result<Response> {
    let target = wire::named_context(&context, &body)?;
    answer(&api, &id, target, wire::code(body)?, &meter).await
}

/// Run code
///
/// In the default context of its language, which is made at its first use. The answer is as for a run in a context.
#[utoipa::path(post, path = "/api/v1/sandboxes/{id}/run",
    operation_id = "run_code", tag = "contexts", params(("id" = String, Path)),
    request_body = api::RunRequest,
    responses(
        (status = 200, body = api::RunLine, content_type = "application/x-ndjson", description = "Events of the run, even if the code failed"),
        (status = 400, body = api::ErrorBody, description = "Invalid code, or the sandbox has no interpreter for the language"),
        (status = 404, body = api::ErrorBody, description = "No such sandbox"),
        (status = 409, body = api::ErrorBody, description = "The sandbox is not running"),
        (status = 429, body = api::ErrorBody, description = "The deadline is above the maximum, or too many runs wait for the context"),
        (status = 503, body = api::ErrorBody, description = "The caller holds too much of the server's memory")))]
pub async fn run_in_default(
    State(api): State<Api>,
    Name(id): Name,
    meter: Meter,
    Body(body): Body<api::RunRequest>,
) -> Result<Response> {
    let target = wire::default_context(&body);
    answer(&api, &id, target, wire::code(body)?, &meter).await
}

async fn answer(api: &Api, id: &str, target: Target, request: CodeRequest, meter: &Meter) -> Result<Response> {
    let held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let run = api.control.run_code(id, target, request, meter.account().clone()).await?;
    Ok(run_lines::response(run, Lines, Outflow::new(held, STREAM_BYTES_MAX)))
}

/// Lines of the API.
struct Lines;

impl Form for Lines {
    const KEEP_ALIVE: Duration = KEEP_ALIVE;

    fn line(&self, line: Line) -> Option<String> {
        Some(serde_json::to_string(&wire::run_line(line)).expect("a line is JSON"))
    }

    fn cut(&self, error: &providers::Error) -> Option<Vec<Line>> {
        let (name, value) = if matches!(error, providers::Error::Gone) {
            ("SandboxEnded", "the sandbox ended while the code was running")
        } else {
            tracing::error!(error = %providers::Chain(error), "the stream of a run was interrupted");
            ("ProviderFailed", "the provider failed while the code was running")
        };
        let error = Line::Error { name: name.to_owned(), value: value.to_owned(), traceback: String::new() };
        let end = RunEnd { outcome: Outcome::Died, restarted: false, duration: Duration::ZERO };
        Some(vec![error, Line::End(end)])
    }
}
