//! Starts and ends of commands.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use providers::{Command, Error, OutputEvent};

use super::case::{Case, case};
use super::subject::{EVENTUALLY, Subject, argv, eventually, noise, pieces, sh, soon};

/// Hosts that programs reach without the box's proxy.
pub(super) const DIRECT: &str = "localhost,127.0.0.1,::1,0.0.0.0,[::1],127.0.0.0/8";

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("the exit code of a command is given", exit_codes),
        case!("a program that does not exist is 127, one that cannot be executed 126", not_executable),
        case!("a command that a signal ended is 128 and the signal", signals),
        case!("arguments arrive as they were given", arguments),
        case!("a command that no kernel can execute is invalid", invalid_commands),
        case!("the environment is that of the request, with what every process needs", environment),
        case!("nothing of the server's environment reaches a box", no_foreign_environment),
        case!("a command starts in its working directory", workdir),
        case!("a working directory that does not exist is invalid", missing_workdir),
        case!("a command runs as the user that is named", user, Users),
        case!("stdin arrives, byte for byte", stdin),
        case!("without a stdin there is nothing to read", no_stdin),
        case!("a large stdin arrives, byte for byte", large_stdin, Stdin),
        case!("a command need not read its stdin", unread_stdin, Stdin),
        case!("at the deadline a command is killed", timeout),
        case!("at the deadline children in sessions of their own are killed too", timeout_kills_detached),
        case!("at the deadline a command that ignores signals is killed too", timeout_kills_deaf, Processes),
        case!("at the deadline a command that is stopped is killed too", timeout_kills_stopped, Processes, Stops),
        case!("dropping the output kills the command and its children", hang_up, Sessions),
        case!("dropping the output kills a command that waits for stdin", hang_up_with_stdin, Stdin),
        case!("children in the background go on after their command, without holding it up", background),
        case!("a process left behind outlives the end of another one", independent, Processes),
        case!("the duration is that of the command", duration),
        case!("a command has no other open file than its streams", open_files, Processes),
    ]
}

async fn exit_codes(subject: Subject) {
    let inside = subject.start().await;
    for code in [0, 1, 3, 42, 254, 255] {
        let ran = inside.sh(&format!("exit {code}")).await;
        assert_eq!((ran.code(), ran.exit.timed_out, ran.exit.oom_killed), (code, false, false));
        assert!(ran.stdout.is_empty() && ran.stderr.is_empty());
    }
    assert_eq!(inside.run(argv(&["true"])).await.code(), 0);
    assert_eq!(inside.run(argv(&["false"])).await.code(), 1);
}

async fn not_executable(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.run(argv(&["no-such-program"])).await.code(), 127);
    assert_eq!(inside.run(argv(&["/no/such/program"])).await.code(), 127);
    assert_eq!(inside.run(argv(&["/etc/passwd"])).await.code(), 126);
    assert_eq!(inside.run(argv(&["/etc"])).await.code(), 126);
    let ran = inside.sh("no-such-program").await;
    assert_eq!(ran.code(), 127);
    assert!(String::from_utf8_lossy(&ran.stderr).contains("no-such-program"), "{ran:?}");
}

async fn signals(subject: Subject) {
    let inside = subject.start().await;
    for signal in [1, 9, 15] {
        assert_eq!(inside.sh(&format!("kill -{signal} $$; sleep 10")).await.code(), 128 + signal);
    }
}

async fn arguments(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.run(argv(&["printf", "<%s>", "a b", "", "'\"$X`\\", "ünï", "line\nline", "*", "--", "-n"])).await;
    assert_eq!(ran.text(), "<a b><><'\"$X`\\><ünï><line\nline><*><--><-n>");
    let long = "x".repeat(100_000);
    assert_eq!(inside.run(argv(&["echo", &long])).await.stdout.len(), 100_001);
}

