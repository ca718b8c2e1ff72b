//! Code in interpreters, by the command line against a real server.

mod repl;

use serde_json::{Value, json};

use crate::cli::{succeeds, tidebox};
use crate::server::{NATIVE, TestServer};

/// Python code that displays an image of one pixel.
const IMAGE: &str = "import base64
class Pixel:
    def _repr_png_(self):
        return base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')
    def __repr__(self):
        return 'a pixel'
Pixel()";

async fn on_its_own(work: impl FnOnce(&TestServer) + Send + 'static) {
    let server = TestServer::start(NATIVE).await;
    tokio::task::spawn_blocking(move || work(&server)).await.unwrap();
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn run_prints_the_output_and_the_value_of_code_and_leaves_no_box() {
    on_its_own(|server| {
        let code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7";
        let output = tidebox(server, &["run", "host", "--code", code], b"");
        assert_eq!((text(&output.stdout), text(&output.stderr)), ("out\n42\n", "err\n"));
        assert_eq!(output.status.code(), Some(0));
        let failed = tidebox(server, &["run", "--code", "1/0", "host"], b"");
        assert_eq!((failed.status.code(), text(&failed.stdout)), (Some(1), ""));
        assert!(text(&failed.stderr).contains("ZeroDivisionError: division by zero\n"), "{failed:?}");
        let late = tidebox(server, &["run", "host", "--timeout", "300ms", "--code", "while True: pass"], b"");
        assert_eq!(late.status.code(), Some(124));
        assert!(text(&late.stderr).contains("the deadline interrupted the code"), "{late:?}");
        let bash = ["run", "host", "-e", "A=b", "--language", "bash", "--code", "-"];
        assert_eq!(text(&tidebox(server, &bash, b"echo $A\necho c").stdout), "b\nc\n");
        assert_eq!(succeeds(server, &["--output", "json", "list"]).trim(), "[]");
    })
    .await;
}

#[tokio::test]
async fn a_run_is_one_object_in_json() {
    on_its_own(|server| {
        let printed = succeeds(server, &["--output", "json", "run", "host", "--code", "print('a')\n5"]);
        let mut object: Value = serde_json::from_str(&printed).unwrap();
        assert!(object["duration"].take().as_str().unwrap().ends_with('s'));
        assert_eq!(
            object,
            json!({
                "context_id": "python", "execution_count": 1, "stdout": "a\n", "stderr": "",
                "results": [{"main": true, "data": {"text/plain": "5"}}],
                "error": null, "outcome": "ok", "duration": null,
            })
        );
        let failed = tidebox(server, &["--output", "json", "run", "host", "--code", "nothing"], b"");
        let object: Value = serde_json::from_slice(&failed.stdout).unwrap();
        assert_eq!((failed.status.code(), &object["error"]["name"]), (Some(1), &"NameError".into()));
    })
    .await;
}

#[tokio::test]
async fn code_in_one_sandbox_keeps_its_state() {
    on_its_own(|server| {
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        assert_eq!(succeeds(server, &["exec", &id, "--code", "x = 42"]), "");
        assert_eq!(succeeds(server, &["exec", &id, "--code", "x"]), "42\n");
        let piped = tidebox(server, &["repl", &id], b"y = x\ny + 1\n");
        assert_eq!((piped.status.code(), text(&piped.stdout)), (Some(0), "43\n"));
        let apart = tidebox(server, &["repl", "python", &id, "--new"], b"x");
        assert_eq!(apart.status.code(), Some(1), "a new context knows nothing: {apart:?}");
        assert_eq!(text(&tidebox(server, &["repl", &id, "--context", "python"], b"y").stdout), "42\n");
        let wrong = tidebox(server, &["repl", "bash", &id, "--context", "python"], b"y");
        assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
        let listed = succeeds(server, &["contexts", &id]);
        let lines: Vec<&str> = listed.lines().collect();
        assert!(lines.len() == 2 && lines[1].starts_with("python   python    idle"), "{listed}");
        let listed: Value = serde_json::from_str(&succeeds(server, &["--output", "json", "contexts", &id])).unwrap();
        assert_eq!((&listed[0]["id"], listed.as_array().unwrap().len()), (&"python".into(), 1));
        let gone = tidebox(server, &["exec", "sb-aaaaaaaaaaaaaaaa", "--code", "1"], b"");
        assert_eq!(gone.status.code(), Some(125));
    })
    .await;
}

#[tokio::test]
async fn without_a_terminal_images_are_saved_only_on_demand() {
    on_its_own(|server| {
        let folder = tempfile::tempdir().unwrap();
        let plots = folder.path().join("plots");
        let id = succeeds(server, &["spawn"]).trim().to_owned();
        let output = tidebox(server, &["exec", &id, "--code", IMAGE], b"");
        assert_eq!(text(&output.stdout), "a pixel\n");
        assert!(text(&output.stderr).contains("image/png, 70 bytes not shown; save it with --images"), "{output:?}");
        for number in 1..=2 {
            let output = tidebox(server, &["exec", &id, "--code", IMAGE, "--images", plots.to_str().unwrap()], b"");
            let file = plots.join(format!("tidebox-{number}.png"));
            assert!(text(&output.stderr).contains(file.to_str().unwrap()), "{output:?}");
            assert_eq!(std::fs::read(&file).unwrap().len(), 70);
        }
    })
    .await;
}
