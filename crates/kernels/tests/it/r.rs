//! Kernels of R.

use std::time::{Duration, Instant};

use kernels::Language;
use tempfile::TempDir;

use crate::kernel::Kernel;
use crate::started::{error_name, interrupted, started};

fn r() -> Option<(Kernel, TempDir)> {
    started(Language::R)
}

#[test]
fn a_value_survives_the_run() {
    let Some((mut r, folder)) = r() else { return };
    assert!(r.version.starts_with("R "), "{}", r.version);
    let outcome = r.run("x <- 41; f <- function(y) x + y");
    assert_eq!((outcome.count, &outcome.error, outcome.results.len()), (1, &None, 0));
    assert_eq!(r.run("f(1)").value(), Some("[1] 42"));
    assert_eq!(r.run("getwd()").value(), Some(format!("[1] \"{}\"", folder.path().display()).as_str()));
    assert_eq!(r.run("ls(all.names = TRUE)").value(), Some("[1] \"f\" \"x\""), "the driver has no names there");
    assert_eq!(r.run("f").value(), Some("function(y) x + y"));
}

#[test]
fn the_last_visible_value_is_a_result_and_those_before_are_printed() {
    let Some((mut r, _folder)) = r() else { return };
    let outcome = r.run("1\n'é\\t😀'");
    assert_eq!((outcome.stdout().as_str(), outcome.value()), ("[1] 1\n", Some("[1] \"é\\t😀\"")));
    assert_eq!(r.run("NULL").value(), Some("NULL"));
    for invisible in ["y <- 2", "invisible(3)", "print('Hello, World!')", "", "# nothing"] {
        assert_eq!(r.run(invisible).results.len(), 0, "{invisible}");
    }
    assert_eq!(r.run("data.frame(a = 1:2)").value(), Some("  a\n1 1\n2 2"));
    let outcome = r.run("print.bad <- function(x, ...) { cat('before\\n'); stop('no') }; structure(1, class = 'bad')");
    assert_eq!((outcome.stdout().as_str(), error_name(&outcome)), ("before\n", Some("Error")));
    r.run("print.own <- function(x, ...) cat('own\\n'); setClass('S', representation(a = 'numeric'))");
    assert_eq!(r.run("structure(1, class = 'own')").value(), Some("own"));
    assert!(r.run("new('S', a = 1)").value().unwrap().starts_with("An object of class \"S\""));
}

#[test]
fn errors_have_their_class_message_and_calls() {
    let Some((mut r, _folder)) = r() else { return };
    let error = r.run("g <- function(x) stop('bo\"om\\n\\001'); f <- function() g(1)\nf()").error.unwrap();
    let text = "Error in g(1): bo\"om\n\u{1}\nTraceback:\n1. f()\n2. g(1)\n3. stop(\"bo\\\"om\\n\\001\")";
    assert_eq!(error, ("Error".to_owned(), "bo\"om\n\u{1}".to_owned(), text.to_owned()));
    let error =
        r.run("stop(structure(class = c('mine', 'error', 'condition'), list(message = 'm', call = NULL)))").error;
    assert_eq!(error.map(|(name, value, _)| (name, value)), Some(("mine".to_owned(), "m".to_owned())));
    assert_eq!(r.run("unknown").error.unwrap().2, "Error: object 'unknown' not found");
    assert!(error_name(&r.run("h <- function(n) h(n + 1); h(1)")).is_some(), "a recursion without end is an error");
    assert!(r.run("stop(strrep('x', 1e6))").error.unwrap().1.len() < 200_000);
    assert_eq!(r.run("tryCatch(stop('a'), error = function(e) 'caught')").value(), Some("[1] \"caught\""));
}

#[test]
fn wrong_syntax_is_named_with_its_line() {
    let Some((mut r, _folder)) = r() else { return };
    let outcome = r.run("print(1)\n2 + )");
    let error = outcome.error.unwrap();
    assert_eq!((error.0.as_str(), outcome.stdout.len()), ("ParseError", 0));
    assert!(error.1.starts_with("line 2, column 5: unexpected ')'"), "{}", error.1);
    assert_eq!(error_name(&r.run("'é")), Some("ParseError"));
}

