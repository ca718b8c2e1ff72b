//! Kernels of Java.

use kernels::Language;
use serde_json::Value;
use tempfile::TempDir;

use crate::kernel::{Kernel, Outcome};
use crate::started::{error_name, interrupted, started};

fn java() -> Option<(Kernel, TempDir)> {
    started(Language::Java)
}

/// Returns the value and the traceback of the error of a run.
fn error(outcome: Outcome) -> (String, String) {
    let (_, value, traceback) = outcome.error.expect("an error");
    (value, traceback)
}

#[test]
fn declarations_survive_a_run_and_can_be_made_again() {
    let Some((mut java, _folder)) = java() else { return };
    assert!(java.version.starts_with("Java "), "{}", java.version);
    let code = "int x = 1; List<String> names = new ArrayList<>();
        int twice(int n) { return 2 * n + offset(); }
        int offset() { return x; }
        class Point {
            int x = 7;
        }
        enum Color { RED }
        import java.time.Duration;
        names.add(\"é\");";
    let outcome = java.run(code);
    assert_eq!((outcome.count, &outcome.error, outcome.stderr().as_str()), (1, &None, ""));
    assert_eq!(java.run("twice(3) + new Point().x").value(), Some("14"));
    assert_eq!(java.run("names + \" \" + Color.RED + Duration.ofDays(1)").value(), Some("\"[é] REDPT24H\""));
    java.run("String x = \"text\"; class Point { String y = x; }\nint offset() { return x.length(); }");
    assert_eq!(java.run("new Point().y + twice(1)").value(), Some("\"text6\""));
}

#[test]
fn only_the_value_of_a_last_expression_is_a_result() {
    let Some((mut java, _folder)) = java() else { return };
    for (code, value) in [
        ("1 + 1", Some("2")),
        ("1; \"a\\nb\";", Some(r#""a\nb""#)),
        ("5; int x = 1", None),
        ("x", Some("1")),
        ("x = 3 // end", Some("3")),
        ("/* nothing */", None),
        ("", None),
        ("null", Some("null")),
        ("'c'", Some("'c'")),
        ("new int[] { 1, 2 }", Some("int[2] { 1, 2 }")),
        ("System.gc()", None),
        ("if (x == 3) { x++; }", None),
        ("for (int i = 0; i < 3; i++)\n  x += i;\n\nx", Some("7")),
        ("Stream.of(3, 1).sorted().collect(Collectors.toList())", Some("[1, 3]")),
        ("\"𝒳\".length()", Some("2")),
    ] {
        let outcome = java.run(code);
        assert_eq!((outcome.value(), &outcome.error), (value, &None), "{code}");
    }
}

#[test]
fn wrong_code_is_named_with_its_lines() {
    let Some((mut java, _folder)) = java() else { return };
    let outcome = java.run("int y = 1;\n\nint x =\n  zz;");
    assert_eq!(error_name(&outcome), Some("CompileError"));
    let (value, traceback) = error(outcome);
    assert_eq!(value, "cannot find symbol; symbol:   variable zz");
    assert_eq!(traceback, "<cell 1>:4: error: cannot find symbol\n  symbol:   variable zz\n  zz;\n  ^",);
    let (value, _) = error(java.run("while (true) {"));
    assert_eq!(value, "reached end of file while parsing");
    assert_eq!(error_name(&java.run("1 + )")), Some("CompileError"));
    let (value, _) = error(java.run("int i = \"text\""));
    assert_eq!(value, "incompatible types: java.lang.String cannot be converted to int");
}

#[test]
fn exceptions_have_the_lines_of_the_code_and_no_line_of_the_driver() {
    let Some((mut java, _folder)) = java() else { return };
    java.run("class Thrower {\n  static int go(int n) { return n / 0; } }");
    let outcome = java.run("int f() {\n  return Thrower.go(1); }\n\nf()");
    assert_eq!(error_name(&outcome), Some("ArithmeticException"));
    let expected = "java.lang.ArithmeticException: / by zero
    at Thrower.go (<cell 1>:2)
    at f (<cell 2>:2)
    at <cell 2>:4";
    assert_eq!(error(outcome), ("/ by zero".to_owned(), expected.to_owned()));
    let code = "class Own extends RuntimeException { Own(Throwable why) { super(\"own\", why); } }
        throw new Own(new java.io.IOException(\"why\"));";
    let outcome = java.run(code);
    assert_eq!(error_name(&outcome), Some("Own"));
    let (_, traceback) = error(outcome);
    assert!(traceback.starts_with("Own: own\n    at <cell 3>:2"), "{traceback}");
    assert!(!traceback.contains("jshell") && !traceback.contains("Execution"), "{traceback}");
    let (_, traceback) = error(java.run("List.of(1).forEach(n -> { throw new Own(null); })"));
    assert!(traceback.contains(".forEach(") && traceback.ends_with("at <cell 4>:1"), "{traceback}");
    let outcome = java.run("int deep() { return deep() + 1; }\ndeep()");
    assert_eq!(error_name(&outcome), Some("StackOverflowError"));
    let (value, traceback) = error(java.run("throw new Error(\"x\".repeat(1_000_000))"));
    assert!(value.len() < 150_000 && traceback.len() < 150_000, "{} {}", value.len(), traceback.len());
}

#[test]
fn what_is_declared_with_names_that_are_missing_is_told() {
    let Some((mut java, _folder)) = java() else { return };
    let outcome = java.run("int f() { return g(); }");
    assert_eq!((outcome.stderr().as_str(), &outcome.error), ("`f` cannot be used yet: declare method g()\n", &None));
    assert_eq!(error_name(&java.run("f()")), Some("UnresolvedReference"));
    assert_eq!(java.run("int g() { return 4; }\nf()").value(), Some("4"));
}

#[test]
fn output_of_code_and_programs_keeps_its_order() {
    let Some((mut java, _folder)) = java() else { return };
    let code = "System.out.print(\"é\"); System.out.write('!');
        System.out.flush();
        new ProcessBuilder(\"sh\", \"-c\", \"echo b; echo e >&2\").inheritIO().start().waitFor();
        System.out.println(\"c\"); System.err.printf(\"%d\", 5);
        System.out.write(new byte[] { -1, 0 });";
    let outcome = java.run(code);
    assert_eq!(
        (outcome.stdout.as_slice(), outcome.stderr().as_str()),
        ("é!b\nc\n".as_bytes().iter().chain(b"\xff\0").copied().collect::<Vec<u8>>().as_slice(), "e\n5")
    );
    let outcome = java.run("for (int i = 0; i < 200_000; i++) System.out.println(\"x\".repeat(99));");
    assert_eq!(outcome.stdout.len(), 20_000_000);
    java.begin("System.out.print(\"started\"); Thread.sleep(600_000)", &[]);
    java.wait_for("started");
    java.interrupt_to_end();
}

#[test]
fn an_interrupt_ends_code_and_not_the_kernel() {
    let Some((mut java, _folder)) = java() else { return };
    java.run("int kept = 1;");
    for code in [
        "while (true) {}",
        "Thread.sleep(600_000)",
        "for (;;) { try { Thread.sleep(600_000); } catch (InterruptedException e) {} }",
        "new ProcessBuilder(\"sleep\", \"600\").start().waitFor()",
        "synchronized (System.out) { System.out.wait(); }",
    ] {
        let outcome = interrupted(&mut java, &format!("System.out.println(\"started\"); {code}"));
        assert_eq!(error_name(&outcome), Some("KeyboardInterrupt"), "{code}");
        let outcome = java.run("kept");
        assert_eq!((outcome.value(), outcome.error.as_ref()), (Some("1"), None), "{code}");
    }
    let code = "sun.misc.Signal INT = new sun.misc.Signal(\"INT\");
        sun.misc.SignalHandler[] old = new sun.misc.SignalHandler[1];
        old[0] = sun.misc.Signal.handle(INT, signal -> { old[0].handle(signal); System.out.println(\"idle\"); });";
    assert_eq!(java.run(code).error, None);
    java.interrupt();
    java.wait_for("idle");
    assert_eq!(java.run("kept").value(), Some("1"));
}

#[test]
fn a_value_that_cannot_be_shown_does_not_break_the_run() {
    let Some((mut java, _folder)) = java() else { return };
    java.run("class A { public String toString() { throw new IllegalStateException(); } }");
    let outcome = java.run("new A()");
    assert_eq!(outcome.stderr(), "`toString` failed: java.lang.IllegalStateException\n");
    assert!(outcome.value().is_some_and(|text| text.contains("A@")), "{:?}", outcome.value());
    java.run("class B { public String toString() { System.out.println(\"started\"); while (true) {} } }");
    java.begin("new B()", &[]);
    java.wait_for("started");
    assert_eq!(error_name(&java.interrupt_to_end()), Some("KeyboardInterrupt"));
    let outcome = java.run("\"x\".repeat(20_000_000)");
    assert_eq!(outcome.value(), Some("text/plain was left out: 20.0 MB are more than 10 MiB"));
    let outcome = java.run("\"\\u0001\".repeat(9_000_000)");
    assert!(outcome.value().is_some_and(|text| text.starts_with("text/plain was left out")));
    assert_eq!(java.run("\"\\ud800\"").value(), Some("\"?\""));
}

#[test]
fn an_image_is_shown_as_png() {
    let Some((mut java, _folder)) = java() else { return };
    let outcome = java.run("new java.awt.image.BufferedImage(2, 2, java.awt.image.BufferedImage.TYPE_INT_RGB)");
    let png = outcome.shown("image/png").and_then(Value::as_str).expect("an image");
    assert!(png.starts_with("iVBORw0KGgo"), "{png}");
}

#[test]
fn variables_are_those_of_the_environment_and_properties() {
    let folder = TempDir::new().expect("a folder");
    let Some(mut java) = Kernel::start(Language::Java, folder.path(), &[("GIVEN", "é")]) else {
        // This skips the test.
        assert!(started(Language::Java).is_none());
        return;
    };
    let code = "System.getenv(\"GIVEN\") + System.getProperty(\"GIVEN\")";
    assert_eq!(java.run(code).value(), Some("\"éé\""));
    assert_eq!(
        java.run("System.getenv(\"marker\") == null && !System.getenv().containsKey(\"length\")").value(),
        Some("true")
    );
    let path = folder.path().canonicalize().unwrap();
    assert_eq!(java.run("System.getProperty(\"user.dir\")").value(), Some(format!("\"{}\"", path.display()).as_str()));
}

#[test]
fn variables_of_a_run_end_with_it() {
    let Some((mut java, _folder)) = java() else { return };
    java.run(
        "String seen(String name) throws Exception {
        Process program = new ProcessBuilder(\"printenv\", name).start();
        String text = new String(program.getInputStream().readAllBytes()).trim();
        return System.getenv(name) + \" \" + System.getProperty(name) + \" \" + text;
    }",
    );
    let old = java.run("seen(\"HOME\")").value().unwrap().to_owned();
    let variables = [("HOME", "run"), ("B", "b=é"), ("user.dir", "hidden")];
    let outcome = java.run_with("System.out.println(seen(\"HOME\") + seen(\"B\")); throw new Exception();", &variables);
    assert_eq!((outcome.stdout().as_str(), error_name(&outcome)), ("run run runb=é b=é b=é\n", Some("Exception")));
    assert_eq!(java.run("seen(\"HOME\")").value(), Some(old.as_str()));
    assert_eq!(java.run("seen(\"B\")").value(), Some("\"null null \""));
    assert_eq!(java.run_with("seen(\"B\")", &[("B", "")]).value(), Some("\"  \""));
    assert_ne!(java.run("System.getProperty(\"user.dir\")").value(), Some("\"hidden\""));
}

#[test]
fn programs_inherit_no_descriptor_of_the_driver_and_input_is_at_its_end() {
    let Some((mut java, _folder)) = java() else { return };
    let code = r#"new ProcessBuilder("sh", "-c", "ls /proc/$$/fd").inheritIO().start().waitFor();"#;
    assert_eq!(java.run(code).stdout(), "0\n1\n2\n");
    assert_eq!(java.run("System.in.read()").value(), Some("-1"));
    assert_eq!(error_name(&java.run("new Scanner(System.in).nextLine()")), Some("NoSuchElementException"));
}

#[test]
fn the_driver_works_whatever_the_code_replaces() {
    let Some((mut java, _folder)) = java() else { return };
    java.run("System.setOut(new PrintStream(new ByteArrayOutputStream())); System.setErr(null);");
    java.run("class String {} class Driver {} class Messages {}");
    assert_eq!(java.run("1 + 1").value(), Some("2"));
    java.run("System.setProperties(new Properties()); Locale.setDefault(Locale.forLanguageTag(\"ar\"));");
    assert_eq!(java.run_with("System.getenv(\"A\")", &[("A", "1")]).value(), Some("\"1\""));
    let outcome = java.run("new FileOutputStream(FileDescriptor.out).close(); 3");
    assert_eq!((outcome.value(), &outcome.error), (Some("3"), &None));
}

#[test]
fn a_thread_goes_on_after_its_run() {
    let Some((mut java, _folder)) = java() else { return };
    let code = "volatile int ticks = 0;
        Thread ticker = new Thread(() -> { for (;;) { ticks++; Thread.yield(); } });
        ticker.setDaemon(true); ticker.start();
        new Thread(() -> { throw new IllegalStateException(\"in a thread\"); }).start();";
    assert_eq!(java.run(code).error, None);
    let outcome = java.run("int before = ticks; while (ticks == before) Thread.sleep(1); ticker.isAlive()");
    assert_eq!(outcome.value(), Some("true"));
}

#[test]
fn a_kernel_that_ends_is_seen_to_have_died() {
    for code in ["System.exit(3)", "Runtime.getRuntime().halt(0)"] {
        let Some((mut java, _folder)) = java() else { return };
        assert!(java.run(code).has_died, "{code}");
    }
}

#[test]
fn names_and_members_are_completed() {
    let Some((mut java, _folder)) = java() else { return };
    java.run("int my_variable = 1;");
    let complete = |java: &mut Kernel, code: &str| {
        let outcome = java.complete(code, code.chars().count());
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (0, 0));
        outcome.completions.unwrap()
    };
    assert_eq!(complete(&mut java, "String s = \"𝒳\"; my_v"), (16, vec!["my_variable".to_owned()]));
    let (start, matches) = complete(&mut java, "int n = Math.flo");
    assert_eq!(start, 13);
    assert!(matches.iter().any(|text| text.starts_with("floor")), "{matches:?}");
    assert_eq!(complete(&mut java, "nonexistent.x"), (12, vec![]));
    assert_eq!(java.run("1").count, 2, "a completion is not a run");
}
