//! Layers that are too large: in bytes, entries, lengths, depth, or stated sizes.

use std::fs;
use std::time::{Duration, Instant};

use fixtures::image::{Entry, Packing, checksum, header, layer};
use images::rootfs::Bounds;
use tokio_util::sync::CancellationToken;

use crate::layers::harness::{BOUNDS, DIGEST, TestStore, attack, attack_raw};

// Bombs.

#[test]
fn a_size_bomb_is_stopped_at_the_bound() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let store = TestStore::new();
        let mut bomb = store.blob(&layer(&[]), packing);
        // 4 GiB of zeros in one member, which are some megabytes when compressed.
        let mut tar = Vec::new();
        header(&mut tar, b'0', b"bomb", b"", 4 << 30, 0o644, (0, 0), 0);
        let zeros = packing.pack(&vec![0; 1 << 20]);
        let mut blob = packing.pack(&tar);
        (0..4096).for_each(|_| blob.extend(&zeros));
        fs::write(&bomb.path, &blob).unwrap();
        bomb.diff_id = DIGEST.to_owned();
        let begun = Instant::now();
        let error = store.trees.unpack(DIGEST, &[bomb], &BOUNDS, &CancellationToken::new(), &|_| ()).unwrap_err();
        assert!(error.to_string().contains("larger than 8388608 bytes"), "{packing:?}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{packing:?}");
        store.check();
    }
}

#[test]
fn bytes_that_no_file_needs_are_bounded_too() {
    let store = TestStore::new();
    let mut tar = layer(&[Entry::file("a", "")]);
    tar.resize(12 << 20, 0);
    let bomb = store.blob(&tar, Packing::Zstd);
    let error = store.trees.unpack(DIGEST, &[bomb], &BOUNDS, &CancellationToken::new(), &|_| ()).unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    store.check();
}

#[test]
fn sparse_bombs_of_every_form_are_stopped_at_the_bound() {
    let peta: u64 = 1 << 50;
    let gnu = attack_raw(|_| {
        let mut tar = Vec::new();
        header(&mut tar, b'S', b"bomb", b"", 0, 0o644, (0, 0), 0);
        tar[257..265].copy_from_slice(b"ustar  \0");
        tar[483..495].copy_from_slice(&[&[0x80, 0, 0, 0][..], &peta.to_be_bytes()].concat());
        checksum(&mut tar[..512]);
        tar.extend(layer(&[]));
        vec![tar]
    });
    gnu.refused("larger than");
    let size = peta.to_string();
    let old = |entry: Entry| entry.pax("GNU.sparse.size", &size).pax("GNU.sparse.map", "");
    attack(|_| vec![vec![old(Entry::file("bomb", ""))]]).refused("larger than");
    let new = |entry: Entry| {
        entry.pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0").pax("GNU.sparse.realsize", &size)
    };
    let mut map = b"0\n".to_vec();
    map.resize(512, 0);
    attack(|_| vec![vec![new(Entry::file("bomb", &map))]]).refused("larger than");
}

#[test]
fn maps_of_sparse_files_that_lie_are_refused() {
    let with = |map: &str, size: &str| {
        let entry = Entry::file("f", "12345678").pax("GNU.sparse.size", size).pax("GNU.sparse.map", map);
        attack(|_| vec![vec![entry]])
    };
    with("0,4,2,4", "100").refused("malformed");
    with("0,8", "4").refused("malformed");
    with("0,4", "100").refused("does not match its content");
    with("0,9", "100").refused("does not match its content");
    with("18446744073709551615,8", "18446744073709551615").refused("malformed");
    with("0,4,6", "100").refused("malformed");
    let outcome = with("0,4,6,4", "20");
    assert_eq!(fs::read(outcome.root().join("f")).unwrap(), [b"1234", &[0; 2][..], b"5678", &[0; 10]].concat());
}

