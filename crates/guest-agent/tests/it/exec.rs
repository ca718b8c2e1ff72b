//! Environment, descriptors and end of a command.

use guest_protocol::FailureKind;

use crate::harness::Agent;

#[tokio::test]
async fn streams_and_the_code_come_apart() {
    let mut agent = Agent::start().await;
    let output = agent.run("echo out; echo err >&2; exit 3").await;
    assert_eq!((output.out(), output.err(), output.code()), ("out\n", "err\n", 3));
    agent.end().await;
}

#[tokio::test]
async fn codes_are_those_of_a_shell() {
    let mut agent = Agent::start().await;
    let (plain, dir) = (agent.path("plain"), agent.path("dir"));
    std::fs::write(&plain, "x").unwrap();
    std::fs::create_dir(&dir).unwrap();
    for (argv, code) in [
        (vec!["true"], 0),
        (vec!["no-such-program"], 127),
        (vec!["/no/such/program"], 127),
        (vec![plain.as_str()], 126),
        (vec![dir.as_str()], 126),
        (vec!["sh", "-c", "kill -9 $$"], 137),
        (vec!["sh", "-c", "kill -15 $$"], 143),
        (vec!["sh", "-c", "exit 255"], 255),
    ] {
        let exec = agent.command(&argv);
        let output = agent.exec(&exec).await;
        assert_eq!(output.code(), code, "{argv:?}: {output:?}");
        assert_eq!(output.err().contains("tidebox: "), matches!(code, 126 | 127), "{output:?}");
    }
    agent.end().await;
}

#[tokio::test]
async fn a_script_without_an_interpreter_is_the_shells() {
    use std::os::unix::fs::PermissionsExt;
    let mut agent = Agent::start().await;
    let script = agent.path("script");
    std::fs::write(&script, "echo \"$0 $1\"").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let exec = agent.command(&[&script, "one"]);
    assert_eq!(agent.exec(&exec).await.out(), format!("{script} one\n"));
    agent.end().await;
}

#[tokio::test]
async fn what_no_kernel_can_execute_is_refused() {
    let mut agent = Agent::start().await;
    let good = agent.command(&["true"]);
    let huge = "x".repeat(200_000);
    let mut bad = vec![
        agent.command(&[]),
        agent.command(&[""]),
        agent.command(&["true", "a\0b"]),
        agent.command(&["true", &huge]),
    ];
    for (name, value) in [("", "x"), ("A=B", "x"), ("A", "x\0"), ("A\0", "x")] {
        let mut exec = good.clone();
        exec.env.insert(name.to_owned(), value.to_owned());
        bad.push(exec);
    }
    for workdir in ["", "relative", "/no/such/dir", "/etc/passwd", "/\0", "/proc/self/fd/3", "/proc/self/fd/5"] {
        bad.push(guest_protocol::Exec { workdir: Some(workdir.to_owned()), ..good.clone() });
    }
    for exec in bad {
        let output = agent.exec(&exec).await;
        let failure = output.end.as_ref().unwrap_err();
        assert_eq!(failure.kind, FailureKind::Invalid, "{exec:?}: {output:?}");
    }
    let nowhere = guest_protocol::Exec { workdir: Some("/no/such/dir".to_owned()), ..good };
    let failure = agent.exec(&nowhere).await.end.unwrap_err();
    assert!(failure.message.contains("/no/such/dir"), "{failure:?}");
    agent.end().await;
}

#[tokio::test]
async fn a_command_starts_clean() {
    let mut agent = Agent::start().await;
    let output = agent
        .run(
            "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> .*/\\1/p' | sort -n | tr '\\n' ' '; umask; cat /proc/self/oom_score_adj; \
             grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o sid= -p $$ | tr -d ' ' | grep -qx $$ && echo own session; \
             readlink /proc/self/fd/0; pwd; ulimit -n",
        )
        .await;
    let lines: Vec<&str> = output.out().lines().collect();
    // `ls` itself opens the folder as 3.
    assert_eq!(lines[0], "0 1 2 3 0022");
    assert_eq!(lines[1], "1000");
    assert!(lines[2].ends_with("0000000000000000") && lines[3].ends_with("0000000000000000"), "{lines:?}");
    assert_eq!(&lines[4..6], ["own session", "/dev/null"]);
    assert_eq!(lines[6], agent.dir.path().to_str().unwrap());
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    assert_eq!(lines[7], ours.to_string());
    agent.end().await;
}

#[tokio::test]
async fn nothing_but_the_given_environment_is_seen() {
    let mut agent = Agent::start_without_proxy().await;
    let mut exec = agent.command(&["/usr/bin/env"]);
    exec.env.insert("A".to_owned(), "b\nc".to_owned());
    let output = agent.exec(&exec).await;
    assert!(output.out().contains("A=b\nc\n"));
    assert!(output.out().contains("HOME=/root\n"));
    assert_eq!(output.out().lines().filter(|line| line.contains('=')).count(), 6);
    agent.end().await;
}

#[tokio::test]
async fn a_start_that_makes_no_sense_is_refused() {
    use bytes::Bytes;
    use guest_protocol::frame::{Kind, encode};
    use http_body_util::{BodyExt, Full};
    let mut agent = Agent::start().await;
    for bytes in [
        Bytes::new(),
        Bytes::from_static(b"\x63\0\0\0\0"),
        Bytes::from_static(b"\x01\xff\xff\xff\xff"),
        Bytes::from_static(b"\x01\0"),
        encode(Kind::Stdin, b"x"),
        encode(Kind::Start, b"{"),
        encode(Kind::Start, b"{\"argv\":[\"true\"]}"),
    ] {
        let running = agent.open_with(Full::new(bytes.clone()).boxed_unsync()).await;
        assert_eq!(running.finish().await.end.unwrap_err().kind, FailureKind::Invalid, "{bytes:?}");
    }
    agent.end().await;
}

#[tokio::test]
async fn durations_are_those_of_the_main_process() {
    let mut agent = Agent::start().await;
    let exit = agent.run("sleep 0.2").await.end.unwrap();
    assert!((200_000..5_000_000).contains(&exit.duration_us), "{exit:?}");
    let exit = agent.run("sleep 30 & exit 0").await.end.unwrap();
    assert!(exit.duration_us < 200_000, "{exit:?}");
    agent.end().await;
}
