//! Circles of imports between files. To read one file of a circle is to read them all.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::imports::{Import, imports};

/// Returns the circles, each with the imports that it consists of.
///
/// A circle is a set of files of which each leads to each other: a strongly connected component of
/// more than one file, found with Tarjan's algorithm.
fn circles(imports: &[Import]) -> Vec<Vec<&Import>> {
    let mut search =
        Search { imports, numbers: BTreeMap::new(), lowest: BTreeMap::new(), open: Vec::new(), found: Vec::new() };
    for import in imports {
        if !search.numbers.contains_key(import.from.as_str()) {
            search.visit(&import.from);
        }
    }
    let of = |circle: &Vec<&str>| {
        let is_inside = |import: &&Import| circle.contains(&&*import.from) && circle.contains(&&*import.to);
        imports.iter().filter(is_inside).collect()
    };
    search.found.iter().filter(|circle| circle.len() > 1).map(of).collect()
}

struct Search<'a> {
    imports: &'a [Import],
    /// Files by the order in which they were first seen.
    numbers: BTreeMap<&'a str, usize>,
    /// Number of the earliest open file that a file leads to.
    lowest: BTreeMap<&'a str, usize>,
    open: Vec<&'a str>,
    found: Vec<Vec<&'a str>>,
}

impl<'a> Search<'a> {
    fn visit(&mut self, file: &'a str) {
        let number = self.numbers.len();
        self.numbers.insert(file, number);
        self.open.push(file);
        let mut lowest = number;
        for import in self.imports.iter().filter(|import| import.from == file) {
            let to = import.to.as_str();
            if !self.numbers.contains_key(to) {
                self.visit(to);
                lowest = lowest.min(self.lowest[to]);
            } else if self.open.contains(&to) {
                lowest = lowest.min(self.numbers[to]);
            }
        }
        self.lowest.insert(file, lowest);
        if lowest == number {
            let first = self.open.iter().position(|open| *open == file).expect("the file is open");
            self.found.push(self.open.split_off(first));
        }
    }
}

/// Writes a circle so that a reader sees which import to turn.
fn described(circle: &[&Import]) -> String {
    let mut files: Vec<&str> = circle.iter().map(|import| import.from.as_str()).collect();
    files.dedup();
    let mut text = format!("{} files need each other:", files.len());
    for Import { from, line, to, path } in circle {
        write!(text, "\n    {from}:{line}: needs {to} (`{path}`)").expect("a text can be written to");
    }
    text
}

#[test]
fn no_file_needs_a_file_that_needs_it() {
    let sources = super::sources(&[".rs"]);
    let files: BTreeMap<&str, &str> = sources.iter().map(|file| (&*file.path, &*file.text)).collect();
    let is_root = |path: &&str| path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs");
    let imports: Vec<Import> = files.keys().copied().filter(is_root).flat_map(|root| imports(root, &files)).collect();
    assert!(imports.len() > 1000, "only {} imports: the rule would hold of nothing", imports.len());
    let violations: Vec<String> = circles(&imports).iter().map(|circle| described(circle)).collect();
    super::report(&violations);
}

/// Returns the imports of a crate of these files as `from to`, and the number of its circles.
fn check(files: &[(&str, &str)]) -> (Vec<String>, usize) {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let imports = imports("src/lib.rs", &files);
    let name = |path: &str| path.trim_start_matches("src/").trim_end_matches(".rs").to_owned();
    let shown = imports.iter().map(|import| format!("{} {}", name(&import.from), name(&import.to)));
    (shown.collect(), circles(&imports).len())
}

#[test]
fn two_files_that_name_each_other_are_a_circle() {
    let root = ("src/lib.rs", "mod a; mod b; mod c;");
    let (b, c) = (("src/b.rs", "use super::c;\nfn f() { c::g() }"), ("src/c.rs", "pub fn g() { crate::a::h() }"));
    assert_eq!(check(&[root, ("src/a.rs", "use crate::b;"), b, c]).1, 1);
    let (imports, circles) = check(&[root, ("src/a.rs", "use std::fmt;"), b, c]);
    assert_eq!((imports, circles), (vec!["b c".to_owned(), "c a".to_owned()], 0));
}

#[test]
fn a_circle_is_described_by_its_imports() {
    let files = [
        ("src/lib.rs", "mod a;\nmod b;\nmod c;"),
        ("src/a.rs", "\nuse crate::b::{self, B};\nuse crate::c;"),
        ("src/b.rs", "type A = super::a::A;"),
        ("src/c.rs", ""),
    ];
    let imports = imports("src/lib.rs", &files.into());
    let circles = circles(&imports);
    let text = "2 files need each other:\n    src/a.rs:2: needs src/b.rs (`crate::b`)\n    \
                src/b.rs:1: needs src/a.rs (`super::a::A`)";
    assert_eq!(circles.iter().map(|circle| described(circle)).collect::<Vec<_>>(), [text]);
}

