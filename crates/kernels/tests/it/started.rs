//! Kernels of the languages that this machine has.

use kernels::Language;
use tempfile::TempDir;

use crate::kernel::{Kernel, Outcome};

/// Starts a kernel in an empty folder; skips the test where the machine has no interpreter.
pub fn started(language: Language) -> Option<(Kernel, TempDir)> {
    let folder = TempDir::new().expect("a folder");
    let kernel = Kernel::start(language, folder.path(), &[]);
    if kernel.is_none() {
        fixtures::skip(language.name(), &format!("no interpreter here starts a kernel of {language}"));
    }
    Some((kernel?, folder))
}

/// Interrupts code once it has printed `started`, and returns its outcome.
pub fn interrupted(kernel: &mut Kernel, code: &str) -> Outcome {
    kernel.begin(code, &[]);
    kernel.wait_for("started");
    kernel.interrupt_to_end()
}

/// Returns the name of the error of a run.
pub fn error_name(outcome: &Outcome) -> Option<&str> {
    outcome.error.as_ref().map(|(name, _, _)| name.as_str())
}
