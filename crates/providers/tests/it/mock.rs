//! Behaviour that only boxes in memory have: failures on request, and a small shell.

use std::time::Duration;

mod processes;
mod snapshots;
mod suite;

use domain::{Metadata, Resources, SandboxId, Timestamp};
use futures_util::StreamExt;
use providers::mock::Mock;
use providers::{Command, Error, OutputEvent, Provider, Spec};
use tokio::time::Instant;

fn id(n: u8) -> SandboxId {
    SandboxId::from_entropy([n; 10])
}

fn spec(labels: &[(&str, &str)]) -> Spec {
    Spec {
        image: "mock".to_owned(),
        resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 1, pids: 64 },
        entrypoint: false,
        metadata: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Metadata>(),
        lifetime: Duration::from_secs(60),
        trust: None,
        snapshot: None,
        is_copy: false,
        egress: Vec::new(),
        asker: None,
    }
}

fn mock() -> Mock {
    Mock::new(|| Timestamp::UNIX_EPOCH)
}

fn is_failed<T>(result: &providers::Result<T>) -> bool {
    matches!(result, Err(Error::Failed { .. }))
}

async fn sh(mock: &Mock, id: &SandboxId, script: &str) -> (String, String, i32) {
    let command = Command {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(60),
        stdin: None,
        terminal: None,
    };
    let guest = mock.guest(id).await.expect("the box runs");
    let mut output = guest.exec(command).await.expect("it starts");
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = output.next().await {
        match event.expect("the box lives on") {
            OutputEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            OutputEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            OutputEvent::Exit(exit) => {
                let text = |bytes| String::from_utf8(bytes).expect("text");
                return (text(stdout), text(stderr), exit.code);
            }
        }
    }
    panic!("no exit");
}

#[tokio::test]
async fn starts_fail_as_often_as_asked() {
    let mock = mock();
    let spec = spec(&[("mock.start_fail", "2")]);
    for _ in 0..2 {
        assert!(is_failed(&mock.start(&id(1), &spec).await));
        assert_eq!(mock.inventory().await.unwrap(), []);
    }
    mock.start(&id(1), &spec).await.unwrap();
    // Attempts are counted per box.
    assert!(is_failed(&mock.start(&id(2), &spec).await));
}

#[tokio::test]
async fn a_lost_reply_leaves_a_box_that_a_repeat_finds() {
    let mock = mock();
    let spec = spec(&[("mock.lose_reply", "1")]);
    assert!(is_failed(&mock.start(&id(1), &spec).await));
    assert_eq!(mock.inventory().await.unwrap().len(), 1);
    mock.start(&id(1), &spec).await.unwrap();
    assert_eq!(mock.inventory().await.unwrap().len(), 1);
}

#[tokio::test]
async fn stops_fail_as_often_as_asked() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.stop_fail", "2")])).await.unwrap();
    for _ in 0..2 {
        assert!(is_failed(&mock.stop(&id(1)).await));
        assert!(mock.inventory().await.unwrap()[0].alive);
    }
    mock.stop(&id(1)).await.unwrap();
    assert_eq!(mock.inventory().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn delays_are_as_long_as_asked() {
    let mock = mock();
    let labels =
        [("mock.start_delay", "5s"), ("mock.stop_delay", "7s"), ("mock.exec_delay", "11s"), ("mock.file_delay", "13s")];
    let begun = Instant::now();
    mock.start(&id(1), &spec(&labels)).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 5);
    sh(&mock, &id(1), "true").await;
    assert_eq!(begun.elapsed().as_secs(), 16);
    mock.guest(&id(1)).await.unwrap().stat("/").await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 29);
    mock.stop(&id(1)).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 36);
}

#[tokio::test(start_paused = true)]
async fn boxes_vanish_and_die_when_asked() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.vanish_after", "3s")])).await.unwrap();
    mock.start(&id(2), &spec(&[("mock.die_after", "3s")])).await.unwrap();
    assert_eq!(mock.inventory().await.unwrap().len(), 2);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let found = mock.inventory().await.unwrap();
    assert_eq!(found.len(), 1);
    assert!(found[0].id == id(2) && !found[0].alive);
    assert!(matches!(mock.guest(&id(2)).await, Err(Error::Gone)));
}

