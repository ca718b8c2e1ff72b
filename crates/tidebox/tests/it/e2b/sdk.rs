//! E2B's own SDKs, unmodified and pointed here by environment variables alone: the quickstarts of their documentation.

use std::path::Path;
use std::process::{Command, Output};

use fixtures::image::Image;

use super::{E2b, KEY};
use crate::docker;
use crate::programs::{installed, is_there, python};
use crate::server::NATIVE;

/// Versions of the SDK for Python, below the target folder: the newest, and one that is a year old.
const PYTHON: [&str; 2] = ["e2b-python", "e2b-python-old"];
/// Versions of the SDK for JavaScript.
const NODE: [&str; 2] = ["e2b", "e2b-old"];

/// Output of the example in either language, in lower case.
const EXAMPLE: &str = "\
hello from user
exit code 1: cat: missing.txt: no such file or directory
too slow
1
2
3
running: true
no such file
no such sandbox
done
";

/// Runs a program with the variables that a user sets.
pub async fn run(e2b: &E2b, mut command: Command) -> Output {
    let url = e2b.server.url.clone();
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", "/nonexistent");
    command.env("E2B_API_KEY", KEY).env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// Returns the output of a program that must succeed.
#[track_caller]
pub fn passed(e2b: &E2b, name: &str, output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {out}\n{err}\n{}", e2b.server.log_text());
    out.into_owned()
}

/// Writes a program in JavaScript next to the SDK in this folder, and returns its command.
pub fn node(packages: &Path, program: &str, here: &Path) -> Command {
    std::os::unix::fs::symlink(packages.join("node_modules"), here.join("node_modules")).unwrap();
    let script = here.join("program.mjs");
    std::fs::write(&script, program).unwrap();
    let mut command = Command::new("node");
    command.arg(script);
    command
}

/// Program in both languages.
#[derive(Debug, Clone, Copy)]
struct Program {
    python: &'static str,
    javascript: &'static str,
}

const QUICKSTART: Program =
    Program { python: include_str!("quickstart.py"), javascript: include_str!("quickstart.mjs") };

/// Builds a template, and uses it.
const TEMPLATE: Program = Program { python: include_str!("template.py"), javascript: include_str!("template.mjs") };
const BUILT: &str = "hellotide\n/home/user/app\ntide\n\n";

impl Program {
    /// Runs the program with every version of each SDK. Each time it must print `expected`, in upper or lower case.
    async fn run(self, e2b: &E2b, expected: &str) {
        self.run_in_python(e2b, expected).await;
        self.run_in_javascript(e2b, expected).await;
    }

    async fn run_in_python(self, e2b: &E2b, expected: &str) {
        for name in PYTHON {
            let packages = installed(name);
            if is_there(&packages, name) {
                let output = run(e2b, python(&packages, self.python)).await;
                assert_eq!(passed(e2b, name, &output).to_lowercase(), expected, "{name}");
            }
        }
    }

    async fn run_in_javascript(self, e2b: &E2b, expected: &str) {
        for name in NODE {
            let packages = installed(name);
            if is_there(&packages.join("node_modules/e2b"), name) {
                let here = tempfile::tempdir().unwrap();
                let output = run(e2b, node(&packages, self.javascript, here.path())).await;
                assert_eq!(passed(e2b, name, &output).to_lowercase(), expected, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn the_quickstart_in_python_runs_unmodified() {
    QUICKSTART.run_in_python(&E2b::start(NATIVE).await, "user: all done\n").await;
}

#[tokio::test]
async fn the_quickstart_in_javascript_runs_unmodified() {
    QUICKSTART.run_in_javascript(&E2b::start(NATIVE).await, "user: all done\n").await;
}

#[tokio::test]
async fn a_template_is_built_and_used_unmodified() {
    TEMPLATE.run(&E2b::start(NATIVE).await, BUILT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_template_is_built_and_used_on_docker() {
    let Some(image) = Image::debian_like() else { return };
    let Some((_engine, settings)) = docker::engine_with(&image) else { return };
    let e2b = E2b::start(&settings).await;
    docker::until_healthy(&e2b.server).await;
    TEMPLATE.run_in_python(&e2b, BUILT).await;
}

#[tokio::test]
async fn a_template_is_built_and_used_on_proot() {
    if fixtures::found("proot", &[]).is_none() {
        return;
    }
    let proot = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
    TEMPLATE.run_in_javascript(&E2b::start(proot).await, BUILT).await;
}

/// PRoot cannot work as another user, so commands run as that of the sandbox.
#[tokio::test]
async fn the_quickstarts_run_on_proot_as_the_user_of_the_sandbox() {
    if fixtures::found("proot", &[]).is_none() {
        return;
    }
    let proot = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
    QUICKSTART.run(&E2b::start(proot).await, "root: all done\n").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quickstarts_run_on_docker_in_an_image_without_the_account() {
    let Some(image) = Image::debian_like() else { return };
    let Some((_engine, settings)) = docker::engine_with(&image) else { return };
    let e2b = E2b::start(&settings).await;
    docker::until_healthy(&e2b.server).await;
    QUICKSTART.run(&e2b, "user: all done\n").await;
}

#[tokio::test]
async fn the_examples_run_with_three_variables() {
    let examples = Program {
        python: include_str!("../../../../../examples/e2b-quickstart/quickstart.py"),
        javascript: include_str!("../../../../../examples/e2b-quickstart/quickstart.mjs"),
    };
    examples.run(&E2b::start(NATIVE).await, EXAMPLE).await;
}

#[test]
fn the_example_names_the_versions_that_are_tested() {
    let named = include_str!("../../../../../examples/e2b-quickstart/requirements.txt");
    assert!(include_str!("../../../../../.ci/e2b/e2b-python.txt").contains(named), "{named}");
    let [named, tested] = [
        include_str!("../../../../../examples/e2b-quickstart/package.json"),
        include_str!("../../../../../.ci/e2b/package.json"),
    ]
    .map(|file| serde_json::from_str::<serde_json::Value>(file).unwrap()["dependencies"].clone());
    assert_eq!(named["e2b"], tested["e2b"]);
}
