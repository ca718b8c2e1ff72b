//! Parts of the OpenAPI document that are the same for every route: errors, common headers and
//! security.

use std::collections::BTreeSet;

use axum::http::Method;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::{AdditionalProperties, KnownFormat, ObjectBuilder, SchemaFormat, SchemaType};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, Content, ContentBuilder, Header, Object, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder,
    Schema, Type,
};

use crate::auth::Demand;
use crate::http::policy::{Gate, RoutePolicies};

/// Credential that a route requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// No credential.
    Open,
    /// The API key.
    Key,
    /// The admin key, or by fallback the API key.
    AdminKey,
    /// The credential of the worker in the path.
    Worker,
}

/// Error response that any route may have: status, component name and description.
struct Failure(&'static str, &'static str, &'static str);

const BAD_REQUEST: Failure = Failure("400", "BadRequest", "Invalid request; the message says what to change");
const UNAUTHORIZED: Failure = Failure("401", "Unauthorized", "No key, or a wrong one");
const FORBIDDEN: Failure = Failure(
    "403",
    "Forbidden",
    "The `Host` or the `Origin` is not allowed, or the key of an owner does not open the route",
);
const NOT_FOUND: Failure = Failure("404", "NotFound", "Nothing at this path");
const TOO_LARGE: Failure = Failure("413", "PayloadTooLarge", "The body is larger than the route accepts");
const MEDIA_TYPE: Failure = Failure("415", "UnsupportedMediaType", "The body is not `application/json`");
const LIMIT: Failure = Failure("429", "ResourceLimit", "A limit is reached, or too many requests");
const INTERNAL: Failure = Failure("500", "Internal", "The server or the provider failed; the log has the cause");
const UNAVAILABLE: Failure = Failure("503", "Unavailable", "Temporarily unavailable; retry later");

const FAILURES: [Failure; 9] =
    [BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE, MEDIA_TYPE, LIMIT, INTERNAL, UNAVAILABLE];

/// Content type of a raw body that may be empty.
const BYTES: &str = "application/octet-stream";
/// Content types of bodies that are bytes, not JSON.
const BINARY: [&str; 2] = [BYTES, "application/x-tar"];

const API_KEY: &str = "ApiKey";
const BEARER: &str = "Bearer";
const ADMIN_KEY: &str = "AdminKey";
const WORKER_ID: &str = "WorkerId";
const WORKER_TOKEN: &str = "WorkerToken";

/// Adds the common parts to every operation.
pub fn apply(document: &mut OpenApi, policies: &RoutePolicies, security: impl Fn(Gate) -> Security) {
    let components = document.components.get_or_insert_default();
    for failure in &FAILURES {
        components.responses.insert(failure.1.to_owned(), RefOr::T(described(failure)));
    }
    schemes(components);
    title_variants(components);
    let all_optional = all_optional(components);
    tell_of_fixed_names(document);
    for (path, item) in &mut document.paths.paths {
        let shared = item.parameters.clone().unwrap_or_default();
        for (method, operation) in operations(item) {
            let gate = policies.of(Some(path), &method).gate;
            let is_open = gate == Gate::Key(Demand::Nothing);
            operation.security = Some(requirements(security(gate)));
            shape_parameters(operation);
            shape_bodies(operation, &all_optional);
            let has_query = shared.iter().chain(operation.parameters.iter().flatten()).any(is_readable);
            let has_body = operation.request_body.is_some();
            for (Failure(status, name, _), applies) in [
                (BAD_REQUEST, has_query || has_body),
                (UNAUTHORIZED, operation.security.as_ref().is_some_and(|all| !all.is_empty())),
                (FORBIDDEN, true),
                (NOT_FOUND, path.contains('{')),
                (TOO_LARGE, has_body),
                (MEDIA_TYPE, has_body),
                (LIMIT, !is_open),
                (INTERNAL, true),
                (UNAVAILABLE, !is_open),
            ] {
                let responses = &mut operation.responses.responses;
                if applies && !responses.contains_key(status) {
                    responses.insert(status.to_owned(), Ref::from_response_name(name).into());
                }
            }
            for response in operation.responses.responses.values_mut() {
                if let RefOr::T(response) = response {
                    response.headers.insert("X-Request-ID".to_owned(), request_id().into());
                    if !is_open {
                        response.headers.extend(rate_limit());
                    }
                }
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = (Method, &mut Operation)> {
    let all = [
        (Method::GET, &mut item.get),
        (Method::PUT, &mut item.put),
        (Method::POST, &mut item.post),
        (Method::DELETE, &mut item.delete),
    ];
    all.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// Returns whether reading the parameter can fail.
fn is_readable(parameter: &RefOr<Parameter>) -> bool {
    !matches!(parameter, RefOr::T(Parameter { parameter_in: ParameterIn::Path, .. }))
}

fn described(failure: &Failure) -> Response {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    let response = ResponseBuilder::new().description(failure.2).content("application/json", content);
    let mut response = response.header("X-Request-ID", request_id()).build();
    response.headers.extend(rate_limit());
    if failure.0 == LIMIT.0 {
        let retry = count(1, "Seconds to wait; absent when waiting does not help");
        response.headers.insert("Retry-After".to_owned(), retry.into());
    }
    response
}

/// Returns the rate limit headers. Answers have them while there is a limit, except those of
/// the open routes and to workers.
fn rate_limit() -> [(String, RefOr<Header>); 2] {
    [
        ("X-RateLimit-Limit", 1, "Requests that the caller may make per minute; absent without a rate limit"),
        ("X-RateLimit-Remaining", 0, "Requests that the caller may make now; absent without a rate limit"),
    ]
    .map(|(name, minimum, meaning)| (name.to_owned(), count(minimum, meaning).into()))
}

fn count(minimum: usize, meaning: &str) -> Header {
    let count = ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(minimum));
    HeaderBuilder::new().schema(Some(count)).description(Some(meaning)).build()
}

fn request_id() -> Header {
    let text = ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
    HeaderBuilder::new()
        .schema(Some(text))
        .description(Some("Request id, as in the server's log: the caller's own, or a new one"))
        .build()
}

/// Returns the alternative credentials of a request; an empty list if it needs no credential.
fn requirements(security: Security) -> Vec<SecurityRequirement> {
    match security {
        Security::Open => Vec::new(),
        Security::Key => [API_KEY, BEARER, ADMIN_KEY].map(requirement).to_vec(),
        // The other two headers may carry the admin key too, or by fallback the API key.
        Security::AdminKey => [ADMIN_KEY, API_KEY, BEARER].map(requirement).to_vec(),
        Security::Worker => vec![requirement(WORKER_ID).add(WORKER_TOKEN, [""; 0])],
    }
}

fn requirement(scheme: &str) -> SecurityRequirement {
    SecurityRequirement::new(scheme, [""; 0])
}

fn schemes(components: &mut Components) {
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("The API key as a bearer token, for clients that cannot send `X-API-Key`".to_owned());
    for (name, scheme) in [
        (API_KEY, in_header("X-API-Key", "The API key, the admin key, or a key of an owner")),
        (BEARER, SecurityScheme::Http(bearer)),
        (ADMIN_KEY, in_header("X-Admin-API-Key", "The admin key")),
        (WORKER_ID, in_header("X-Worker-ID", "The worker; must be the one in the path")),
        (WORKER_TOKEN, in_header("X-Worker-Token", "The worker's credential")),
    ] {
        components.add_security_scheme(name, scheme);
    }
}

fn in_header(header: &str, meaning: &str) -> SecurityScheme {
    SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(header, meaning)))
}

/// Gives known headers and names the same schema everywhere, and removes `null` from the types
/// of parameters, which cannot be null.
fn shape_parameters(operation: &mut Operation) {
    for parameter in operation.parameters.iter_mut().flatten() {
        let RefOr::T(parameter) = parameter else { continue };
        let shape = match (&parameter.parameter_in, parameter.name.as_str()) {
            (ParameterIn::Header, "X-User-ID") => "OwnerHeader",
            (ParameterIn::Header, "Idempotency-Key") => "IdempotencyKey",
            (ParameterIn::Path | ParameterIn::Query, "owner_id") => "OwnerId",
            (ParameterIn::Query, "sandbox_id") => "SandboxId",
            _ => {
                if let Some(RefOr::T(Schema::Object(object))) = &mut parameter.schema
                    && let SchemaType::Array(types) = &mut object.schema_type
                {
                    types.retain(|kind| *kind != Type::Null);
                }
                continue;
            }
        };
        parameter.schema = Some(Ref::from_schema_name(shape).into());
    }
}

/// Returns references to the schemas of which every field is optional.
fn all_optional(components: &Components) -> BTreeSet<String> {
    let names = components.schemas.iter().filter_map(|(name, schema)| match schema {
        // A map has no properties either, but accepts any.
        RefOr::T(Schema::Object(object)) => {
            let takes_none =
                matches!(object.additional_properties.as_deref(), Some(AdditionalProperties::FreeForm(false)));
            (object.required.is_empty() && (takes_none || !object.properties.is_empty())).then_some(name)
        }
        RefOr::T(_) | RefOr::Ref(_) => None,
    });
    names.map(|name| Ref::from_schema_name(name).ref_location).collect()
}

/// Gives each variant of a tagged union a title, such as `PullProgressDone`, because generators name
/// its type after that.
fn title_variants(components: &mut Components) {
    for (name, schema) in &mut components.schemas {
        let RefOr::T(Schema::OneOf(union)) = schema else { continue };
        for variant in &mut union.items {
            let RefOr::T(Schema::Object(variant)) = variant else { continue };
            if let Some(tag) = tag_of(variant) {
                let (first, rest) = tag.split_at(1);
                variant.title = Some(format!("{name}{}{rest}", first.to_uppercase()));
            }
        }
    }
}

/// Returns the only value of the field `type`.
fn tag_of(variant: &Object) -> Option<String> {
    let RefOr::T(Schema::Object(kind)) = variant.properties.get("type")? else { return None };
    match kind.enum_values.as_deref()? {
        [tag] => tag.as_str().map(str::to_owned),
        _ => None,
    }
}

/// Marks bodies as optional that may be an empty object or an empty file, and describes bodies of
/// bytes as binary.
fn shape_bodies(operation: &mut Operation, all_optional: &BTreeSet<String>) {
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        body.content.iter_mut().for_each(describe_bytes);
        let may_be_absent = body.content.iter().any(|(kind, content)| match content {
            RefOr::T(Content { schema: Some(RefOr::Ref(schema)), .. }) => all_optional.contains(&schema.ref_location),
            RefOr::T(_) | RefOr::Ref(_) => kind == BYTES,
        });
        if may_be_absent {
            body.required = Some(Required::False);
        }
    }
    for response in operation.responses.responses.values_mut() {
        if let RefOr::T(response) = response {
            response.content.iter_mut().for_each(describe_bytes);
        }
    }
}

/// Describes a body of bytes as binary.
fn describe_bytes((kind, content): (&String, &mut RefOr<Content>)) {
    if let RefOr::T(content) = content
        && BINARY.contains(&kind.as_str())
    {
        let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
        content.schema = Some(ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into());
    }
}

/// Last segments of fixed routes that are also writable file paths, by another method.
pub const FILES_OF_ROUTES: [&str; 12] =
    ["list", "move", "chmod", "stat", "glob", "search", "replace", "archive", "watch", "manifest", "pack", "amend"];

/// Last segments of fixed routes that are also image names, for other methods.
pub const IMAGES_OF_ROUTES: [&str; 3] = ["pull", "import", "prune"];

/// Documents fixed segments that are also values of a path variable. The service handles the
/// methods that the fixed route lacks as the variable's route does, so they are copied to the
/// fixed path.
fn tell_of_fixed_names(document: &mut OpenApi) {
    let files = FILES_OF_ROUTES.map(|name| ("/api/v1/sandboxes/{id}/files", "path", name));
    let paths = &mut document.paths.paths;
    let images = IMAGES_OF_ROUTES.map(|name| ("/api/v1/images", "name", name));
    for (base, variable, name) in files.into_iter().chain(images) {
        let Some(other) = paths.get(&format!("{base}/{{{variable}}}")).cloned() else { continue };
        let Some(item) = paths.get_mut(&format!("{base}/{name}")) else { continue };
        item.get = item.get.take().or_else(|| Some(with_fixed_name(other.get?, variable, name)));
        item.put = item.put.take().or_else(|| Some(with_fixed_name(other.put?, variable, name)));
        item.delete = item.delete.take().or_else(|| Some(with_fixed_name(other.delete?, variable, name)));
    }
}

/// Returns the operation for the one path where `variable` is `name`.
fn with_fixed_name(mut operation: Operation, variable: &str, name: &str) -> Operation {
    operation.summary = operation.summary.map(|summary| format!("{summary}: `{name}`"));
    operation.operation_id = operation.operation_id.map(|id| format!("{id}_named_{name}"));
    if let Some(parameters) = &mut operation.parameters {
        parameters.retain(|parameter| !matches!(parameter, RefOr::T(parameter) if parameter.name == variable));
    }
    operation
}