#[tokio::test(start_paused = true)]
async fn a_box_made_anew_does_not_inherit_the_end_of_the_old_one() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.vanish_after", "3s")])).await.unwrap();
    mock.stop(&id(1)).await.unwrap();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(mock.inventory().await.unwrap()[0].alive);
}

#[tokio::test]
async fn health_is_what_is_asked_for() {
    let mock = mock();
    mock.start(&id(1), &spec(&[("mock.health", "on fire")])).await.unwrap();
    assert_eq!(mock.health().await.error.as_deref(), Some("on fire"));
    mock.stop(&id(1)).await.unwrap();
    assert_eq!(mock.health().await.error, None);
    mock.set_health(Some("broken".to_owned()));
    assert_eq!(mock.health().await.error.as_deref(), Some("broken"));
}

#[tokio::test]
async fn a_label_that_makes_no_sense_is_refused_before_the_start() {
    let mock = mock();
    let spec = spec(&[("mock.start_dealy", "5s")]);
    assert!(matches!(mock.check(&spec), Err(Error::Invalid(_))));
    assert!(matches!(mock.start(&id(1), &spec).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_full_box_says_so() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    let (_, stderr, code) = sh(&mock, &id(1), "yes > /workspace/full").await;
    assert!(code == 1 && stderr.contains("no space left"), "{stderr}");
    let guest = mock.guest(&id(1)).await.unwrap();
    let endless = futures_util::stream::repeat_with(|| Ok(bytes::Bytes::from_static(&[7; 4096])));
    assert!(matches!(guest.write_file("/workspace/f", None, endless.boxed()).await, Err(Error::NoSpace)));
}

#[tokio::test]
async fn the_shell_does_what_a_shell_does() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    for (script, stdout, code) in [
        ("printf 'a\\nb' | (read X; echo $X\"-$X$NONE\"- '$X' $ \\$X)", "a-a- $X $ $X\n", 0),
        ("true && echo yes || echo no; false && echo yes || echo no", "yes\nno\n", 0),
        ("(exit 3) || echo 'a)'; exit 4; echo never", "a)\n", 4),
        ("seq 100 | head -c 7 | wc -c", "7\n", 0),
        ("cd /tmp; pwd; (cd /; pwd); pwd", "/tmp\n/\n/tmp\n", 0),
        ("echo one >f; 2>&1 echo two >> f; cat f", "one\ntwo\n", 0),
        ("cat nothing 2>/dev/null || echo missing", "missing\n", 0),
        ("echo a#b # comment\necho c", "a#b\nc\n", 0),
        ("printf '%s=%s\\n' a 1 b 2; printf '\\101\\n'", "a=1\nb=2\nA\n", 0),
        ("mkdir d; touch d/.a d/b; ls d; rm -r d; ls d", "b\n", 1),
        ("nothing-like-it", "", 127),
        ("kill -9 $$; echo never", "", 137),
    ] {
        let ran = sh(&mock, &id(1), script).await;
        assert_eq!((ran.0.as_str(), ran.2), (stdout, code), "{script}: {ran:?}");
    }
}

#[tokio::test]
async fn a_script_that_the_shell_does_not_know_is_refused() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    let open = "(".repeat(100_000);
    let unfinished = ["a |", "a >", "'a", "\"a", "(a", &open];
    let misplaced = ["a)", "&& a", "; | a", "true & & a", "echo >&9", "echo (a)"];
    let unsupported = ["echo ${A}", "echo $(a)", "echo `a`", "echo a < b"];
    for script in unfinished.into_iter().chain(misplaced).chain(unsupported) {
        let ran = sh(&mock, &id(1), script).await;
        assert_eq!((ran.0.as_str(), ran.2), ("", 2), "{}", &script[..script.len().min(20)]);
    }
}

#[tokio::test]
async fn shells_in_shells_have_an_end() {
    let mock = mock();
    mock.start(&id(1), &spec(&[])).await.unwrap();
    let again = futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"./again"))]).boxed();
    let guest = mock.guest(&id(1)).await.unwrap();
    guest.write_file("/workspace/again", Some(0o755), again).await.unwrap();
    let (_, stderr, code) = sh(&mock, &id(1), "./again").await;
    assert!(code == 2 && stderr.contains("nested"), "{stderr}");
    let deep = format!("{}true{}", "(".repeat(50_000), ")".repeat(50_000));
    let (_, stderr, code) = sh(&mock, &id(1), &deep).await;
    assert!(code == 2 && stderr.contains("nested"), "{stderr}");
}
