//! Memory that the answers of a hostile agent use. The tests have a process of their own, since
//! its memory is measured.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use guest_protocol::{ANSWER_BYTES_MAX, VERSION};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use providers::agent::AgentGuest;
use providers::{Error, Guest};
use tokio::task::JoinSet;

type Body = UnsyncBoxBody<Bytes, Infallible>;

const MIB: usize = 1024 * 1024;
const ENTRY: &str = r#"{"name":"a","path":"/a","size":1,"is_dir":false,"is_symlink":false,"modified_ms":0,"mode":420}"#;

/// Returns an array of about `bytes` bytes that repeats `element`.
fn array(element: &str, bytes: usize) -> Body {
    let element = format!("{element},");
    let piece = Bytes::from(element.repeat(65536 / element.len()));
    let count = bytes / piece.len();
    let pieces = stream::iter([Bytes::from("[")]).chain(stream::iter((0..count).map(move |_| piece.clone())));
    let last = Bytes::from(format!("{}]", element.trim_end_matches(',')));
    let frames = pieces.chain(stream::iter([last])).map(|piece| Ok(Frame::data(piece)));
    StreamBody::new(frames).boxed_unsync()
}

/// Connects to an agent that answers each request with an array of `bytes` bytes.
async fn guest(bytes: usize) -> (Arc<AgentGuest>, JoinSet<()>) {
    let (ours, theirs) = tokio::io::duplex(256 * 1024);
    let mut agent = JoinSet::new();
    agent.spawn(async move {
        let service = service_fn(move |request: Request<Incoming>| async move {
            let body = match request.uri().path() {
                "/hello" => {
                    let hello = Bytes::from(format!(r#"{{"protocol":{VERSION},"version":"test"}}"#));
                    StreamBody::new(stream::iter([Ok(Frame::data(hello))])).boxed_unsync()
                }
                "/files/list" => array(ENTRY, bytes),
                "/files/glob" => array(r#""/""#, bytes),
                _ => array(r#""""#, bytes),
            };
            Ok::<_, Infallible>(Response::new(body))
        });
        let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = http.serve_connection(TokioIo::new(theirs), service).await;
    });
    (Arc::new(AgentGuest::connect(ours).await.unwrap()), agent)
}

fn status(line: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    found.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Runs `work` and returns the peak of its memory use, in bytes.
async fn weigh<T>(work: impl Future<Output = T>) -> (T, usize) {
    // Resets the kernel's count of the peak.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let done = work.await;
    (done, status("VmHWM").saturating_sub(before))
}

#[tokio::test]
async fn no_answer_of_a_hostile_agent_takes_more_memory_than_its_text() {
    let _quiet = crate::QUIET.lock().await;
    let (guest, _agent) = guest(ANSWER_BYTES_MAX - MIB).await;
    let is_failed = |failed: bool, taken: usize, what: &str| {
        assert!(failed, "{what} was taken for true");
        assert!(taken < 32 * MIB, "{what} took {} MiB", taken / MIB);
    };
    let (answer, taken) = weigh(guest.console(10_000)).await;
    is_failed(matches!(answer, Err(Error::Failed { .. })), taken, "a console of 16 million lines");
    let (answer, taken) = weigh(guest.glob("/*")).await;
    is_failed(matches!(answer, Err(Error::Failed { .. })), taken, "a search of 12 million paths");
    let (answer, taken) = weigh(guest.list("/")).await;
    is_failed(matches!(answer, Err(Error::Failed { .. })), taken, "a list of 500,000 entries");
    let (answer, taken) = weigh(guest.stat("/")).await;
    is_failed(matches!(answer, Err(Error::Failed { .. })), taken, "a file that is 16 million strings");
    let (answer, taken) = weigh(guest.chmod("/a", 0o644)).await;
    is_failed(matches!(answer, Err(Error::Failed { .. })), taken, "an answer that should say nothing");
}

#[tokio::test]
async fn large_answers_of_one_box_are_gathered_one_after_the_other() {
    const LISTS: usize = 24;
    let _quiet = crate::QUIET.lock().await;
    // 50,000 entries, which an honest agent may return too.
    let (guest, _agent) = guest(5 * MIB).await;
    let one = async || guest.list("/").await.map(|entries| entries.len());
    let (alone, taken_alone) = weigh(one()).await;
    assert!(alone.unwrap() > 50_000);
    let (together, taken) = weigh(join_all((0..LISTS).map(|_| one()))).await;
    assert!(together.iter().any(Result::is_ok));
    for answer in together {
        assert!(matches!(answer, Ok(_) | Err(Error::Exhausted(_))), "{answer:?}");
    }
    let windows = LISTS * 2 * MIB;
    assert!(taken < 2 * taken_alone + windows, "{} MiB, {} MiB alone", taken / MIB, taken_alone / MIB);
}
