//! Rules about the source that no compiler checks: dependencies, names, sizes, words, links. Every
//! violation is named by file and line; a rule that is broken on purpose is changed here, with the
//! reason.

mod circles;
mod english;
mod features;
mod imports;
mod statements;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// The most lines of a file, tests not counted.
const LINES_MAX: usize = 600;

/// Crates, the lowest first, with the lower ones that each may know; development dependencies left
/// out.
const CRATE_ARROWS: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("domain", &[]),
    // Real parts for tests.
    ("fixtures", &[]),
    ("guest-protocol", &[]),
    ("erofs", &[]),
    ("firecracker", &[]),
    ("host-disk", &[]),
    ("kernels", &[]),
    ("guest-agent", &["guest-protocol"]),
    ("client", &["api"]),
    // Tools for models are a client of the API.
    ("mcp", &["api", "client"]),
    ("images", &["domain", "guest-protocol", "host-disk"]),
    // One provider drives another service: docs/develop/decisions/0005.
    ("providers", &["api", "client", "domain", "erofs", "firecracker", "guest-protocol", "host-disk", "images"]),
    // Tests of providers, and nothing of the product, need it.
    ("conformance", &["domain", "fixtures", "kernels", "providers"]),
    ("store", &["domain"]),
    // A worker speaks to its control plane.
    ("server", &["api", "client", "domain", "host-disk", "images", "kernels", "providers", "store"]),
    // The command line prints answers of the API, measures with the agent, and prepares this host for
    // virtual machines.
    ("tidebox", &["api", "client", "domain", "firecracker", "guest-protocol", "mcp", "providers", "server"]),
];

/// Crates that would give the pure rules an effect, or make them part of the wire.
const NOT_IN_DOMAIN: &[&str] = &["axum", "hyper", "rand", "reqwest", "serde", "sqlx", "tokio", "tracing"];

/// Modules of the server in layers, the lowest first: a module may know those of lower layers.
const SERVER_LAYERS: &[&[&str]] = &[
    &["audit", "config", "hop_by_hop", "operation_metrics", "owner_keys", "process", "stats"],
    &["auth", "remote_workers"],
    &["budget", "provider_registry", "rate_limit", "secrets", "worker_token"],
    &["events"],
    &["admission", "egress", "port_watch"],
    &["control"],
    &["heartbeat", "http", "reconcile"],
    &["app"],
    &["shutdown"],
    &["run"],
];

/// Lower modules that a request reaches only through `control`.
const NOT_IN_HTTP: &[&str] = &["admission", "remote_workers", "secrets"];

/// Folder of the fronts and of what they share.
const HTTP: &str = "crates/server/src/http/";

/// Folders below [`HTTP`] with the handlers of one site each.
const FRONTS: &[&str] = &["api", "preview"];

/// Module names that say nothing about their content.
const DRAWERS: &[&str] = &["common", "core", "helpers", "misc", "models", "types", "util", "utils"];

/// Statuses that are no errors, which any handler may give.
const STATUS_OF_SUCCESS: &[&str] =
    &["OK", "CREATED", "ACCEPTED", "NO_CONTENT", "PARTIAL_CONTENT", "NOT_MODIFIED", "CONTINUE", "SWITCHING_PROTOCOLS"];

/// A text file of the workspace.
struct Source {
    /// Path from the root of the workspace, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Returns the numbered lines, up to the unit tests.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_code = !self.is_test();
        let before_tests = move |line: &&str| !line.starts_with("mod test") && is_code;
        self.text.lines().take_while(before_tests).enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Returns the numbered lines of code without their comments.
    fn statements(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code().map(|(number, line)| (number, if line.trim_start().starts_with("//") { "" } else { line }))
    }

    /// Returns whether the whole file is tests.
    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/test.rs") || self.path.contains("/test/")
    }

    /// Returns the module path in the server, if the file is part of the server.
    fn server_module(&self) -> Option<Vec<&str>> {
        let path = self.path.strip_prefix("crates/server/src/")?.strip_suffix(".rs")?;
        Some(path.split('/').filter(|part| *part != "lib").collect())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies two levels deep").to_owned()
}

