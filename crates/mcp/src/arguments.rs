//! Arguments of the tools. Their documentation is what a model reads.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Result};

/// Name of the argument that chooses a sandbox.
const SANDBOX: &str = "sandbox";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    /// Code. The value of its last expression is returned, and figures as images.
    pub(crate) code: String,
    /// `python` unless set; `javascript`, `typescript`, `bash`, `r`, `java`.
    pub(crate) language: Option<String>,
    /// Seconds until the code is interrupted: 45 unless set. Longer work is for `run_command`.
    pub(crate) timeout: Option<f64>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// Command line for the shell.
    pub(crate) command: Option<String>,
    /// Directory to start in: /workspace unless set.
    pub(crate) workdir: Option<String>,
    /// Seconds until the command is ended: 600 unless set.
    pub(crate) timeout: Option<f64>,
    /// Number of a process, to read on instead of starting a command.
    pub(crate) process: Option<u64>,
    /// Position in the output of `process` to read from.
    pub(crate) position: Option<u64>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// Absolute path.
    pub(crate) path: String,
    /// Number of the first line: 1 unless set.
    pub(crate) first_line: Option<u64>,
    /// Most lines: 1000 unless set.
    pub(crate) lines: Option<u64>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Absolute path. Missing directories are made.
    pub(crate) path: String,
    /// The whole content.
    pub(crate) content: String,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditFile {
    /// Absolute path.
    pub(crate) path: String,
    /// Exact text to replace, with enough of its surroundings to occur once.
    pub(crate) old_text: String,
    pub(crate) new_text: String,
    /// True to replace every occurrence.
    pub(crate) replace_all: Option<bool>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListFiles {
    /// Absolute path of a directory: /workspace unless set.
    pub(crate) path: Option<String>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SearchFiles {
    /// Regular expression for a line.
    pub(crate) pattern: String,
    /// Absolute path of a file or directory: /workspace unless set.
    pub(crate) path: Option<String>,
    /// Globs of file names to search, such as `*.py`; all unless set.
    pub(crate) include: Option<Vec<String>>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSandbox {
    /// Image, such as `host` or `python:3.13`; the server's default unless set.
    pub(crate) image: Option<String>,
    /// Template of the server, instead of an image.
    pub(crate) template: Option<String>,
    /// Id of a snapshot to start from, instead of an image.
    pub(crate) snapshot: Option<String>,
    /// Minutes until it is removed: the server's default unless set.
    pub(crate) ttl_minutes: Option<u32>,
    pub(crate) memory_mb: Option<u32>,
    /// Hosts that it may reach, such as `pypi.org`, `files.pythonhosted.org`. None unless set.
    pub(crate) allow_hosts: Option<Vec<String>>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSandboxes {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestroySandbox {
    /// Id of the sandbox.
    pub(crate) sandbox: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExposePort {
    /// Port on which a program in the sandbox listens.
    pub(crate) port: u16,
    /// Minutes until the URL expires: 60 unless set.
    pub(crate) minutes: Option<u32>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Install {
    /// Names of packages, with versions if wanted.
    pub(crate) packages: Vec<String>,
    /// `pip` unless set; `npm`, `apt`.
    pub(crate) manager: Option<String>,
    pub(crate) sandbox: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    /// Letters, digits, `.`, `_` and `-`.
    pub(crate) name: Option<String>,
    pub(crate) sandbox: Option<String>,
}

/// Parses the arguments of a call.
pub(crate) fn parse<T: DeserializeOwned>(arguments: Option<Map<String, Value>>) -> Result<T> {
    serde_json::from_value(Value::Object(arguments.unwrap_or_default()))
        .map_err(|error| Failure::new(format!("the arguments are wrong: {error}")))
}

/// Returns the schema of arguments. With `has_home`, calls may leave the sandbox out.
pub(crate) fn schema<T: JsonSchema>(has_home: bool) -> Arc<Map<String, Value>> {
    let Value::Object(mut schema) = schemars::schema_for!(T).to_value() else {
        unreachable!("the schema of a struct is an object")
    };
    schema.remove("$schema");
    schema.remove("title");
    schema.remove("description");
    let mut is_optional = false;
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            simplify(property);
            if name == SANDBOX && property.get("description").is_none() {
                is_optional = true;
                let text = if has_home {
                    "Id of a sandbox. Unless set: the sandbox of this session, which is made at the first call and \
                     removed at the end."
                } else {
                    "Id of a sandbox, from create_sandbox."
                };
                property["description"] = text.into();
            }
        }
    }
    if is_optional && !has_home {
        match schema.get_mut("required") {
            Some(Value::Array(required)) => required.push(SANDBOX.into()),
            _ => drop(schema.insert("required".to_owned(), json!([SANDBOX]))),
        }
    }
    Arc::new(schema)
}

/// Removes what clients warn about: formats of numbers, and `null` for what may be left out.
fn simplify(property: &mut Value) {
    let Value::Object(fields) = property else { return };
    fields.remove("format");
    if let Some(Value::Array(types)) = fields.get("type")
        && let [one, Value::String(null)] = &types[..]
        && null == "null"
    {
        let one = one.clone();
        fields.insert("type".to_owned(), one);
    }
    fields.values_mut().for_each(simplify);
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_schema_is_small_and_without_what_clients_warn_about() {
        let command = Value::Object((*schema::<RunCommand>(true)).clone());
        assert_eq!(command["type"], "object");
        assert_eq!(command["additionalProperties"], false);
        assert_eq!(
            command["properties"]["process"],
            json!({
                "type": "integer", "minimum": 0,
                "description": "Number of a process, to read on instead of starting a command.",
            })
        );
        assert_eq!(command.get("required"), None);
        for has_home in [true, false] {
            let text = serde_json::to_string(&*schema::<SearchFiles>(has_home)).unwrap();
            assert!(!text.contains("null") && !text.contains("format") && !text.contains("$"), "{text}");
        }
    }

    #[test]
    fn a_call_without_a_session_must_name_its_sandbox() {
        assert_eq!(schema::<RunCode>(false)["required"], json!(["code", "sandbox"]));
        assert_eq!(schema::<RunCode>(true)["required"], json!(["code"]));
        assert_eq!(schema::<ListFiles>(false)["required"], json!(["sandbox"]));
        assert_eq!(schema::<ListSandboxes>(false).get("required"), None);
        assert_eq!(schema::<DestroySandbox>(true)["required"], json!(["sandbox"]));
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (arguments, expected) in [
            (json!({}), "missing field `code`"),
            (json!({"code": 1}), "expected a string"),
            (json!({"code": "1", "cod": 2}), "unknown field `cod`"),
        ] {
            let error = parse::<RunCode>(arguments.as_object().cloned()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
