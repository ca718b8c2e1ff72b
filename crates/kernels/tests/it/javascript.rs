//! Kernels of JavaScript.

use std::time::{Duration, Instant};

use kernels::Language;
use serde_json::json;
use tempfile::TempDir;

use crate::kernel::{Kernel, Outcome};
use crate::started::{error_name, interrupted, started};

fn javascript() -> Option<(Kernel, TempDir)> {
    started(Language::JavaScript)
}

/// Returns the value and the traceback of the error of a run.
fn error(outcome: Outcome) -> (String, String) {
    let (_, value, traceback) = outcome.error.expect("an error");
    (value, traceback)
}

#[test]
fn declarations_survive_a_run_and_can_be_made_again() {
    let Some((mut node, _folder)) = javascript() else { return };
    assert!(node.version.starts_with("Node.js "), "{}", node.version);
    let outcome = node.run("const a = 1; let b = 2\nclass C { get() { return 3 } }\nfunction f() { return a + b }");
    assert_eq!((outcome.count, outcome.error, outcome.results.len()), (1, None, 0));
    assert_eq!(node.run("f() + new C().get()").value(), Some("6"));
    node.run("const a = 10; class C { get() { return 30 } }\nlet b");
    assert_eq!(node.run("[a, b, new C().get()]").value(), Some("[ 10, undefined, 30 ]"));
    let outcome = node.run("const crypto = require('crypto'); crypto.createHash('md5').update('a').digest('hex')");
    assert_eq!(outcome.value(), Some("'0cc175b9c0f1b6a831c399e269772661'"));
    assert_eq!(node.run("function a() {}; const [x, { y: [z] }, ...w] = [1, { y: [2] }, 3]").error, None);
    assert_eq!(node.run("[typeof a, x, z, w]").value(), Some("[ 'function', 1, 2, [ 3 ] ]"));
}

#[test]
fn only_the_value_of_a_last_expression_is_a_result() {
    let Some((mut node, _folder)) = javascript() else { return };
    for (code, value) in [
        ("1; 'a\\nb'", Some(r"'a\nb'")),
        ("5; const x = 1", None),
        ("undefined", None),
        ("null", Some("null")),
        ("if (true) 3", None),
        ("{ a: 1 }", Some("{ a: 1 }")),
        ("{ let a = 1; a }", None),
        ("Promise.resolve(8)", Some("8")),
        ("await 1; 'b' // end", Some("'b'")),
        ("await 1\nconst y = 2\n;[y]", Some("[ 2 ]")),
        ("'use strict'; await 1; (this === globalThis, 4)", Some("4")),
        ("#!/usr/bin/env node\n7", Some("7")),
        ("new Map([[1, { a: { b: { c: {} } } }]])", Some("Map(1) { 1 => { a: { b: [Object] } } }")),
    ] {
        let outcome = node.run(code);
        assert_eq!((outcome.value(), &outcome.error), (value, &None), "{code}");
    }
}

#[test]
fn a_top_level_await_keeps_its_declarations() {
    let Some((mut node, _folder)) = javascript() else { return };
    let code = "const r = await Promise.resolve(7)
        const { q, ...w } = await { q: 1, e: 2 }, [s = 5] = []
        let n
        function f() { return r }
        class D {}
        for (var i = 0; i < 2; i++) { var inner = i }
        if (i) var alone = 'x'
        for await (var x of [Promise.resolve(9)]) ;
        export const exported = 1";
    assert_eq!(node.run(code).error, None);
    let outcome = node.run("[r, q, w, s, n, f(), typeof D, i, inner, alone, x, exported].join()");
    assert_eq!(outcome.value(), Some("'7,1,[object Object],5,,7,function,2,1,x,9,1'"));
}