async fn invalid_commands(subject: Subject) {
    let inside = subject.start().await;
    for command in [argv(&[]), argv(&[""]), argv(&["echo", "a\0b"])] {
        let what = format!("{command:?}");
        let result = inside.guest.exec(command).await.map(|_| ());
        assert!(matches!(result, Err(Error::Invalid(_))), "{what}: {result:?}");
    }
    for (name, value) in [("", "a"), ("a=b", "c"), ("a\0b", "c"), ("a", "b\0c")] {
        let env = [(name.to_owned(), value.to_owned())].into();
        let result = inside.guest.exec(Command { env, ..argv(&["true"]) }).await.map(|_| ());
        assert!(matches!(result, Err(Error::Invalid(_))), "{name:?}={value:?}: {result:?}");
    }
}

async fn environment(subject: Subject) {
    let inside = subject.start().await;
    let with = |pairs: &[(&str, &str)], command: Command| Command {
        env: pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        ..command
    };
    let pairs = [("GREETING", "hello  wörld"), ("EMPTY", "")];
    let ran = inside.run(with(&pairs, sh("printf '%s|%s|%s' \"$GREETING\" \"$EMPTY\" \"$NOTHING\""))).await;
    assert_eq!(ran.text(), "hello  wörld||");
    for name in ["PATH", "HOME", "LANG", "TERM"] {
        let ran = inside.run(argv(&["printenv", name])).await;
        assert!(ran.code() == 0 && ran.stdout.len() > 1, "{name} is not set");
        let ran = inside.run(with(&[(name, "/bin:/usr/bin")], argv(&["printenv", name]))).await;
        assert_eq!(ran.text(), "/bin:/usr/bin\n", "{name} is not as it was asked for");
    }
}

