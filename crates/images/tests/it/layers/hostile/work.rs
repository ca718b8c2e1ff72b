//! Layers that are small and could take very long. The work for each of them must be linear in
//! its size, not quadratic.

use std::fs;
use std::time::{Duration, Instant};

use fixtures::image::{Entry, checksum, header, layer, record};
use images::Error;
use images::Reserve;
use images::rootfs::Bounds;
use tokio_util::sync::CancellationToken;

use crate::layers::harness::{BOUNDS, DIGEST, Outcome, TestStore, attack, attack_raw};

/// The longest time of a test. A busy machine keeps it if the work is linear; otherwise the work
/// took minutes to hours.
const BOUND: Duration = Duration::from_secs(60);

const LARGE: Bounds = Bounds { bytes_max: 256 << 20, entries_max: 50_000, reserve: Reserve::NONE };

/// Unpacks layers of more members than usual, within [`BOUND`].
#[track_caller]
fn in_time(tars: &[Vec<u8>]) -> Outcome {
    let store = TestStore::new();
    let layers: Vec<_> = tars.iter().map(|tar| store.blob(tar, fixtures::image::Packing::Plain)).collect();
    let begun = Instant::now();
    let result = store.trees.unpack(DIGEST, &layers, &LARGE, &CancellationToken::new(), &|_| ());
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    store.check();
    Outcome { store, result }
}

