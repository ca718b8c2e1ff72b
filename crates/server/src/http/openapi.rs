//! The description of the API, made from the routes themselves.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::OpenApi;
use utoipa::openapi::PathItem;
use utoipa_axum::router::OpenApiRouter;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidebox",
        description = "Disposable sandboxes for code nobody has reviewed. Every error, on every route, has the body \
                       `{code, message}`; durations are texts such as `1h30m`, times are RFC 3339 in UTC.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    paths(super::files::put),
    components(schemas(api::ErrorBody)),
    tags(
        (name = "sandboxes", description = "Make, find, extend and destroy sandboxes"),
        (name = "exec", description = "Run commands"),
        (name = "files", description = "Files in a sandbox; paths are absolute and resolved in the sandbox"),
        (name = "templates", description = "Named spawn requests"),
        (name = "quotas", description = "What single owners may do where it differs from what everybody may"),
        (name = "providers", description = "The runtimes behind the service"),
        (name = "admin", description = "The same for operators, with the admin key"),
        (name = "system", description = "The service itself")
    )
)]
struct Base;

/// What is said of the API as a whole.
pub fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// The same routes under other paths: no two operations may have one id.
pub fn aliases<S: Clone + Send + Sync + 'static>(mut routes: OpenApiRouter<S>) -> OpenApiRouter<S> {
    for item in routes.get_openapi_mut().paths.paths.values_mut() {
        let PathItem { get, put, post, delete, .. } = item;
        for operation in [get, put, post, delete].into_iter().flatten() {
            operation.operation_id = operation.operation_id.take().map(|id| format!("admin_{id}"));
            operation.tags = Some(vec!["admin".to_owned()]);
        }
    }
    routes
}

static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut text = super::routes().into_openapi().to_pretty_json().expect("the description is JSON");
    text.push('\n');
    text
});

/// The OpenAPI 3.1 document, as served and as committed.
pub fn document() -> &'static str {
    &DOCUMENT
}

/// This document
#[utoipa::path(get, path = "/api/v1/openapi.json", tag = "system",
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json")))]
pub async fn get() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], document())
}