#[test]
fn warnings_come_on_stderr() {
    let Some((mut r, _folder)) = r() else { return };
    let outcome = r.run("f <- function(x) log(x); f(-1)");
    assert_eq!(outcome.stderr(), "Warning message:\nIn log(x) : NaNs produced\n");
    assert_eq!(outcome.value(), Some("[1] NaN"));
    assert!(r.run("for (i in 1:3) warning('w'); stop('s')").stderr().starts_with("Warning messages:\n1: w"));
    assert_eq!(r.run("warning('top')").stderr(), "Warning message:\ntop\n");
    assert_eq!(r.run("suppressWarnings(log(-1))").stderr(), "");
    let error = r.run("options(warn = 2); f(-1)").error.unwrap();
    assert!(error.2.ends_with("Traceback:\n1. f(-1)"), "{}", error.2);
}

#[test]
fn plots_of_a_run_are_shown_as_images() {
    let Some((mut r, folder)) = r() else { return };
    let outcome = r.run("plot(1:3); hist(c(1, 2)); stop('after')");
    let images: Vec<_> = outcome.results.iter().filter_map(|(_, data)| data.get("image/png")?.as_str()).collect();
    assert_eq!((images.len(), error_name(&outcome)), (2, Some("Error")));
    assert!(images.iter().all(|image| image.starts_with("iVBORw0KGgo")));
    std::fs::write(folder.path().join("plot.base64"), images[0]).unwrap();
    let same =
        "system('base64 -d plot.base64 > plot.png'); file.size('plot.png') * 4 / 3 <= nchar(readLines('plot.base64'))";
    assert_eq!(r.run(same).value(), Some("[1] TRUE"));
    assert_eq!(r.run("1").results.len(), 1, "a plot is shown once");
    assert_eq!(
        r.run("png('own.png'); plot(1); invisible(dev.off())").results.len(),
        0,
        "a plot to a file is not shown"
    );
    assert_eq!(r.run("list.files()").value(), Some("[1] \"own.png\"     \"plot.base64\" \"plot.png\"   "));
}

#[test]
fn an_interrupt_ends_code_and_its_programs_and_not_the_kernel() {
    let Some((mut r, _folder)) = r() else { return };
    r.run("x <- 'kept'");
    for code in [
        "repeat {}",
        "Sys.sleep(600)",
        "system('sleep 600')",
        "system2('sleep', '600')",
        "y <- system('sleep 600; echo', TRUE)",
    ] {
        let outcome = interrupted(&mut r, &format!("cat('started'); {code}; cat('after')"));
        assert_eq!((error_name(&outcome), outcome.stdout().as_str()), (Some("Interrupt"), "started"), "{code}");
    }
    r.interrupt();
    let outcome = r.run("x");
    assert_eq!((outcome.value(), &outcome.error), (Some("[1] \"kept\""), &None));
}

#[test]
fn variables_of_a_run_end_with_it() {
    let Some((mut r, _folder)) = r() else { return };
    r.run("Sys.setenv(B = 'old')");
    let outcome =
        r.run_with("system('printenv A B'); Sys.setenv(B = 'changed', C = 'c'); stop()", &[("A", "é\n"), ("B", "")]);
    assert_eq!((outcome.stdout().as_str(), error_name(&outcome)), ("é\n\n\n", Some("Error")));
    assert_eq!(
        r.run("Sys.getenv(c('A', 'B', 'C'), 'unset', names = FALSE)").value(),
        Some("[1] \"unset\" \"old\"   \"c\"    ")
    );
}

#[test]
fn programs_inherit_no_descriptor_of_the_driver_and_stdin_is_at_its_end() {
    let Some((mut r, folder)) = r() else { return };
    let list = "for fd in /proc/$$/fd/*; do [ $fd -ef /proc/$$/fd/1 ] || [ $fd -ef /proc/$$/fd/2 ] && echo ${fd##*/}; done; cat";
    std::fs::write(folder.path().join("list"), list).unwrap();
    assert_eq!(r.run("system('sh list')").stdout(), "1\n2\n");
    assert_eq!(r.run("readLines('stdin')").value(), Some("character(0)"));
    assert_eq!(r.run("readline()").value(), Some("[1] \"\""));
    assert_eq!(r.run("c(system('exit 3'), system2('false'), system('kill -9 $$'))").value(), Some("[1] 3 1 9"));
}