fn extension(tar: &mut Vec<u8>, kind: u8, content: &[u8]) {
    header(tar, kind, b"more", b"", content.len() as u64, 0o644, (0, 0), 0);
    tar.extend(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

/// Returns a pax header full of attributes.
fn attributes(name: impl Fn(usize) -> String) -> Vec<u8> {
    let mut records = Vec::new();
    for number in 0.. {
        let record = record(&name(number), b"");
        if records.len() + record.len() > 1 << 20 {
            return records;
        }
        records.extend(record);
    }
    unreachable!("numbers do not end")
}

#[test]
fn a_header_full_of_attributes_is_refused_and_not_sorted_through() {
    let mut tar = Vec::new();
    extension(&mut tar, b'x', &attributes(|number| format!("SCHILY.xattr.u{number}")));
    tar.extend(layer(&[Entry::file("a", "")]));
    in_time(&[tar]).refused("more than 256 attributes");
}

#[test]
fn one_attribute_said_thousands_of_times_is_one() {
    let mut tar = Vec::new();
    for number in 0..20 {
        extension(&mut tar, b'x', &attributes(|_| "SCHILY.xattr.user.a".to_owned()));
        Entry::file(number.to_string(), "").write(&mut tar);
    }
    tar.extend(layer(&[]));
    assert_eq!(in_time(&[tar]).names().len(), 20);
}

#[test]
fn headers_that_belong_to_no_member_come_to_an_end() {
    for kind in [b'x', b'g', b'L', b'K'] {
        let outcome = attack_raw(|_| {
            let mut tar = Vec::new();
            for _ in 0..40 {
                extension(&mut tar, kind, if kind == b'x' || kind == b'g' { b"6 a=b\n" } else { b"name" });
            }
            tar.extend(layer(&[Entry::file("a", "")]));
            vec![tar]
        });
        outcome.refused("more than 16 headers");
    }
}

#[test]
fn a_directory_hidden_again_and_again_is_hidden_once() {
    let lower: Vec<_> = (0..4_000).map(|number| Entry::file(format!("d/old{number}"), "")).collect();
    let mut upper = Vec::new();
    for number in 0..4_000 {
        upper.push(Entry::file(format!("d/{number}"), ""));
        upper.push(Entry::opaque("d"));
    }
    let outcome = in_time(&[layer(&lower), layer(&upper)]);
    let names = outcome.names();
    assert_eq!(names.len(), 4_001, "the directory, and what the upper layer has put there");
    assert!(names.iter().all(|name| !name.contains("old")));
}

#[test]
fn directories_in_directories_are_hidden_once_each() {
    // From below, so that each has all the earlier ones inside.
    let deepest = "d/".repeat(300);
    let mut upper: Vec<_> = (0..3_000).map(|number| Entry::file(format!("{deepest}{number}"), "")).collect();
    for depth in (0..=300).rev() {
        let path = "d/".repeat(depth);
        upper.push(Entry::opaque(path.trim_end_matches('/')));
        upper.push(Entry::whiteout("", "d"));
    }
    let lower = vec![Entry::file(format!("{deepest}old"), ""), Entry::file("d/d/old", "")];
    let names = in_time(&[layer(&lower), layer(&upper)]).names();
    assert_eq!(names.len(), 3_300);
}

#[test]
fn what_was_hidden_in_one_layer_is_hidden_again_in_the_next() {
    let layers = ["a", "b", "c"].map(|name| layer(&[Entry::file(format!("d/{name}"), ""), Entry::opaque("d")]));
    assert_eq!(in_time(&layers).names(), ["/d", "/d/c"]);
}

#[test]
fn a_map_of_a_sparse_file_is_checked_once() {
    let mut tar = Vec::new();
    for member in 0..20 {
        let begin = tar.len();
        header(&mut tar, b'S', format!("f{member}").as_bytes(), b"", 0, 0o644, (0, 0), 0);
        let block = &mut tar[begin..];
        block[257..265].copy_from_slice(b"ustar  \0");
        block[386..482].fill(b'0');
        // One more block of the map follows.
        block[482] = 1;
        block[483..495].fill(b'0');
        checksum(block);
        for number in 0..3_000 {
            let mut block = [b'0'; 512];
            block[504] = u8::from(number < 2_999);
            block[505..].fill(0);
            tar.extend(block);
        }
    }
    tar.extend(layer(&[]));
    assert_eq!(in_time(&[tar]).names().len(), 20);
}

#[test]
fn a_map_that_never_ends_is_read_once() {
    let outcome = attack_raw(|_| {
        let mut map = b"60000\n".to_vec();
        map.resize(1 << 20, 0);
        let new = Entry::file("f", map).pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0");
        vec![layer(&[new.pax("GNU.sparse.realsize", "100")])]
    });
    outcome.refused("malformed");
}

#[test]
fn a_map_that_fills_its_blocks_is_read() {
    let mut content = format!("1\n{:0766}\n{:0766}\n", 2, 8).into_bytes();
    assert_eq!(content.len(), 3 * 512);
    content.extend(b"12345678");
    let new = Entry::file("f", content).pax("GNU.sparse.major", "1").pax("GNU.sparse.minor", "0");
    let outcome = in_time(&[layer(&[new.pax("GNU.sparse.realsize", "12")])]);
    assert_eq!(fs::read(outcome.root().join("f")).unwrap(), b"\0\x0012345678\0\0");
}

#[test]
fn links_that_make_every_way_long_are_followed_so_far_only() {
    // Each leads to the next after many steps that lead nowhere.
    let steps = "d/../".repeat(800);
    let mut entries = vec![Entry::dir("d")];
    entries.extend((0..39).map(|number| Entry::symlink(format!("l{number}"), format!("{steps}l{}", number + 1))));
    entries.push(Entry::dir("l39"));
    let harmless = [&entries[..], &[Entry::file("l0/f", "there")]].concat();
    attack(|_| vec![harmless]).holds("l39/f", "there");
    // The path does not exist, so it is looked up each time.
    entries.extend((0..2_000).map(|number| Entry::whiteout("l0/x", &number.to_string())));
    let begun = Instant::now();
    attack(|_| vec![entries]).refused("links lead to links");
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
}

#[test]
fn what_stays_free_of_the_disk_is_looked_at_while_an_image_is_unpacked() {
    let many: Vec<_> = (0..2_000).map(|number| Entry::dir(number.to_string())).collect();
    for tar in [layer(&[Entry::file("large", vec![0; 6 << 20])]), layer(&many)] {
        let store = TestStore::new();
        let blob = store.blob(&tar, fixtures::image::Packing::Zstd);
        let bounds = Bounds { reserve: Reserve { bytes: 1 << 60, inodes: 0 }, ..BOUNDS };
        let unpacked = store.trees.unpack(DIGEST, &[blob], &bounds, &CancellationToken::new(), &|_| ());
        let Err(Error::Full(text)) = unpacked else { panic!("{unpacked:?}") };
        assert!(text.contains("too full") && text.contains("tidebox image prune"), "{text}");
        store.check();
    }
}

#[test]
fn an_unpacking_that_is_stopped_ends_and_leaves_nothing() {
    let store = TestStore::new();
    let entries: Vec<_> = (0..4_000).map(|number| Entry::file(number.to_string(), vec![b'x'; 512])).collect();
    let stop = CancellationToken::new();
    let blob = store.blob(&layer(&entries), fixtures::image::Packing::Plain);
    let read = std::sync::atomic::AtomicU64::new(0);
    let unpacked = store.trees.unpack(DIGEST, &[blob], &BOUNDS, &stop, &|bytes| {
        read.store(bytes, std::sync::atomic::Ordering::SeqCst);
        stop.cancel();
    });
    assert!(matches!(unpacked, Err(Error::Unavailable(_))), "{unpacked:?}");
    assert!(read.into_inner() < 1 << 20, "it was read on");
    store.check();
    assert!(store.trees.find(DIGEST).is_none());
}
