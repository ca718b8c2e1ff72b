use std::convert::Infallible;

use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::*;
use crate::budget::{Budget, Caller};

#[derive(Debug, Deserialize, PartialEq)]
struct Question {
    n: u32,
}

fn meter() -> Meter {
    Meter::new(Budget::new(64 << 20).account(Caller::Address(None), None))
}

fn request(headers: &[(&str, &str)], pieces: Vec<Vec<u8>>) -> Request {
    let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
    let mut request = Request::post("/x").body(Body::from_stream(stream::iter(pieces))).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(axum::http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    request.extensions_mut().insert(meter());
    request
}

const STREAM: (&str, &str) = ("content-type", STREAM_TYPE);

fn framed(flags: u8, text: &str) -> Vec<u8> {
    envelope(flags, text.as_bytes()).to_vec()
}

/// Splits an answer into its envelopes.
fn envelopes(mut bytes: &[u8]) -> Vec<(u8, Value)> {
    let mut found = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
        found.push((head[0], serde_json::from_slice(&rest[..length]).unwrap()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty());
    found
}

async fn body(response: Response) -> Result<Vec<(u8, Value)>, axum::Error> {
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], STREAM_TYPE);
    Ok(envelopes(&response.into_body().collect().await?.to_bytes()))
}

async fn counting(request: Request) -> Response {
    let stop = CancellationToken::new();
    server_stream(request, &stop, json!({"keepalive": {}}), |question: Question, _| async move {
        Ok(stream::iter((0..question.n).map(|n| Ok(json!({"n": n})))).boxed())
    })
    .await
}

async fn error_of(request: Request) -> (String, String) {
    let answer = body(counting(request).await).await.unwrap();
    let [(END, end)] = &answer[..] else { panic!("{answer:?}") };
    let field = |name: &str| end["error"][name].as_str().unwrap_or_default().to_owned();
    (field("code"), field("message"))
}

