//! Kernels of Python, with `IPython` and without.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kernels::Language;
use serde_json::json;
use tempfile::TempDir;

use crate::kernel::{Kernel, Outcome};

mod show;

/// Interpreter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With `IPython`.
    IPython,
    /// With nothing but the interpreter.
    Plain,
}

/// Runs a test with each kind that is there.
fn with_each(test: fn(Kind, &mut Kernel)) {
    for kind in [Kind::Plain, Kind::IPython] {
        let folder = TempDir::new().expect("a folder");
        if let Some(mut kernel) = start(kind, folder.path()) {
            test(kind, &mut kernel);
        }
    }
}

/// Starts a kernel in a folder.
fn start(kind: Kind, folder: &Path) -> Option<Kernel> {
    start_with(kind, folder, &[])
}

/// Starts a kernel in a folder, with more variables.
fn start_with(kind: Kind, folder: &Path, env: &[(&str, &str)]) -> Option<Kernel> {
    let programs = folder.join(".python/bin");
    std::fs::create_dir_all(&programs).expect("makes a folder");
    std::os::unix::fs::symlink("/usr/bin/python3", programs.join("python3")).expect("makes a link");
    if kind == Kind::Plain {
        // An environment without the packages of the machine.
        let settings = "home = /usr/bin\ninclude-system-site-packages = false\n";
        std::fs::write(folder.join(".python/pyvenv.cfg"), settings).expect("writes a file");
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());
    let env: Vec<_> = [("PATH", path.as_str())].into_iter().chain(env.iter().copied()).collect();
    let Some(kernel) = Kernel::start(Language::Python, folder, &env) else {
        fixtures::skip("python3", "there is no /usr/bin/python3; `.ci/run` installs it");
        return None;
    };
    if kind == Kind::IPython && !kernel.version.contains("IPython") {
        fixtures::skip("ipython", "the `python3` here has no IPython; `.ci/run` installs it");
        return None;
    }
    assert_eq!(kernel.version.contains("IPython"), kind == Kind::IPython, "{}", kernel.version);
    Some(kernel)
}

/// Starts a kernel with the packages of the machine, if it has those that are named.
fn with_packages(packages: &[&str]) -> Option<(TempDir, Kernel)> {
    let folder = TempDir::new().expect("a folder");
    let mut kernel = start(Kind::IPython, folder.path())?;
    for package in packages {
        if kernel.run(&format!("import {package}")).error.is_some() {
            fixtures::skip(
                &package.to_lowercase(),
                &format!("there is no `{package}` for /usr/bin/python3; `.ci/run` installs it"),
            );
            return None;
        }
    }
    Some((folder, kernel))
}

/// Returns the name of an outcome's error.
fn error_name(outcome: &Outcome) -> Option<&str> {
    outcome.error.as_ref().map(|(name, ..)| name.as_str())
}

/// Returns the text of an outcome's error, and its traceback.
fn failure(outcome: &Outcome) -> (&str, &str) {
    let (_, value, traceback) = outcome.error.as_ref().expect("the code fails");
    assert!(!traceback.contains('\x1b') && !traceback.contains("<kernel>"), "{traceback}");
    (value, traceback)
}

#[test]
fn a_value_survives_the_run() {
    with_each(|_, kernel| {
        let outcome = kernel.run("x = 41");
        assert_eq!((outcome.count, outcome.value()), (1, None));
        assert_eq!(kernel.run("x + 1").value(), Some("42"));
        assert_eq!(kernel.run("'a'").value(), Some("'a'"));
        assert_eq!(kernel.run("_").value(), Some("'a'"));
        assert_eq!(kernel.run("5; # not shown").value(), None);
        assert_eq!(kernel.run("1/0").count, 6);
        assert_eq!(kernel.run("\n# nothing\n").value(), None);
        assert_eq!(kernel.run("(x,\n x)").count, 8);
    });
}

#[test]
fn code_is_of_the_main_module_and_sees_no_name_of_the_driver() {
    with_each(|kind, kernel| {
        if kind == Kind::Plain {
            let names = "['__builtins__', '__doc__', '__loader__', '__name__', '__package__', '__spec__']";
            assert_eq!(kernel.run("print(dir())").stdout(), format!("{names}\n"));
        }
        assert_eq!(kernel.run("__name__").value(), Some("'__main__'"));
        kernel.run("class A: pass");
        assert_eq!(kernel.run("import pickle; type(pickle.loads(pickle.dumps(A()))) is A").value(), Some("True"));
        assert_eq!(kernel.run("import inspect\ndef f():\n    return 1").error, None);
        assert_eq!(kernel.run("print(inspect.getsource(f).strip())").stdout(), "def f():\n    return 1\n");
    });
}

