//! Random images: nothing outside changes, regardless of their contents, and those that umoci
//! unpacks too are unpacked the same.
//!
//! `TIDEBOX_FUZZ_SECONDS=3600` makes each of them run for that long.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fixtures::found;
use fixtures::image::{Entry, Image, layer};
use images::Error;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::layers::equal::{comparable, differences, umoci};
use crate::layers::harness::{DIGEST, TestStore, tree};

/// Tests the property for the requested time, or else with a few cases.
fn check<S: Strategy>(name: &str, cases: u32, strategy: &S, property: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seconds = std::env::var("TIDEBOX_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let begun = Instant::now();
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut done = 0;
    loop {
        // A runner counts its cases over all its runs.
        let mut runner = TestRunner::new(config.clone());
        if let Err(failure) = runner.run(strategy, &property) {
            panic!("{name}: {failure}");
        }
        done += cases;
        if seconds.is_none_or(|seconds| begun.elapsed() >= Duration::from_secs(seconds)) {
            break;
        }
    }
    if seconds.is_some() {
        // Written past the harness, which captures the output of tests that pass.
        let _ = writeln!(std::io::stderr(), "{name}: {done} cases in {} s", begun.elapsed().as_secs());
    }
}

/// Chooses a name from a few, so that members collide.
fn name(hostile: bool) -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(vec!["a", "b", "c", "link"]);
    let odd =
        prop::sample::select(vec!["..", ".", "", ".wh.a", ".wh..wh..opq", ".wh...", "\u{1b}", "x\0y", ".lifted-0"]);
    let step = if hostile { prop_oneof![5 => plain, 2 => odd].boxed() } else { plain.boxed() };
    let path = prop::collection::vec(step, 1..5).prop_map(|steps| steps.join("/"));
    if hostile {
        let way_out = prop::sample::select(vec!["", "", "", "/", "../../../../../../../../", "OUTSIDE/"]);
        (way_out, path).prop_map(|(way_out, path)| format!("{way_out}{path}").into_bytes()).boxed()
    } else {
        path.prop_map(String::into_bytes).boxed()
    }
}

fn member(hostile: bool) -> impl Strategy<Value = Entry> {
    let modes = prop::sample::select(vec![0o644, 0o755, 0o4755, 0o000, 0o1777, 0o555]);
    // All entries are readable and writable if umoci would otherwise fail as an ordinary user.
    let entry = prop_oneof![
        4 => (name(hostile), prop::sample::select(vec!["", "x", "content"])).prop_map(|(path, content)| Entry::file(path, content)),
        3 => name(hostile).prop_map(Entry::dir),
        3 => (name(hostile), target(hostile)).prop_map(|(path, target)| Entry::symlink(path, target)),
        2 => (name(hostile), name(hostile)).prop_map(|(path, target)| Entry::hardlink(path, target)),
        1 => name(hostile).prop_map(Entry::fifo),
        1 => (name(false), prop::sample::select(vec!["a", "b", "c", "link"])).prop_map(|(dir, name)| {
            Entry::whiteout(&String::from_utf8_lossy(&dir), name)
        }),
        1 => name(false).prop_map(|dir| Entry::opaque(&String::from_utf8_lossy(&dir))),
        1 => name(hostile).prop_map(move |path| if hostile { Entry::device(path) } else { Entry::dir(path) }),
    ];
    (entry, modes, 0_u64..3, 1_i64..1_000_000_000)
        .prop_map(|(entry, mode, owner, time)| entry.mode(mode).owner(owner, owner).mtime(time, 0))
}

/// Chooses the target of a link: a name like its own, or a path far away.
fn target(hostile: bool) -> impl Strategy<Value = Vec<u8>> {
    let far = prop::sample::select(vec![
        "/",
        "..",
        ".",
        "../..",
        "/a/../..",
        "../../../../../../..",
        "OUTSIDE",
        "OUTSIDE/file",
        "/../OUTSIDE/dir",
        "/proc/self/root",
        "/proc/self/cwd",
        "/link/link",
        "link",
    ])
    .prop_map(|text| text.as_bytes().to_vec());
    if hostile { prop_oneof![name(true), far].boxed() } else { name(false).boxed() }
}

