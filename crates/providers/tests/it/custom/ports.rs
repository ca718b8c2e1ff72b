//! Ports of a remote sandbox.

use futures_util::{StreamExt, stream};
use providers::{Error, Provider};
use serde_json::{Value, json};

use crate::custom::fake_service::Reply;
use crate::custom::harness::{id, inside, kind};

#[tokio::test]
async fn ports_are_sorted_and_their_names_are_text() {
    let answer = json!([
        {"port": 80, "address": "::"},
        {"port": 80, "address": "0.0.0.0", "pid": 7, "process": "a\u{1b}[2J"},
        {"port": 22, "address": "127.0.0.1"},
    ]);
    let (_service, _custom, guest) = inside(move |_| Reply::Json(200, answer.clone())).await;
    let ports = guest.ports().await.unwrap();
    let shown: Vec<String> = ports.iter().map(|port| format!("{} {}", port.port, port.address)).collect();
    assert_eq!(shown, ["22 127.0.0.1", "80 0.0.0.0", "80 ::"]);
    assert_eq!((ports[1].pid, ports[1].process.as_deref()), (Some(7), Some("a [2J")));
}

#[tokio::test]
async fn a_port_that_cannot_be_is_refused() {
    let many = Value::Array(vec![json!({"port": 80, "address": "::"}); 10_001]);
    for answer in [json!([{"port": 80, "address": "everywhere"}]), json!([{"port": 65536, "address": "::"}]), many] {
        let (_service, _custom, guest) = inside(move |_| Reply::Json(200, answer.clone())).await;
        let kind = kind(guest.ports().await);
        assert!(matches!(&*kind, "Failed" | "NoAnswer"), "{kind}");
    }
}

#[tokio::test]
async fn a_port_that_nothing_listens_on_is_told_from_a_box_that_is_gone() {
    let missing = || Reply::Json(404, json!({"code": "not_found", "message": "not here"}));
    let (service, custom, guest) = inside(move |_| missing()).await;
    let connect = async || guest.connect(3000, stream::pending().boxed()).await.map(|_| ());
    assert!(matches!(connect().await, Err(Error::NotFound(text)) if text.contains("port 3000")));
    custom.stop(&id(1)).await.unwrap();
    assert_eq!(kind(connect().await), "Gone");
    assert_eq!(kind(guest.connect(0, stream::pending().boxed()).await), "Invalid");
    assert!(service.asked("GET /sandboxes/far-1/ports/0").is_empty());
}