#[test]
fn modules_and_files_of_the_folder_are_loaded() {
    let Some((mut node, folder)) = javascript() else { return };
    std::fs::write(folder.path().join("m.mjs"), "export default 7; export const other = 8").unwrap();
    std::fs::write(folder.path().join("c.js"), "module.exports = { name: 'c' }").unwrap();
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    std::fs::write(folder.path().join("sub/d.js"), "module.exports = 'd'").unwrap();
    let code = "import seven, { other as eight } from './m.mjs'
        import * as m from './m.mjs'
        import { readFileSync } from 'fs'
        import os, { EOL } from 'node:os'
        [seven, eight, m.default, typeof readFileSync, os.EOL === EOL, require('./c').name, fs === require('fs')]";
    assert_eq!(node.run(code).value(), Some("[ 7, 8, 7, 'function', true, 'c', true ]"));
    assert_eq!(node.run("(await import('./m.mjs')).other + seven").value(), Some("15"));
    assert_eq!(node.run("process.chdir('sub'); 1").error, None);
    assert_eq!(node.run("require('./d')").value(), Some("'d'"));
    assert_eq!(error_name(&node.run("import './nonexistent.mjs'")), Some("Error"));
}

#[test]
fn errors_name_the_line_of_the_code_and_no_line_of_the_driver() {
    let Some((mut node, _folder)) = javascript() else { return };
    node.run("function thrower() {\n  throw new RangeError('bad') }");
    let outcome = node.run("let x\n\n  thrower()");
    assert_eq!(error_name(&outcome), Some("RangeError"));
    let expected = "RangeError: bad\n    at thrower (<cell 1>:2:9)\n    at <cell 2>:3:3";
    assert_eq!(error(outcome), ("bad".to_owned(), expected.to_owned()));
    let (_, traceback) = error(node.run("const y = await 1;\n\n  null.foo"));
    assert!(traceback.contains("<cell 3>:3:8") && !traceback.contains("tidebox"), "{traceback}");
    let (value, traceback) = error(node.run("1\nif )"));
    assert_eq!(value, "Unexpected token ')'");
    assert!(traceback.starts_with("<cell 4>:2\nif )\n   ^\n"), "{traceback}");
    assert_eq!(error_name(&node.run("await 1; if )")), Some("SyntaxError"));
    let (value, traceback) = error(node.run("throw { code: 5 }"));
    assert_eq!((value.as_str(), traceback.as_str()), ("{ code: 5 }", "Uncaught { code: 5 }"));
    let (value, traceback) = error(node.run("throw new Error('x'.repeat(1e6), { cause: new Error('why') })"));
    assert!(value.len() < 150_000 && traceback.len() < 150_000, "{} {}", value.len(), traceback.len());
    let deep = node.run("function deep() { return deep() + 1 }\ndeep()");
    assert_eq!(error(deep).0, "Maximum call stack size exceeded");
    assert_eq!(node.run("thrower.name").value(), Some("'thrower'"));
}

