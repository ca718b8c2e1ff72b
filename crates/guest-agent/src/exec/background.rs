//! Background processes: commands that belong to no connection. Their output goes into a ring, from
//! which any number of readers take it.

mod screen;
mod spill;
pub(crate) mod table;

use std::future::pending;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use guest_protocol::frame::{Decoder, HEADER_BYTES, Kind, encode, parse_header};
use guest_protocol::output::{BURST_BYTES, BURST_PAUSE, Pace, Read};
use guest_protocol::{
    Attach, AttachFrom, Exit, Failure, PROCESS_NOTE_BYTES_MAX, ProcessInfo, ProcessInput, ProcessOnly, StartProcess,
    process_command, process_name_fault,
};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use self::table::{Fed, Process, Reader, Started};
use super::process_tree::{ProcessTree, kill};
use super::streams::Stdin;
use super::{CODE_KILLED, Command, NotExecuted};
use crate::agent::Agent;
use crate::failure::{Result, conflict, internal, invalid};

/// Number of frames between a process's pipes and its ring.
const QUEUE_FRAMES: usize = 2;
/// Longest wait for the rest of a character, so that readers of text get whole ones even if the other
/// stream is written meanwhile.
const REST_WAIT: Duration = Duration::from_millis(50);
/// Interval between looks whether a process still has to wait for readers.
const READERS_LOOK: Duration = Duration::from_secs(1);
/// Longest deadline; what is said to be longer is as good as none.
const TIMEOUT_MS_MAX: u64 = 100 * 365 * 24 * 60 * 60 * 1000;

/// Starts a process. It is killed if the receiver of `begun` is gone by then, since no one would know it.
pub(crate) async fn start(
    agent: Rc<Agent>,
    start: StartProcess,
    begun: oneshot::Sender<Result<ProcessInfo>>,
    permit: OwnedSemaphorePermit,
) {
    let StartProcess { mut exec, input, input_ends, name, linger_ms, lossless, paced, note } = start;
    exec.timeout_ms = exec.timeout_ms.min(TIMEOUT_MS_MAX);
    let terminal = exec.terminal;
    let wants_stdin = exec.stdin || exec.terminal.is_some();
    let command = process_command(&exec.argv);
    let started_ms = now_ms();
    let begins = async {
        if let Some(fault) = name.as_deref().and_then(process_name_fault) {
            return Err(invalid(fault));
        }
        if note.as_ref().is_some_and(|note| note.len() > PROCESS_NOTE_BYTES_MAX) {
            return Err(invalid(format!("the note of a process must be at most {PROCESS_NOTE_BYTES_MAX} bytes")));
        }
        let first = BASE64.decode(&input).map_err(|error| invalid(format!("the input is not base64: {error}")))?;
        agent.background.check_name(name.as_deref())?;
        let mut command = Command::start(&agent, exec)?;
        let refused = command.begin(&agent, pending()).await?;
        let checked = agent.background.check_name(name.as_deref());
        if checked.is_err() {
            kill(&agent, &ProcessTree::Command(Rc::clone(&command.reaper))).await;
        }
        checked.map(|()| (command, refused, first))
    };
    let (running, refused, first) = match begins.await {
        Ok(begins) => begins,
        Err(failure) => {
            // A caller that has gone needs no reason.
            let _ = begun.send(Err(failure));
            return;
        }
    };
    let listed = agent.commands.add(Rc::clone(&running.reaper), running.terminal.clone());
    let (stdin, fed) = mpsc::channel(1);
    let process = agent.background.add(Started {
        number: listed.number(),
        name,
        command,
        started_ms,
        terminal,
        pace: Pace::of(lossless, paced),
        note,
        stdin: (wants_stdin && !input_ends).then_some(stdin),
        reaper: Rc::clone(&running.reaper),
    });
    if begun.send(Ok(process.info())).is_err() {
        process.ending.send_replace(true);
        agent.background.forget(process.number);
    }
    if let Some(linger_ms) = linger_ms {
        let agent = Rc::clone(&agent);
        let process = Rc::clone(&process);
        spawn_local(async move { end_when_left(&agent, &process, Duration::from_millis(linger_ms)).await });
    }
    let exit = run(&agent, &process, running, |stdin| feed(stdin, first, input_ends, fed), permit, refused).await;
    drop(listed);
    process.ended(exit);
    agent.background.forget_old();
}

/// Runs a process to its end.
async fn run<F: Future<Output = ()>>(
    agent: &Rc<Agent>,
    process: &Rc<Process>,
    command: Command,
    feeding: impl FnOnce(Stdin) -> F,
    permit: OwnedSemaphorePermit,
    refused: Option<NotExecuted>,
) -> Exit {
    let started = Instant::now();
    let (to, frames) = mpsc::channel(QUEUE_FRAMES);
    // Dropping the receiver of the frames is what kills a command.
    let collecting = async {
        let mut ending = process.ending.subscribe();
        tokio::select! {
            () = collect(process, frames) => {}
            _ = ending.wait_for(|ending| *ending) => {}
        }
    };
    let running = async {
        let exit = command.run(agent, feeding, &to, permit, refused).await;
        drop(to);
        exit
    };
    let (exit, ()) = tokio::join!(running, collecting);
    let duration_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    exit.unwrap_or(Exit {
        code: CODE_KILLED,
        signal: Some(libc::SIGKILL),
        timed_out: false,
        oom_killed: false,
        pids_exhausted: false,
        duration_us,
    })
}

