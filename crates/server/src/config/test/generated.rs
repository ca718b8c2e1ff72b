//! Tests of the files that are written from the declarations of the keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value as Json;

use super::*;
use tree::Value;

/// Variable that has the tests write the files.
const UPDATE: &str = "TIDEBOX_UPDATE_CONFIG";

/// Checks that the committed file at `path` is what `write` makes of it, and returns its text.
#[track_caller]
fn committed(path: &str, write: impl Fn(&str) -> String) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let expected = write(&text);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&file, &expected).unwrap();
    } else {
        assert_eq!(text, expected, "{path} differs from the declared keys; {UPDATE}=1 rewrites it");
    }
    expected
}

#[test]
fn the_example_file_names_every_key_once_with_its_default() {
    let committed = committed("config/example.yaml", |_| example());
    let enabled: String = committed.lines().map(|line| format!("{}\n", uncommented(line))).collect();
    let mut loaded = TestLayers::new().here(&enabled).load();
    let set: BTreeSet<_> = loaded.sources.keys().cloned().collect();
    assert_eq!(set, keys::keys().iter().map(|key| key.name.replace('*', "w1")).collect());
    clear_maps(&mut loaded.config);
    assert_eq!(loaded.config, TestLayers::new().load().config);
    assert_eq!(TestLayers::new().here(&committed).load().sources.len(), 0, "as it is, it sets nothing");
}

/// Removes the `#` of a key's line. A line of prose starts with `# ` and stays.
fn uncommented(line: &str) -> String {
    match line.trim_start().strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => line.replacen('#', "", 1),
        _ => line.to_owned(),
    }
}

/// Returns the text that `config/example.yaml` must have.
fn example() -> String {
    let mut text = "# yaml-language-server: $schema=schema.json\n\
                    #\n\
                    # Every key of Tidebox with its default. Copy it to\n\
                    # /etc/tidebox/config.yaml for a service, or to ~/.tidebox/config.yaml or\n\
                    # ./tidebox.yaml, and remove the # in front of the keys that you change. Maps\n\
                    # have a sample entry, w1. docs/operate/configuration.md describes layers,\n\
                    # variables and faults. `tidebox config schema` prints the schema for editors.\n"
        .to_owned();
    let settings = TestLayers::new().load().settings();
    let mut open: Vec<&str> = Vec::new();
    for key in keys::keys() {
        let mut sections = key.path("w1");
        let name = sections.pop().unwrap();
        let shared = open.iter().zip(&sections).take_while(|(a, b)| a == b).count();
        if shared == 0 {
            text.push('\n');
        }
        for (depth, section) in sections.iter().enumerate().skip(shared) {
            let mark = if *section == "w1" { "#" } else { "" };
            writeln!(text, "{}{mark}{section}:", "  ".repeat(depth)).unwrap();
        }
        let indent = "  ".repeat(sections.len());
        for line in wrapped(&description(key).replace('`', "")) {
            writeln!(text, "{indent}# {line}").unwrap();
        }
        let shown = settings.iter().find(|setting| setting.key == key.name).map(|setting| setting.yaml().to_owned());
        let value = shown.unwrap_or_else(|| match sample(key) {
            "" if key.kind.schema()["type"] == "array" => "[]".to_owned(),
            "" => "null".to_owned(),
            text => text.to_owned(),
        });
        writeln!(text, "{indent}#{name}: {value}").unwrap();
        open = sections;
    }
    text
}