/// Returns the files whose name has one of these endings, in order.
fn sources(endings: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the workspace can be read") {
            let entry = entry.expect("a folder of the workspace can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("the kind of a file is known");
            if kind.is_dir() && name != "target" && name != ".git" && name != "node_modules" {
                folders.push(entry.path());
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                let path = entry.path();
                let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                let path = path.strip_prefix(&root).expect("found below the root").to_string_lossy().into_owned();
                found.push(Source { path, text });
            }
        }
    }
    assert!(!found.is_empty(), "no file ends in {endings:?}: the rule would hold of nothing");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Fails with every violation.
#[track_caller]
fn report(violations: &[String]) {
    let mut list = String::new();
    for violation in violations {
        writeln!(list, "  {violation}").expect("a text can be written to");
    }
    assert!(violations.is_empty(), "{} violations:\n{list}", violations.len());
}

/// Returns whether `line` has `word` as a whole name, not as a part of another.
fn finds(line: &str, word: &str) -> bool {
    let part_of_name = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let open = word.ends_with(|c| !part_of_name(c));
        !before.is_some_and(|c| part_of_name(c) || c == ':') && (open || !after.is_some_and(part_of_name))
    })
}

/// Returns the dependencies in a manifest with their lines, without those only for tests.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut wanted = false;
    for (index, line) in manifest.lines().enumerate() {
        if let Some(section) = line.strip_prefix('[') {
            wanted = section.contains("dependencies]") && !section.contains("dev-dependencies");
        } else if wanted {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default().trim();
            if !name.is_empty() && !name.starts_with('#') {
                found.push((index + 1, name));
            }
        }
    }
    found
}

#[test]
fn crates_depend_on_each_other_downwards_only() {
    let mut violations = Vec::new();
    for (index, (name, allowed)) in CRATE_ARROWS.iter().enumerate() {
        let is_lower = |other: &&&str| CRATE_ARROWS[..index].iter().any(|(lower, _)| lower == *other);
        let others = allowed.iter().filter(|other| !is_lower(other));
        violations
            .extend(others.map(|other| format!("CRATE_ARROWS: {other} has to stand above {name}, which knows it")));
    }
    let mut seen = Vec::new();
    for manifest in sources(&["Cargo.toml"]) {
        let Some(name) = manifest.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        let Some((name, allowed)) = CRATE_ARROWS.iter().find(|(known, _)| *known == name) else {
            violations.push(format!("{}:1: the crate has no entry in CRATE_ARROWS", manifest.path));
            continue;
        };
        seen.push(*name);
        for (line, dependency) in dependencies(&manifest.text) {
            let is_ours = CRATE_ARROWS.iter().any(|(known, _)| *known == dependency);
            if is_ours && !allowed.contains(&dependency) || *name == "domain" && NOT_IN_DOMAIN.contains(&dependency) {
                violations.push(format!("{}:{line}: {name} must not depend on {dependency}", manifest.path));
            }
        }
    }
    report(&violations);
    assert_eq!(seen.len(), CRATE_ARROWS.len(), "CRATE_ARROWS names a crate that is gone");
}

/// Returns the modules of the server that the file names, with their lines. Paths over several
/// lines and with braces are taken apart.
fn mentions(source: &Source) -> Vec<(usize, String)> {
    let module = source.server_module().unwrap_or_default();
    let mut found = Vec::new();
    let mut start = 0;
    let mut statement = String::new();
    for (number, line) in source.statements() {
        let trimmed = line.trim();
        let opens = trimmed.trim_start_matches("pub ").trim_start_matches("pub(crate) ").starts_with("use ");
        if !statement.is_empty() || opens {
            if statement.is_empty() {
                start = number;
            }
            statement.push_str(trimmed);
            if trimmed.ends_with(';') {
                let path = statement.trim_end_matches(';').split_once("use ").map_or("", |(_, path)| path);
                let tops = expand(path).into_iter().filter_map(|path| top(&path, &module));
                found.extend(tops.map(|top| (start, top)));
                statement.clear();
            }
        } else {
            for prefix in ["crate::", "super::"] {
                let paths = line.match_indices(prefix).map(|(at, _)| &line[at..]);
                // `super::super::x` is found at its first part.
                let paths = paths.map(|path| path.split(|c: char| !(c.is_alphanumeric() || "_:".contains(c))).next());
                found.extend(paths.flatten().filter_map(|path| top(path, &module)).map(|top| (number, top)));
            }
        }
    }
    found
}

