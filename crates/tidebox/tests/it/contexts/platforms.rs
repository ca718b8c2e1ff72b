//! The same promises on every provider that has background processes.

use fixtures::Engine;
use fixtures::image::Image;
use serde_json::json;

use super::{context, has, run, run_in};
use crate::docker::until_healthy;
use crate::server::{Builder, NATIVE, TestServer};

const NOBODY: u32 = 65_534;
/// Image of the Engine of these tests.
const IMAGE: &str = "team/code:1";
/// Programs of the machine that go into it.
const OF_MACHINE: [&str; 2] = ["usr/bin/node", "usr/local/bin/node"];

/// Code of one language that does the same as that of the others.
struct Code {
    language: &'static str,
    program: &'static str,
    /// Sets a variable to 20.
    set: &'static str,
    /// Writes twice the variable and one more on stdout.
    get: &'static str,
    fails: &'static str,
    /// Name of the error.
    error: &'static str,
    /// Writes `ready` and never ends.
    endless: &'static str,
    /// Writes the variable `COLOR` of the environment.
    color: &'static str,
    /// Ends the interpreter.
    dies: &'static str,
}

const CODES: [Code; 3] = [
    Code {
        language: "python",
        program: "python3",
        set: "n = 20",
        get: "print(2 * n + 1)",
        fails: "1 / 0",
        error: "ZeroDivisionError",
        endless: "print('ready', flush=True)\nwhile True: pass",
        color: "import os; print(os.environ.get('COLOR'))",
        dies: "import os; os._exit(7)",
    },
    Code {
        language: "javascript",
        program: "node",
        set: "const n = 20",
        get: "console.log(2 * n + 1)",
        fails: "null.x",
        error: "TypeError",
        endless: "console.log('ready'); while (true) {}",
        color: "console.log(process.env.COLOR)",
        dies: "process.kill(process.pid, 'SIGKILL')",
    },
    Code {
        language: "bash",
        program: "bash",
        set: "n=20",
        get: "echo $((2 * n + 1))",
        fails: "(exit 3)",
        error: "ExitStatus",
        endless: "echo ready; while :; do :; done",
        color: "echo $COLOR",
        dies: "kill -9 $$",
    },
];

/// Tries all languages.
async fn try_contexts(builder: Builder, is_healthy: impl AsyncFnOnce(&TestServer)) {
    let server = builder.start().await;
    is_healthy(&server).await;
    let id = server.spawn().await;
    for code in CODES {
        if has(code.program) {
            try_language(&server, &id, &code).await;
        }
    }
    server.delete(&format!("/sandboxes/{id}")).await.ok();
}

async fn try_language(server: &TestServer, id: &str, code: &Code) {
    let Code { language, .. } = code;
    assert_eq!(run(server, id, language, code.set).await.outcome(), "ok");
    let kept = run(server, id, language, code.get).await;
    assert_eq!((kept.stdout().as_str(), kept.outcome()), ("41\n", "ok"), "{language}");
    assert_eq!(kept.first("started")["execution_count"], 2, "{language}");
    assert_eq!(kept.first("started")["context_id"], *language);

    let failed = run(server, id, language, code.fails).await;
    assert_eq!((failed.error(), failed.outcome()), (code.error, "error"), "{language}");

    let timeout = json!({"code": code.endless, "timeout": "500ms"});
    let stopped = run_in(server, id, language, timeout).await;
    assert_eq!((stopped.stdout().as_str(), stopped.outcome()), ("ready\n", "timed_out"), "{language}");
    assert_eq!(stopped.first("end").get("restarted"), None, "{language} ends at an interrupt: {stopped:?}");
    assert_eq!(
        run(server, id, language, code.get).await.stdout(),
        "41\n",
        "{language} has its state after an interrupt"
    );

    // One context knows nothing of another.
    let other = context(server, id, json!({"language": language, "env": {"COLOR": "green"}, "workdir": "/tmp"})).await;
    for (env, color) in [(json!({}), "green\n"), (json!({"COLOR": "blue"}), "blue\n"), (json!({}), "green\n")] {
        let body = json!({"code": code.color, "env": env});
        assert_eq!(run_in(server, id, &other, body).await.stdout(), color, "{language}");
    }
    assert_ne!(run_in(server, id, &other, json!({"code": code.get})).await.stdout(), "41\n", "{language}");

    let died = run_in(server, id, &other, json!({"code": code.dies})).await;
    assert_eq!((died.error(), died.outcome()), ("KernelDied", "died"), "{language}");
    assert_eq!(server.get(&format!("/sandboxes/{id}/contexts/{other}")).await.ok()["state"], "ended", "{language}");
    let again = run_in(server, id, &other, json!({"code": code.color})).await;
    assert_eq!(again.stdout(), "green\n", "{language} is started anew with its options");
    assert_eq!(again.first("started")["state_lost"], true, "{language}");

    let restarted = server.post(&format!("/sandboxes/{id}/contexts/{language}/restart"), json!({})).await.ok();
    assert_eq!((&restarted["id"], &restarted["state"]), (&json!(language), &json!("idle")));
    assert_ne!(run(server, id, language, code.get).await.stdout(), "41\n", "{language} has no state after a restart");
    server.delete(&format!("/sandboxes/{id}/contexts/{other}")).await.ok();
    let listed = server.get(&format!("/sandboxes/{id}/contexts")).await.ok();
    let ids: Vec<_> = listed.as_array().unwrap().iter().map(|context| context["id"].clone()).collect();
    assert!(ids.contains(&json!(language)) && !ids.contains(&json!(other)), "{listed}");
}

async fn at_once(_: &TestServer) {}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_keep_their_promises_on_native() {
    try_contexts(TestServer::builder(NATIVE), at_once).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_keep_their_promises_on_native_of_an_ordinary_user() {
    if rustix::process::geteuid().is_root() {
        try_contexts(TestServer::builder(NATIVE).user(NOBODY), at_once).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_keep_their_promises_on_proot() {
    if fixtures::found("proot", &[]).is_some() {
        let proot = "providers.native.enabled=false providers.proot.enabled=true providers.default=proot";
        try_contexts(TestServer::builder(proot), at_once).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contexts_keep_their_promises_in_a_container() {
    if !fixtures::runs_here("docker-contexts") {
        return;
    }
    let Some(engine) = Engine::start() else { return };
    let Some(image) = Image::debian_with(&["libstdc++6", "python3"]) else { return };
    engine.load(IMAGE, &image.and_of_machine(&OF_MACHINE));
    let docker = format!(
        "providers.native.enabled=false providers.docker.enabled=true providers.default=docker \
         providers.docker.pull=never defaults.image={IMAGE} providers.docker.socket={}",
        engine.socket().display()
    );
    try_contexts(TestServer::builder(&docker), until_healthy).await;
}
