//! Names, links, hard links and whiteouts that would lead out of the image's folder.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use fixtures::image::Entry;

use crate::layers::harness::{DIGEST, TestStore, attack, xattrs};

/// Digest of an image other than [`DIGEST`].
const OTHER: &str = "sha256:00000000000000000000000000000000000000000000000000000000000000bb";

// Names that lead out.

#[test]
fn a_name_with_steps_up_stays_inside() {
    let outcome = attack(|_| vec![vec![Entry::file("../../../outside/file", "bad"), Entry::file("..", "")]]);
    outcome.refused("it is the root");
    let outcome = attack(|_| vec![vec![Entry::file("../../../outside/file", "bad")]]);
    outcome.holds("outside/file", "bad");
}

#[test]
fn steps_up_in_the_middle_of_a_name_stay_inside() {
    let outcome = attack(|_| vec![vec![Entry::dir("a"), Entry::file("a/../../../../outside/file", "bad")]]);
    outcome.holds("outside/file", "bad");
}

#[test]
fn an_absolute_name_is_one_from_the_root() {
    let outcome = attack(|outside| vec![vec![Entry::file(format!("{outside}/file"), "bad")]]);
    let outside = outcome.store.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn names_of_other_systems_are_names() {
    let outcome = attack(|_| vec![vec![Entry::file("C:\\..\\..\\file", "x"), Entry::file("~/file", "y")]]);
    outcome.holds("C:\\..\\..\\file", "x");
    outcome.holds("~/file", "y");
}

#[test]
fn a_name_of_nothing_is_refused() {
    for name in ["", ".", "/", "///", "./.", "a/.."] {
        attack(|_| vec![vec![Entry::file(name, "x")]]).refused("it is the root");
    }
}

#[test]
fn a_zero_byte_does_not_end_a_name() {
    let outcome = attack(|_| vec![vec![Entry::file("x", "bad").pax("path", b"good\0../../outside/file")]]);
    outcome.refused("a zero byte");
    let outcome = attack(|_| vec![vec![Entry::symlink("x", "y").pax("linkpath", b"/\0x")]]);
    outcome.refused("a zero byte");
}

// Links that lead out.

#[test]
fn a_file_below_an_absolute_link_stays_inside() {
    let outcome = attack(|outside| vec![vec![Entry::symlink("link", outside), Entry::file("link/file", "bad")]]);
    let outside = outcome.store.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn a_file_below_a_link_with_steps_up_stays_inside() {
    let up = "../".repeat(30);
    let outcome = attack(|outside| {
        vec![vec![Entry::symlink("a/link", format!("{up}{outside}")), Entry::file("a/link/file", "bad")]]
    });
    let outside = outcome.store.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn a_link_of_a_lower_layer_leads_nowhere_else() {
    let outcome = attack(|outside| {
        vec![vec![Entry::symlink("etc", outside)], vec![Entry::file("etc/file", "bad"), Entry::dir("etc/dir").mode(0)]]
    });
    let outside = outcome.store.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn a_file_in_the_place_of_a_link_replaces_the_link() {
    let outcome = attack(|outside| {
        vec![
            vec![Entry::symlink("file", format!("{outside}/file")), Entry::symlink("pipe", format!("{outside}/pipe"))],
            vec![Entry::file("file", "bad").mode(0o777), Entry::file("pipe", "bad")],
        ]
    });
    outcome.holds("file", "bad");
    outcome.holds("pipe", "bad");
}

#[test]
fn a_directory_in_the_place_of_a_link_replaces_the_link() {
    let outcome = attack(|outside| {
        vec![vec![
            Entry::symlink("dir", format!("{outside}/dir")),
            Entry::dir("dir").mode(0o700).owner(1, 1),
            Entry::file("dir/file", "bad"),
        ]]
    });
    assert!(outcome.root().join("dir").symlink_metadata().unwrap().is_dir());
    outcome.holds("dir/file", "bad");
}

#[test]
fn a_link_to_a_link_to_a_link_leads_nowhere_else() {
    let outcome = attack(|outside| {
        vec![vec![
            Entry::symlink("a", "b"),
            Entry::symlink("b", "/c/../d"),
            Entry::symlink("d", format!("e/../../..{outside}/dir")),
            Entry::dir("c"),
            Entry::dir("e"),
            Entry::file("a/file", "bad"),
        ]]
    });
    let outside = outcome.store.outside();
    outcome.holds(outside.join("dir/file").to_str().unwrap(), "bad");
}

#[test]
fn a_directory_that_turns_into_a_link_between_two_files_leads_nowhere_else() {
    let outcome = attack(|outside| {
        vec![vec![
            Entry::dir("dir"),
            Entry::file("dir/first", "1"),
            Entry::symlink("dir", format!("{outside}/dir")),
            Entry::file("dir/file", "bad"),
        ]]
    });
    let outside = outcome.store.outside();
    outcome.holds(outside.join("dir/file").to_str().unwrap(), "bad");
    assert!(outcome.root().join("dir").is_symlink());
}

#[test]
fn links_of_the_proc_file_system_are_links_like_any_other() {
    for link in ["/proc/self/root", "/proc/self/cwd", "/proc/self/fd/3", "/proc/1/root", "/dev/fd/3"] {
        let outcome = attack(|outside| {
            vec![vec![
                Entry::symlink("magic", link),
                Entry::file("magic/file", "bad"),
                Entry::file(format!("magic{outside}/file"), "bad"),
            ]]
        });
        outcome.holds(&format!("{link}/file"), "bad");
    }
}

#[test]
fn links_in_a_circle_are_refused() {
    let circle = |_: &str| vec![vec![Entry::symlink("a", "b"), Entry::symlink("b", "a"), Entry::file("a/x", "")]];
    attack(circle).refused("a loop of symbolic links");
    let itself = |_: &str| vec![vec![Entry::symlink("a", "a/a"), Entry::file("a/x", "")]];
    attack(itself).refused("a loop of symbolic links");
}

#[test]
fn links_that_double_with_each_step_are_refused_at_once() {
    let begun = Instant::now();
    let outcome = attack(|_| {
        let mut entries = vec![Entry::dir("l0")];
        for step in 1..60 {
            let before = step - 1;
            entries.push(Entry::symlink(format!("l{step}"), format!("l{before}/../l{before}/.")));
        }
        entries.push(Entry::file("l59/x", ""));
        vec![entries]
    });
    outcome.refused("a loop of symbolic links");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_link_to_nothing_or_too_far_is_refused() {
    attack(|_| vec![vec![Entry::symlink("a", "")]]).refused("a link without a target");
    attack(|_| vec![vec![Entry::symlink("a", "x".repeat(5_000))]]).refused("too long");
}

// Hard links.

#[test]
fn a_hard_link_to_an_absolute_name_does_not_reach_out() {
    let outcome = attack(|outside| vec![vec![Entry::hardlink("a", format!("{outside}/file"))]]);
    outcome.refused("which does not exist");
}

#[test]
fn a_hard_link_with_steps_up_does_not_reach_out() {
    let up = "../".repeat(30);
    attack(|outside| vec![vec![Entry::hardlink("a", format!("{up}{outside}/file"))]]).refused("which does not exist");
}

#[test]
fn a_hard_link_through_a_link_does_not_reach_out() {
    let outcome = attack(|outside| vec![vec![Entry::symlink("link", outside), Entry::hardlink("a", "link/file")]]);
    outcome.refused("which does not exist");
}

#[test]
fn a_hard_link_to_a_link_is_the_link_and_not_what_it_points_to() {
    let outcome = attack(|outside| {
        vec![
            vec![Entry::symlink("link", format!("{outside}/file")), Entry::hardlink("a", "link").mode(0o777)],
            vec![Entry::file("a", "bad").mode(0o777)],
        ]
    });
    outcome.holds("a", "bad");
    assert!(outcome.root().join("link").is_symlink());
}

#[test]
fn a_hard_link_below_a_link_stays_inside() {
    let outcome = attack(|outside| {
        vec![vec![Entry::file("mine", "x"), Entry::symlink("link", outside), Entry::hardlink("link/new", "mine")]]
    });
    let outside = outcome.store.outside();
    outcome.holds(outside.join("new").to_str().unwrap(), "x");
}

#[test]
fn a_hard_link_to_itself_leaves_the_file() {
    let outcome = attack(|_| vec![vec![Entry::file("d/a", "x"), Entry::hardlink("d/a", "/d/../d/a")]]);
    outcome.holds("d/a", "x");
    attack(|_| vec![vec![Entry::hardlink("a", "a")]]).refused("which does not exist");
}

#[test]
fn a_hard_link_to_a_directory_is_refused() {
    attack(|_| vec![vec![Entry::dir("d"), Entry::hardlink("a", "d")]]).refused("a link to a directory");
    attack(|_| vec![vec![Entry::hardlink("a", "..")]]).refused("a link to a directory");
}

#[test]
fn a_hard_link_to_a_file_in_the_directory_that_it_replaces_is_that_file() {
    attack(|_| vec![vec![Entry::file("d/a", "x"), Entry::hardlink("d", "d/a")]]).holds("d", "x");
}

#[test]
fn a_file_that_images_share_cannot_be_changed_through_one_of_them() {
    let store = TestStore::new();
    let secret = || Entry::file("bin/su", "good").mode(0o755);
    let one = store.unpack_entries(DIGEST, &[vec![secret()]]).unwrap();
    let two = store.unpack_entries(
        OTHER,
        &[
            vec![secret(), Entry::hardlink("link", "bin/su").mode(0o4777).owner(7, 7).mtime(1, 0).xattr("user.a", "b")],
            vec![Entry::file("link", "evil").mode(0o777), Entry::hardlink("again", "bin/su").mode(0o4777)],
        ],
    );
    let two = two.unwrap();
    let file = one.join("bin/su");
    let metadata = file.metadata().unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"good");
    assert_eq!((metadata.mode() & 0o7777, metadata.mtime()), (0o755, 1_700_000_000));
    assert!(xattrs(&file).is_empty());
    assert_eq!(metadata.ino(), two.join("bin/su").metadata().unwrap().ino());
    assert_eq!(fs::read(two.join("link")).unwrap(), b"evil");
}

// Whiteouts.

#[test]
fn a_whiteout_with_steps_up_removes_nothing_outside() {
    let up = "../".repeat(30);
    let outcome = attack(|outside| {
        vec![
            vec![Entry::file("kept", "x")],
            vec![Entry::file("../../outside/.wh.file", ""), Entry::file(format!("{up}{outside}/.wh.dir"), "")],
        ]
    });
    assert_eq!(outcome.names(), ["/kept"]);
}

#[test]
fn a_whiteout_through_a_link_removes_nothing_outside() {
    let outcome = attack(|outside| {
        vec![
            vec![Entry::symlink("link", outside), Entry::symlink("up", "../../../..")],
            vec![
                Entry::whiteout("link", "file"),
                Entry::opaque("link"),
                Entry::opaque("link/dir"),
                Entry::whiteout(&format!("up{outside}"), "file"),
            ],
        ]
    });
    assert_eq!(outcome.names(), ["/link", "/up"]);
}

#[test]
fn a_whiteout_of_no_name_or_of_a_step_is_refused() {
    for name in [".wh.", ".wh..", ".wh...", "a/.wh...", "a/.wh."] {
        let outcome = attack(|_| vec![vec![Entry::file("a/b", "")], vec![Entry::file(name, "")]]);
        outcome.refused("is a whiteout without a file name");
    }
}

#[test]
fn a_whiteout_of_a_link_removes_the_link_and_not_what_it_points_to() {
    let outcome = attack(|outside| {
        vec![
            vec![Entry::symlink("d", outside), Entry::symlink("f", format!("{outside}/file"))],
            vec![Entry::whiteout("", "d"), Entry::whiteout("", "f")],
        ]
    });
    assert_eq!(outcome.names(), Vec::<String>::new());
}

#[test]
fn removing_a_directory_does_not_go_through_the_links_in_it() {
    let lower = |outside: &str| {
        vec![
            Entry::symlink("d/link", outside),
            Entry::symlink("d/.lifted-0", outside),
            Entry::symlink("d/e/link", format!("{outside}/dir")),
            Entry::hardlink("d/e/hard", "d/link"),
        ]
    };
    for upper in [Entry::whiteout("", "d"), Entry::opaque(""), Entry::file("d", ""), Entry::symlink("d", "/")] {
        let outcome = attack(|outside| vec![lower(outside), vec![upper.clone()]]);
        outcome.lacks("d/e");
    }
    let outcome = attack(|outside| vec![lower(outside), vec![Entry::file("d/e/new", "x"), Entry::opaque("d")]]);
    assert_eq!(outcome.names(), ["/d", "/d/e", "/d/e/new"]);
}

#[test]
fn an_opaque_root_hides_what_is_in_it_and_nothing_beside_it() {
    let outcome = attack(|_| {
        vec![
            vec![Entry::file("a", ""), Entry::file("b/c", "")],
            vec![Entry::opaque(""), Entry::file("new", "x"), Entry::file("../.wh..wh..opq", "")],
        ]
    });
    assert_eq!(outcome.names(), ["/new"]);
}

#[test]
fn notes_of_other_storage_drivers_are_no_files() {
    let outcome = attack(|_| {
        vec![vec![
            Entry::dir(".wh..wh.plnk"),
            Entry::file(".wh..wh.plnk/1.2", "x"),
            Entry::file(".wh..wh.aufs", ""),
            Entry::file("a/.wh..wh.orph", ""),
            Entry::file("a/b", "y"),
        ]]
    });
    assert_eq!(outcome.names(), ["/a", "/a/b"]);
}
