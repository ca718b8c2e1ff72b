//! Large files through a preview, byte for byte.

use std::time::Instant;

use futures_util::stream;
use sha2::{Digest, Sha256};

use super::*;

const PIECE_BYTES: usize = 1 << 20;

/// Number of pieces of the file: `TIDEBOX_TEST_PREVIEW_BYTES` sets its size.
fn pieces() -> usize {
    std::env::var("TIDEBOX_TEST_PREVIEW_BYTES").map_or(64 << 20, |bytes| bytes.parse().unwrap()) / PIECE_BYTES
}

/// Returns a piece of the file; each is another.
fn piece(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut bytes = Vec::with_capacity(PIECE_BYTES);
    while bytes.len() < PIECE_BYTES {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

#[tokio::test]
async fn a_large_file_goes_up_and_comes_down_the_same_and_the_server_holds_little_of_it() {
    let mut digest = Sha256::new();
    (0..pieces()).for_each(|number| digest.update(piece(number)));
    let expected = digest.finalize();
    let server = server(false).await;
    let id = server.spawn().await;
    server.write(&id, "/workspace/site.py", SITE).await;
    start(&server, &id, "exec python3 /workspace/site.py 3000").await;
    let url = format!("{}/stored", server.url);
    let before = server.resident_kib();

    let started = Instant::now();
    let body = stream::iter((0..pieces()).map(|number| std::io::Result::Ok(piece(number))));
    let put = server.http.put(&url).header("host", host(&id)).header("content-length", pieces() * PIECE_BYTES);
    let answer = put.body(reqwest::Body::wrap_stream(body)).send().await.unwrap();
    let up = started.elapsed();
    let hexadecimal: String = expected.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(answer.text().await.unwrap(), hexadecimal, "of what the program got");

    let started = Instant::now();
    let mut answer = server.http.get(&url).header("host", host(&id)).send().await.unwrap();
    assert_eq!(answer.content_length(), Some((pieces() * PIECE_BYTES) as u64));
    let mut digest = Sha256::new();
    while let Some(bytes) = answer.chunk().await.unwrap() {
        digest.update(&bytes);
    }
    let down = started.elapsed();
    assert!(digest.finalize() == expected, "what came down is not what went up");

    let taken_mib = server.peak_kib().saturating_sub(before) / 1024;
    let speed = |time: Duration| pieces() as f64 / time.as_secs_f64();
    eprintln!("{:.0} MiB/s up, {:.0} MiB/s down, {taken_mib} MiB of memory", speed(up), speed(down));
    assert!(taken_mib < 24, "{taken_mib} MiB");
}
