//! One set of features for the server and the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::{report, root};

/// Features that one command compiles each package with. A package can be compiled more than once.
type Features = BTreeMap<String, BTreeSet<Vec<String>>>;

/// Returns the packages that a command compiles for the machine, as cargo plans them.
fn planned(root: &Path, command: &[&str]) -> Features {
    let output = Command::new(std::env::var_os("CARGO").expect("cargo runs the tests"))
        .args(command)
        .args(["--unit-graph", "-Z", "unstable-options", "--offline"])
        // Only nightly compilers print the plan, unless asked so.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root)
        .output()
        .expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan is JSON");
    let mut packages = Features::new();
    for unit in plan["units"].as_array().expect("a plan has units") {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if unit["mode"] == "build" && unit["target"]["kind"][0] == "lib" {
            let features = unit["features"].as_array().expect("a unit has features").iter().map(text).collect();
            packages.entry(text(&unit["pkg_id"])).or_default().insert(features);
        }
    }
    packages
}

#[test]
fn the_tests_compile_no_dependency_of_the_server_a_second_time() {
    let root = root();
    let run = planned(&root, &["build"]);
    let tests = planned(&root, &["test", "--workspace", "--no-run"]);
    assert!(run.len() > 150, "the server has {} dependencies", run.len());
    let mut violations = Vec::new();
    for (package, sets) in &run {
        for features in sets.difference(&tests[package]) {
            violations.push(format!(
                "{package} has the features {features:?} in the server alone, and in the tests {:?}: put those that \
                 differ into [workspace.dependencies]",
                tests[package]
            ));
        }
    }
    report(&violations);
}
