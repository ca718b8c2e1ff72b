//! Tests of the example file.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::*;

#[test]
fn the_example_file_names_every_key_once_with_its_default() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/example.yaml");
    if std::env::var_os("TIDEBOX_UPDATE_EXAMPLE").is_some() {
        std::fs::write(path, example()).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        committed,
        example(),
        "config/example.yaml differs from the table of keys; TIDEBOX_UPDATE_EXAMPLE=1 writes it anew"
    );
    let enabled: String = committed.lines().map(|line| format!("{}\n", uncommented(line))).collect();
    let mut loaded = Lab::new().here(&enabled).load();
    let set: BTreeSet<_> = loaded.sources.keys().cloned().collect();
    assert_eq!(set, key::KEYS.iter().map(|key| key.name.replace('*', "w1")).collect());
    clear_maps(&mut loaded.config);
    assert_eq!(loaded.config, Lab::new().load().config);
    assert_eq!(Lab::new().here(&committed).load().sources.len(), 0, "as it is, it sets nothing");
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
    let mut text = "# Every key of Tidebox with its default. Copy it to ./tidebox.yaml or\n\
                    # ~/.tidebox/config.yaml and take the # away before what you change. Of maps\n\
                    # there is a sample entry, w1. docs/operate/configuration.md describes layers,\n\
                    # variables and faults.\n"
        .to_owned();
    let settings = Lab::new().load().settings();
    let mut open: Vec<&str> = Vec::new();
    for key in key::KEYS {
        let mut sections: Vec<_> = key.name.split('.').map(|part| if part == "*" { "w1" } else { part }).collect();
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
        for line in key.doc {
            writeln!(text, "{indent}# {line}").unwrap();
        }
        let shown = settings.iter().find(|setting| setting.key == key.name).map(|setting| setting.yaml().to_owned());
        let value = shown.unwrap_or_else(|| match sample(key) {
            text if text.is_empty() => "null".to_owned(),
            text => text,
        });
        writeln!(text, "{indent}#{name}: {value}").unwrap();
        open = sections;
    }
    text
}
