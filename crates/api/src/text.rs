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

/// A duration, which may be zero: numbers with the units `ms`, `s`, `m` and `h`.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ms|s|m|h))+)$", example = "1h30m")]
pub struct Duration(pub String);

/// Name that the caller chooses for a request, as a header value.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[!-~]([ -~]{0,253}[!-~])?$")]
pub struct IdempotencyKey(pub String);

/// Owner to charge; surrounding spaces are dropped.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^ *[^\s\x00-\x1f\x7f-\x9f\ufeff/\\]{1,128} *$", example = "user-1")]
pub struct OwnerId(pub String);

/// Owner to charge, as a header value.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^[!-.0-\[\]-~]{1,128}$", example = "user-1")]
pub struct OwnerHeader(pub String);

/// Identifier of a sandbox, as in the response to its spawn.
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

/// An absolute path in a sandbox without its leading slash, as the end of a URL.
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

/// Environment variables with the names of secrets: names without `=` and NUL.
#[derive(Debug)]
pub struct SecretVariables;

impl PartialSchema for SecretVariables {
    fn schema() -> RefOr<Schema> {
        let names = text(r"^[^=\x00]+$", None);
        RefOr::T(
            map("Variables, each with the name of a secret.", names, text(&format!("^{SECRET_NAME}$"), Some(64)))
                .into(),
        )
    }
}

impl ToSchema for SecretVariables {}

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

/// Target of an egress policy: a host, all names below one, an address or a network, each with or
/// without a port; or `@` and the name of a list of the operator.
#[derive(Debug)]
pub struct EgressEntry;

impl PartialSchema for EgressEntry {
    fn schema() -> RefOr<Schema> {
        let pattern = format!("^(@[A-Za-z0-9._-]{{1,64}}|{})$", target());
        RefOr::T(text(&pattern, Some(253)).examples(["pypi.org:443", "*.example.net", "10.0.0.0/8:5432"]).into())
    }
}

impl ToSchema for EgressEntry {}

/// Use of a secret by an egress policy: its name, or `name@host` to narrow it to a host.
#[derive(Debug)]
pub struct SecretUse;

impl PartialSchema for SecretUse {
    fn schema() -> RefOr<Schema> {
        let pattern = format!("^{SECRET_NAME}(@({}))?$", target());
        RefOr::T(text(&pattern, Some(253)).examples(["model-key", "model-key@api.example.com"]).into())
    }
}

impl ToSchema for SecretUse {}

/// Name of a secret: letters, digits, `.`, `_` and `-`; not `.` or `..`.
#[derive(Debug)]
pub struct SecretName;

impl PartialSchema for SecretName {
    fn schema() -> RefOr<Schema> {
        RefOr::T(text(&format!("^{SECRET_NAME}$"), Some(64)).examples(["model-key"]).into())
    }
}

impl ToSchema for SecretName {}

/// Host that a secret is sent to: a name or all names below one, with or without a port. A host
/// without one is sent to at 443.
#[derive(Debug)]
pub struct SecretHost;

impl PartialSchema for SecretHost {
    fn schema() -> RefOr<Schema> {
        // Not that of plain HTTP.
        let port = PORT.replace("[1-9][0-9]{0,3}", "[1-9][0-9]{2,3}|[1-79][0-9]?|8[1-9]?");
        let pattern = format!("^{}({port})?$", host_name());
        RefOr::T(text(&pattern, Some(253)).examples(["api.example.com", "*.example.net:8443"]).into())
    }
}

impl ToSchema for SecretHost {}

/// Pattern of the name of a secret.
const SECRET_NAME: &str =
    r"([A-Za-z0-9_-][A-Za-z0-9._-]{0,63}|\.[A-Za-z0-9_-][A-Za-z0-9._-]{0,62}|\.\.[A-Za-z0-9._-]{1,62})";

/// Pattern of a port after a host.
const PORT: &str = ":(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})";

/// Returns the pattern of a host name or a wildcard.
fn host_name() -> String {
    let label = "[A-Za-z0-9_-]{1,63}";
    // Neither a decimal nor a hexadecimal number: no name ends with one.
    let last = "([A-Za-z_-][A-Za-z0-9_-]{0,62}|[1-9][0-9]{0,20}[A-Za-z_-][A-Za-z0-9_-]{0,40}\
                |0[0-9]{1,20}[A-Za-z_-][A-Za-z0-9_-]{0,40}|0[A-WYZa-wyz_-][A-Za-z0-9_-]{0,61}\
                |0[Xx][0-9A-Fa-f]{0,20}[G-Zg-z_-][A-Za-z0-9_-]{0,40})";
    format!(r"(\*\.{label}\.)?({label}\.)*{last}\.?")
}

/// Returns the pattern of a host, a wildcard, an address or a network, with or without a port.
fn target() -> String {
    let octet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
    let v4 = format!(r"{octet}(\.{octet}){{3}}(/([0-9]|[12][0-9]|3[0-2]))?");
    let v6 = v6();
    let v6_network = format!("{v6}/([0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])");
    format!(r"({}|{v4}|\[{v6}\]|{v6_network})({PORT})?|{v6}", host_name())
}

/// Returns the pattern of an IPv6 address without an IPv4 one at its end.
fn v6() -> String {
    let part = "[0-9A-Fa-f]{1,4}";
    let mut forms =
        vec![format!("({part}:){{7}}{part}"), format!("({part}:){{1,7}}:"), format!(":((:{part}){{1,7}}|:)")];
    forms.extend((1..=6).map(|before| format!("({part}:){{1,{before}}}(:{part}){{1,{}}}", 7 - before)));
    format!("({})", forms.join("|"))
}

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
