//! Kernels of TypeScript.

use kernels::Language;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::started::{error_name, interrupted, started};

/// Variable with folders that have a `node`, of which one may be newer than that of the machine.
const NODES: &str = "TIDEBOX_NODES";

/// Starts a kernel with the first `node` that knows TypeScript.
fn typescript() -> Option<(Kernel, TempDir)> {
    let path = std::env::var("PATH").unwrap_or_default();
    for folder in std::env::split_paths(&std::env::var_os(NODES).unwrap_or_default()) {
        let work = TempDir::new().expect("a folder");
        let path = format!("{}:{path}", folder.display());
        if let Some(kernel) = Kernel::start(Language::TypeScript, work.path(), &[("PATH", &path)]) {
            return Some((kernel, work));
        }
    }
    started(Language::TypeScript)
}

#[test]
fn types_are_removed_and_declarations_survive() {
    let Some((mut node, _folder)) = typescript() else { return };
    let outcome = node.run("interface P { x: number }\nconst p: P = { x: 1 };\nfunction id<T>(v: T): T { return v }");
    assert_eq!((outcome.error, outcome.results.len()), (None, 0));
    assert_eq!(
        node.run("const n: number = await Promise.resolve(2); id<number>(p.x) + n as number").value(),
        Some("3")
    );
    let code =
        "import { readFileSync, type Stats } from 'fs'\nimport type { T } from './nonexistent'\ntypeof readFileSync";
    assert_eq!(node.run(code).value(), Some("'function'"));
}

#[test]
fn enums_and_parameter_properties_work() {
    let Some((mut node, _folder)) = typescript() else { return };
    assert_eq!(node.run("enum Color { Red, Green }\nColor.Green").value(), Some("1"));
    assert_eq!(node.run("class A { constructor(readonly x: number) {} }\nColor[new A(0).x]").value(), Some("'Red'"));
}

#[test]
fn errors_name_the_line_of_the_code() {
    let Some((mut node, _folder)) = typescript() else { return };
    let (name, _, traceback) = node.run("type T = string;\n\nnull.x as T").error.unwrap();
    assert!(name == "TypeError" && traceback.contains("<cell 1>:3:6"), "{traceback}");
    let code = "enum B {\n  X,\n  Y }\nnamespace N { export const y = 1 }\nfunction f(): never {\n    throw new Error('e' + N.y) }\nf()";
    let (_, value, traceback) = node.run(code).error.unwrap();
    assert_eq!((value.as_str(), traceback.lines().nth(1)), ("e1", Some("    at f (<cell 2>:6:11)")));
    let (name, _, traceback) = node.run("let a = 1\nconst b: = 5").error.unwrap();
    assert!(name == "SyntaxError" && traceback.contains("const b: = 5"), "{traceback}");
}

#[test]
fn an_interrupt_ends_code_and_not_the_kernel() {
    let Some((mut node, _folder)) = typescript() else { return };
    let outcome = interrupted(&mut node, "const kept: number = 1; console.log('started'); while (true) {}");
    assert_eq!(error_name(&outcome), Some("KeyboardInterrupt"));
    assert_eq!(node.run("kept").value(), Some("1"));
}