#[tokio::test]
async fn a_stream_has_its_messages_and_an_end_whatever_the_pieces_that_its_call_came_in() {
    let whole = framed(MESSAGE, r#"{"n":2,"unknown":1}"#);
    for pieces in [vec![whole.clone()], whole.iter().map(|byte| vec![*byte]).collect()] {
        let answer = body(counting(request(&[STREAM], pieces)).await).await.unwrap();
        assert_eq!(answer, [(0, json!({"n": 0})), (0, json!({"n": 1})), (2, json!({}))]);
    }
}

#[tokio::test]
async fn a_call_that_cannot_be_read_is_refused_in_the_last_envelope() {
    let good = framed(MESSAGE, r#"{"n":1}"#);
    let huge = [&[0, 0xff, 0xff, 0xff, 0xff][..], b"{}"].concat();
    for (headers, bytes, code, word) in [
        (&[STREAM][..], vec![], "invalid_argument", "exactly one"),
        (&[STREAM], good[..3].to_vec(), "invalid_argument", "head of an envelope"),
        (&[STREAM], good[..8].to_vec(), "invalid_argument", "within a message"),
        (&[STREAM], framed(MESSAGE, ""), "invalid_argument", "empty"),
        (&[STREAM], huge, "resource_exhausted", "4294967295 bytes"),
        (&[STREAM], framed(1, r#"{"n":1}"#), "invalid_argument", "0x01"),
        (&[STREAM], framed(2, r#"{"n":1}"#), "invalid_argument", "0x02"),
        (&[STREAM], framed(0x80, r#"{"n":1}"#), "invalid_argument", "0x80"),
        (&[STREAM], framed(MESSAGE, "[1]"), "invalid_argument", "not a JSON object"),
        (&[STREAM], framed(MESSAGE, r#"{"n":"#), "invalid_argument", "EOF"),
        (&[STREAM], framed(MESSAGE, r#"{"n":"x"}"#), "invalid_argument", "`n`"),
        (&[STREAM], [good.clone(), good.clone()].concat(), "invalid_argument", "exactly one"),
        (&[STREAM], [&good[..], &[0]].concat(), "invalid_argument", "exactly one"),
        (&[("content-type", "application/json")], good.clone(), "invalid_argument", "application/connect+json"),
        (&[STREAM, ("connect-content-encoding", "gzip")], good.clone(), "unimplemented", "gzip"),
        (&[STREAM, ("connect-timeout-ms", "1s")], good.clone(), "invalid_argument", "Connect-Timeout-Ms"),
        (&[STREAM, ("connect-timeout-ms", "12345678901")], good.clone(), "invalid_argument", "Connect-Timeout-Ms"),
    ] {
        let (found, message) = error_of(request(headers, vec![bytes.clone()])).await;
        assert_eq!(found, code, "{bytes:?}");
        assert!(message.contains(word), "{bytes:?}: {message}");
    }
}

#[tokio::test]
async fn what_says_identity_is_no_encoding() {
    let names = ["content-encoding", "connect-content-encoding", "connect-accept-encoding"];
    let headers: Vec<_> = names.map(|name| (name, "identity")).into_iter().chain([STREAM]).collect();
    let answer = counting(request(&headers, vec![framed(MESSAGE, r#"{"n":0}"#)])).await;
    assert_eq!(body(answer).await.unwrap(), [(2, json!({}))]);
}

/// Opens a stream of `messages`, and returns its body.
async fn opened(headers: &[(&str, &str)], messages: Messages<Value>) -> Body {
    let request = request(&[headers, &[STREAM]].concat(), vec![framed(MESSAGE, r#"{"n":0}"#)]);
    let ping = json!({"keepalive": {}});
    let stop = CancellationToken::new();
    server_stream(request, &stop, ping, |_: Question, _| async { Ok(messages) }).await.into_body()
}

async fn next(body: &mut Body) -> Option<(u8, Value)> {
    let frame = body.frame().await?.unwrap().into_data().unwrap();
    envelopes(&frame).pop()
}

#[tokio::test(start_paused = true)]
async fn a_quiet_stream_is_kept_alive_after_its_first_message_and_never_before() {
    let late = stream::once(async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok(json!({"start": {}}))
    });
    let mut body = opened(&[("keepalive-ping-interval", "50")], late.chain(stream::pending()).boxed()).await;
    let begun = Instant::now();
    assert_eq!(next(&mut body).await.unwrap(), (0, json!({"start": {}})));
    assert_eq!(next(&mut body).await.unwrap(), (0, json!({"keepalive": {}})));
    assert_eq!(begun.elapsed().as_secs(), 150);
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_at_its_deadline_also_while_messages_flow() {
    let flood = stream::repeat_with(|| Ok(json!({}))).then(|message| async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        message
    });
    let mut body = opened(&[("connect-timeout-ms", "1000")], flood.boxed()).await;
    let mut last = None;
    while let Some(frame) = next(&mut body).await {
        last = Some(frame);
    }
    let (flags, end) = last.unwrap();
    assert_eq!((flags, end["error"]["code"].as_str()), (2, Some("deadline_exceeded")));
}

#[tokio::test]
async fn a_stream_whose_sandbox_is_gone_breaks_off_and_one_with_an_error_tells_it() {
    let gone = opened(&[], stream::iter([Ok(json!({})), Err(Cut::Gone)]).boxed()).await;
    gone.collect().await.unwrap_err();
    let error = Cut::from(rpc(RpcCode::NotFound, "no such thing"));
    let told = opened(&[], stream::iter([Err(error), Ok(json!({}))]).boxed()).await;
    let told = envelopes(&told.collect().await.unwrap().to_bytes());
    assert_eq!(told, [(2, json!({"error": {"code": "not_found", "message": "no such thing"}}))]);
}

#[tokio::test]
async fn the_messages_of_a_client_are_acted_on_as_they_arrive() {
    let (sender, receiver) = mpsc::channel::<Vec<u8>>(1);
    let (taken, mut seen) = mpsc::channel(1);
    let pieces = stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Bytes::from(piece)), receiver))
    });
    let mut request = request(&[STREAM], Vec::new());
    *request.body_mut() = Body::from_stream(pieces);
    let stop = CancellationToken::new();
    let answering = client_stream(request, &stop, |mut incoming: Incoming<Question>, _| async move {
        while let Some(question) = incoming.next().await? {
            taken.send(question.n).await.unwrap();
        }
        Ok::<_, Cut>(json!({}))
    });
    let sending = async {
        for n in [1, 2] {
            sender.send(framed(MESSAGE, &format!(r#"{{"n":{n}}}"#))).await.unwrap();
            assert_eq!(seen.recv().await, Some(n));
        }
        drop(sender);
    };
    let (answer, ()) = tokio::join!(answering, sending);
    assert_eq!(body(answer).await.unwrap(), [(0, json!({})), (2, json!({}))]);
}

#[tokio::test]
async fn a_unary_call_is_answered_with_the_status_of_its_code() {
    const JSON: (&str, &str) = ("content-type", "application/json; charset=utf-8");
    let ask = async |headers: &[(&str, &str)], text: &str| {
        let request = request(headers, vec![text.as_bytes().to_vec()]);
        let answer = unary(request, |question: Question| async move {
            if question.n == 7 { Err(rpc(RpcCode::AlreadyExists, "seven")) } else { Ok(json!({"n": question.n})) }
        });
        let answer = answer.await;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<Value>(&body).unwrap())
    };
    assert_eq!(ask(&[JSON], r#"{"n":1}"#).await, (200, json!({"n": 1})));
    assert_eq!(ask(&[JSON], r#"{"n":7}"#).await, (409, json!({"code": "already_exists", "message": "seven"})));
    for (headers, text, status, code) in [
        (&[JSON][..], "", 400, "invalid_argument"),
        (&[JSON], "{", 400, "invalid_argument"),
        (&[], r#"{"n":1}"#, 400, "invalid_argument"),
        (&[JSON, ("content-encoding", "br")], r#"{"n":1}"#, 501, "unimplemented"),
    ] {
        let (found, body) = ask(headers, text).await;
        assert_eq!((found, body["code"].as_str()), (status, Some(code)), "{headers:?} {text}");
    }
}

#[tokio::test]
async fn a_stream_of_a_client_breaks_off_when_its_sandbox_goes() {
    let stop = CancellationToken::new();
    let act = |_: Incoming<Question>, _| async { Err::<serde_json::Value, _>(Cut::Gone) };
    let answer = client_stream(request(&[STREAM], Vec::new()), &stop, act).await;
    assert_eq!(answer.status(), 200);
    body(answer).await.unwrap_err();
}