/// Returns the lines of a comment.
fn wrapped(text: &str) -> Vec<String> {
    const WIDTH: usize = 84;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + 1 + word.len() <= WIDTH {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// Returns the description of a key with the bounds of its numbers.
fn description(key: &Key) -> String {
    let schema = key.kind.schema();
    let numbers = schema["anyOf"].as_array().and_then(|kinds| kinds.last()).unwrap_or(&schema);
    let is_number = numbers["type"] == "integer" || numbers["type"][0] == "integer" && numbers["pattern"].is_null();
    if is_number {
        format!("{} From {} to {}.", key.doc, numbers["minimum"], numbers["maximum"])
    } else {
        key.doc.clone()
    }
}

#[test]
fn the_schema_has_every_key() {
    let text = committed("config/schema.json", |_| format!("{:#}\n", schema()));
    let schema: Json = serde_json::from_str(&text).unwrap();
    for key in keys::keys() {
        let of_key = key.name.split('.').fold(&schema, |section, part| match part {
            "*" => &section["additionalProperties"],
            part => &section["properties"][part],
        });
        assert!(of_key["description"].is_string(), "{}: {of_key}", key.name);
        let secret = if of_key["type"] == "array" { &of_key["items"] } else { of_key };
        assert_eq!(secret["writeOnly"] == true, key.kind.marks().is_secret, "{}", key.name);
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    for (yaml, at) in [
        ("prot: 1", "prot"),
        ("server: {prot: 1}", "server.prot"),
        ("server: 5", "server"),
        ("server: {port: many}", "server.port"),
        ("server: {port: 65536}", "server.port"),
        ("server: {allowed_hosts: a.test}", "server.allowed_hosts"),
        ("server: {allowed_hosts: [1]}", "server.allowed_hosts"),
        ("defaults: {memory_mb: 15}", "defaults.memory_mb"),
        ("defaults: {max_memory_mb: all}", "defaults.max_memory_mb"),
        ("logging: {level: loud}", "logging.level"),
        ("auth: {api_key: 7}", "auth.api_key"),
        ("auth: {enabled: sometimes}", "auth.enabled"),
        ("workers: {w1: {urll: a}}", "workers.w1.urll"),
        ("images: {registries: {a.test: {mirrors: b.test}}}", "images.registries.a.test.mirrors"),
    ] {
        assert_eq!(misfits(yaml), [at], "{yaml}");
    }
}

/// Returns the places in `yaml` that do not fit the schema. Patterns are not looked at.
pub(super) fn misfits(yaml: &str) -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(value) = tree::parse(yaml) {
        compare(&schema(), &value, "", &mut found);
    }
    found
}

fn compare(schema: &Json, value: &Value, name: &str, found: &mut Vec<String>) {
    let parts = if let Value::Map(entries) = value { entries.as_slice() } else { &[] };
    for (part, value) in parts {
        let at = if name.is_empty() { part.clone() } else { format!("{name}.{part}") };
        let of_part = schema["properties"].get(part).unwrap_or(&schema["additionalProperties"]);
        if of_part.is_object() {
            compare(of_part, value, &at, found);
        } else {
            found.push(at);
        }
    }
    if !fits(schema, value) {
        found.push(name.to_owned());
    }
}

/// Returns whether a value without sections fits its schema.
fn fits(schema: &Json, value: &Value) -> bool {
    let (kind, json) = match value {
        Value::Null => ("null", Json::Null),
        Value::Bool(flag) => ("boolean", (*flag).into()),
        Value::Integer(number) => ("integer", i64::try_from(*number).unwrap().into()),
        Value::Float(number) => ("number", (*number).into()),
        Value::Text(text) | Value::Bare(text) => ("string", text.as_str().into()),
        Value::List(items) => ("array", items.len().into()),
        Value::Map(_) => ("object", Json::Null),
    };
    let types = &schema["type"];
    let has_type = types.is_null() || types == kind || types.as_array().is_some_and(|all| all.contains(&kind.into()));
    let is_word = schema["enum"].as_array().is_none_or(|words| words.contains(&json));
    let is_constant = schema.get("const").is_none_or(|constant| *constant == json);
    let is_one = schema["anyOf"].as_array().is_none_or(|kinds| kinds.iter().any(|kind| fits(kind, value)));
    let bound = |name: &str| schema[name].as_i64().filter(|_| kind == "integer");
    let number = json.as_i64().unwrap_or_default();
    let is_within =
        bound("minimum").is_none_or(|min| number >= min) && bound("maximum").is_none_or(|max| number <= max);
    let items = if let Value::List(items) = value { items.as_slice() } else { &[] };
    let have_items = items.iter().all(|item| fits(&schema["items"], item));
    has_type && is_word && is_constant && is_one && is_within && have_items
}
