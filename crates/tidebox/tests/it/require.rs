//! Programs that a test needs and a machine may lack.

use std::io::Write as _;
use std::path::PathBuf;

/// Programs that must be there: `TIDEBOX_REQUIRE=schemathesis,prometheus` turns
/// a skipped test into a failed one. `.ci/run` sets it.
const REQUIRE: &str = "TIDEBOX_REQUIRE";

/// The program `name`: the first of `places` that exists, else from `PATH`. If
/// it is not there the test is skipped, and says so; or it fails, when the
/// program is required.
pub fn found(name: &str, places: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join(name));
    let found = places.iter().cloned().chain(in_path).find(|program| program.is_file());
    if found.is_none() {
        let required = std::env::var(REQUIRE).unwrap_or_default();
        assert!(
            !required.split(',').any(|required| required == name),
            "{REQUIRE} asks for `{name}`, which is not there"
        );
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        // Not `eprintln!`, which the harness keeps to itself when a test passes.
        let _ = writeln!(std::io::stderr(), "SKIPPED {test}: there is no `{name}` here; `.ci/run` installs it");
    }
    found
}
