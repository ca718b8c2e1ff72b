//! Connections to ports against servers that answer well, badly, or incompletely.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use tidebox_client::{Client, Error, Options, PortStream};
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocket};
use tokio_tungstenite::tungstenite::{Message, accept_hdr};

const EOF: &str = r#"{"type":"eof"}"#;

/// A server that takes one connection.
struct Server<T> {
    client: Client,
    done: JoinHandle<T>,
}

impl<T: Send + 'static> Server<T> {
    /// Does with the connection as the test says.
    fn raw(act: impl FnOnce(TcpStream) -> T + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let done = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
            act(stream)
        });
        let options =
            Options { api_key: Some("the-key"), silence_max: Duration::from_millis(500), ..Options::default() };
        Self { client: Client::open(&url, options).expect("a client"), done }
    }

    /// Does with the WebSocket as the test says.
    fn speaking(act: impl FnOnce(WebSocket<TcpStream>) -> T + Send + 'static) -> Self {
        Self::raw(|stream| act(accept_hdr(stream, as_asked).expect("a handshake")))
    }

    /// Opens the connection, which the server accepts.
    async fn open(&self, input: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> PortStream {
        self.client.connect_port("sb-1", 3000, input).await.expect("the server accepts")
    }

    /// Waits for the server on another thread than the runtime, which may have a connection to close.
    async fn end(self) -> T {
        tokio::task::spawn_blocking(|| self.done.join())
            .await
            .expect("the wait is not cancelled")
            .expect("the server did not fail")
    }
}

/// Checks the handshake of a connection, and accepts the subprotocol.
#[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
fn as_asked(
    request: &Request,
    response: Response,
) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
    assert_eq!(request.uri(), "/api/v1/sandboxes/sb-1/ports/3000/connect");
    with_protocol(request, response)
}

/// Checks the handshake of a listener, and accepts the subprotocol.
#[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
fn as_listening(
    request: &Request,
    response: Response,
) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
    assert_eq!(request.uri(), "/api/v1/sandboxes/sb-1/ports/3000/listen");
    with_protocol(request, response)
}

#[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
fn with_protocol(
    request: &Request,
    mut response: Response,
) -> Result<Response, tokio_tungstenite::tungstenite::handshake::server::ErrorResponse> {
    assert_eq!(request.headers()["x-api-key"], "the-key");
    let protocol = request.headers()["sec-websocket-protocol"].clone();
    assert_eq!(protocol, api::SOCKET_PROTOCOL);
    response.headers_mut().insert("sec-websocket-protocol", protocol);
    Ok(response)
}

fn said(pieces: &[&'static str]) -> impl Stream<Item = std::io::Result<Bytes>> + Send + use<> {
    stream::iter(pieces.iter().map(|piece| Ok(Bytes::from(*piece))).collect::<Vec<_>>())
}

fn normal() -> Option<CloseFrame> {
    Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })
}

/// Reads to the end, which must be an error, and returns it.
async fn failed(mut port: PortStream) -> Error {
    loop {
        match port.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended well"),
            Err(error) => {
                assert!(port.next().await.expect("nothing follows an error").is_none());
                return error;
            }
        }
    }
}

#[tokio::test]
async fn bytes_go_both_ways_and_each_way_has_its_end() {
    let server = Server::speaking(|mut socket| {
        socket.send(Message::binary("hello")).unwrap();
        socket.send(Message::text(EOF)).unwrap();
        let mut received = Vec::new();
        loop {
            match socket.read().unwrap() {
                Message::Binary(bytes) => received.extend_from_slice(&bytes),
                Message::Text(text) => {
                    assert_eq!(text.as_str(), EOF);
                    socket.close(normal()).unwrap();
                    return received;
                }
                other @ (Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_)) => {
                    panic!("{other:?}")
                }
            }
        }
    });
    let large: Bytes = (0..=255).cycle().take(300_000).collect();
    let (go, wait) = tokio::sync::oneshot::channel();
    let rest = stream::once(async move { Ok::<_, std::io::Error>(wait.await.unwrap()) });
    let mut port = server.open(said(&["a", "", "b"]).chain(rest)).await;
    assert_eq!(port.next().await.unwrap().unwrap(), "hello");
    assert_eq!(port.next().await.unwrap().unwrap(), "", "the process sends no more");
    go.send(large.clone()).unwrap();
    assert!(port.next().await.unwrap().is_none());
    assert!(port.next().await.unwrap().is_none());
    assert!(server.end().await == [b"ab", &large[..]].concat());
}

#[tokio::test]
async fn a_refusal_is_an_error_like_any_other() {
    let body = r#"{"code":"not_found","message":"nothing listens on port 3000"}"#;
    let server = Server::raw(move |mut stream| {
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
    });
    let refused = server.client.connect_port("sb-1", 3000, said(&[])).await.unwrap_err();
    assert!(matches!(&refused, Error::Api { status: 404, code, .. } if code == "not_found"), "{refused:?}");
}

