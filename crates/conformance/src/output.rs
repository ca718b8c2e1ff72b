//! Output of commands, and readers that stop.

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use providers::OutputEvent;

use super::case::{Case, case};
use super::subject::{Subject, argv, eventually, pieces, sh, soon};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("stdout and stderr come apart, byte for byte", apart),
        case!("output need not be text, nor end with a newline", binary),
        case!("ten thousand short lines arrive whole", lines),
        case!("a large output arrives whole", large),
        case!("output arrives while the command runs", at_once),
        case!("a reader that stops reading stops only its own command", stopped_reader),
        case!("many readers that stop reading hold up no other command", stopped_readers),
        case!("an endless output can be left at any time", endless),
        case!("many commands run at once", many),
        case!("what background processes write is on the console", console, Console),
        case!("the console gives the newest lines", newest_lines, Console),
    ]
}

async fn apart(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.sh("echo out; echo err >&2; printf out2; printf err2 >&2; exit 9").await;
    assert_eq!((ran.text(), &ran.stderr[..], ran.code()), ("out\nout2", &b"err\nerr2"[..], 9));
    let ran = inside.sh("(echo a; echo b >&2) 2>&1; (echo c; echo d >&2) >&2").await;
    assert_eq!((ran.text(), &ran.stderr[..]), ("a\nb\n", &b"c\nd\n"[..]));
}

async fn binary(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.run(argv(&["printf", "\\000\\377\\200\\012\\015\\303"])).await;
    assert_eq!(ran.stdout, b"\0\xff\x80\n\r\xc3");
    assert_eq!(inside.run(argv(&["printf", "no newline"])).await.stdout, b"no newline");
    assert_eq!(inside.sh("printf '\\n\\n'").await.stdout, b"\n\n");
}

async fn lines(subject: Subject) {
    let inside = subject.start().await;
    let expected: String = (1..=10_000).map(|n| format!("{n}\n")).collect();
    assert!(inside.sh("seq 10000").await.text() == expected);
    let ran = inside.sh("seq 10000 | cat >&2").await;
    assert!(ran.stdout.is_empty() && ran.stderr == expected.as_bytes());
}

async fn large(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.sh("yes 0123456789 | head -c 20000000").await;
    assert_eq!(ran.stdout.len(), 20_000_000);
    assert!(ran.stdout.chunks_exact(11).all(|line| line == b"0123456789\n"));
}

async fn at_once(subject: Subject) {
    let inside = subject.start().await;
    let mut output = inside.guest.exec(sh("echo first; sleep 100")).await.unwrap();
    let first = soon("the first line", output.next()).await;
    assert_eq!(first.unwrap().unwrap(), OutputEvent::Stdout("first\n".into()));
}

async fn stopped_reader(subject: Subject) {
    let inside = subject.start().await;
    let mut output = inside.guest.exec(sh("yes")).await.unwrap();
    assert!(output.next().await.unwrap().is_ok());
    assert_eq!(soon("another command", inside.sh("echo x")).await.text(), "x\n");
    soon("a file", inside.write("/workspace/f", "content")).await;
    assert_eq!(soon("a file", inside.read("/workspace/f")).await, b"content");
    // Reading continues where it stopped.
    let mut received = 0;
    while received < 3_000_000 {
        match soon("more output", output.next()).await {
            Some(Ok(OutputEvent::Stdout(bytes))) => received += bytes.len(),
            other => panic!("{other:?}"),
        }
    }
}

async fn stopped_readers(subject: Subject) {
    let inside = subject.start().await;
    let mut stopped = Vec::new();
    for _ in 0..20 {
        let mut output = inside.guest.exec(sh("yes")).await.unwrap();
        assert!(output.next().await.unwrap().is_ok());
        stopped.push(output);
    }
    assert_eq!(soon("another command", inside.sh("echo x")).await.text(), "x\n");
    soon("a file", inside.write("/workspace/f", vec![7; 2_000_000])).await;
    assert_eq!(soon("a file", inside.read("/workspace/f")).await.len(), 2_000_000);
}

async fn endless(subject: Subject) {
    let inside = subject.start().await;
    for pieces in [0, 1, 10, 100] {
        let output = inside.guest.exec(sh("yes")).await.unwrap();
        let taken: Vec<_> = output.take(pieces).collect().await;
        assert!(taken.iter().all(Result::is_ok));
    }
    assert_eq!(inside.sh("yes | head -c 10").await.stdout.len(), 10);
}

async fn many(subject: Subject) {
    let inside = subject.start().await;
    // Each command is a shell and its child, besides the agent.
    let count = subject.spec().resources.pids.saturating_sub(8).div_euclid(3).min(50);
    let scripts: Vec<String> = (0..count).map(|n| format!("echo {n}; cat; exit {n}")).collect();
    let runs = scripts.iter().enumerate().map(|(n, script)| {
        let stdin = pieces(Bytes::from(format!("in {n}")).as_ref());
        inside.run(providers::Command { stdin: Some(stdin), ..sh(script) })
    });
    for (n, ran) in join_all(runs).await.into_iter().enumerate() {
        assert_eq!((ran.text(), ran.code()), (format!("{n}\nin {n}").as_str(), i32::try_from(n).unwrap()));
    }
}

async fn console(subject: Subject) {
    let inside = subject.start().await;
    let ran = inside.sh("(sleep 0.7; echo from behind; echo and an error >&2) & echo ok").await;
    assert_eq!(ran.text(), "ok\n");
    eventually("the lines are on the console", || async {
        let lines = inside.guest.console(100).await.unwrap();
        lines.iter().any(|line| line == "from behind") && lines.iter().any(|line| line == "and an error")
    })
    .await;
}

async fn newest_lines(subject: Subject) {
    let inside = subject.start().await;
    inside.sh("(sleep 0.7; seq 20000; echo end) &").await;
    eventually("the last line is on the console", || async {
        inside.guest.console(1).await.unwrap().first().is_some_and(|line| line == "end")
    })
    .await;
    assert_eq!(inside.guest.console(3).await.unwrap(), ["19999", "20000", "end"]);
    assert!(inside.guest.console(0).await.unwrap().is_empty());
    assert!(inside.guest.console(usize::MAX).await.unwrap().len() <= 10_000);
}
