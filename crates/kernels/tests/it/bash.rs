//! Kernels of bash.

use std::time::{Duration, Instant};

use kernels::Language;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::started::{error_name, interrupted, started};

fn bash() -> Option<(Kernel, TempDir)> {
    started(Language::Bash)
}

#[test]
fn variables_functions_options_and_the_folder_survive_a_run() {
    let Some((mut bash, folder)) = bash() else { return };
    assert!(bash.version.starts_with("GNU bash "), "{}", bash.version);
    let outcome = bash.run("x='a  b'; declare -A m=([k]=v); f() { echo \"f $1\"; }; shopt -s nullglob; mkdir d; cd d");
    assert_eq!((outcome.count, &outcome.error, outcome.stdout().as_str()), (1, &None, ""));
    let outcome = bash.run("echo \"$x\" ${m[k]}; f 1; echo none*; pwd");
    assert_eq!(outcome.stdout(), format!("a  b v\nf 1\n\n{}/d\n", folder.path().display()));
    assert_eq!((outcome.count, outcome.results.len()), (2, 0));
}

#[test]
fn a_failing_last_command_is_an_error() {
    let Some((mut bash, _folder)) = bash() else { return };
    assert_eq!(bash.run("false; true").error, None);
    let error = bash.run("echo out; echo err >&2; (exit 3)").error.unwrap();
    assert_eq!((error.0.as_str(), error.1.as_str()), ("ExitStatus", "the last command ended with status 3"));
    let outcome = bash.run("\nnonexistent");
    assert_eq!(outcome.stderr(), "bash: line 2: nonexistent: command not found\n");
    assert!(outcome.error.unwrap().1.contains("127"));
}

#[test]
fn wrong_syntax_is_named_with_its_line() {
    let Some((mut bash, _folder)) = bash() else { return };
    let outcome = bash.run("echo one\nif )");
    assert!(outcome.stderr().contains("syntax error near unexpected token"), "{}", outcome.stderr());
    let error = outcome.error.unwrap();
    assert_eq!(error.0, "SyntaxError");
    assert!(error.1.starts_with("line 2: syntax error near unexpected token"), "{}", error.1);
    assert_eq!(error_name(&bash.run("echo 'é")), Some("SyntaxError"));
    assert_eq!(error_name(&bash.run("eval 'if )'")), Some("ExitStatus"), "the code itself is right");
}

#[test]
fn an_exit_ends_the_run_and_not_the_kernel() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("x=kept; declare -a list=(1 '2 3'); f() { local x=hidden; exit 4; }; alias ll=ls; set -o pipefail");
    let outcome = bash.run("echo before; exit 3; echo after");
    assert_eq!(outcome.stdout(), "before\n");
    assert_eq!(outcome.error.unwrap().1, "the last command ended with status 3");
    assert!(bash.run("f").error.unwrap().1.contains("status 4"));
    assert_eq!(bash.run("exit 0").error, None);
    assert_eq!(bash.run("(exit 0); break 9; echo on").error, None);
    let outcome = bash.run("echo $x ${list[1]}; alias ll; false | true");
    assert_eq!(outcome.stdout(), "kept 2 3\nalias ll='ls'\n");
    assert_eq!((outcome.count, error_name(&outcome)), (6, Some("ExitStatus")));
}

#[test]
fn strict_options_end_the_run_at_the_first_failure() {
    let Some((mut bash, _folder)) = bash() else { return };
    let outcome = bash.run("set -euo pipefail\nx=1\nfalse\necho after");
    assert_eq!((outcome.stdout().as_str(), error_name(&outcome)), ("", Some("ExitStatus")));
    let outcome = bash.run("echo $x; echo $unset; echo after");
    assert_eq!(outcome.stdout(), "1\n");
    assert!(outcome.stderr().contains("unset: unbound variable"), "{}", outcome.stderr());
    assert_eq!(bash.run("set +eu; false; echo after").stdout(), "after\n");
}

#[test]
fn a_trap_of_exit_runs_when_the_code_exits() {
    let Some((mut bash, _folder)) = bash() else { return };
    let outcome = bash.run("set -e; trap 'status=$?; echo cleanup; exit $status' EXIT; trap; (exit 9); echo after");
    assert!(outcome.stdout().ends_with("\ncleanup\n"), "{}", outcome.stdout());
    assert!(outcome.stdout().starts_with("trap -- 'status=$?; echo cleanup; exit $status' EXIT\n"));
    assert!(outcome.error.unwrap().1.contains("status 9"));
    assert_eq!(bash.run("echo $status").stdout(), "9\n");
}

#[test]
fn an_interrupt_ends_code_and_its_programs_and_not_the_kernel() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("x=kept");
    for code in ["while :; do :; done", "sleep 600", "y=$(sleep 600)", "(sleep 600 | sleep 600)", "sleep 600 & wait"] {
        let outcome = interrupted(&mut bash, &format!("echo started; {code}; echo after"));
        assert_eq!((error_name(&outcome), outcome.stdout().contains("after")), (Some("KeyboardInterrupt"), false));
    }
    bash.interrupt();
    let outcome = bash.run("echo $x");
    assert_eq!((outcome.stdout().as_str(), outcome.error), ("kept\n", None));
}

