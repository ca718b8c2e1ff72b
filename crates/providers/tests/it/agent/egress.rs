//! Connections out of a box, from agents that lie and flood.

use futures_util::TryStreamExt;
use guest_protocol::{EGRESS_CONNECTIONS_MAX, EGRESS_ROW_BYTES_MAX, EgressRefuse};
use providers::EgressRequest;

use super::*;

fn row(id: u64) -> Bytes {
    format!("{{\"id\":{id},\"host\":\"a.example\",\"port\":443}}\n").into()
}

/// Returns all that a guest makes of an agent's list.
async fn requests(list: Vec<Bytes>) -> Vec<providers::Result<EgressRequest>> {
    let (guest, _agent) = guest(move |_| {
        let list = list.clone();
        async move { Response::new(pieces(list)) }.boxed()
    })
    .await;
    guest.egress().await.expect("the agent answers").collect().await
}

#[tokio::test]
async fn connections_are_listed_wherever_the_pieces_of_the_list_end() {
    let list = [row(1), row(u64::MAX), row(7)].concat();
    for size in [1, 2, 7, 50, list.len()] {
        let found = requests(list.chunks(size).map(Bytes::copy_from_slice).collect()).await;
        let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
        assert_eq!(found.len(), 3, "in pieces of {size}");
        assert!(found.iter().all(|it| it.host == "a.example" && it.port == 443));
    }
}

#[tokio::test]
async fn a_list_that_makes_no_sense_ends_with_an_error() {
    let of = |host: &str, port: &str| format!("{{\"id\":2,\"host\":{host},\"port\":{port}}}\n");
    let long = format!("\"{}\"", "a".repeat(256));
    for bad in [
        b"\n".to_vec(),
        b"nonsense\n".to_vec(),
        b"[]\n".to_vec(),
        b"{\"id\":2,\"host\":\"\xff\",\"port\":1}\n".to_vec(),
        of("\"\"", "1").into(),
        of(&long, "1").into(),
        of("\"a\"", "0").into(),
        of("\"a\"", "65536").into(),
        of("[1]", "1").into(),
        row(1).to_vec(),
        vec![b' '; 4 * EGRESS_ROW_BYTES_MAX],
    ] {
        let shown = String::from_utf8_lossy(&bad).into_owned();
        let mut found = requests(vec![row(1), bad.into(), row(3)]).await;
        assert!(found.pop().is_some_and(|last| is_failed(&last)), "{shown}");
        assert!(matches!(found.as_slice(), [Ok(_)]), "{shown}: {found:?}");
    }
}

#[tokio::test]
async fn an_agent_that_lists_without_end_is_read_as_far_as_there_are_places() {
    let (guest, _agent) = guest(|request| {
        async move {
            match request.uri().path() {
                "/egress" => Response::new(body(stream::iter((0..).map(|id| Ok(row(id)))))),
                _ => text("{}"),
            }
        }
        .boxed()
    })
    .await;
    let mut listed = guest.egress().await.unwrap();
    let mut held: Vec<_> = listed.by_ref().take(EGRESS_CONNECTIONS_MAX).try_collect().await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(50), listed.next()).await;
    assert!(more.is_err(), "{more:?}");
    held.pop();
    assert!(listed.next().await.unwrap().is_ok());
    // They are places of their own: commands do not wait for them.
    guest.set_deadline(Duration::from_secs(60)).await.unwrap();
    assert!(guest.exec(command()).await.is_ok());
}

#[tokio::test]
async fn a_request_that_is_dropped_or_refused_is_answered_once() {
    let (told, mut answers) = mpsc::channel(8);
    let (guest, _agent) = guest(move |request| {
        let told = told.clone();
        async move {
            if request.uri().path() == "/egress" {
                let rows = stream::iter([Ok(row(1)), Ok(row(2))]);
                return Response::new(body(rows.chain(stream::pending())));
            }
            assert_eq!(request.uri().path(), "/egress/refuse");
            let bytes = request.into_body().collect().await.unwrap().to_bytes();
            told.send(serde_json::from_slice::<EgressRefuse>(&bytes).unwrap()).await.unwrap();
            text("{}")
        }
        .boxed()
    })
    .await;
    let mut listed = guest.egress().await.unwrap();
    let (first, second) = (listed.next().await.unwrap().unwrap(), listed.next().await.unwrap().unwrap());
    drop(second);
    assert_eq!(answers.recv().await.unwrap().id, 2);
    first.answer.refuse(providers::EgressReason::Busy, "too many").await.unwrap();
    let refuse = answers.recv().await.unwrap();
    assert_eq!((refuse.id, refuse.message.as_str()), (1, "too many"));
    drop(listed);
    assert!(answers.recv().now_or_never().is_none());
}
