//! `/templates`.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::control::{Error, Resource, SpawnRequest, Template, TemplateCursor, Templates};
use crate::http::api::sandboxes;
use crate::http::api::wire;
use crate::http::caller::{Caller, Owner};
use crate::http::error::Result;
use crate::http::middleware::audit::Subject;
use crate::http::middleware::users::Viewer;
use crate::http::request::{Json as Body, Name, Params, Repeatable};
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
    Viewer(Owner(viewer)): Viewer,
    Body(body): Body<api::TemplateRequest>,
) -> Result<(Extension<Subject>, (StatusCode, Json<api::Template>))> {
    let (name, options) = wire::new_template(body)?;
    let template = api.control.create_template(viewer, name, options).await?;
    Ok((Extension(Subject(template.name.clone())), wire::created(wire::template(&template))))
}

/// List templates by name
#[utoipa::path(get, path = "/api/v1/templates",
    operation_id = "list_templates", tag = "templates", params(TemplateParams),
    responses((status = 200, body = Vec<api::Template>, description = "The templates")))]
pub async fn list(
    State(api): State<Api>,
    Viewer(Owner(viewer)): Viewer,
    meter: Meter,
    Params(params): Params<TemplateParams>,
) -> Result<Response> {
    let Some(among) = wire::templates(viewer, params.owner_id.as_deref())? else {
        return Ok(Json(Vec::<api::Template>::new()).into_response());
    };
    list_body::array(&meter, move |after: Option<TemplateCursor>| {
        let (api, among) = (api.clone(), among.clone());
        async move {
            let rows = api.control.templates(&among, after.as_ref(), PART).await?;
            Ok(Part::of(&rows, cursor_at, wire::template))
        }
    })
    .await
}

fn cursor_at(last: &Template) -> TemplateCursor {
    TemplateCursor { name: last.name.clone(), owner: last.owner.clone() }
}

/// Query of templates.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TemplateParams {
    /// Owner of the template; the operator's templates have none
    owner_id: Option<String>,
}

impl TemplateParams {
    /// Returns the templates among which the request names one.
    fn among(&self, Owner(viewer): Owner, name: &str) -> Result<Templates> {
        let among = wire::templates(viewer, self.owner_id.as_deref())?;
        among.ok_or_else(|| Error::NotFound(Resource::Template, name.to_owned()).into())
    }
}

/// Get a template
#[utoipa::path(get, path = "/api/v1/templates/{name}",
    operation_id = "get_template", tag = "templates", params(("name" = String, Path), TemplateParams),
    responses(
        (status = 200, body = api::Template, description = "The template"),
        (status = 404, body = api::ErrorBody, description = "No such template")))]
pub async fn get(
    State(api): State<Api>,
    Viewer(viewer): Viewer,
    Name(name): Name,
    Params(params): Params<TemplateParams>,
) -> Result<Json<api::Template>> {
    let among = params.among(viewer, &name)?;
    Ok(Json(wire::template(&api.control.template(&among, &name).await?)))
}

/// Replace a template's values
#[utoipa::path(put, path = "/api/v1/templates/{name}",
    operation_id = "update_template", tag = "templates", params(("name" = String, Path), TemplateParams),
    request_body = api::SpawnOptions,
    responses(
        (status = 200, body = api::Template, description = "Replaced; absent fields are cleared"),
        (status = 400, body = api::ErrorBody, description = "Invalid values"),
        (status = 404, body = api::ErrorBody, description = "No such template or egress list")))]
pub async fn update(
    State(api): State<Api>,
    Viewer(viewer): Viewer,
    Name(name): Name,
    Params(params): Params<TemplateParams>,
    Body(body): Body<api::SpawnOptions>,
) -> Result<Json<api::Template>> {
    let among = params.among(viewer, &name)?;
    let template = api.control.update_template(&among, &name, wire::spawn_options(body)?).await?;
    Ok(Json(wire::template(&template)))
}

/// Remove a template
#[utoipa::path(delete, path = "/api/v1/templates/{name}",
    operation_id = "delete_template", tag = "templates", params(("name" = String, Path), TemplateParams),
    responses(
        (status = 200, body = api::Status, description = "Removed; its sandboxes keep running"),
        (status = 404, body = api::ErrorBody, description = "No such template")))]
pub async fn delete(
    State(api): State<Api>,
    Viewer(viewer): Viewer,
    Name(name): Name,
    Params(params): Params<TemplateParams>,
) -> Result<Json<api::Status>> {
    let among = params.among(viewer, &name)?;
    api.control.delete_template(&among, &name).await?;
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
    caller: Caller,
    Repeatable(key): Repeatable,
    meter: Meter,
    Body(body): Body<api::TemplateSpawnRequest>,
) -> Result<(StatusCode, HeaderMap, Json<api::Sandbox>)> {
    caller.check_named(body.owner_id.as_deref())?;
    let key = key.map(|key| key.of(&(&name, &body)));
    let asker = Some(meter.account().asker());
    let (owner, only_own) = (caller.owner()?.cloned(), caller.restricted_to().is_some());
    let request = SpawnRequest { key, asker, only_own, ..wire::template_spawn(name, body, owner)? };
    Ok(sandboxes::answer(&api, &api.control.spawn(request).await?))
}