#[test]
fn values_are_shown_in_the_representations_that_they_have() {
    let Some((mut node, _folder)) = javascript() else { return };
    let outcome = node.run("({ a: 1, b: [true, null, 'x'] })");
    assert_eq!(outcome.shown("application/json"), Some(&json!({"a": 1, "b": [true, null, "x"]})));
    assert_eq!(node.run("({ when: new Date(0) })").shown("application/json"), None);
    let code =
        "({ [Symbol.for('Jupyter.display')]: async () => ({ 'text/plain': 'P', 'image/png': Buffer.from('abc') }) })";
    let outcome = node.run(code);
    assert_eq!((outcome.value(), outcome.shown("image/png")), (Some("P"), Some(&json!("YWJj"))));
    assert_eq!(node.run("({ _toHtml: () => '<b>' })").shown("text/html"), Some(&json!("<b>")));
    let outcome =
        node.run("display({ toSvg: 1, _toSvg() { return '<svg/>' } }); display({ 'text/x': 'y' }, { raw: true }); 1");
    assert_eq!(outcome.results.iter().map(|(is_main, _)| *is_main).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(outcome.results[0].1["image/svg+xml"], json!("<svg/>"));
    assert_eq!(outcome.shown("text/x"), Some(&json!("y")));
}

#[test]
fn representations_that_fail_or_are_too_long_are_left_out() {
    let Some((mut node, _folder)) = javascript() else { return };
    let outcome = node.run("({ toHtml() { throw new Error('oops') } })");
    assert_eq!((outcome.stderr().as_str(), outcome.error), ("`toHtml` failed: oops\n", None));
    let outcome = node.run("({ toHtml: () => 'x'.repeat(13e6) })");
    assert!(outcome.value().unwrap().ends_with("\ntext/html was left out: 13.0 MB are more than 10 MiB"));
    let outcome = node.run("'x'.repeat(1 << 28)");
    assert_eq!(outcome.value(), Some("text/plain was left out: 268.4 MB are more than 10 MiB"));
    let outcome = node.run("({ [require('util').inspect.custom]() { throw new Error('no') } })");
    assert_eq!((outcome.value(), &outcome.error), (Some("[object Object]"), &None));
    let data = "({ _toMime: () => ({ 'text/a': 'a'.repeat(9e6), 'text/b': 'b'.repeat(9e6) }) })";
    assert!(node.run(data).value().unwrap().contains("text/b was left out"));
}

#[test]
fn errors_that_nobody_handles_are_printed_and_end_nothing() {
    let Some((mut node, _folder)) = javascript() else { return };
    let outcome = node.run("Promise.reject(new TypeError('first')); 1");
    assert!(outcome.stderr().starts_with("Unhandled rejection\nTypeError: first\n    at <cell 1>:1:16"));
    assert_eq!((outcome.value(), &outcome.error), (Some("1"), &None));
    let code = "setTimeout(() => { throw new Error('second') }, 1); await new Promise(done => setTimeout(done, 20))";
    let outcome = node.run(code);
    assert!(outcome.stderr().starts_with("Uncaught exception\nError: second"), "{}", outcome.stderr());
    assert_eq!(outcome.error, None);
}

#[test]
fn an_exit_ends_the_run_and_not_the_kernel() {
    let Some((mut node, _folder)) = javascript() else { return };
    let outcome = node.run("let kept = 1; try { process.exit(3) } catch {} console.log('after')");
    assert_eq!(error(outcome).0, "the code exited with status 3");
    assert_eq!(node.run("process.exit()").error, None);
    let outcome = node.run("setTimeout(() => process.exit(4), 1); await new Promise(done => setTimeout(done, 600000))");
    assert_eq!(error(outcome).0, "the code exited with status 4");
    let outcome = node.run("(async () => { throw new Error('x') })().catch(() => process.exit(5))");
    assert_eq!(error(outcome).0, "the code exited with status 5");
    assert_eq!(node.run("kept").value(), Some("1"));
}

#[test]
fn an_interrupt_ends_code_and_not_the_kernel() {
    let Some((mut node, _folder)) = javascript() else { return };
    for code in [
        "while (true) {}",
        "for (let i = 0; ; i++) console.log(i)",
        "await new Promise(done => setTimeout(done, 600000))",
        "await 0; await 0; while (true) {}",
        // What an interrupt just before would not end tells itself that it has started.
        "/* tells */ setTimeout(() => { console.log('start' + 'ed'); while (true) {} }); await new Promise(() => {})",
        "/* tells */ require('child_process').execSync('echo \"start\"ed; sleep 600', { stdio: 'inherit' })",
        "await require('util').promisify(require('child_process').exec)('sleep 600')",
        "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
        "({ toHtml() { while (true) {} } })",
        "process.on('SIGINT', () => {}); while (true) {}",
        "await new Promise(done => setTimeout(done, 600000))",
    ] {
        let tells = if code.contains("tells") { "" } else { "console.log('started');" };
        let outcome = interrupted(&mut node, &format!("globalThis.kept = 1; {tells} {code}"));
        assert_eq!(error_name(&outcome), Some("KeyboardInterrupt"), "{code}");
        let outcome = node.run("console.log('out'); kept");
        assert_eq!(outcome.stdout(), "out\n", "{code}");
        assert_eq!((outcome.value(), outcome.error.as_ref()), (Some("1"), None), "{code}");
    }
    node.run("process.on('SIGINT', () => console.log('idle'))");
    node.interrupt();
    node.wait_for("idle");
    assert_eq!(node.run("kept").value(), Some("1"));
}

#[test]
fn a_message_that_an_interrupt_cuts_off_is_completed() {
    let Some((mut node, _folder)) = javascript() else { return };
    for _ in 0..5 {
        let code = "console.log('started'); const page = { 'text/html': 'x'.repeat(3e5) };
            for (;;) display(page, { raw: true })";
        let outcome = interrupted(&mut node, code);
        assert_eq!(error_name(&outcome), Some("KeyboardInterrupt"));
        assert!(outcome.results.iter().all(|(_, data)| data["text/html"].as_str().unwrap().len() == 300_000));
    }
}

#[test]
fn variables_of_a_run_end_with_it() {
    let Some((mut node, _folder)) = javascript() else { return };
    node.run("process.env.A = 'old'");
    let code = "process.env.A + process.env.B + require('child_process').execSync('printenv A B'); throw 1";
    let code = code.replace("; throw", "\n; process.env.A = 'changed'; process.env.C = 'stays'; throw");
    assert_eq!(error_name(&node.run_with(&code, &[("A", "run"), ("B", "b=é\n")])), Some("Error"));
    let outcome = node.run("[process.env.A, process.env.B, process.env.C]");
    assert_eq!(outcome.value(), Some("[ 'old', undefined, 'stays' ]"));
    let outcome = node.run_with("require('child_process').execSync('printenv B').toString()", &[("B", "b=é")]);
    assert_eq!(outcome.value(), Some(r"'b=é\n'"));
}

#[test]
fn output_of_code_and_programs_keeps_its_order() {
    let Some((mut node, _folder)) = javascript() else { return };
    let code =
        "process.stdout.write('a'); require('child_process').execSync('echo b; echo e >&2', { stdio: 'inherit' });
        console.log('c'); console.error('f'); process.stdout.write(Buffer.from([255, 0]))";
    let outcome = node.run(code);
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr().as_str()), (&b"ab\nc\n\xff\0"[..], "e\nf\n"));
    let outcome = node.run("for (let i = 0; i < 200; i++) process.stdout.write('x'.repeat(100000)); process.exit(0)");
    assert_eq!(outcome.stdout.len(), 20_000_000);
    node.begin("process.stdout.write('started'); await new Promise(done => setTimeout(done, 600000))", &[]);
    node.wait_for("started");
    node.interrupt_to_end();
}

