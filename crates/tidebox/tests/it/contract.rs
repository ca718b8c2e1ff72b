//! The committed API document, compared with the one that is served.

use std::path::Path;

use crate::server::{MOCK, TestServer};

const KEY: &str = "a-key-that-only-this-test-knows-0123456789";
/// Variable that makes the test rewrite the committed document.
const UPDATE: &str = "TIDEBOX_UPDATE_OPENAPI";

#[tokio::test]
async fn the_committed_openapi_document_is_the_one_that_is_served() {
    // The keys that a server requires depend on its settings; the committed document lists all.
    let server = TestServer::builder(MOCK).key(KEY).start().await;
    let answer = server.get("/openapi.json").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    let served = String::from_utf8(answer.bytes).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &served).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(served == committed, "docs/openapi.json differs; write it anew with {UPDATE}=1 and read the difference");
}

#[tokio::test]
async fn every_route_of_the_document_is_served_and_has_an_error_in_our_shape() {
    let server = TestServer::start(MOCK).await;
    let document = server.get("/openapi.json").await.ok();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 20, "{}", paths.len());
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap() {
            let url = path
                .replace("{id}", "sb-aaaaaaaaaaaaaaaa")
                .replace("{worker}", "w9")
                .replace("{resource}", "sb-a")
                .replace("{name}", "nope")
                .replace("{port}", "80")
                .replace("{path}", "tmp/x");
            let method: reqwest::Method = method.to_uppercase().parse().unwrap();
            let answer = server.http.request(method.clone(), format!("{}{url}", server.url)).send().await.unwrap();
            let status = answer.status().as_u16();
            assert!(!matches!(status, 405 | 500), "{method} {path} is {status}");
            let known = operation["responses"].as_object().unwrap();
            assert!(
                known.contains_key(&status.to_string()),
                "{method} {path} answers {status}, which it does not tell of"
            );
        }
    }
}