#[test]
fn code_that_replaces_builtins_breaks_nothing() {
    with_each(|_, kernel| {
        assert_eq!(kernel.run("print = json = sys = str = len = open = isinstance = None").error, None);
        assert_eq!(kernel.run("[1]").shown("application/json"), Some(&json!([1])));
        assert_eq!(kernel.run("import os; os.write = os.getpid = os.fstat = None").error, None);
        assert_eq!(kernel.run("2").value(), Some("2"));
    });
}

#[test]
fn indented_code_runs() {
    with_each(|_, kernel| {
        assert_eq!(kernel.run("\n    a = 5\n    if a:\n        a += 1\n    a\n    ").value(), Some("6"));
    });
}

#[test]
fn output_keeps_its_order_with_that_of_programs() {
    with_each(|_, kernel| {
        let code = "import os, subprocess\n\
                    for n in range(200): print('a')\n\
                    print('b', end='')\n\
                    _ = subprocess.run(['echo', 'c'])\n\
                    print('d', end='')\n\
                    _ = os.system('echo e')\n\
                    print('f', flush=True)\n\
                    _ = os.write(1, b'g\\xff')";
        let outcome = kernel.run(code);
        assert_eq!(outcome.stdout, [b"a\n".repeat(200).as_slice(), b"bc\nde\nf\ng\xff"].concat());
        let outcome = kernel.run("import sys, warnings; print('x', file=sys.stderr); warnings.warn('careful')");
        assert!(outcome.stderr().starts_with("x\n") && outcome.stderr().contains("UserWarning: careful"));
    });
}

#[test]
fn output_arrives_while_the_code_runs() {
    with_each(|_, kernel| {
        for code in ["print('here', end='')", "import sys; sys.stdout.buffer.write(b'here')"] {
            kernel.begin(&format!("{code}\nwhile True: pass"), &[]);
            kernel.wait_for("here");
            assert_eq!(error_name(&kernel.interrupt_to_end()), Some("KeyboardInterrupt"));
        }
    });
}

#[test]
fn much_output_arrives_whole() {
    with_each(|_, kernel| {
        let outcome = kernel.run("for n in range(400_000): print('x' * 49)");
        assert_eq!(outcome.stdout.len(), 20_000_000);
        let outcome = kernel.run("import sys\nfor n in range(20): _ = sys.stdout.write('y' * 1_000_000)");
        assert_eq!(outcome.stdout.len(), 20_000_000);
    });
}

#[test]
fn a_stream_that_the_code_closes_is_there_again_in_the_next_run() {
    with_each(|_, kernel| {
        for code in [
            "import os; os.close(1)",
            "import sys; sys.stdout.close()",
            "import sys; sys.stdout.detach()",
            "import os; os.set_blocking(1, False)",
        ] {
            kernel.run(code);
            let outcome = kernel.run("print('again' * 100_000)\n1");
            assert_eq!((outcome.stdout.len(), outcome.value()), (500_001, Some("1")), "{code}");
        }
        kernel.run("import io, sys; sys.stdout = io.StringIO(); print('kept')");
        assert_eq!(kernel.run("print('kept'); 2").value(), Some("2"));
        assert_eq!(kernel.run("sys.stdout = sys.__stdout__; print('back')").stdout(), "back\n");
    });
}

#[test]
fn an_error_names_its_line() {
    with_each(|_, kernel| {
        let outcome = kernel.run("def f():\n    return 1 / 0\n\nf()");
        assert_eq!(error_name(&outcome), Some("ZeroDivisionError"));
        let (value, text) = failure(&outcome);
        assert_eq!(value, "division by zero");
        assert!(text.contains("return 1 / 0") && text.contains("line 4"), "{text}");
        let outcome = kernel.run("x ==");
        assert_eq!(error_name(&outcome), Some("SyntaxError"));
        assert!(failure(&outcome).1.contains("    x ==\n        ^\n"), "{outcome:?}");
        let outcome = kernel.run("try:\n    1/0\nexcept Exception as e:\n    raise KeyError('k') from e");
        assert!(failure(&outcome).1.contains("direct cause"), "{outcome:?}");
        let outcome = kernel.run("import asyncio\nawait asyncio.sleep(0)\n1/0");
        assert!(!failure(&outcome).1.contains("base_events"), "{outcome:?}");
    });
}

