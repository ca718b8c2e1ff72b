//! JSON Schema of a configuration file, for editors.

use serde_json::{Map, Value as Json, json};

use super::keys;
use super::show::json as plain_json;

/// Returns the schema of a configuration file, JSON Schema draft 2020-12.
#[must_use]
pub fn schema() -> Json {
    let mut root = section("Configuration of Tidebox: every key with its type, default and meaning.");
    root["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    root["title"] = "Tidebox".into();
    for part in keys::parts() {
        *place(&mut root, &part.name) = section(&part.doc);
    }
    for key in keys::keys() {
        let mut schema = key.kind.schema();
        schema["description"] = key.doc.replace('`', "").into();
        if key.default.is_some() {
            schema["default"] = plain_json(&key.default_value());
        }
        *place(&mut root, &key.name) = schema;
    }
    root
}

/// Returns the schema of a section without keys. An empty section is `null` to YAML.
fn section(doc: &str) -> Json {
    json!({
        "description": doc.replace('`', ""),
        "type": ["object", "null"],
        "additionalProperties": false,
        "properties": Map::new(),
    })
}

/// Returns the place of the key or section `name` below `root`. The entries of a map, `*`, have
/// one schema.
fn place<'a>(root: &'a mut Json, name: &str) -> &'a mut Json {
    name.split('.').fold(root, |section, part| match part {
        "*" => &mut section["additionalProperties"],
        part => &mut section["properties"][part],
    })
}
