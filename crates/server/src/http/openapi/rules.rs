//! What holds for every route, said once and added to each: how it fails, the
//! headers that every answer has, and who may ask.

use std::collections::BTreeSet;

use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::schema::{AdditionalProperties, KnownFormat, ObjectBuilder, SchemaFormat, SchemaType};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, Content, ContentBuilder, Header, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema, Type,
};

/// What a route asks of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// Nothing.
    Open,
    /// The API key.
    Key,
    /// The admin key, or by fallback the API key.
    AdminKey,
    /// The credential of the worker in the path.
    Worker,
}

/// A failure that any route may have: its status, its name among the
/// components, and what it means.
struct Failure(&'static str, &'static str, &'static str);

const BAD_REQUEST: Failure =
    Failure("400", "BadRequest", "The request makes no sense; the message says what to change");
const UNAUTHORIZED: Failure = Failure("401", "Unauthorized", "No key, or a wrong one");
const FORBIDDEN: Failure = Failure("403", "Forbidden", "The `Host` or the `Origin` is somebody else's");
const NOT_FOUND: Failure = Failure("404", "NotFound", "What the path names is not there");
const TOO_LARGE: Failure = Failure("413", "PayloadTooLarge", "The body is larger than what the route takes");
const MEDIA_TYPE: Failure = Failure("415", "UnsupportedMediaType", "The body is not `application/json`");
const LIMIT: Failure = Failure("429", "ResourceLimit", "A limit is reached, or requests come too fast");
const INTERNAL: Failure = Failure("500", "Internal", "The server or the provider failed; the log has the cause");
const UNAVAILABLE: Failure = Failure("503", "Unavailable", "Not now; it may be tried again");

const FAILURES: [Failure; 9] =
    [BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, TOO_LARGE, MEDIA_TYPE, LIMIT, INTERNAL, UNAVAILABLE];

/// The type of a body that is what it is.
const BYTES: &str = "application/octet-stream";

const API_KEY: &str = "ApiKey";
const BEARER: &str = "Bearer";
const ADMIN_KEY: &str = "AdminKey";
const WORKER_ID: &str = "WorkerId";
const WORKER_TOKEN: &str = "WorkerToken";

/// Adds to every operation what its route does not have to say itself.
pub fn apply(document: &mut OpenApi, security: impl Fn(&str) -> Security) {
    let components = document.components.get_or_insert_default();
    for failure in &FAILURES {
        components.responses.insert(failure.1.to_owned(), RefOr::T(described(failure)));
    }
    schemes(components);
    let all_optional = all_optional(components);
    tell_of_fixed_names(document);
    for (path, item) in &mut document.paths.paths {
        let shared = item.parameters.clone().unwrap_or_default();
        for operation in operations(item) {
            operation.security = requirements(security(path));
            shape_parameters(operation);
            shape_bodies(operation, &all_optional);
            let has_query = shared.iter().chain(operation.parameters.iter().flatten()).any(is_readable);
            let has_body = operation.request_body.is_some();
            let mut add = |failure: &Failure, applies: bool| {
                let responses = &mut operation.responses.responses;
                if applies && !responses.contains_key(failure.0) {
                    responses.insert(failure.0.to_owned(), Ref::from_response_name(failure.1).into());
                }
            };
            add(&BAD_REQUEST, has_query || has_body);
            add(&UNAUTHORIZED, operation.security.is_some());
            add(&FORBIDDEN, true);
            add(&NOT_FOUND, path.contains('{'));
            add(&TOO_LARGE, has_body);
            add(&MEDIA_TYPE, has_body);
            add(&LIMIT, !is_open(path));
            add(&INTERNAL, true);
            add(&UNAVAILABLE, !is_open(path));
            for response in operation.responses.responses.values_mut() {
                if let RefOr::T(response) = response {
                    response.headers.insert("X-Request-ID".to_owned(), request_id().into());
                    if !is_open(path) {
                        response.headers.extend(rate_limit());
                    }
                }
            }
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch].into_iter().flatten()
}

/// Whether reading it can fail.
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

/// What every answer says while the rate of requests is limited, but those of
/// the open routes and to workers.
fn rate_limit() -> [(String, RefOr<Header>); 2] {
    [
        ("X-RateLimit-Limit", 1, "Requests that the caller may make in a minute; only while there is a limit"),
        ("X-RateLimit-Remaining", 0, "Requests that the caller may make at once; only while there is a limit"),
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
        .description(Some("The caller's own id, or a new one; the log has it"))
        .build()
}

/// Whoever asks needs no key.
fn is_open(path: &str) -> bool {
    matches!(path, "/api/v1/live" | "/api/v1/health" | "/api/v1/ready")
}

/// What a request has to carry: one of the list.
fn requirements(security: Security) -> Option<Vec<SecurityRequirement>> {
    let one = |name: &str| SecurityRequirement::new(name, [""; 0]);
    match security {
        Security::Open => None,
        Security::Key => Some(vec![one(API_KEY), one(BEARER), one(ADMIN_KEY)]),
        // The others may carry the admin key too, or by fallback the API key.
        Security::AdminKey => Some(vec![one(ADMIN_KEY), one(API_KEY), one(BEARER)]),
        Security::Worker => Some(vec![one(WORKER_ID).add(WORKER_TOKEN, [""; 0])]),
    }
}

fn schemes(components: &mut Components) {
    let in_header = |header: &str, meaning: &str| {
        SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::with_description(header, meaning)))
    };
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some("The API key as a bearer token, for clients that cannot send `X-API-Key`".to_owned());
    for (name, scheme) in [
        (API_KEY, in_header("X-API-Key", "The API key, or the admin key")),
        (BEARER, SecurityScheme::Http(bearer)),
        (ADMIN_KEY, in_header("X-Admin-API-Key", "The admin key")),
        (WORKER_ID, in_header("X-Worker-ID", "The worker; must be the one in the path")),
        (WORKER_TOKEN, in_header("X-Worker-Token", "The worker's credential")),
    ] {
        components.add_security_scheme(name, scheme);
    }
}

/// Headers and names have the same shape wherever they stand, and what is not
/// in a body cannot be null.
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

/// The schemas of which every field may be left out, as references.
fn all_optional(components: &Components) -> BTreeSet<String> {
    let names = components.schemas.iter().filter_map(|(name, schema)| match schema {
        // A map has no properties either, but takes any.
        RefOr::T(Schema::Object(object)) => {
            let takes_none =
                matches!(object.additional_properties.as_deref(), Some(AdditionalProperties::FreeForm(false)));
            (object.required.is_empty() && (takes_none || !object.properties.is_empty())).then_some(name)
        }
        RefOr::T(_) | RefOr::Ref(_) => None,
    });
    names.map(|name| Ref::from_schema_name(name).ref_location).collect()
}

/// An absent body is an empty object, or an empty file; and bytes are bytes.
fn shape_bodies(operation: &mut Operation, all_optional: &BTreeSet<String>) {
    let as_bytes = |content: Option<&mut RefOr<Content>>| {
        if let Some(RefOr::T(content)) = content {
            let format = SchemaFormat::KnownFormat(KnownFormat::Binary);
            content.schema = Some(ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into());
        }
    };
    if let Some(RefOr::T(body)) = &mut operation.request_body {
        as_bytes(body.content.get_mut(BYTES));
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
            as_bytes(response.content.get_mut(BYTES));
        }
    }
}

