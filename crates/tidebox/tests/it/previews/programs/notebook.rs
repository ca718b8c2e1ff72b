//! A notebook: Jupyter's server, and a cell that its kernel runs.

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::{ClientRequestBuilder, Message};

use super::*;

const SECRET: &str = "a-token-of-the-notebook";
/// Line that starts the server, as docs/use/previews.md has it.
const JUPYTER: &str = "cd /workspace && exec python3 -m jupyter_server --allow-root --no-browser --port 3000 \
                       --ServerApp.allow_remote_access=True --IdentityProvider.token=a-token-of-the-notebook";

#[tokio::test]
async fn jupyter_runs_a_cell_over_the_socket_of_its_kernel() {
    let folder = installed("notebook");
    if fixtures::found("jupyter-server", &[folder.join("bin/jupyter-server")]).is_none() {
        return;
    }
    let server = server(true).await;
    let id = server.spawn_with(json!({"memory_mb": 1024})).await;
    copy(&server, &id, &folder, "/workspace/notebook").await;
    start(&server, &id, &format!("export PYTHONPATH=/workspace/notebook; {JUPYTER}")).await;
    let ours = token(&server, &id).await;
    let headers = format!("X-Preview-Token: {ours}\r\nAuthorization: token {SECRET}\r\n");
    let refused = get(&server, &host(&id), "/api/kernels", &format!("X-Preview-Token: {ours}\r\n")).await;
    assert_eq!(refused.status, 403, "the notebook asks for its own token: {refused:?}");
    let listed = get(&server, &host(&id), "/api/kernels", &headers).await;
    assert_eq!((listed.status, listed.body.as_str()), (200, "[]"));
    let begin = format!("POST /api/kernels HTTP/1.1\r\nHost: {}\r\n{headers}Content-Length: 2\r\n\r\n{{}}", host(&id));
    let begun = raw(&server, &begin).await;
    assert_eq!(begun.status, 201, "{begun:?}");
    let kernel = serde_json::from_str::<Value>(&begun.body).unwrap()["id"].as_str().unwrap().to_owned();

    let url = format!("ws://{}/api/kernels/{kernel}/channels", host(&id));
    let request = ClientRequestBuilder::new(url.parse().unwrap())
        .with_header("X-Preview-Token", ours)
        .with_header("Authorization", format!("token {SECRET}"))
        .with_header("Origin", format!("http://{}", host(&id)));
    let (mut socket, _) = client_async(request, dial(&server).await).await.unwrap();
    let cell = "print('from the kernel', 6 * 7)";
    let execute = json!({
        "header": {"msg_id": "1", "msg_type": "execute_request", "session": "s", "username": "u", "version": "5.4"},
        "parent_header": {}, "metadata": {}, "channel": "shell", "buffers": [],
        "content": {"code": cell, "silent": false, "store_history": true, "user_expressions": {}, "allow_stdin": false},
    });
    socket.send(Message::text(execute.to_string())).await.unwrap();
    let (mut printed, mut status) = (String::new(), None);
    while printed.is_empty() || status.is_none() {
        let message = timeout(PATIENCE, socket.next()).await.expect("the kernel answers").unwrap().unwrap();
        let Ok(text) = message.to_text() else { continue };
        let Ok(message) = serde_json::from_str::<Value>(text) else { continue };
        match message["msg_type"].as_str() {
            Some("stream") => printed.push_str(message["content"]["text"].as_str().unwrap()),
            Some("execute_reply") => status = message["content"]["status"].as_str().map(str::to_owned),
            _ => {}
        }
    }
    assert_eq!((printed.as_str(), status.as_deref()), ("from the kernel 42\n", Some("ok")));
    drop(socket);
    remove(&server, &id).await;
}