#[test]
fn variables_of_a_run_end_with_it() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("A=old; export B=old");
    let variables = [("A", "run"), ("B", "b \"é\n"), ("C", ""), ("line", "x"), ("not-a-name", "y")];
    let outcome = bash.run_with("printenv A B C line; A=changed; exit 1", &variables);
    assert_eq!(outcome.stdout(), "run\nb \"é\n\n\nx\n");
    assert!(outcome.stderr().contains("`not-a-name`"), "{}", outcome.stderr());
    assert_eq!(bash.run("echo $A $B ${C-unset} ${line-unset}; printenv A B C").stdout(), "old old unset unset\nold\n");
}

#[test]
fn the_driver_works_whatever_the_code_redefines() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("for f in printf read echo local eval set trap return exec printf; do eval \"$f() { :; }\"; done");
    bash.run("shopt -s expand_aliases; alias builtin=false local=false; IFS=0123456789; LC_ALL=C; set -f -o posix");
    let outcome = bash.run_with("command echo $A; exit 2", &[("A", "1")]);
    assert_eq!(outcome.error.unwrap().1, "the last command ended with status 2");
    assert_eq!(bash.run("command printf '%s' \"${A-unset}\"").stdout(), "unset");
}

#[test]
fn tracing_shows_the_code_and_not_the_driver() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("set -xv");
    let outcome = bash.run("echo 1");
    assert!(!outcome.stderr().contains("tidebox"), "{}", outcome.stderr());
    assert!(outcome.stderr().contains("+ echo 1\n"), "{}", outcome.stderr());
}

#[test]
fn programs_inherit_no_descriptor_of_the_driver_and_stdin_is_at_its_end() {
    let Some((mut bash, folder)) = bash() else { return };
    let list = "for fd in /proc/$$/fd/*; do
      [[ $fd -ef /proc/self/fd/1 || $fd -ef /proc/self/fd/2 ]] && echo ${fd##*/}
    done";
    std::fs::write(folder.path().join("list"), list).unwrap();
    let outcome = bash.run("cat; exec 3>file; echo text >&3; bash list; [[ ! -p /proc/self/fd/4 ]]");
    assert_eq!((outcome.stdout().as_str(), outcome.error), ("1\n2\n", None));
    assert_eq!(bash.run("echo more >&3; cat file").stdout(), "text\nmore\n");
}

#[test]
fn code_that_closes_stdout_still_has_its_errors_reported() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("exec >&-");
    assert_eq!(error_name(&bash.run("false")), Some("ExitStatus"));
    assert_eq!(bash.run("exec >&2; echo back").stderr(), "back\n");
}

#[test]
fn a_kernel_without_descriptors_ends() {
    let Some((mut bash, _folder)) = bash() else { return };
    assert!(bash.run("for fd in /proc/self/fd/*; do eval \"exec ${fd##*/}>&-\"; done").has_died);
}

#[test]
fn a_kernel_that_is_killed_is_seen_to_have_died() {
    let Some((mut bash, _folder)) = bash() else { return };
    assert!(bash.run("kill -9 $$").has_died);
}

#[test]
fn output_passes_as_it_is() {
    let Some((mut bash, _folder)) = bash() else { return };
    let outcome = bash.run(r"printf '\xff\x00\x1e é'; printf '\x1e5a5a' >&2");
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"\xff\0\x1e \xc3\xa9"[..], &b"\x1e5a5a"[..]));
    assert_eq!(bash.run("head -c 20000000 /dev/zero").stdout.len(), 20_000_000);
}

#[test]
fn code_of_ten_megabytes_runs_in_seconds() {
    let Some((mut bash, _folder)) = bash() else { return };
    let start = Instant::now();
    let lines = "x=1234567\n".repeat(1_000_000);
    assert_eq!(bash.run(&format!("{lines}echo $x")).stdout(), "1234567\n");
    let word = "é".repeat(5_000_000);
    assert_eq!(bash.run(&format!("x={word}; echo ${{#x}}; exit 0")).error, None);
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
}

#[test]
fn a_forked_shell_does_not_answer_for_the_kernel() {
    let Some((mut bash, _folder)) = bash() else { return };
    let outcome = bash.run("(exit 5) & (echo sub; exit 6); { echo back; exit 7; } & wait; echo main");
    assert!(outcome.stdout().ends_with("main\n"));
    assert_eq!((bash.run("echo next").stdout().as_str(), outcome.error), ("next\n", None));
}

#[test]
fn commands_variables_and_files_are_completed() {
    let Some((mut bash, _folder)) = bash() else { return };
    bash.run("my_variable=1; my_function() { :; }; touch 'some file' é.txt; mkdir some_folder");
    let complete = |bash: &mut Kernel, code: &str| {
        let outcome = bash.complete(code, code.chars().count());
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (0, 0));
        outcome.completions.unwrap()
    };
    assert_eq!(complete(&mut bash, "echo é; my_f"), (8, vec!["my_function".to_owned()]));
    assert_eq!(complete(&mut bash, "echo \"${my_v"), (8, vec!["my_variable".to_owned()]));
    let (start, mut matches) = complete(&mut bash, "true\ncat some");
    matches.sort();
    assert_eq!((start, matches), (9, vec!["some file".to_owned(), "some_folder/".to_owned()]));
    assert_eq!(complete(&mut bash, "cat é"), (4, vec!["é.txt".to_owned()]));
    assert_eq!(bash.run("true").count, 2, "a completion is not a run");
}

#[test]
fn a_run_takes_milliseconds_after_an_exit_too() {
    let Some((mut bash, _folder)) = bash() else { return };
    let start = Instant::now();
    for _ in 0..50 {
        bash.run("exit 1");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}
