//! Connections to ports that a caller listens on, from agents that lie and flood.

use futures_util::TryStreamExt;
use guest_protocol::{LISTEN_CONNECTIONS_MAX, LISTEN_ROW_BYTES_MAX, ListenRefuse};
use providers::{Error, PortConnection};

use super::*;

fn row(id: u64) -> Bytes {
    format!("{{\"id\":{id}}}\n").into()
}

#[tokio::test]
async fn a_listener_that_makes_no_sense_ends_with_an_error() {
    for bad in ["\n", "nonsense\n", "{\"id\":-1}\n", "{\"id\":1}\n", &" ".repeat(4 * LISTEN_ROW_BYTES_MAX)] {
        let list = vec![row(1), bad.to_owned().into(), row(3)];
        let (guest, _agent) = guest(move |_| {
            let list = list.clone();
            async move { Response::new(pieces(list)) }.boxed()
        })
        .await;
        let mut found: Vec<_> = guest.listen(80).await.unwrap().collect().await;
        assert!(matches!(found.pop(), Some(Err(Error::Failed { .. }))), "{bad}");
        assert!(matches!(found.as_slice(), [Ok(_)]), "{bad}");
    }
}

#[tokio::test]
async fn an_agent_that_announces_without_end_is_read_as_far_as_there_are_places() {
    let (told, mut refused) = mpsc::channel(LISTEN_CONNECTIONS_MAX);
    let (guest, _agent) = guest(move |request| {
        let told = told.clone();
        async move {
            match request.uri().path() {
                "/listen" => Response::new(body(stream::iter((0..).map(|id| Ok(row(id)))))),
                "/listen/refuse" => {
                    let bytes = request.into_body().collect().await.unwrap().to_bytes();
                    told.send(serde_json::from_slice::<ListenRefuse>(&bytes).unwrap().id).await.unwrap();
                    text("{}")
                }
                _ => text("{}"),
            }
        }
        .boxed()
    })
    .await;
    let mut listed = guest.listen(80).await.unwrap();
    let mut held: Vec<Box<dyn PortConnection>> =
        listed.by_ref().take(LISTEN_CONNECTIONS_MAX).try_collect().await.unwrap();
    let more = tokio::time::timeout(Duration::from_millis(50), listed.next()).await;
    assert!(more.is_err());
    held.remove(3);
    assert_eq!(refused.recv().await, Some(3));
    assert!(listed.next().await.unwrap().is_ok());
    // Commands have places of their own.
    assert!(guest.exec(command()).await.is_ok());
}
