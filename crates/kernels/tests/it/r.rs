//! Kernels of R.

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