/// Returns every single path in `a::{b, c::{d, e}}`.
fn expand(path: &str) -> Vec<String> {
    let Some((before, rest)) = path.split_once('{') else { return vec![path.trim().to_owned()] };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut depth = 0;
    let parts = inner.split(|c: char| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts
        .filter(|part| !part.trim().is_empty())
        .flat_map(|part| expand(&format!("{}{}", before.trim(), part.trim())))
        .collect()
}

/// Returns the top module of the crate that a path leads to from `module`.
fn top(path: &str, module: &[&str]) -> Option<String> {
    if let Some(rest) = path.strip_prefix("crate::") {
        return rest.split("::").next().map(str::to_owned);
    }
    let ups = path.split("::").take_while(|part| *part == "super").count();
    let name = path.split("::").nth(ups)?;
    let kept = module.len().checked_sub(ups)?;
    if ups == 0 { None } else { Some(module[..kept].first().map_or(name, |top| top).to_owned()) }
}

#[test]
fn the_rust_that_the_readme_names_builds_every_locked_dependency() {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let arguments = ["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", &platform];
    let cargo = std::process::Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(cargo.status.success(), "{}", String::from_utf8_lossy(&cargo.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&cargo.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let version = |package: &serde_json::Value| -> Vec<u32> {
        let text = package["rust_version"].as_str().unwrap_or_default();
        text.split('.').filter_map(|part| part.parse().ok()).collect()
    };
    let own = packages.iter().find(|package| package["name"] == "tidebox").unwrap();
    let newer = packages.iter().filter(|package| version(package)[..] > [&version(own)[..], &[0]].concat()[..]);
    let newer: Vec<String> =
        newer.map(|package| format!("{} needs {}", package["name"], package["rust_version"])).collect();
    report(&newer);
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let named = format!("({} or later)", own["rust_version"].as_str().unwrap());
    assert!(readme.contains(&named), "README.md does not say {named}");
}

#[test]
fn every_source_that_the_guides_name_is_there() {
    let mut violations = Vec::new();
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/develop/where.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        for (index, line) in text.lines().enumerate() {
            // Every second part stands between backticks.
            for named in line.split('`').skip(1).step_by(2).filter(|named| named.starts_with("crates/")) {
                if !named.contains(['<', '*', ' ']) && !root().join(named).exists() {
                    violations.push(format!("{page}:{}: there is no {named}", index + 1));
                }
            }
        }
    }
    report(&violations);
}

#[test]
fn modules_of_the_server_know_each_other_downwards_only() {
    let mut violations = Vec::new();
    let layer_of = |module: &str| SERVER_LAYERS.iter().position(|layer| layer.contains(&module));
    for source in sources(&[".rs"]).iter().filter(|source| !source.is_test()) {
        let Some(path) = source.server_module() else { continue };
        let Some(module) = path.first().copied().filter(|module| *module != "test") else { continue };
        let Some(layer) = layer_of(module) else {
            violations.push(format!("{}:1: {module} has no layer; add it to SERVER_LAYERS", source.path));
            continue;
        };
        for (line, mentioned) in mentions(source) {
            let is_higher = mentioned != module && layer_of(&mentioned).is_some_and(|other| other >= layer);
            if is_higher || module == "http" && NOT_IN_HTTP.contains(&mentioned.as_str()) {
                violations.push(format!("{}:{line}: {module} must not know {mentioned}", source.path));
            }
        }
    }
    report(&violations);
}

#[test]
fn only_a_wire_knows_both_the_api_and_the_domain() {
    let mut violations = Vec::new();
    for source in sources(&[".rs"]) {
        let is_wire = FRONTS.iter().any(|front| source.path.starts_with(&format!("{HTTP}{front}/wire")));
        if !source.path.starts_with("crates/server/src/") || is_wire {
            continue;
        }
        // The front `http::api` is not the crate `api`.
        let is_named = |line: &str, word| finds(&line.replace("http::api", "http"), word);
        let first = |word| source.statements().find(|(_, line)| is_named(line, word)).map(|(number, _)| number);
        if let (Some(api), Some(domain)) = (first("api::"), first("domain::")) {
            violations.push(format!("{}:{api}: speaks of `api` here and of `domain` in line {domain}", source.path));
        }
    }
    report(&violations);
}

/// A front is the folder of one group of callers: it can be added and removed without the others.
#[test]
fn no_front_is_known_to_another_and_the_api_to_nothing_but_the_door() {
    let mut violations = Vec::new();
    for source in sources(&[".rs"]).iter().filter(|source| source.path.starts_with(HTTP)) {
        let inside = source.path.trim_start_matches(HTTP);
        let own =
            FRONTS.iter().find(|front| inside.starts_with(&format!("{front}/")) || inside == format!("{front}.rs"));
        for (number, line) in source.statements() {
            for front in FRONTS.iter().filter(|front| Some(*front) != own) {
                // What comes before the fronts tells a preview from the rest by the host.
                let may_know = own.is_none() && *front == "preview";
                if !may_know
                    && (finds(line, &format!("crate::http::{front}")) || finds(line, &format!("super::{front}")))
                {
                    violations.push(format!("{}:{number}: must not know the front {front}", source.path));
                }
            }
        }
    }
    report(&violations);
}

#[test]
fn only_the_map_of_errors_chooses_their_status() {
    let mut violations = Vec::new();
    for source in sources(&[".rs"]) {
        if !source.path.starts_with("crates/server/src/") || source.path == "crates/server/src/http/error.rs" {
            continue;
        }
        for (number, line) in source.statements() {
            let codes = line.split("StatusCode::").skip(1);
            let codes = codes.map(|rest| rest.split(|c: char| !(c.is_ascii_uppercase() || c == '_')).next());
            for code in codes.flatten().filter(|code| !code.is_empty() && !STATUS_OF_SUCCESS.contains(code)) {
                violations.push(format!("{}:{number}: {code} belongs into http/error.rs", source.path));
            }
        }
    }
    report(&violations);
}

#[test]
fn files_are_named_after_what_they_hold() {
    let mut violations = Vec::new();
    for source in sources(&[".rs"]) {
        let name = source.path.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
        if name == "mod" {
            violations.push(format!("{}:1: write `folder.rs` beside `folder/`", source.path));
        }
        if source.path.trim_end_matches(".rs").split('/').any(|part| DRAWERS.contains(&part)) {
            violations.push(format!("{}:1: the name does not say what is inside", source.path));
        }
    }
    report(&violations);
}

#[test]
fn no_file_is_longer_than_one_can_hold_in_mind() {
    let long = |source: &Source| (source.code().count(), source.path.clone());
    let found = sources(&[".rs"]).iter().map(long).filter(|(lines, _)| *lines > LINES_MAX).collect::<Vec<_>>();
    let line = |(lines, path): &(usize, String)| format!("{path}:{LINES_MAX}: has {lines} lines; divide it");
    report(&found.iter().map(line).collect::<Vec<_>>());
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file does not find itself.
    let marks =
        [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["to", "do!"], ["unimple", "mented!"]].map(|halves| halves.concat());
    let ignored = ["#[igno", "re"].concat();
    // A test that another test starts in a process of its own.
    let is_part_of_another = |line: &str| line.ends_with("= \"another test runs it in a process of its own\"]");
    let mut violations = Vec::new();
    for source in sources(&[".rs", ".toml", ".md", ".yaml", ".yml", ".sql", "justfile", "run"]) {
        for (index, line) in source.text.lines().enumerate() {
            let found = marks.iter().find(|mark| finds(line, mark));
            if let Some(mark) = found.or((line.contains(&ignored) && !is_part_of_another(line)).then_some(&ignored)) {
                violations.push(format!("{}:{}: {mark}", source.path, index + 1));
            }
        }
    }
    report(&violations);
}

#[test]
fn no_path_of_the_machine_it_was_written_on_is_named() {
    let is_telling = |path: &PathBuf| path.components().count() > 2;
    let homes = ["CARGO_HOME", "RUSTUP_HOME"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let paths: Vec<_> = homes.chain([root()]).filter(is_telling).map(|path| path.display().to_string()).collect();
    let mut violations = Vec::new();
    for source in sources(&[".rs", ".toml", ".md", ".yaml", ".yml", ".json", ".snap", "justfile", "run"]) {
        for (index, line) in source.text.lines().enumerate() {
            if let Some(path) = paths.iter().find(|path| finds(line, path)) {
                violations.push(format!("{}:{}: {path}", source.path, index + 1));
            }
        }
    }
    report(&violations);
}

/// A `suite` is shared by the unit tests of several modules.
#[test]
fn unit_tests_live_in_a_module_named_test() {
    let mut violations = Vec::new();
    for source in sources(&[".rs"]) {
        let lines: Vec<_> = source.text.lines().map(str::trim).collect();
        for (index, pair) in lines.windows(2).enumerate() {
            let module = pair[1].strip_prefix("mod ").map(|rest| rest.trim_end_matches([' ', '{', ';', '}']));
            if let ("#[cfg(test)]", Some(name)) = (pair[0], module.filter(|name| !["test", "suite"].contains(name))) {
                violations.push(format!("{}:{}: `{name}` should be `test`", source.path, index + 2));
            }
        }
    }
    report(&violations);
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut violations = Vec::new();
    for page in sources(&[".md"]) {
        let folder = root().join(&page.path).parent().expect("a file lies in a folder").to_owned();
        let mut in_code = false;
        for (index, line) in page.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_code = !in_code;
            }
            for link in line.split("](").skip(1).filter(|_| !in_code) {
                let target = link.split([')', '#', ' ']).next().unwrap_or_default();
                let is_elsewhere = target.is_empty() || target.contains("://") || target.starts_with("mailto:");
                if !is_elsewhere && !folder.join(target).exists() {
                    violations.push(format!("{}:{}: {target} does not exist", page.path, index + 1));
                }
            }
        }
    }
    report(&violations);
}

/// A page that names a test as its evidence names one that exists.
#[test]
fn tests_that_the_security_page_names_exist() {
    let code: String = sources(&[".rs"]).into_iter().map(|file| file.text).collect();
    let pages = sources(&[".md"]);
    let page = pages.iter().find(|page| page.path == "docs/operate/security.md").expect("there is a security page");
    let mut violations = Vec::new();
    let is_row = |line: &str| line.starts_with('|') && line.matches('|').count() == 4;
    let rows = page.text.lines().enumerate().filter(|(_, line)| is_row(line));
    for (index, row) in rows {
        let cell = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
        if cell == "Test" || cell == "---" {
            continue;
        }
        // A function, or a sentence of the conformance suite.
        let is_there =
            |named: &&str| code.contains(&format!("fn {named}(")) || code.contains(&format!("case!(\"{named}\""));
        let named: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            violations.push(format!("{}:{}: no test is named", page.path, index + 1));
        }
        for missing in named.iter().filter(|named| !is_there(named)) {
            violations.push(format!("{}:{}: there is no test `{missing}`", page.path, index + 1));
        }
    }
    report(&violations);
}