#[test]
fn the_kernel_outlives_an_exit() {
    with_each(|_, kernel| {
        for (code, value) in [("import sys; sys.exit(3)", "3"), ("exit(4)", "4"), ("quit()", "None")] {
            let outcome = kernel.run(code);
            assert_eq!(error_name(&outcome), Some("SystemExit"), "{code}");
            assert_eq!((failure(&outcome).0, outcome.stderr().as_str()), (value, ""), "{code}");
        }
        assert_eq!(kernel.run("1").value(), Some("1"));
    });
}

#[test]
fn input_is_refused() {
    with_each(|_, kernel| {
        let outcome = kernel.run("input('name? ')");
        assert!(failure(&outcome).0.contains("code here has no stdin"), "{outcome:?}");
        assert_eq!(kernel.run("import sys; sys.stdin.read()").value(), Some("''"));
    });
}

#[test]
fn an_error_with_a_text_that_is_none_or_huge_is_reported() {
    with_each(|_, kernel| {
        let code = "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E";
        assert_eq!(error_name(&kernel.run(code)), Some("E"));
        let outcome = kernel.run("raise ValueError('x' * 50_000_000)");
        let (value, text) = failure(&outcome);
        assert!(value.len() < 200_000 && value.contains("49900000 characters were left out"));
        assert!(text.len() < 200_000);
        assert_eq!(error_name(&kernel.run("def f(): f()\nf()")), Some("RecursionError"));
        assert_eq!(error_name(&kernel.run("x = 'x' * (1 << 60)")), Some("MemoryError"));
    });
}

#[test]
fn an_interrupt_ends_the_code_and_nothing_else() {
    with_each(|_, kernel| {
        kernel.run("kept = 7; import asyncio, os, subprocess, threading, time");
        for code in [
            "while True: pass",
            "time.sleep(600)",
            "await asyncio.sleep(600)",
            "subprocess.run(['sleep', '600'])",
            "!sleep 600",
            "os.system('sleep 600')\ntime.sleep(600)",
            "threading.Event().wait()",
            "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        ] {
            kernel.begin(&format!("print('begun')\n{code}"), &[]);
            kernel.wait_for("begun\n");
            if code.contains("'sleep") || code.contains("!sleep") {
                wait_for_child(kernel, "sleep");
            }
            assert_eq!(error_name(&kernel.interrupt_to_end()), Some("KeyboardInterrupt"), "{code}");
            // An idle kernel does not mind.
            kernel.interrupt();
            assert_eq!(kernel.run("kept").value(), Some("7"));
        }
        kernel
            .begin("class E(Exception):\n  def __str__(self):\n    print('begun')\n    while True: pass\nraise E", &[]);
        kernel.wait_for("begun\n");
        assert_eq!(error_name(&kernel.interrupt_to_end()), Some("E"));
    });
}

/// Waits until a process of the kernel's group runs a program.
fn wait_for_child(kernel: &Kernel, program: &str) {
    let group = kernel.pid().as_raw_nonzero().to_string();
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        let found = Command::new("pgrep").args(["-g", &group, "-x", program]).output().expect("runs `pgrep`");
        if found.status.success() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no `{program}` runs");
}

#[test]
fn many_interrupts_end_one_run() {
    with_each(|_, kernel| {
        for _ in 0..20 {
            kernel.begin("print('begun')\nwhile True: pass", &[]);
            kernel.wait_for("begun\n");
            for _ in 0..10 {
                kernel.interrupt();
            }
            assert_eq!(error_name(&kernel.interrupt_to_end()), Some("KeyboardInterrupt"));
        }
        assert_eq!(kernel.run("1").count, 21);
    });
}

#[test]
fn an_interrupted_coroutine_is_cancelled() {
    with_each(|_, kernel| {
        let code = "import asyncio\nasync def f():\n    try:\n        print('begun')\n        await asyncio.sleep(600)\n    \
                    finally:\n        print('cleaned')\nawait f()\nprint('never')";
        kernel.begin(code, &[]);
        kernel.wait_for("begun\n");
        assert_eq!(kernel.interrupt_to_end().stdout(), "begun\ncleaned\n");
        assert_eq!(kernel.run("await asyncio.sleep(0.01, 5)").value(), Some("5"));
    });
}

