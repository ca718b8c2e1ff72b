//! Programs as people use them, behind previews: a browser, a development server, a notebook, files.

mod chromium;
mod notebook;
mod pages;
mod transfers;
mod vite;

use super::*;
use crate::programs::{copy, installed};
use chromium::Chromium;

const SITE: &str = include_str!("programs/site.py");

/// Starts a program in a sandbox with a shell line, and waits until it listens on port 3000. What it
/// says is in `/workspace/log`.
async fn start(server: &TestServer, id: &str, line: &str) {
    server.output(id, &format!("({line}) </dev/null >/workspace/log 2>&1 &")).await;
    let deadline = std::time::Instant::now() + PATIENCE;
    while !server
        .get(&format!("/sandboxes/{id}/ports"))
        .await
        .ok()
        .as_array()
        .unwrap()
        .iter()
        .any(|one| one["port"] == 3000)
    {
        if std::time::Instant::now() > deadline {
            panic!("{line} does not listen:\n{}", server.output(id, "cat /workspace/log").await);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the URL of port 3000 as the server makes it, with its token.
async fn link(server: &TestServer, id: &str) -> String {
    let minted = server.post(&format!("/sandboxes/{id}/preview"), json!({"port": 3000})).await.ok();
    minted["url"].as_str().unwrap().to_owned()
}

/// Removes a sandbox, and waits until its files are deleted: of many, that takes longer than a server
/// takes to stop.
async fn remove(server: &TestServer, id: &str) {
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    let trash = server.data_dir().join("native/trash");
    server.until("its files are deleted", async || std::fs::read_dir(&trash).unwrap().next().is_none()).await;
}