#[test]
fn programs_inherit_no_descriptor_of_the_driver() {
    let Some((mut node, _folder)) = javascript() else { return };
    // Descriptors that this test itself was started with may be inherited, which pipes of the driver may not.
    let list = "for fd in /proc/$$/fd/*; do
        test $fd -ef /proc/self/fd/1 -o $fd -ef /proc/self/fd/2 && echo ${fd##*/}
    done; test ! -p /proc/self/fd/4";
    let code = format!("require('child_process').execSync({}, {{ stdio: 'inherit' }})", json!(list));
    let outcome = node.run(&code);
    assert_eq!((outcome.stdout().as_str(), outcome.error), ("1\n2\n", None));
}

#[test]
fn input_is_at_its_end_and_a_question_does_not_hang() {
    let Some((mut node, _folder)) = javascript() else { return };
    assert_eq!(node.run("fs.readFileSync(0).length").value(), Some("0"));
    let code = "const { createInterface } = require('readline/promises')
        await createInterface({ input: process.stdin, output: process.stdout }).question('name? ')";
    let outcome = node.run(code);
    assert_eq!((outcome.stdout().as_str(), outcome.error.is_some()), ("name? ", true));
    assert_eq!(error_name(&node.run("await new Promise(() => {})")), Some("UnsettledPromise"));
    assert_eq!(node.run("1").value(), Some("1"));
}

#[test]
fn the_driver_works_whatever_the_code_replaces() {
    let Some((mut node, _folder)) = javascript() else { return };
    // The parser needs some of the globals.
    let code = "for (const name of Object.getOwnPropertyNames(globalThis)) {
        const kept = ['globalThis', 'undefined', 'Infinity', 'NaN', 'Object', 'String', 'parseFloat']
        if (!kept.includes(name)) try { globalThis[name] = null } catch {}
    }";
    assert_eq!(node.run(code).error, None);
    assert_eq!(node.run("[1, 'é']").value(), Some("[ 1, 'é' ]"));
    assert_eq!(error_name(&node.run("null.x")), Some("TypeError"));
    assert_eq!(node.run("process = null; await 2").value(), Some("2"));
}

