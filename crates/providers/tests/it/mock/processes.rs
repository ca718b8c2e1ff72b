//! Background processes in memory.

use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::output::PROCESSES_ENDED_MAX;
use providers::{Attach, AttachFrom, Background, BackgroundStdin, Guest, ProcessEvent, ProcessEvents};

use super::*;

fn command(script: &str) -> Command {
    Command {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: Default::default(),
        workdir: None,
        user: None,
        timeout: Duration::from_secs(3600),
        stdin: None,
        terminal: None,
    }
}

async fn inside(mock: &Mock) -> Arc<dyn Guest> {
    mock.start(&id(1), &spec(&[])).await.unwrap();
    mock.guest(&id(1)).await.unwrap()
}

async fn follow(guest: &Arc<dyn Guest>, process: u64) -> ProcessEvents {
    let attach = Attach { from: AttachFrom::Position(0), follow: true, input: None };
    guest.attach_process(process, attach).await.unwrap()
}

#[tokio::test]
async fn those_that_have_just_ended_are_remembered_up_to_a_bound_and_numbers_are_not_used_again() {
    let mock = mock();
    let guest = inside(&mock).await;
    let lasting = guest.start_process(command("sleep 1000"), Background::default()).await.unwrap();
    for _ in 0..PROCESSES_ENDED_MAX + 6 {
        let ended = guest.start_process(command("true"), Background::default()).await.unwrap();
        let last = follow(&guest, ended.process).await.collect::<Vec<_>>().await.pop();
        assert!(matches!(last, Some(Ok(ProcessEvent::Exit(_)))), "{last:?}");
    }
    let one_more = guest.start_process(command("true"), Background::default()).await.unwrap();
    follow(&guest, one_more.process).await.collect::<Vec<_>>().await;
    let listed: Vec<u64> = guest.processes().await.unwrap().into_iter().map(|listed| listed.process).collect();
    let newest = one_more.process - (PROCESSES_ENDED_MAX as u64 - 1)..=one_more.process;
    assert_eq!(listed, [lasting.process].into_iter().chain(newest).collect::<Vec<_>>());
}

#[tokio::test]
async fn processes_and_their_readers_end_with_the_box() {
    let mock = mock();
    let guest = inside(&mock).await;
    let lossless = Background { is_lossless: true, ..Background::default() };
    let waiting = guest.start_process(command("yes"), lossless).await.unwrap();
    let silent = guest.start_process(command("sleep 1000"), Background::default()).await.unwrap();
    let mut reader = follow(&guest, silent.process).await;
    assert_eq!(reader.next().await.unwrap().unwrap(), ProcessEvent::Position(0));
    mock.die(&id(1));
    assert!(matches!(reader.next().await, Some(Err(Error::Gone))));
    assert!(reader.next().await.is_none());
    for process in [waiting.process, silent.process] {
        assert!(matches!(guest.remove_process(process).await, Err(Error::Gone)));
    }
}

#[tokio::test(start_paused = true)]
async fn input_that_is_not_read_for_long_is_refused() {
    let mock = mock();
    let guest = inside(&mock).await;
    let open = Background { stdin: BackgroundStdin::Open, ..Background::default() };
    let process = guest.start_process(command("sleep 1000"), open).await.unwrap().process;
    let bytes = |count| futures_util::stream::iter([Ok(Bytes::from(vec![b'x'; count]))]).boxed();
    // As much as a pipe takes.
    guest.process_input(process, bytes(64 * 1024), false).await.unwrap();
    let refused = guest.process_input(process, bytes(1), false).await;
    assert!(matches!(&refused, Err(Error::Conflict(message)) if message.contains("20 seconds")), "{refused:?}");
}

#[tokio::test]
async fn a_line_is_read_and_what_follows_is_left() {
    let mock = mock();
    inside(&mock).await;
    let script = r"printf ' a b \nrest\nend' | (read one; read two; read three || echo $one,$two,$three; cat)";
    assert_eq!(sh(&mock, &id(1), script).await, ("a b,rest,end\n".to_owned(), String::new(), 0));
    let (_, error, code) = sh(&mock, &id(1), "read").await;
    assert!(error.contains("read: this usage is not supported") && code == 1, "{error}");
}