/// Moves frames of output into the ring until they end.
async fn collect(process: &Process, mut frames: mpsc::Receiver<Bytes>) {
    let mut rests = [(Kind::Stdout, Vec::new()), (Kind::Stderr, Vec::new())];
    let mut burst = 0;
    loop {
        while process.is_ahead() {
            // A first reader that never comes notifies nothing.
            let _ = timeout(READERS_LOOK, process.sent_on.notified()).await;
        }
        let frame = if rests.iter().all(|(_, rest)| rest.is_empty()) {
            frames.recv().await
        } else {
            match timeout(REST_WAIT, frames.recv()).await {
                Ok(frame) => frame,
                Err(_) => {
                    flush(process, &mut rests);
                    continue;
                }
            }
        };
        let Some(frame) = frame else { break };
        let Some((head, payload)) = frame.split_first_chunk::<HEADER_BYTES>() else { continue };
        let Ok((kind, _)) = parse_header(*head) else { continue };
        let Some((_, rest)) = rests.iter_mut().find(|(of, _)| *of == kind) else { continue };
        if rest.is_empty() {
            let (whole, begun) = payload.split_at(payload.len() - incomplete(payload));
            process.append(kind, whole);
            rest.extend_from_slice(begun);
        } else {
            rest.extend_from_slice(payload);
            let whole = rest.len() - incomplete(rest);
            process.append(kind, rest.get(..whole).unwrap_or_default());
            rest.drain(..whole);
        }
        burst += payload.len();
        if burst >= BURST_BYTES && !process.has_pace() {
            burst = 0;
            sleep(BURST_PAUSE).await;
        }
    }
    flush(process, &mut rests);
}

fn flush(process: &Process, rests: &mut [(Kind, Vec<u8>); 2]) {
    for (kind, rest) in rests {
        process.append(*kind, rest);
        rest.clear();
    }
}

/// Returns the number of bytes at the end that begin a character of UTF-8 and do not end it.
fn incomplete(bytes: &[u8]) -> usize {
    let tail = bytes.get(bytes.len().saturating_sub(3)..).unwrap_or_default();
    for (back, byte) in tail.iter().rev().enumerate() {
        let len = match byte {
            0x00..=0x7f => return 0,
            0x80..=0xbf => continue,
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xff => 4,
        };
        return if back + 1 < len { back + 1 } else { 0 };
    }
    0
}

/// Writes input to a process until it ends.
async fn feed(mut stdin: Stdin, first: Vec<u8>, first_ends: bool, mut fed: mpsc::Receiver<Fed>) {
    if !first.is_empty() {
        stdin.write(&first).await;
    }
    if first_ends {
        stdin.end().await;
    }
    drop(first);
    while let Some(next) = fed.recv().await {
        match next {
            Fed::Bytes(bytes, taken) => {
                stdin.write(&bytes).await;
                // The one who waits for this may have gone.
                let _ = taken.send(());
            }
            Fed::End => stdin.end().await,
        }
    }
    // Without a stdin that could be written, the process has /dev/null.
    pending().await
}

/// Ends and forgets a process that has had no reader for as long as `linger`.
async fn end_when_left(agent: &Agent, process: &Process, linger: Duration) {
    let mut readers = process.readers();
    loop {
        let read = readers.wait_for(|readers| *readers == 0).await.is_ok();
        if !read {
            return;
        }
        if timeout(linger, readers.wait_for(|readers| *readers > 0)).await.is_err() {
            break;
        }
    }
    process.ending.send_replace(true);
    agent.background.forget(process.number);
}

/// Begins to send the output of a process to a reader, and to pass the reader's input on.
///
/// # Errors
/// Not found for a process that is not there, invalid for a position that it has not reached.
pub(crate) fn attach(agent: &Agent, attach: Attach, input: Incoming) -> Result<mpsc::Receiver<Bytes>> {
    let process = agent.background.get(attach.process)?;
    if let AttachFrom::Position(position) = attach.from {
        let (_, end) = process.span();
        if position > end {
            return Err(invalid(format!("the process has written {end} bytes so far, not {position}")));
        }
    }
    let (to, frames) = mpsc::channel(QUEUE_FRAMES);
    let reader = process.reader(attach.from);
    spawn_local(async move {
        let feeding = feed_frames(Rc::clone(&process), input);
        let closed = to.clone();
        tokio::select! {
            () = send(reader, attach, &to) => {}
            () = feeding => {}
            () = closed.closed() => {}
        }
    });
    Ok(frames)
}