#[test]
fn the_rules_see_what_they_should() {
    assert_eq!(expand("crate::{a, b::{c, d}}"), ["crate::a", "crate::b::c", "crate::b::d"]);
    assert_eq!(top("crate::http::wire", &["control"]).as_deref(), Some("http"));
    assert_eq!(top("super::store", &["control"]).as_deref(), Some("store"));
    assert_eq!(top("super::boxes", &["control", "create"]).as_deref(), Some("control"));
    assert_eq!(top("super::super::http", &["control", "create"]).as_deref(), Some("http"));
    assert_eq!(top("std::fs", &["control"]), None);
    assert!(finds("let x: api::Sandbox", "api::") && !finds("utoipa_api::x", "api::") && !finds("a::api::x", "api::"));
    assert_eq!(dependencies("[dependencies]\na.workspace = true\n[dev-dependencies]\nb = \"1\"\n"), [(2, "a")]);
    let path = "crates/server/src/control.rs".to_owned();
    let text =
        "use crate::{\n    store,\n    http::wire,\n};\nfn f() { crate::run::go() }\nmod test {\n use crate::http;\n";
    let source = Source { path, text: text.to_owned() };
    let found = mentions(&source);
    assert_eq!(found, [(1, "store".to_owned()), (1, "http".to_owned()), (5, "run".to_owned())]);
}
