//! Ten hostile boxes and callers beside ten honest ones.
//!
//! The honest ones must not notice much: none of their requests fails, and their waiting times
//! stay near those on a quiet machine. A test program of its own, so that no other test runs
//! beside it and disturbs the quiet part.
//!
//! Runs for some seconds. `TIDEBOX_SOAK_SECONDS=1800` sets the length of the hostile part, and
//! `TIDEBOX_TEST_BINARY` names another program to test than the one that was just built, such as a
//! release build.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]
#![expect(clippy::print_stderr, reason = "the figures are what a soak is for")]

mod honest;
mod hostile;
#[expect(dead_code, reason = "the harness serves other tests too")]
#[path = "../it/server.rs"]
mod server;

use std::time::Duration;

use crate::honest::Figures;
use crate::server::{NATIVE, TestServer};

/// Honest callers, each with its own box; as many are hostile.
const CALLERS: usize = 10;
/// Length of each part unless the environment sets another: enough calls that ten which wait for one lock at
/// once, one of each caller, are not five of 100.
const SECONDS: u64 = 24;
/// Longest part without hostile callers: thousands of calls, whose times vary little.
const QUIET_MAX: Duration = Duration::from_secs(60);
/// The most by which the p95 of an honest call may grow in a long run. A short run of a debug
/// build is not checked for it: there the server itself is slow.
const GROWTH_MAX: f64 = 3.0;
/// The longest that 95 of 100 honest calls may take in any run.
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// Memory that requests may take together, in mebibytes.
const BUDGET_MB: u64 = 64;
/// Most memory of the server: the budget for requests, and what it takes besides.
const RESIDENT_KIB_MAX: u64 = (BUDGET_MB + 96) * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_callers_hardly_notice_ten_hostile_boxes() {
    let long = std::env::var("TIDEBOX_SOAK_SECONDS").ok().map(|seconds| seconds.parse().unwrap());
    let part = Duration::from_secs(long.unwrap_or(SECONDS));
    let settings = format!("{NATIVE} defaults.max_sandboxes_per_owner=8 limits.request_memory_mb={BUDGET_MB}");
    let mut server = TestServer::start(&settings).await;
    server.expect_trouble("that fills the disk");
    let server = server;

    let quiet = honest::live(&server, CALLERS, part.min(QUIET_MAX)).await;
    let attack = hostile::Attack::begin(&server, CALLERS).await;
    let (beside, resident_kib) = tokio::join!(honest::live(&server, CALLERS, part), most_resident(&server, part));
    let deeds = attack.end().await;

    eprintln!("alone:  {quiet}\nbeside: {beside}\nthe server's memory: at most {} MiB", resident_kib >> 10);
    eprintln!("what the hostile ones did, in rounds: {deeds:?}");
    assert!(deeds.iter().any(|(_, rounds)| *rounds > 0), "the hostile ones did nothing: {deeds:?}");
    assert_eq!((quiet.failed(), beside.failed()), (0, 0), "{:#?}{:#?}", quiet.failures, beside.failures);
    for ((what, alone), (_, beside)) in quiet.p95().into_iter().zip(beside.p95()) {
        let most = if long.is_some() { alone.mul_f64(GROWTH_MAX) } else { ANSWER_MAX };
        assert!(beside <= most, "p95 of {what} is {beside:?} beside hostile boxes and {alone:?} alone");
    }
    assert!(resident_kib <= RESIDENT_KIB_MAX, "the server took {} MiB", resident_kib >> 10);
}

/// Returns the most memory that the server had within `part`, sampled each half second.
async fn most_resident(server: &TestServer, part: Duration) -> u64 {
    let mut most = 0;
    let mut look = tokio::time::interval(Duration::from_millis(500));
    let end = tokio::time::Instant::now() + part;
    while look.tick().await < end {
        most = most.max(server.resident_kib());
    }
    most
}

/// Formats the percentiles of each call and the failures.
impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (what, samples) in self.calls() {
            let at = |percent| honest::percentile(samples, percent);
            write!(f, "{what} p50 {:.1?} p95 {:.1?} of {}; ", at(50), at(95), samples.len())?;
        }
        write!(f, "{} failed", self.failed())
    }
}