#[test]
fn a_million_entries_are_too_many() {
    let few = Bounds { entries_max: 1_000, ..BOUNDS };
    let store = TestStore::new();
    let entries: Vec<_> = (0..1_001).map(|number| Entry::file(number.to_string(), "")).collect();
    let bomb = store.blob(&layer(&entries), Packing::Zstd);
    let error = store.trees.unpack(DIGEST, &[bomb], &few, &CancellationToken::new(), &|_| ()).unwrap_err();
    assert!(error.to_string().contains("more than 1000 files"), "{error}");
    store.check();
    assert_eq!(Bounds::ENTRIES_MAX, 1_000_000);
}

#[test]
fn directories_that_no_entry_names_count_as_entries() {
    // One entry makes a thousand directories.
    let outcome =
        attack(|_| vec![(0..10).map(|number| Entry::file(format!("{number}/{}f", "d/".repeat(1_000)), "")).collect()]);
    outcome.refused("more than 5000 files");
}

#[test]
fn a_long_name_or_header_is_not_read_into_memory() {
    for kind in [b'L', b'K', b'x', b'g'] {
        let outcome = attack_raw(|_| {
            let mut tar = Vec::new();
            header(&mut tar, kind, b"././@LongLink", b"", 2 << 20, 0o644, (0, 0), 0);
            tar.resize(tar.len() + (2 << 20), b'x');
            tar.extend(layer(&[Entry::file("a", "")]));
            vec![tar]
        });
        outcome.refused("is longer than");
    }
}

#[test]
fn names_and_paths_longer_than_any_are_refused() {
    attack(|_| vec![vec![Entry::file("x".repeat(256), "")]]).refused("long");
    attack(|_| vec![vec![Entry::dir("x".repeat(256))]]).refused("long");
    attack(|_| vec![vec![Entry::symlink("x".repeat(256), "y"), Entry::fifo("x".repeat(256))]]).refused("long");
    attack(|_| vec![vec![Entry::file(format!("{}/y", "x".repeat(256)), "")]]).refused("long");
    attack(|_| vec![vec![Entry::file("d/".repeat(2_000), "")]]).refused("longer than 3500 bytes");
    attack(|_| vec![vec![Entry::whiteout(&"d/".repeat(2_000), "x"), Entry::whiteout("", &"x".repeat(255))]]).names();
}

#[test]
fn directories_nested_deeper_than_any_path_are_refused_and_go_away() {
    // Each link shortens the name; the directories get deeper and deeper.
    let outcome = attack(|_| {
        let deep = "d/".repeat(1_000);
        vec![vec![
            Entry::file(format!("{deep}x"), ""),
            Entry::symlink("one", &deep),
            Entry::file(format!("one/{deep}x"), ""),
        ]]
    });
    outcome.refused("longer than 3500 bytes");
}

#[test]
fn an_image_of_two_hundred_layers_is_as_any_other() {
    let outcome = attack(|_| {
        (0..200)
            .map(|number| {
                vec![
                    Entry::file(format!("d/{number}"), number.to_string()),
                    Entry::whiteout("d", &(number - 1).to_string()),
                ]
            })
            .collect()
    });
    assert_eq!(outcome.names(), ["/d", "/d/199"]);
}

#[test]
fn a_layer_whose_content_is_not_what_was_promised_is_refused_whole() {
    let store = TestStore::new();
    let mut lying = store.blob(&layer(&[Entry::file("a", "evil")]), Packing::Gzip);
    lying.diff_id = DIGEST.to_owned();
    let error = store.trees.unpack(DIGEST, &[lying], &BOUNDS, &CancellationToken::new(), &|_| ()).unwrap_err();
    assert!(error.to_string().contains("configuration says"), "{error}");
    store.check();
    assert!(store.trees.find(DIGEST).is_none());
}

#[test]
fn a_digest_that_leads_elsewhere_is_none() {
    let store = TestStore::new();
    for digest in ["", "sha256:", "sha256:../../outside", "../outside", "sha512:00", &DIGEST.to_uppercase()] {
        assert!(store.unpack_entries(digest, &[vec![Entry::file("a", "")]]).is_err(), "{digest}");
        assert!(store.trees.find(digest).is_none());
        store.trees.remove(digest).unwrap();
        store.check();
    }
}