fn image(hostile: bool) -> impl Strategy<Value = Vec<Vec<Entry>>> {
    // umoci refuses nearly all long ones, because of a file in place of a directory.
    let members = if hostile { 12 } else { 6 };
    prop::collection::vec(prop::collection::vec(member(hostile), 0..members), 1..5)
}

/// Replaces `OUTSIDE` in names and targets by the outside folder, whose path is not known
/// earlier.
fn aimed(tar: &[u8], outside: &str) -> Vec<u8> {
    // Names are shorter than a header's hundred bytes, so that they can be replaced.
    let mut tar = tar.to_vec();
    for at in (0..tar.len()).step_by(512) {
        let block = &mut tar[at..at + 512];
        if &block[257..262] != b"ustar" {
            continue;
        }
        for (from, to) in [(0, 100), (157, 257)] {
            let field = block[from..to].to_vec();
            let text = String::from_utf8_lossy(&field).trim_end_matches('\0').replace("OUTSIDE", outside);
            let bytes = text.as_bytes();
            if bytes.len() <= to - from {
                block[from..to].fill(0);
                block[from..from + bytes.len()].copy_from_slice(bytes);
            }
        }
        fixtures::image::checksum(block);
    }
    tar
}

#[test]
fn nothing_outside_changes_whatever_the_layers_hold() {
    check("hostile layers", 96, &image(true), |layers| {
        let store = TestStore::new();
        let outside = store.outside();
        let tars: Vec<_> = layers.iter().map(|entries| aimed(&layer(entries), outside.to_str().unwrap())).collect();
        // Also checks everything outside.
        match store.unpack(DIGEST, &tars) {
            Ok(root) => drop(tree(&root)),
            Err(Error::Invalid(_)) => prop_assert!(store.trees.find(DIGEST).is_none()),
            Err(other) => return Err(TestCaseError::fail(format!("not the image is blamed: {other:?}"))),
        }
        store.trees.remove(DIGEST).unwrap();
        store.trees.collect().unwrap();
        store.check();
        Ok(())
    });
}

#[test]
fn damaged_archives_are_refused_or_unpacked_and_nothing_else() {
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    check("damaged archives", 96, &(image(true), damage, any::<bool>()), |(layers, damage, honest)| {
        let store = TestStore::new();
        let mut tar: Vec<u8> = layers.iter().flat_map(|entries| layer(entries)).collect();
        for (place, value) in damage {
            let at = place.index(tar.len());
            tar[at] = value;
            if honest && at % 512 < 500 {
                let block = at - at % 512;
                fixtures::image::checksum(&mut tar[block..block + 512]);
            }
        }
        match store.unpack(DIGEST, &[tar]) {
            Ok(_) | Err(Error::Invalid(_)) => Ok(()),
            Err(other) => Err(TestCaseError::fail(format!("not the image is blamed: {other:?}"))),
        }
    });
}

#[test]
fn what_umoci_unpacks_we_unpack_the_same() {
    let Some(program) = found("umoci", &[]) else { return };
    let compared = AtomicU64::new(0);
    check("images beside umoci", 24, &image(false), |layers| {
        let image = Image::new(&layers);
        let store = TestStore::new();
        let ours = store.unpack(DIGEST, &image.layers);
        let Ok((_temp, theirs)) = umoci(&program, &image) else { return Ok(()) };
        compared.fetch_add(1, Ordering::Relaxed);
        let ours = match ours {
            Ok(ours) => ours,
            Err(error) => return Err(TestCaseError::fail(format!("umoci unpacks it: {error}"))),
        };
        // Directories that no layer names have no defined time.
        let any_directory = |_: &[u8]| false;
        let differences = differences(&comparable(&ours, any_directory), &comparable(&theirs, any_directory));
        prop_assert!(differences.is_empty(), "{}", differences.join("\n"));
        Ok(())
    });
    let compared = compared.into_inner();
    assert!(compared > 0, "umoci unpacked none of them");
    if std::env::var_os("TIDEBOX_FUZZ_SECONDS").is_some() {
        let _ = writeln!(std::io::stderr(), "images that umoci unpacks too: {compared}");
    }
}