async fn no_foreign_environment(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.run(argv(&["env"])).await;
    let usual = ["PATH", "HOME", "LANG", "TERM", "PWD", "SHLVL", "_", "OLDPWD", "USER", "LOGNAME", "SHELL"];
    let of_proxy = |name: &str, value: &str| {
        let url = name.to_ascii_uppercase().ends_with("_PROXY") && value.starts_with("http://127.0.0.1:");
        let java = ["MAVEN_OPTS", "GRADLE_OPTS"].contains(&name) && value.starts_with("-Dhttp.proxyHost=127.0.0.1 ");
        url || java || matches!((name, value), ("no_proxy" | "NO_PROXY", DIRECT) | ("NODE_USE_ENV_PROXY", "1"))
    };
    // Where no control group tells programs the memory of the box.
    let is_of_size = |name: &str| ["DOTNET_GCHeapHardLimit", "GOMEMLIMIT", "NODE_OPTIONS"].contains(&name);
    let is_known = |name: &str, value: &str| usual.contains(&name) || is_of_size(name) || of_proxy(name, value);
    let pairs = ran.text().lines().filter_map(|line| line.split_once('='));
    let foreign: Vec<_> = pairs.filter(|(name, value)| !is_known(name, value)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

async fn workdir(subject: Subject) {
    let inside = subject.start().await;
    assert_eq!(inside.sh("pwd").await.text(), "/workspace\n");
    assert_eq!(inside.sh("echo x > here; cat /workspace/here").await.text(), "x\n");
    for path in ["/tmp", "/"] {
        let ran = inside.run(Command { workdir: Some(path.to_owned()), ..sh("pwd") }).await;
        assert_eq!(ran.text(), format!("{path}\n"));
    }
}

async fn missing_workdir(subject: Subject) {
    let inside = subject.start().await;
    for path in ["/no/such/place", "/etc/passwd", "tmp", "", "/tmp\0"] {
        let result = inside.guest.exec(Command { workdir: Some(path.to_owned()), ..sh("true") }).await.map(|_| ());
        assert!(matches!(result, Err(Error::Invalid(_))), "{path:?}: {result:?}");
    }
}

async fn user(subject: Subject) {
    let inside = subject.start().await;
    for (user, expected) in [("1000", "1000"), ("1000:1001", "1000"), ("root", "0"), ("0", "0")] {
        let ran = inside.run(Command { user: Some(user.to_owned()), ..argv(&["id", "-u"]) }).await;
        assert_eq!(ran.text().trim(), expected, "{user}");
    }
    let ran = inside.run(Command { user: Some("1000:1001".to_owned()), ..argv(&["id", "-g"]) }).await;
    assert_eq!(ran.text().trim(), "1001");
    let unknown = Command { user: Some("nobody-by-this-name".to_owned()), ..argv(&["true"]) };
    assert!(matches!(inside.guest.exec(unknown).await.map(|_| ()), Err(Error::Invalid(_))));
}

async fn stdin(subject: Subject) {
    let inside = subject.start().await;
    for content in [&b""[..], b"x", b"no newline\n\0\xff", &noise(200_000)] {
        passes(&inside, content).await;
    }
}

async fn large_stdin(subject: Subject) {
    passes(&subject.start().await, &noise(3_000_000)).await;
}

/// Checks that `cat` returns its input.
async fn passes(inside: &super::subject::Inside, content: &[u8]) {
    let ran = inside.run(Command { stdin: Some(pieces(content)), ..argv(&["cat"]) }).await;
    assert!(ran.stdout == content, "{} bytes became {}", content.len(), ran.stdout.len());
    assert_eq!(ran.code(), 0);
}

async fn no_stdin(subject: Subject) {
    let inside = subject.start().await;
    let ran = soon("a command without a stdin", inside.run(argv(&["cat"]))).await;
    assert_eq!((ran.code(), ran.text()), (0, ""));
}

async fn unread_stdin(subject: Subject) {
    let inside = subject.start().await;
    let endless = || stream::repeat_with(|| Ok(Bytes::from_static(&[b'x'; 10_000]))).boxed();
    let ran = soon("a command that ends", inside.run(Command { stdin: Some(endless()), ..sh("exit 3") })).await;
    assert_eq!(ran.code(), 3);
    let head = Command { stdin: Some(endless()), ..argv(&["head", "-c", "5"]) };
    assert_eq!(soon("a command that reads a little", inside.run(head)).await.text(), "xxxxx");
    let silent = Command { stdin: Some(stream::pending().boxed()), ..sh("exit 4") };
    assert_eq!(soon("a command whose stdin never comes", inside.run(silent)).await.code(), 4);
}

async fn timeout(subject: Subject) {
    let inside = subject.start().await;
    let command = Command { timeout: Duration::from_secs(1), ..sh("echo before; sleep 1000") };
    let ran = soon("a command past its deadline", inside.run(command)).await;
    assert_eq!((ran.code(), ran.exit.timed_out, ran.text()), (124, true, "before\n"));
    assert!((Duration::from_millis(950)..EVENTUALLY).contains(&ran.exit.duration), "{ran:?}");
    // An exit code of 124 alone does not mean a deadline.
    assert!(!inside.sh("exit 124").await.exit.timed_out);
}

async fn timeout_kills_detached(subject: Subject) {
    let inside = subject.start().await;
    let script = "(setsid sh -c '(sleep 1; echo x > /tmp/late) &' &) ; (sleep 1; echo x > /tmp/late) & sleep 100";
    let ran = soon("the deadline", inside.run(Command { timeout: Duration::from_millis(300), ..sh(script) })).await;
    assert!(ran.exit.timed_out);
    stays_absent(&inside, "/tmp/late").await;
}

/// Checks that a process left behind does not make `path`, waiting longer than the processes in
/// these cases do.
async fn stays_absent(inside: &super::subject::Inside, path: &str) {
    assert_eq!(inside.sh("sleep 1.5").await.code(), 0);
    assert!(!inside.exists(path).await, "a process went on and made {path}");
}

async fn timeout_kills_stopped(subject: Subject) {
    timeout_kills(subject, &["kill -STOP $$"]).await;
}

async fn timeout_kills_deaf(subject: Subject) {
    // An argument that no other process has, since some boxes show the processes of the host.
    let time = format!("1000.{}", std::process::id());
    let inside = timeout_kills(
        subject,
        &[
            "trap '' TERM INT HUP; while :; do sleep 1; done",
            &format!("sleep {time} | sleep {time} | sleep {time}"),
            "while :; do :; done",
        ],
    )
    .await;
    let left = format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '[s]leep {time}'");
    assert_eq!(inside.sh(&left).await.text(), "0\n", "processes are left");
}

async fn timeout_kills(subject: Subject, scripts: &[&str]) -> super::subject::Inside {
    let inside = subject.start().await;
    for script in scripts {
        let command = Command { timeout: Duration::from_millis(300), ..sh(script) };
        let ran = soon(script, inside.run(command)).await;
        assert_eq!((ran.code(), ran.exit.timed_out), (124, true), "{script}");
    }
    inside
}

async fn hang_up(subject: Subject) {
    let inside = subject.start().await;
    let script = "echo begun; (setsid sh -c 'sleep 1; echo x > /tmp/late' &); sleep 1; echo x > /tmp/late";
    let mut output = inside.guest.exec(sh(script)).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    drop(output);
    stays_absent(&inside, "/tmp/late").await;
}

async fn hang_up_with_stdin(subject: Subject) {
    let inside = subject.start().await;
    let stdin = Some(stream::repeat_with(|| Ok(Bytes::from_static(&[b'x'; 10_000]))).boxed());
    let script = "echo begun; sleep 1; echo x > /tmp/late; cat";
    let mut output = inside.guest.exec(Command { stdin, ..sh(script) }).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("begun\n".into()));
    // Reads on, so that stdin is sent until its buffers are full.
    let _ = tokio::time::timeout(Duration::from_millis(200), output.next()).await;
    drop(output);
    stays_absent(&inside, "/tmp/late").await;
}

async fn background(subject: Subject) {
    let inside = subject.start().await;
    let ran = soon("the main process", inside.sh("sleep 100 & echo ok")).await;
    assert_eq!((ran.code(), ran.text()), (0, "ok\n"));
    let ran = soon("the main process", inside.sh("(sleep 0.7; echo x > /tmp/after) & exit 5")).await;
    assert_eq!(ran.code(), 5);
    eventually("the child goes on", || inside.exists("/tmp/after")).await;
}

async fn independent(subject: Subject) {
    let inside = subject.start().await;
    let leave = async |seconds: &str| {
        let left = inside.sh(&format!("sleep {seconds} > /dev/null 2>&1 < /dev/null & echo $!")).await;
        let lives = format!("kill -0 {}", left.text().trim());
        assert_eq!(inside.sh(&lives).await.code(), 0);
        lives
    };
    let stays = leave("1000").await;
    for _ in 0..3 {
        let ends = leave("0.5").await;
        eventually("the other one has ended", || async { inside.sh(&ends).await.code() != 0 }).await;
    }
    assert_eq!(inside.sh(&stays).await.code(), 0);
}

async fn duration(subject: Subject) {
    let inside = subject.start().await;
    let slow = inside.sh("sleep 0.4").await.exit.duration;
    assert!((Duration::from_millis(400)..EVENTUALLY).contains(&slow), "{slow:?}");
    // The time of children left behind is not counted.
    let quick = inside.sh("sleep 30 & true").await.exit.duration;
    assert!(quick < Duration::from_secs(20), "{quick:?}");
}

async fn open_files(subject: Subject) {
    let inside = subject.start().await;
    // Descriptor 3 is the folder that `ls` reads.
    assert_eq!(inside.run(argv(&["ls", "/proc/self/fd"])).await.text(), "0\n1\n2\n3\n");
}
