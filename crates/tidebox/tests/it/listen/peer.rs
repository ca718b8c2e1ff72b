//! The client address of a request, as the log shows it.

use crate::server::{Answer, MOCK, TestServer};

/// Sends a request with `told` as `X-Forwarded-For` and returns the address in the log.
async fn logged(server: &TestServer, told: &str) -> String {
    let request = server.request(reqwest::Method::GET, "/health").header("X-Request-ID", "who-asks");
    Answer::read(request.header("X-Forwarded-For", told).send().await.unwrap()).await.ok();
    let find = || {
        let log = server.log_text();
        let line = log.lines().find(|line| line.contains("who-asks") && line.contains("answered"))?.to_owned();
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        Some(line["peer"].as_str().unwrap_or_default().to_owned())
    };
    server.until("a line in the log", async || find().is_some()).await;
    find().unwrap()
}

#[tokio::test]
async fn a_forged_address_is_not_believed() {
    let server = TestServer::start(&format!("{MOCK} logging.level=debug")).await;
    assert_eq!(logged(&server, "198.51.100.1").await, "127.0.0.1");
}

#[tokio::test]
async fn a_configured_proxy_is_believed_up_to_what_it_saw_itself() {
    let settings = format!("{MOCK} logging.level=debug server.trusted_proxies=127.0.0.0/8,10.0.0.7");
    let server = TestServer::start(&settings).await;
    assert_eq!(logged(&server, "6.6.6.6, 198.51.100.1, 10.0.0.7").await, "198.51.100.1");
}