/// Sends the output.
async fn send(mut reader: Reader, attach: Attach, to: &mpsc::Sender<Bytes>) {
    // If the receiver is gone, the reader is too, and what waits for this ends.
    let _ = try_send(&mut reader, attach, to).await;
}

async fn try_send(
    reader: &mut Reader,
    attach: Attach,
    to: &mpsc::Sender<Bytes>,
) -> Result<(), mpsc::error::SendError<Bytes>> {
    let process = Rc::clone(&reader.process);
    let (first, end) = process.span();
    let mut position = match attach.from {
        AttachFrom::Position(position) => position,
        AttachFrom::Screen => match process.drawn() {
            Some(drawn) => {
                to.send(encode(Kind::Screen, &drawn)).await?;
                end
            }
            None => first,
        },
    };
    to.send(position_frame(position)).await?;
    loop {
        reader.news.mark_unchanged();
        // Before the ring: what is written before the end is in it.
        let exit = process.exit();
        match process.read(position) {
            Read::Frame(frame, next) => {
                to.send(frame).await?;
                position = next;
                reader.sent(position);
            }
            Read::Lost(oldest) => {
                position = oldest;
                reader.sent(position);
                to.send(position_frame(position)).await?;
            }
            Read::Nothing => {
                if let Some(exit) = exit {
                    let json = serde_json::to_vec(&exit).unwrap_or_default();
                    return to.send(encode(Kind::Exit, &json)).await;
                }
                if !attach.follow || reader.news.changed().await.is_err() {
                    return Ok(());
                }
            }
        }
    }
}

fn position_frame(position: u64) -> Bytes {
    encode(Kind::Position, &position.to_be_bytes())
}

/// Passes a reader's frames of input on. Returns only when they make no sense.
async fn feed_frames(process: Rc<Process>, mut body: Incoming) {
    let mut decoder = Decoder::default();
    while let Some(Ok(piece)) = body.frame().await {
        let Some(bytes) = piece.data_ref() else { continue };
        decoder.feed(bytes);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => {
                    // A process without an open stdin drops what is written, as one that has closed it.
                    let Ok(stdin) = process.stdin() else { continue };
                    match frame.kind {
                        Kind::Stdin => drop(give(&stdin, frame.payload).await),
                        Kind::StdinEnd => {
                            process.close_stdin();
                            // One that has ended needs no end of its stdin.
                            let _ = stdin.send(Fed::End).await;
                        }
                        Kind::Start
                        | Kind::Stdout
                        | Kind::Stderr
                        | Kind::Exit
                        | Kind::Failure
                        | Kind::Screen
                        | Kind::Position => {}
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
    pending().await
}

/// Gives bytes to the process, and waits until it has taken them.
async fn give(stdin: &mpsc::Sender<Fed>, bytes: Bytes) -> Result<()> {
    let (taken, has_taken) = oneshot::channel();
    stdin.send(Fed::Bytes(bytes, taken)).await.map_err(|_| has_ended())?;
    has_taken.await.map_err(|_| has_ended())
}

fn has_ended() -> Failure {
    conflict("the process has ended")
}

/// Writes the request's body to the stdin of a process.
///
/// # Errors
/// Not found for a process that is not there, conflict for one whose stdin is not open.
pub(crate) async fn input(agent: &Agent, input: ProcessInput, mut body: Incoming) -> Result<()> {
    let process = agent.background.get(input.process)?;
    let stdin = process.stdin()?;
    // So that what one caller sends at once is not mixed with what another one does.
    let _turn = process.input_turn.lock().await;
    while let Some(piece) = body.frame().await {
        let piece = piece.map_err(|_| invalid("the input was cut off"))?;
        if let Ok(bytes) = piece.into_data()
            && !bytes.is_empty()
        {
            give(&stdin, bytes).await?;
        }
    }
    if input.end {
        process.close_stdin();
        // One that has ended since it took the bytes needs no end of its stdin.
        let _ = stdin.send(Fed::End).await;
    }
    Ok(())
}

/// Ends a process with all its descendants, and forgets it.
///
/// # Errors
/// Not found for a process that is not there.
pub(crate) async fn remove(agent: &Agent, ProcessOnly { process }: ProcessOnly) -> Result<()> {
    let process = agent.background.get(process)?;
    let mut news = process.news();
    process.ending.send_replace(true);
    while process.runs() {
        news.changed().await.map_err(|error| internal(error.to_string()))?;
    }
    agent.background.forget(process.number);
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the start time is only displayed, never used in a calculation")]
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod test {
    use super::incomplete;

    #[test]
    fn only_a_character_that_more_bytes_would_complete_is_held_back() {
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"abc", 0),
            ("€".as_bytes(), 0),
            (b"a\xe2", 1),
            (b"a\xe2\x82", 2),
            (b"\xf0\x9f\x98", 3),
            ("😀".as_bytes(), 0),
            (b"\xc3", 1),
            (b"\x80\x80\x80\x80", 0),
            (b"\xe2\x82\xac\xac", 0),
        ] {
            assert_eq!(incomplete(bytes), expected, "{bytes:x?}");
        }
    }
}