#[test]
fn the_driver_leaves_no_names_behind() {
    let Some((mut node, _folder)) = javascript() else { return };
    let outcome = node.run("Object.keys(globalThis).filter(name => /marker|request|tidebox|run|driver/i.test(name))");
    assert_eq!(outcome.value(), Some("[]"));
    assert_eq!(
        node.run("typeof marker + typeof acorn + typeof readSync").value(),
        Some("'undefinedundefinedundefined'")
    );
    assert_eq!(node.run("process.execArgv").value(), Some("[]"));
}

#[test]
fn code_that_closes_stdout_still_has_its_results_reported() {
    let Some((mut node, _folder)) = javascript() else { return };
    node.run("fs.closeSync(1)");
    assert_eq!(node.run("1 + 1").value(), Some("2"));
}

#[test]
fn a_kernel_that_dies_is_seen_to_have_died() {
    for code in [
        "process.kill(process.pid, 'SIGKILL')",
        "process.abort()",
        "for (let fd = 0; fd < 100; fd++) try { fs.closeSync(fd) } catch {}",
    ] {
        let Some((mut node, _folder)) = javascript() else { return };
        assert!(node.run(code).has_died, "{code}");
    }
}

#[test]
fn code_of_ten_megabytes_runs_in_seconds() {
    let Some((mut node, _folder)) = javascript() else { return };
    let start = Instant::now();
    let outcome = node.run(&format!("const text = '{}'; text.length", "é".repeat(5_000_000)));
    assert_eq!(outcome.value(), Some("5000000"));
    let outcome = node.run(&"x = 12;\n".repeat(1_250_000));
    assert_eq!(outcome.value(), Some("12"));
    assert!(start.elapsed() < Duration::from_secs(55), "{:?}", start.elapsed());
}

#[test]
fn names_and_members_are_completed() {
    let Some((mut node, _folder)) = javascript() else { return };
    node.run("const my_variable = { inner_name: 1, get secret() { throw new Error('called') } }");
    let complete = |node: &mut Kernel, code: &str| {
        let outcome = node.complete(code, code.chars().count());
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (0, 0));
        outcome.completions.unwrap()
    };
    assert_eq!(complete(&mut node, "'é'; Math.fl"), (10, vec!["floor".to_owned()]));
    assert_eq!(complete(&mut node, "𝒳; my_v"), (3, vec!["my_variable".to_owned()]));
    assert_eq!(complete(&mut node, "my_variable.inner_"), (12, vec!["inner_name".to_owned()]));
    assert_eq!(complete(&mut node, "my_variable.secret.x"), (19, vec![]));
    assert_eq!(complete(&mut node, "fs.readFileS"), (3, vec!["readFileSync".to_owned()]));
    assert_eq!(node.run("1").count, 2, "a completion is not a run");
}

#[test]
fn a_callback_of_an_earlier_run_goes_on_between_runs() {
    let Some((mut node, _folder)) = javascript() else { return };
    node.run("let ticks = 0; const timer = setInterval(() => { ticks++ }, 1)");
    let outcome = node.run("await new Promise(done => setTimeout(done, 50)); ticks > 0");
    assert_eq!(outcome.value(), Some("true"));
}
