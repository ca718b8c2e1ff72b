//! Statements of the specification, each of which a test holds, and the names of tests in pages.

use super::{Source, report, sources};

/// Page that lists the statements of the specification with their tests.
const CONFORMANCE: &str = "crates/tidebox/tests/api-conformance.md";
/// Beginnings of the cell of a statement that needs no test, or not yet.
const NO_TEST: [&str; 2] = ["Decided: ", "Not in this release: "];

/// Returns the texts between backticks that are paths of tests.
fn test_paths(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2).filter(|text| text.contains("::"))
}

/// Counts the tests with this path: a crate or a test program, modules, a function.
fn tests_at(sources: &[Source], path: &str) -> usize {
    let parts: Vec<&str> = path.split("::").collect();
    let [program, modules @ .., name] = parts.as_slice() else { return 0 };
    // Crates that others compile have our name before theirs.
    let of_crate = program.strip_prefix("tidebox_").unwrap_or(program);
    let is_of_program = |source: &&Source| {
        let inside = source.path.strip_prefix("crates/").and_then(|path| path.split_once('/'));
        let Some((package, inside)) = inside else { return false };
        let (folder, main) = if package.replace('-', "_") == of_crate && inside.starts_with("src/") {
            ("src".to_owned(), vec!["src/lib.rs".to_owned(), "src/main.rs".to_owned()])
        } else {
            (format!("tests/{program}"), vec![format!("tests/{program}.rs"), format!("tests/{program}/main.rs")])
        };
        // A module of tests may be a file, or stand at the end of the file that it tests.
        let (module, holds_tests) = match modules {
            [outer @ .., "test"] => (outer, true),
            _ => (modules, false),
        };
        let file = |modules: &[&str]| match modules {
            [] => main.clone(),
            _ => vec![format!("{folder}/{}.rs", modules.join("/"))],
        };
        file(modules).iter().any(|file| file == inside)
            || holds_tests && source.text.contains("\nmod test {") && file(module).iter().any(|file| file == inside)
    };
    sources.iter().filter(is_of_program).map(|source| tests_called(&source.text, name)).sum()
}

/// Counts the functions of this name that have the attribute of a test.
fn tests_called(text: &str, name: &str) -> usize {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let opens = |line: &str| {
        line.trim_start_matches("pub ")
            .trim_start_matches("async ")
            .strip_prefix("fn ")
            .is_some_and(|rest| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(['(', '<'])))
    };
    let is_test = |line: &&&str| ["#[test]", "#[tokio::test", "#[rstest"].iter().any(|mark| line.starts_with(mark));
    let above =
        |at: usize| lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
    (0..lines.len()).filter(|at| opens(lines[*at]) && above(*at).any(|line| is_test(&line))).count()
}

#[test]
fn every_statement_of_the_specification_is_held_by_a_test() {
    let sources = sources(&[".rs", "api-conformance.md"]);
    let page = sources.iter().find(|source| source.path == CONFORMANCE).expect("the page is there");
    let (mut violations, mut seen, mut sections) = (Vec::new(), Vec::new(), Vec::new());
    for (index, line) in page.text.lines().enumerate() {
        let mut complain = |what: String| violations.push(format!("{CONFORMANCE}:{}: {what}", index + 1));
        if let Some(title) = line.strip_prefix("## ") {
            sections.push((title.split('.').next().unwrap_or_default().to_owned(), 0));
        }
        let Some((statement, cell)) = line.strip_prefix("| ").and_then(|row| row.trim_end().split_once(" | ")) else {
            continue;
        };
        if statement == "Statement" {
            continue;
        }
        let Some((section, rows)) = sections.last_mut() else { continue };
        *rows += 1;
        let row = format!("{section} {statement}");
        if seen.contains(&row) {
            complain("the statement stands here twice".to_owned());
        }
        seen.push(row);
        if test_paths(cell).next().is_none() && !NO_TEST.iter().any(|word| cell.starts_with(word)) {
            complain("no test holds the statement".to_owned());
        }
        let paths: Vec<&str> = test_paths(cell).collect();
        for (at, path) in paths.iter().enumerate() {
            match tests_at(&sources, path) {
                1 if paths[..at].contains(path) => complain(format!("{path} is named twice")),
                1 => {}
                0 => complain(format!("there is no test {path}")),
                many => complain(format!("{many} tests are called {path}")),
            }
        }
    }
    let numbered: Vec<&str> =
        sections.iter().filter(|(_, rows)| *rows > 0).map(|(title, _)| title.as_str()).take(9).collect();
    assert_eq!(numbered, ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "the sections of the specification");
    report(&violations);
}