/// Files of these names can be written too, although their paths belong to
/// other methods.
pub const FILES_OF_ROUTES: [&str; 5] = ["list", "move", "chmod", "stat", "glob"];

/// The same for images.
pub const IMAGES_OF_ROUTES: [&str; 3] = ["pull", "import", "prune"];

/// A fixed name beside a variable one: what the variable's path can do and the
/// fixed one's does otherwise, the service does under the fixed one too, as if
/// it were the variable's value. This tells of it.
fn tell_of_fixed_names(document: &mut OpenApi) {
    let files = FILES_OF_ROUTES.map(|name| ("/api/v1/sandboxes/{id}/files", "path", name));
    let paths = &mut document.paths.paths;
    let images = IMAGES_OF_ROUTES.map(|name| ("/api/v1/images", "name", name));
    for (base, variable, name) in files.into_iter().chain(images) {
        let Some(other) = paths.get(&format!("{base}/{{{variable}}}")).cloned() else { continue };
        let Some(item) = paths.get_mut(&format!("{base}/{name}")) else { continue };
        let named = |operation: Option<Operation>| {
            let mut operation = operation?;
            operation.summary = operation.summary.map(|summary| format!("{summary}: `{name}`"));
            operation.operation_id = operation.operation_id.map(|id| format!("{id}_{name}"));
            if let Some(parameters) = &mut operation.parameters {
                parameters.retain(|parameter| !matches!(parameter, RefOr::T(parameter) if parameter.name == variable));
            }
            Some(operation)
        };
        item.get = item.get.take().or_else(|| named(other.get));
        item.put = item.put.take().or_else(|| named(other.put));
        item.delete = item.delete.take().or_else(|| named(other.delete));
    }
}