#[tokio::test]
async fn what_is_no_handshake_is_told() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA=\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\ncontent-length: 5\r\n\r\noops!",
    ] {
        let server = Server::raw(move |mut stream| {
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let error = server.client.connect_port("sb-1", 3000, said(&[])).await.unwrap_err();
        assert!(matches!(error, Error::Protocol { .. }), "{answer}: {error:?}");
    }
}

#[tokio::test]
async fn an_error_of_the_server_keeps_its_code() {
    let server = Server::speaking(|mut socket| {
        socket.send(Message::binary("a")).unwrap();
        socket.send(Message::text(r#"{"type":"error","code":"not_found","message":"it ended"}"#)).unwrap();
        socket.close(normal()).unwrap();
        while socket.read().is_ok() {}
    });
    let error = failed(server.open(stream::pending()).await).await;
    assert!(error.is_code("not_found") && error.to_string() == "it ended", "{error:?}");
    server.end().await;
}

#[tokio::test]
async fn a_connection_that_breaks_off_passes_for_no_end() {
    let ends: [fn(&mut WebSocket<TcpStream>); 4] = [
        |_| {},
        |socket| socket.close(normal()).unwrap(),
        |socket| socket.send(Message::text(EOF)).unwrap(),
        |socket| {
            socket.send(Message::text(EOF)).unwrap();
            socket.close(Some(CloseFrame { code: CloseCode::Away, reason: "".into() })).unwrap();
        },
    ];
    for end in ends {
        let server = Server::speaking(move |mut socket| end(&mut socket));
        let error = failed(server.open(stream::pending()).await).await;
        assert!(matches!(error, Error::Cut { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn messages_that_make_no_sense_are_protocol_errors() {
    for text in ["hello", "{}", r#"{"type":"exit"}"#] {
        let server = Server::speaking(move |mut socket| {
            socket.send(Message::text(text)).unwrap();
            while socket.read().is_ok() {}
        });
        let error = failed(server.open(stream::pending()).await).await;
        assert!(matches!(error, Error::Protocol { .. }), "{text}: {error:?}");
        server.end().await;
    }
}

#[tokio::test]
async fn an_input_that_fails_and_a_stream_that_is_dropped_hang_up() {
    let hung_up = || {
        Server::speaking(|mut socket| {
            while let Ok(message) = socket.read() {
                assert!(!message.is_text() && !message.is_close(), "{message:?}");
            }
        })
    };
    let server = hung_up();
    let input = said(&["a"]).chain(stream::iter([Err(std::io::Error::other("the disk is on fire"))]));
    let error = failed(server.open(input).await).await;
    assert!(matches!(&error, Error::Io(source) if source.to_string().contains("on fire")), "{error:?}");
    server.end().await;
    let server = hung_up();
    drop(server.open(stream::pending()).await);
    server.end().await;
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up_and_one_that_pings_is_not() {
    let server = Server::speaking(|mut socket| {
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(100));
            socket.send(Message::Ping(Bytes::new())).unwrap();
            assert!(socket.read().unwrap().is_pong());
        }
        socket.send(Message::binary("late")).unwrap();
        // Silence from here on, until the client hangs up.
        while socket.read().is_ok() {}
    });
    let mut port = server.open(stream::pending()).await;
    assert_eq!(port.next().await.unwrap().unwrap(), "late");
    assert!(matches!(failed(port).await, Error::Timeout { .. }));
    server.end().await;
}

#[tokio::test]
async fn connections_to_a_listened_port_are_announced_and_can_be_refused() {
    let server = Server::raw(|stream| {
        let mut socket = accept_hdr(stream, as_listening).expect("a handshake");
        socket.send(Message::text(r#"{"type":"listening","port":3000}"#)).expect("it listens");
        socket.send(Message::Ping(Bytes::new())).expect("it listens");
        socket.send(Message::text(r#"{"type":"connection","connection":7}"#)).expect("it listens");
        let mut refused = socket.read().expect("a message");
        while !refused.is_text() {
            refused = socket.read().expect("a message");
        }
        socket.send(Message::text(r#"{"type":"error","code":"conflict","message":"the end"}"#)).expect("it listens");
        refused
    });
    let mut listener = server.client.listen_port("sb-1", 3000).await.expect("the server accepts");
    assert_eq!(listener.next().await.expect("a connection"), 7);
    listener.refuse(7).await.expect("the server is there");
    let error = listener.next().await.expect_err("the end");
    assert!(error.is_code("conflict"), "{error:?}");
    assert_eq!(server.end().await, Message::text(r#"{"type":"refuse","connection":7}"#));
}

#[tokio::test]
async fn a_listener_whose_server_says_nonsense_or_nothing_ends_with_an_error() {
    for (message, is_expected) in [
        (Some(Message::text("hello")), (|error| matches!(error, Error::Protocol { .. })) as fn(&Error) -> bool),
        (Some(Message::binary("bytes")), |error| matches!(error, Error::Protocol { .. })),
        (Some(Message::Close(normal())), |error| matches!(error, Error::Cut { .. })),
        (None, |error| matches!(error, Error::Timeout { .. })),
    ] {
        let server = Server::raw(move |stream| {
            let mut socket = accept_hdr(stream, as_listening).expect("a handshake");
            if let Some(message) = message {
                socket.send(message).expect("it listens");
            }
            let _ = socket.read();
        });
        let mut listener = server.client.listen_port("sb-1", 3000).await.expect("the server accepts");
        let error = listener.next().await.expect_err("an error");
        assert!(is_expected(&error), "{error:?}");
        drop(listener);
        server.end().await;
    }
}
