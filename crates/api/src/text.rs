//! Formats of strings, only for the description of the API: a field is a `String`, and
//! `#[schema(value_type = …)]` names its format. The code that reads the field enforces the rule;
//! Schemathesis reports where the two differ.
//!
//! Patterns are ECMA-262, restricted to what other regex engines accept too: no look-around, `\x00`
//! in a class.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::Event;

/// A duration longer than zero: numbers with the units `ms`, `s`, `m` and `h`.
#[derive(Debug, ToSchema)]
#[schema(
    pattern = r"^(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))*([0-9]*[1-9][0-9]*(\.[0-9]*)?|[0-9]*\.[0-9]{0,5}[1-9][0-9]*)(ms|s|m|h)(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))*$",
    example = "1h30m"
)]
pub struct Span(pub String);

/// A duration, zero included: numbers with the units `ms`, `s`, `m` and `h`.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))+)$", example = "1h30m")]
pub struct Duration(pub String);

/// A name for a request that the caller chooses, as a header can carry it.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[!-~]([ -~]{0,253}[!-~])?$")]
pub struct IdempotencyKey(pub String);

/// Owner to charge; spaces around it are dropped.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^ *[^\s\x00-\x1f\x7f-\x9f\ufeff/\\]{1,128} *$", example = "user-1")]
pub struct OwnerId(pub String);

/// Owner to charge, as a header can carry it.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[!-.0-\[\]-~]{1,128}$", example = "user-1")]
pub struct OwnerHeader(pub String);

/// Identifier of a sandbox, as in the answer to its spawn.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^sb-[a-z2-7]{16}$")]
pub struct SandboxId(pub String);

/// Name of a template: letters, digits, `.`, `_` and `-`; not `.` or `..`.
#[derive(Debug, ToSchema)]
#[schema(
    pattern = r"^([A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}|\.\.[A-Za-z0-9._-]{1,126})$",
    example = "python"
)]
pub struct TemplateName(pub String);

/// An absolute path in a sandbox, at most 4,096 bytes.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^/[^\x00]*$", max_length = 4096, example = "/workspace/a.txt")]
pub struct FilePath(pub String);

/// An absolute path in a sandbox without its first slash, as the end of a URL.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[^\x00]+$", max_length = 4095, example = "workspace/a.txt")]
pub struct RelativePath(pub String);

/// Maximum length of an image's name, in characters.
pub const IMAGE_NAME_CHARS_MAX: usize = 512;

/// Name of an image, such as `python:3.12` or `registry.example.com:5000/app@sha256:…`; or its
/// digest.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[A-Za-z0-9][!-~]*$", max_length = 512, example = "python:3.12")]
pub struct ImageName(pub String);

/// Permission bits of a file: one to four octal digits, after an optional `0`.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^0?[0-7]{1,4}$", example = "644")]
pub struct FileMode(pub String);

/// A command line or an argument: any string without NUL.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[^\x00]*$", example = "-l")]
pub struct Argument(pub String);

/// Labels: at most 64, of 16 KiB in all, keys of 1 to 128 bytes without invisible characters,
/// values of at most 4,096 bytes without NUL.
#[derive(Debug)]
pub struct Labels;

/// Environment variables: names without `=`, and no NUL anywhere.
#[derive(Debug)]
pub struct Environment;

/// Types of events, separated by commas; those of [`Event::TYPES`].
#[derive(Debug)]
pub struct EventTypes;

impl PartialSchema for EventTypes {
    fn schema() -> RefOr<Schema> {
        let one = Event::TYPES.join("|").replace('.', r"\.");
        let types = text(&format!("^({one})(,({one}))*$"), None);
        RefOr::T(types.examples([serde_json::json!("sandbox.running,sandbox.failed")]).into())
    }
}

impl ToSchema for EventTypes {}

fn text(pattern: &str, chars_max: Option<usize>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern)).max_length(chars_max)
}

fn map(description: &str, names: ObjectBuilder, values: ObjectBuilder) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(description))
        .property_names(Some(Schema::from(names)))
        .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(Schema::from(values)))))
}

impl PartialSchema for Labels {
    fn schema() -> RefOr<Schema> {
        let names = text(r"^[^\x00-\x1f\x7f-\x9f]+$", Some(128));
        let values = text(r"^[^\x00]*$", Some(4096));
        let labels = map("Labels: at most 64, keys of at most 128 and values of at most 4,096 bytes.", names, values);
        RefOr::T(labels.max_properties(Some(64)).into())
    }
}

impl ToSchema for Labels {}

impl PartialSchema for Environment {
    fn schema() -> RefOr<Schema> {
        let variables = map("Variables by name.", text(r"^[^=\x00]+$", None), text(r"^[^\x00]*$", None));
        RefOr::T(variables.into())
    }
}

impl ToSchema for Environment {}
