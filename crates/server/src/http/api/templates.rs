//! `/templates`.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::{Extension, Json};

use crate::control::SpawnRequest;
use crate::http::api::sandboxes;
use crate::http::api::wire;
use crate::http::caller::Owner;
use crate::http::error::Result;
use crate::http::middleware::audit::Subject;
use crate::http::request::{Json as Body, Name, Repeatable};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::list_body::{self, PART, Part};

/// Store a template
#[utoipa::path(post, path = "/api/v1/templates",
    operation_id = "create_template", tag = "templates", request_body = api::TemplateRequest,
    responses(
        (status = 201, body = api::Template, description = "Stored"),
        (status = 400, body = api::ErrorBody, description = "Invalid values"),
        (status = 404, body = api::ErrorBody, description = "No such egress list"),
        (status = 409, body = api::ErrorBody, description = "The name is taken"),
        (status = 429, body = api::ErrorBody, description = "Too many quotas")))]
pub async fn create(
    State(api): State<Api>,
    Body(body): Body<api::TemplateRequest>,
) -> Result<(Extension<Subject>, (StatusCode, Json<api::Template>))> {
    let (name, options) = wire::new_template(body)?;
    let template = api.control.create_template(name, options).await?;
    Ok((Extension(Subject(template.name.clone())), wire::created(wire::template(&template))))
}

/// List templates by name
#[utoipa::path(get, path = "/api/v1/templates",
    operation_id = "list_templates", tag = "templates",
    responses((status = 200, body = Vec<api::Template>, description = "The templates")))]
pub async fn list(State(api): State<Api>, meter: Meter) -> Result<Response> {
    list_body::array(&meter, move |after: Option<String>| {
        let api = api.clone();
        async move {
            let rows = api.control.templates(after.as_deref(), PART).await?;
            Ok(Part::of(&rows, |last| last.name.clone(), wire::template))
        }
    })
    .await
}

/// Get a template
#[utoipa::path(get, path = "/api/v1/templates/{name}",
    operation_id = "get_template", tag = "templates", params(("name" = String, Path)),
    responses(
        (status = 200, body = api::Template, description = "The template"),
        (status = 404, body = api::ErrorBody, description = "No such template")))]
pub async fn get(State(api): State<Api>, Name(name): Name) -> Result<Json<api::Template>> {
    Ok(Json(wire::template(&api.control.template(&name).await?)))
}

/// Replace a template's values
#[utoipa::path(put, path = "/api/v1/templates/{name}",
    operation_id = "update_template", tag = "templates", params(("name" = String, Path)),
    request_body = api::SpawnOptions,
    responses(
        (status = 200, body = api::Template, description = "Replaced; absent fields are cleared"),
        (status = 400, body = api::ErrorBody, description = "Invalid values"),
        (status = 404, body = api::ErrorBody, description = "No such template or egress list")))]
pub async fn update(
    State(api): State<Api>,
    Name(name): Name,
    Body(body): Body<api::SpawnOptions>,
) -> Result<Json<api::Template>> {
    let template = api.control.update_template(&name, wire::spawn_options(body)?).await?;
    Ok(Json(wire::template(&template)))
}

/// Remove a template
#[utoipa::path(delete, path = "/api/v1/templates/{name}",
    operation_id = "delete_template", tag = "templates", params(("name" = String, Path)),
    responses(
        (status = 200, body = api::Status, description = "Removed; its sandboxes keep running"),
        (status = 404, body = api::ErrorBody, description = "No such template")))]
pub async fn delete(State(api): State<Api>, Name(name): Name) -> Result<Json<api::Status>> {
    api.control.delete_template(&name).await?;
    Ok(wire::status("deleted"))
}

/// Spawn a sandbox from a template
#[utoipa::path(post, path = "/api/v1/templates/{name}/spawn",
    operation_id = "create_template_sandbox", tag = "templates", params(("name" = String, Path),
        ("X-User-ID" = Option<String>, Header, description = "Owner charged for the sandbox; overrides `owner_id`"),
        ("Idempotency-Key" = Option<String>, Header,
            description = "Name that you choose for this request: repeating it within 24h returns the same sandbox")),
    request_body = api::TemplateSpawnRequest,
    responses(
        (status = 201, body = api::Sandbox, description = "Created, with `template` in its metadata"),
        (status = 400, body = api::ErrorBody, description = "Invalid request, or the provider does not support it"),
        (status = 404, body = api::ErrorBody, description = "No such template or provider"),
        (status = 409, body = api::ErrorBody, description = "Destroyed while it was being created"),
        (status = 429, body = api::ErrorBody, description = "A limit is reached, or a value is above its maximum"),
        (status = 500, body = api::ErrorBody, description = "The provider failed"),
        (status = 503, body = api::ErrorBody, description = "No provider is healthy")))]
pub async fn spawn(
    State(api): State<Api>,
    Name(name): Name,
    Owner(owner): Owner,
    Repeatable(key): Repeatable,
    meter: Meter,
    Body(body): Body<api::TemplateSpawnRequest>,
) -> Result<(StatusCode, HeaderMap, Json<api::Sandbox>)> {
    let key = key.map(|key| key.of(&(&name, &body)));
    let asker = Some(meter.account().asker());
    let request = SpawnRequest { key, asker, ..wire::template_spawn(name, body, owner)? };
    Ok(sandboxes::answer(&api, &api.control.spawn(request).await?))
}
