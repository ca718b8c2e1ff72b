//! Large transfers out of a box.

use std::time::Instant;

use api::{ExecMode, ExecRequest};
use client::{Client, ExecEvent};

use super::baseline::rate;
use crate::failure::{Failure, Result};

/// Path of the file that is read: a sparse file, which takes no room.
const FILE: &str = "/workspace/tidebox-bench";

/// Makes the file that is read.
pub async fn make_file(client: &Client, id: &str, bytes: u64) -> Result<()> {
    let result = client.exec(id, argv(&["truncate", "-s", &bytes.to_string(), FILE])).await?;
    if result.exit_code == 0 {
        return Ok(());
    }
    Err(Failure::new("bench_failed", format!("the box cannot create a file to read: {}", result.stderr.trim())))
}

/// Measures the output of a command, in megabytes per second.
pub async fn exec_rate(client: &Client, id: &str, bytes: u64) -> Result<f64> {
    let start = Instant::now();
    let mut events = client.exec_stream(id, argv(&["head", "-c", &bytes.to_string(), "/dev/zero"])).await?;
    let mut received = 0;
    while let Some(event) = events.next().await? {
        match event {
            ExecEvent::Stdout(data) => received += data.len() as u64,
            ExecEvent::Stderr(_) | ExecEvent::Exit(_) => {}
        }
    }
    complete("the command", received, bytes)?;
    Ok(rate(bytes, start))
}

/// Measures the reading of a file, in megabytes per second.
pub async fn file_rate(client: &Client, id: &str, bytes: u64) -> Result<f64> {
    let start = Instant::now();
    let mut content = client.read_file(id, FILE, None).await?;
    let mut received = 0;
    while let Some(data) = content.next().await? {
        received += data.len() as u64;
    }
    complete("the file", received, bytes)?;
    Ok(rate(bytes, start))
}

fn argv(words: &[&str]) -> ExecRequest {
    let mut words = words.iter().map(|&word| word.to_owned());
    ExecRequest {
        command: words.next().unwrap_or_default(),
        args: words.collect(),
        mode: ExecMode::Argv,
        ..ExecRequest::default()
    }
}

/// Fails if bytes are missing: a transfer that loses something must not look fast.
fn complete(what: &str, received: u64, bytes: u64) -> Result<()> {
    if received == bytes {
        return Ok(());
    }
    Err(Failure::new("bench_failed", format!("{what} returned {received} of {bytes} bytes; nothing was measured")))
}