#[test]
fn awaiting_works_at_the_top_and_below() {
    with_each(|_, kernel| {
        assert_eq!(kernel.run("import asyncio\nawait asyncio.sleep(0)\n5").value(), Some("5"));
        assert_eq!(kernel.run("asyncio.run(asyncio.sleep(0, 6))").value(), Some("6"));
        assert_eq!(kernel.run("await asyncio.sleep(0, 7)").value(), Some("7"));
        let code =
            "q = asyncio.Queue()\nasync def put(): await q.put(8)\nt = asyncio.create_task(put())\nawait q.get()";
        assert_eq!(kernel.run(code).value(), Some("8"));
    });
}

#[test]
fn variables_of_a_run_are_undone() {
    with_each(|_, kernel| {
        let code =
            "import os\nprint(os.environ['A'], os.environ['HOME'])\n_ = os.system('echo $A')\nos.environ['B'] = '1'";
        let outcome = kernel.run_with(code, &[("A", "x"), ("HOME", "/other")]);
        assert_eq!(outcome.stdout(), "x /other\nx\n");
        let code = "os.environ.get('A'), os.environ['HOME'] == '/other', os.environ['B']";
        assert_eq!(kernel.run(code).value(), Some("(None, False, '1')"));
        kernel.run_with("1/0", &[("A", "x")]);
        assert_eq!(kernel.run("os.environ.get('A')").value(), None);
    });
}

#[test]
fn commands_and_magics_run_at_the_start_of_a_line() {
    with_each(|kind, kernel| {
        let outcome = kernel.run("word = 'it'\nif word:\n    !echo \"$word\" {word}\n!exit 3\nprint(_exit_code)");
        assert_eq!(outcome.stdout(), "it it\n3\n");
        let code = "text = '''\n!echo no\n%cd /\n'''\nx = (7\n%4)\ntext + str(x)";
        assert_eq!(kernel.run(code).value(), Some(r"'\n!echo no\n%cd /\n3'"));
        assert_eq!(kernel.run("%cd /\nimport os\nos.getcwd()").value(), Some("'/'"));
        assert_eq!(kernel.run("%env A=b\nos.environ['A']").value(), Some("'b'"));
        assert_eq!(kernel.run("%%bash\necho \"in\"\necho bash\n").stdout(), "in\nbash\n");
        assert_eq!(kernel.run("%matplotlib inline\n1").value(), Some("1"));
        let outcome = kernel.run("%nothing 1");
        let name = if kind == Kind::IPython { "UsageError" } else { "NameError" };
        assert_eq!((error_name(&outcome), outcome.stderr().as_str()), (Some(name), ""));
        if kind == Kind::IPython {
            assert_eq!(kernel.run("files = !echo a\nfiles").value(), Some("['a']"));
            assert_eq!(kernel.run("%config InlineBackend.figure_format = 'retina'").error, None);
        }
    });
}

#[test]
fn a_fork_that_returns_ends_without_a_word() {
    with_each(|_, kernel| {
        let outcome = kernel.run("import os\nif os.fork() == 0: print('child')\nelse: print(os.wait()[1])");
        assert_eq!(outcome.stdout(), "child\n0\n");
        let outcome = kernel.run("if os.fork() == 0: raise SystemExit(3)\nos.wait()[1] >> 8");
        assert_eq!(outcome.value(), Some("3"));
        let outcome = kernel.run("if os.fork() == 0: raise ValueError('in the child')\nos.wait()[1] >> 8");
        assert_eq!((outcome.value(), outcome.error.is_none()), (Some("1"), true));
        assert!(outcome.stderr().contains("in the child"));
        let code = "import multiprocessing\ndef f(n): return n * n\n\
                    with multiprocessing.Pool(2) as pool: print(pool.map(f, range(4)))";
        assert_eq!(kernel.run(code).stdout(), "[0, 1, 4, 9]\n");
    });
}

#[test]
fn programs_inherit_no_descriptor_of_the_driver() {
    with_each(|_, kernel| {
        let code = "import subprocess\nsubprocess.run('ls /proc/self/fd', shell=True, close_fds=False, \
                    capture_output=True, text=True).stdout.split()";
        let outcome = kernel.run(code);
        // The first one that is free is of `ls`.
        assert!(outcome.value().is_some_and(|value| value.contains("'3'") && !value.contains("'4'")), "{outcome:?}");
    });
}

