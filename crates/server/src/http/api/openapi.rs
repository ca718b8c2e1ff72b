//! The OpenAPI document, generated from the routes.

mod rules;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use bytes::Bytes;
use utoipa::OpenApi;

use crate::http::policy::{Gate, RoutePolicies};
use crate::http::state::Api;

use crate::auth::{Access, Asked, Demand};

pub use rules::{FILES_OF_ROUTES, IMAGES_OF_ROUTES, Security};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Tidebox",
        description = "Disposable sandboxes for code nobody has reviewed. Every error, on every route, has the body \
                       `{code, message}`; durations are strings such as `1h30m`, times are RFC 3339 in UTC. The schema \
                       of a stream (NDJSON, server-sent events) describes one line or event.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    servers((url = "/", description = "The server that serves this document")),
    paths(super::files::put, super::images::get, super::images::remove),
    components(schemas(
        api::ErrorBody,
        api::Duration,
        api::Event,
        api::EventTypes,
        api::FileMode,
        api::FilePath,
        api::IdempotencyKey,
        api::ImageName,
        api::OwnerHeader,
        api::OwnerId,
        api::PortMessage,
        api::ListenMessage,
        api::ListenRefuse,
        api::RelativePath,
        api::SandboxId,
        api::SecretName,
        api::SocketEof,
        api::SocketKind,
        api::SocketOutput,
        api::SocketResize,
        api::SocketSignal,
        api::SocketStart,
        api::SocketStdin,
        api::Span,
        api::TemplateName
    )),
    tags(
        (name = "sandboxes", description = "Create, find, extend and destroy sandboxes"),
        (name = "exec", description = "Run commands"),
        (name = "contexts", description = "Run code in interpreters that keep their state"),
        (name = "files", description = "Files in a sandbox; paths are absolute and resolved in the sandbox"),
        (name = "ports", description = "TCP ports in a sandbox"),
        (name = "egress", description = "Connections out of a sandbox"),
        (name = "snapshots", description = "Snapshots and copies of sandboxes"),
        (name = "templates", description = "Named spawn requests"),
        (name = "quotas", description = "Limits of individual owners that differ from the defaults"),
        (name = "providers", description = "The runtimes behind the service"),
        (name = "images", description = "Images that sandboxes start from; for the administrator"),
        (name = "workers", description = "Servers that run sandboxes, and their leases"),
        (name = "keys", description = "Keys that act as one owner; for the administrator"),
        (name = "events", description = "Events, as they happen"),
        (name = "admin", description = "The same routes for operators, with the admin key"),
        (name = "system", description = "The service itself")
    )
)]
struct Base;

/// Returns the parts of the document that belong to no route.
pub fn base() -> utoipa::openapi::OpenApi {
    Base::openapi()
}

/// Returns the OpenAPI 3.1 document, with the security requirement of each path.
fn document(
    mut document: utoipa::openapi::OpenApi,
    policies: &RoutePolicies,
    security: impl Fn(Gate) -> Security,
) -> String {
    rules::apply(&mut document, policies, security);
    let mut text = document.to_pretty_json().expect("the description is JSON");
    text.push('\n');
    text
}

/// Returns the security scheme that the OpenAPI document gives for a route.
fn security(access: &Access, gate: Gate) -> Security {
    let demand = match gate {
        Gate::Worker(_) => return Security::Worker,
        Gate::Preview | Gate::UploadLink | Gate::Sandbox(_) => Demand::Key,
        Gate::Key(demand) => demand,
    };
    match access.asks(demand) {
        Asked::Nothing => Security::Open,
        Asked::Key => Security::Key,
        Asked::AdminKey => Security::AdminKey,
    }
}

/// Get this document
#[utoipa::path(get, path = "/api/v1/openapi.json",
    operation_id = "get_openapi", tag = "system",
    responses((status = 200, description = "OpenAPI 3.1 document, with the credentials that this server asks for on each route",
        body = Object, content_type = "application/json")))]
pub async fn get(State(api): State<Api>) -> impl IntoResponse {
    let text = api.description.get_or_init(|| {
        document((api.describe)(), &api.policies.api, |gate| security(&api.settings.access, gate)).into()
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from(Bytes::clone(text)))
}

#[cfg(test)]
mod test {
    use serde_json::Value;

    fn document() -> String {
        let (router, policies) = crate::http::api::routes::router();
        super::document(router.into_openapi(), &policies, |_| super::Security::Key)
    }

    #[test]
    fn every_reference_of_the_description_leads_somewhere() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut left = vec![&document];
        let mut count = 0;
        while let Some(value) = left.pop() {
            if let Some(reference) = value.get("$ref").and_then(Value::as_str) {
                count += 1;
                let pointer = reference.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere; list it in `components`");
            }
            match value {
                Value::Array(items) => left.extend(items),
                Value::Object(fields) => left.extend(fields.values()),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        assert!(count > 100, "{count}");
    }

    /// Generators make a function of each, and name it after this.
    #[test]
    fn each_operation_has_a_name_of_a_verb_and_a_thing() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut names: Vec<&str> = Vec::new();
        for item in document["paths"].as_object().unwrap().values() {
            for operation in item.as_object().unwrap().values().filter_map(|it| it.get("operationId")) {
                let name = operation.as_str().unwrap();
                let is_plain = name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
                assert!(is_plain && name.contains('_'), "{name} is not like `list_sandboxes`");
                names.push(name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert!(count > 100 && names.len() == count, "{} of {count} names are used again", count - names.len());
    }

    #[test]
    fn times_are_described_as_such() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut count = 0;
        for (schema, described) in document["components"]["schemas"].as_object().unwrap() {
            for (field, described) in described["properties"].as_object().into_iter().flatten() {
                if field.ends_with("_at") || field == "timestamp" {
                    count += 1;
                    assert_eq!(described["format"], "date-time", "{schema}.{field}");
                }
            }
        }
        assert!(count > 15, "{count}");
    }
}
