//! Boxes whose connections the kernel leads to their agents.

use bytes::Bytes;
use fixtures::image::{Entry, Image};
use fixtures::suite::FULL;
use futures_util::{StreamExt, stream};
use providers::{Error, Provider};

use crate::native::harness::{TestProvider, eventually, is_root, new_id, spec_of};

#[tokio::test]
async fn as_root_names_resolve_whatever_an_image_has_for_a_name_server() {
    let Some(full) = fixtures::suite::full() else { return };
    if !is_root() {
        return;
    }
    let file = "etc/resolv.conf";
    let stub = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch corp.example\n";
    let images: Vec<(&str, Vec<Entry>)> = vec![
        ("docker.io/tidebox/empty:1", vec![]),
        ("docker.io/tidebox/none:1", vec![Entry::whiteout("etc", "resolv.conf")]),
        ("docker.io/tidebox/stub:1", vec![Entry::file(file, stub)]),
        ("docker.io/tidebox/dangling:1", vec![Entry::symlink(file, "../run/systemd/resolve/stub-resolv.conf")]),
        ("docker.io/tidebox/outside:1", vec![Entry::symlink(file, "../../../../srv/secret")]),
        ("docker.io/tidebox/pipe:1", vec![Entry::whiteout("etc", "resolv.conf"), Entry::fifo(file)]),
    ];
    let list: Vec<(&str, Image)> = images.iter().map(|(name, entries)| (*name, full.clone().and(entries))).collect();
    let provider = TestProvider::transparent(&list).await;
    let check = "stat -c %F-%a /etc/resolv.conf; cat /etc/resolv.conf; nslookup web.example | tail -n +3";
    for (name, _) in &images {
        let sandbox = provider.start_with(spec_of(name)).await;
        let seen = sandbox.text(check).await;
        assert!(seen.starts_with("regular file-644\nnameserver 198.18.0.2\n"), "{name}: {seen}");
        assert!(seen.contains("198.18.1.0"), "{name}: {seen}");
        sandbox.refuses("cat /srv/secret").await;
    }
    let host = new_id();
    let shared = spec_of("docker.io/tidebox/dangling:1");
    provider.slots().start_host(&host, &shared).await.unwrap();
    let slot = provider.add_slot_with(&host, shared).await;
    let seen = slot.text(check).await;
    assert!(seen.starts_with("regular file-644\nnameserver 198.18.0.2\n") && seen.contains("198.18.1.0"), "{seen}");
}

#[tokio::test]
async fn as_root_a_box_says_so_if_an_image_has_a_folder_for_the_name_server() {
    let Some(full) = fixtures::suite::full() else { return };
    if !is_root() {
        return;
    }
    let image = full.and(&[Entry::whiteout("etc", "resolv.conf"), Entry::dir("etc/resolv.conf")]);
    let provider = TestProvider::transparent(&[(FULL, image)]).await;
    let sandbox = provider.start_with(spec_of(FULL)).await;
    let console = sandbox.guest().await.console(10).await.unwrap();
    let text = format!("{console:?}");
    assert!(text.contains("/etc/resolv.conf: is a directory; names do not resolve in this box"), "{text}");
}

#[tokio::test]
async fn as_root_no_caller_is_connected_to_what_lies_outside_of_the_box() {
    if !is_root() {
        return;
    }
    let provider = TestProvider::transparent(&[]).await;
    assert_eq!(provider.native.facts().network_mode, "transparent");
    let sandbox = provider.start().await;
    let guest = sandbox.guest().await;
    let mut requests = guest.egress().await.unwrap();
    let program = "import socket, time
s = [socket.create_server(at) for at in (('10.9.9.9', 3000), ('198.18.0.1', 3001), ('198.18.0.2', 3002))]
c = s[1].accept()[0]
c.sendall(b'here')
time.sleep(1000)";
    sandbox.sh(&format!("python3 -c \"{program}\" > /dev/null 2>&1 &")).await;
    eventually("it listens", async || guest.ports().await.unwrap().len() == 3).await;
    for port in [3000, 3002] {
        let refused = guest.connect(port, stream::pending().boxed()).await;
        assert!(matches!(refused, Err(Error::NotFound(_))), "{port}");
    }
    let mut output = guest.connect(3001, stream::pending().boxed()).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), Bytes::from_static(b"here"));
    // And the agent has asked the server for nothing.
    let waited = tokio::time::timeout(std::time::Duration::from_millis(300), requests.next()).await;
    assert!(waited.is_err());
}