#[test]
fn a_kernel_that_cannot_continue_ends() {
    with_each(|_, kernel| {
        let outcome = kernel.run("import os; print('bye'); os._exit(3)");
        assert_eq!((outcome.has_died, outcome.stdout().as_str()), (true, "bye\n"));
    });
    with_each(|_, kernel| assert!(kernel.run("import os; os.closerange(0, 100)").has_died));
    let folder = TempDir::new().expect("a folder");
    if let Some(mut kernel) = start(Kind::Plain, folder.path()) {
        let code = "import os; os.closerange(0, 100); files = [open(f'file{n}', 'w') for n in range(8)]";
        assert!(kernel.run(code).has_died);
        kernel.wait();
        for n in 0..8 {
            assert_eq!(std::fs::read(folder.path().join(format!("file{n}"))).expect("reads a file"), b"");
        }
    }
}

#[test]
fn threads_print_after_the_run() {
    with_each(|_, kernel| {
        let code = "import threading\ngo, done = threading.Event(), threading.Event()\ndef late():\n    go.wait()\n    \
                    print('late', end='')\n    display('late')\n    done.set()\nthreading.Thread(target=late).start()\n\
                    print('now')";
        assert_eq!(kernel.run(code).stdout(), "now\n");
        let outcome = kernel.run("go.set(); _ = done.wait()");
        assert_eq!((outcome.stdout().as_str(), outcome.results.len()), ("late", 1));
        kernel.run("go.clear(); threading.Timer(0.05, lambda: (print('later'), display(1))).start()");
        kernel.wait_for("later");
        assert_eq!(kernel.run("3").value(), Some("3"));
    });
}

#[test]
fn a_large_cell_and_odd_text_run() {
    with_each(|_, kernel| {
        assert_eq!(kernel.run(&format!("x = '{}'\nlen(x)", "é".repeat(5_000_000))).value(), Some("5000000"));
        assert_eq!(kernel.run("print('\u{1f600} \u{202e} \\x1e')").stdout(), "\u{1f600} \u{202e} \x1e\n");
        assert_eq!(kernel.run("ñ = 'ñ'; ñ").value(), Some("'ñ'"));
    });
}

#[test]
fn names_and_attributes_are_completed() {
    with_each(|_, kernel| {
        kernel.run("import os; number_one = 1");
        let (start, matches) = kernel.complete("é = 1\nnumber_o + 1", 14).completions.expect("completions");
        assert_eq!((start, matches), (6, vec!["number_one".to_owned()]));
        let outcome = kernel.complete("os.getcw", 8);
        assert_eq!((outcome.count, outcome.stdout.len()), (1, 0));
        let (start, matches) = outcome.completions.expect("completions");
        assert!(matches.iter().any(|text| format!("{}{text}", &"os.getcw"[..start]) == "os.getcwd"), "{matches:?}");
        assert_eq!(kernel.complete("nothing.there", 13).error, None);
    });
}

#[test]
fn files_of_the_code_shadow_no_module_of_the_driver() {
    for kind in [Kind::Plain, Kind::IPython] {
        let folder = TempDir::new().expect("a folder");
        for name in ["json", "types", "traceback", "io", "tempfile", "traitlets"] {
            std::fs::write(folder.path().join(format!("{name}.py")), "raise ValueError").expect("writes a file");
        }
        std::fs::write(folder.path().join("own.py"), "x = 5").expect("writes a file");
        if let Some(mut kernel) = start(kind, folder.path()) {
            assert_eq!(kernel.run("import own; own.x").value(), Some("5"));
        }
    }
}

#[test]
fn a_kernel_leaves_no_files_in_the_home() {
    for kind in [Kind::Plain, Kind::IPython] {
        let (folder, home) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
        let path = home.path().to_str().expect("a path in UTF-8");
        if let Some(mut kernel) = start_with(kind, folder.path(), &[("HOME", path), ("TMPDIR", path)]) {
            kernel.run("%cd /");
            assert_eq!(std::fs::read_dir(home.path()).expect("lists a folder").count(), 0);
        }
    }
}

#[test]
fn a_python_without_its_standard_library_starts_no_kernel() {
    let (here, modules) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    std::fs::write(modules.path().join("_json.py"), "raise ImportError('not here')").unwrap();
    let path = modules.path().to_str().unwrap();
    assert!(Kernel::start(Language::Python, here.path(), &[("PYTHONPATH", path)]).is_none());
}
