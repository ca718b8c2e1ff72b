//! Changes of ports, from agents that lie.

use guest_protocol::PORT_CHANGE_BYTES_MAX;
use providers::PortChange;

use super::*;

fn row(port: u16) -> Bytes {
    format!("{{\"is_open\":true,\"port\":{{\"port\":{port},\"address\":\"127.0.0.1\"}}}}\n").into()
}

/// Returns all that a guest makes of an agent's lines.
async fn changes(lines: Vec<Bytes>) -> Vec<providers::Result<PortChange>> {
    let (guest, _agent) = guest(move |_| {
        let lines = lines.clone();
        async move { Response::new(pieces(lines)) }.boxed()
    })
    .await;
    guest.watch_ports(Duration::from_secs(1)).await.expect("the agent answers").collect().await
}

#[tokio::test]
async fn changes_of_ports_are_read_wherever_their_pieces_end() {
    let lines = [row(1), row(65535)].concat();
    for size in [1, 13, lines.len()] {
        let found = changes(lines.chunks(size).map(Bytes::copy_from_slice).collect()).await;
        let ports: Vec<_> = found.into_iter().map(|change| change.unwrap().port.port).collect();
        assert_eq!(ports, [1, 65535], "in pieces of {size}");
    }
}

#[tokio::test]
async fn a_change_that_makes_no_sense_ends_the_watch_with_an_error() {
    let long = format!("{:width$}", " ", width = 4 * PORT_CHANGE_BYTES_MAX);
    for bad in ["\n", "nonsense\n", "{\"is_open\":true}\n", &long] {
        let mut found = changes(vec![row(1), bad.to_owned().into(), row(3)]).await;
        assert!(found.pop().is_some_and(|last| is_failed(&last)), "{bad}");
        assert!(matches!(found.as_slice(), [Ok(_)]), "{bad}: {found:?}");
    }
}

#[tokio::test]
async fn the_name_of_a_process_that_would_control_a_terminal_is_made_harmless() {
    let line = "{\"is_open\":false,\"port\":{\"port\":1,\"address\":\"::1\",\"process\":\"a\\u001b[2J\"}}\n";
    let found = changes(vec![line.into()]).await;
    let change = found[0].as_ref().unwrap();
    assert_eq!((change.is_open, change.port.process.as_deref()), (false, Some("a\u{fffd}[2J")));
}