#[test]
fn the_driver_works_whatever_the_code_redefines() {
    let Some((mut r, _folder)) = r() else { return };
    r.run("c <- print <- cat <- emit <- paste0 <- function(...) stop('no'); T <- F <- 0; count <- request <- 'x'");
    r.run("closeAllConnections(); invisible(gc()); options(OutDec = ',', scipen = -9, digits = 2, warn = 1)");
    assert_eq!(r.run("rm(list = ls()); 'on'").value(), Some("[1] \"on\""));
    assert_eq!(r.run("sink('file'); cat('text'); 1").stdout(), "");
    assert_eq!(r.run("sink(); readLines('file', warn = FALSE)").value(), Some("[1] \"text\""));
    assert_eq!(r.run("invokeRestart('abort')").error, None);
    assert_eq!(r.run("1L").count, 7);
}

#[test]
fn a_forked_process_does_not_answer_for_the_kernel() {
    let Some((mut r, _folder)) = r() else { return };
    let fork = "child <- parallel:::mcfork(); if (inherits(child, 'masterProcess')) 'child' else 'parent'";
    assert_eq!(r.run(fork).value(), Some("[1] \"parent\""));
    assert_eq!(r.run("parallel::mclapply(1:2, function(i) i)[[2]]").value(), Some("[1] 2"));
}

#[test]
fn output_arrives_at_once_and_passes_as_it_is() {
    let Some((mut r, folder)) = r() else { return };
    r.begin("cat('no line'); while (!file.exists('seen')) Sys.sleep(0.01); message('err')", &[]);
    r.wait_for("no line");
    std::fs::write(folder.path().join("seen"), "").unwrap();
    assert_eq!(r.finish().stderr(), "err\n");
    assert_eq!(r.run(r#"system('printf "\\377\\000\\036"')"#).stdout, b"\xff\0\x1e");
    assert_eq!(r.run("x <- strrep('a', 99999); for (i in 1:200) cat(x, '\\n', sep = '')").stdout.len(), 20_000_000);
}

#[test]
fn code_that_closes_stdout_still_has_its_values_reported() {
    let Some((mut r, _folder)) = r() else { return };
    r.run("parallel:::closeFD(1)");
    assert_eq!(r.run("cat('lost'); 5").value(), Some("[1] 5"));
}

#[test]
fn what_is_too_large_is_left_out() {
    let Some((mut r, _folder)) = r() else { return };
    let note = "text/plain was left out: 11.0 MB are more than 10 MiB";
    assert_eq!(r.run("x <- strrep('a', 11e6); x").value(), Some(note));
    assert_eq!(r.run("print(nchar(x)); 'next'").value(), Some("[1] \"next\""));
}

#[test]
fn code_of_megabytes_runs_in_seconds() {
    let Some((mut r, _folder)) = r() else { return };
    let start = Instant::now();
    assert_eq!(r.run(&format!("{}x", "x <- 1234567\n".repeat(300_000))).value(), Some("[1] 1234567"));
    let word = "é".repeat(5_000_000);
    assert_eq!(r.run(&format!("nchar('{word}')")).value(), Some("[1] 5000000"));
    assert!(start.elapsed() < Duration::from_secs(50), "{:?}", start.elapsed());
}

#[test]
fn names_columns_and_files_are_completed() {
    let Some((mut r, _folder)) = r() else { return };
    r.run("my_variable <- list(first = 1)");
    let mut complete = |code: &str| {
        let outcome = r.complete(code, code.chars().count());
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (0, 0));
        outcome.completions.unwrap()
    };
    assert_eq!(complete("'é'; my_va"), (5, vec!["my_variable".to_owned()]));
    assert_eq!(complete("1\nmy_variable$f"), (2, vec!["my_variable$first".to_owned()]));
    assert_eq!(complete("no_such_na"), (10, vec![]));
    assert_eq!(r.run("1").count, 2, "a completion is not a run");
}

#[test]
fn a_kernel_that_quits_or_is_killed_is_seen_to_have_died() {
    for code in ["q()", "tools::pskill(Sys.getpid(), 9)", "for (fd in 0:40) try(parallel:::closeFD(fd), TRUE)"] {
        let Some((mut r, _folder)) = r() else { return };
        assert!(r.run(code).has_died, "{code}");
    }
}