/// Each way to write an import of `b`, or of `b/c`, in `a` or in `b`.
#[test]
fn every_way_to_write_an_import_is_seen() {
    let check = |place: &str, code: &str, expected: &[&str]| {
        let mut files = BTreeMap::from([
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "fn own() {}"),
            ("src/b.rs", "mod c; mod d { pub mod e; } fn own() {}"),
            ("src/b/c.rs", "fn own() {}"),
            ("src/b/d/e.rs", "fn own() {}"),
        ]);
        let code = if place == "src/b.rs" { format!("mod c; mod d {{ pub mod e; }} {code}") } else { code.to_owned() };
        files.insert(place, &code);
        let (imports, _) = self::check(&files.into_iter().collect::<Vec<_>>());
        assert_eq!(imports, expected, "{place}: {code}");
    };
    check("src/a.rs", "use crate::b;", &["a b"]);
    check("src/a.rs", "use crate::{b as x, b::c::{self, Y as Z}};\nfn f() { x::g() }", &["a b", "a b/c"]);
    check("src/a.rs", "pub(in super::b) use crate::b::c::*;\nfn own() {}", &["a b/c"]);
    check("src/a.rs", "use super::b::{\n    // use crate::a;\n    c::{D, self},\n};", &["a b/c"]);
    check("src/a.rs", "use super::b::c as x;\nfn f() -> x::T { x::<u8>::g() }", &["a b/c"]);
    check("src/a.rs", "use crate::b as x;\nfn f() -> x::c::T {}", &["a b", "a b/c"]);
    check("src/a.rs", "fn f<'a>(x: &'a impl Into<crate::b::T>) -> impl Sized + use<'a> {}", &["a b"]);
    check("src/a.rs", "mod inside { use super::super::b::d::e::X; fn f() { super::g() } }", &["a b/d/e"]);
    check("src/a.rs", "mod inside { use super::Own; mod more { use super::super::super::b; } }", &["a b"]);
    check("src/a.rs", "macro_rules! m { () => { $crate::b::c::g() } }", &["a b/c"]);
    check("src/a.rs", "#[derive(Debug)]\n#[openapi(paths(super::b::c::get))]\nstruct Own;", &["a b/c"]);
    check("src/b.rs", "fn f() { c::g(); self::d::e::g() }", &["b b/c", "b b/d/e"]);
    check("src/b.rs", "use c::X; use std::c::Y;", &["b b/c"]);
    check("src/b.rs", "pub use c::X; fn own() {}", &["b b/c"]);
    check("src/b.rs", "fn f() { other::c::g() }", &[]);
    check("src/b/c.rs", "use super::own;", &["b/c b"]);
    check("src/b/d/e.rs", "use super::super::{own, c::own as other};", &["b/d/e b", "b/d/e b/c"]);
    // Texts, comments and tests import nothing.
    check("src/a.rs", r##"fn f() { let x = ("crate::b", r#"" crate::b "#, b'\'', '"', "\" crate::b"); }"##, &[]);
    check("src/a.rs", "/* use crate::b; /* in */ use crate::b; */ // crate::b\n/// [`crate::b`]\nfn f() {}", &[]);
    check("src/a.rs", "#[cfg(test)]\nmod test { use crate::b; }\n#[cfg(all(test, unix))] use crate::b;", &[]);
    check("src/a.rs", "struct S { #[cfg(test)] x: Vec<crate::b::X>, y: u8 }\nfn f() { crate::b::g() }", &["a b"]);
    check(
        "src/a.rs",
        "#[cfg(test)]\n#[test]\nfn f<A, B>() { crate::b::g() }\n#[cfg(not(test))]\nuse crate::b;",
        &["a b"],
    );
}

#[test]
fn a_door_is_no_part_of_a_circle_and_hides_none() {
    let door = "//! The door.\nmod x;\npub mod y;\npub use x::{X, Z as W};\npub(crate) use self::y::*;";
    let x = ("src/x.rs", "use crate::Y;");
    let (imports, circles) = check(&[("src/lib.rs", door), x, ("src/y.rs", "")]);
    assert_eq!((imports, circles), (vec!["x y".to_owned()], 0));
    for back in ["use crate::X;", "use super::W;", "use crate::*;"] {
        let (imports, circles) = check(&[("src/lib.rs", door), x, ("src/y.rs", back)]);
        assert_eq!((imports, circles), (vec!["x y".to_owned(), "y x".to_owned()], 1), "{back}");
    }
    // A file with something of its own is no door.
    let (imports, circles) = check(&[("src/lib.rs", &format!("{door} fn own() {{}}")), x, ("src/y.rs", "")]);
    assert_eq!((imports, circles), (vec!["lib x".to_owned(), "lib y".to_owned(), "x lib".to_owned()], 1));
}
