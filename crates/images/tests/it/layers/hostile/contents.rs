//! Members of unusual kinds, attributes and numbers, and archives that contradict themselves.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use fixtures::image::{Entry, checksum, header, layer, record};

use crate::layers::harness::{DIGEST, attack, attack_raw, is_root, tree, xattrs};

// Files of other kinds.

#[test]
fn devices_are_not_made() {
    let outcome = attack(|_| {
        vec![
            vec![Entry::device("dev/null").mode(0o666), Entry::raw(b'4', "dev/sda").mode(0o666), Entry::file("x", "")],
            vec![Entry::device("x")],
        ]
    });
    assert_eq!(outcome.names(), ["/dev"]);
}

#[test]
fn what_is_written_to_a_device_is_written_to_a_file() {
    let outcome = attack(|_| vec![vec![Entry::raw(b'4', "dev/sda")], vec![Entry::file("dev/sda", "bad")]]);
    outcome.holds("dev/sda", "bad");
}

#[test]
fn a_pipe_is_made_and_never_opened() {
    let outcome = attack(|_| {
        vec![
            vec![Entry::fifo("p").mode(0o622), Entry::fifo("q"), Entry::fifo("r"), Entry::fifo("s")],
            vec![Entry::file("q", "x"), Entry::hardlink("h", "r"), Entry::dir("s"), Entry::opaque("s")],
        ]
    });
    let pipe = outcome.root().join("p").symlink_metadata().unwrap();
    assert!(pipe.file_type().is_fifo());
    assert_eq!(pipe.mode() & 0o7777, 0o622);
    outcome.holds("q", "x");
    assert!(outcome.root().join("h").symlink_metadata().unwrap().file_type().is_fifo());
}

#[test]
fn a_file_below_a_file_is_refused() {
    for below in [Entry::file("a/b", ""), Entry::dir("a/b"), Entry::symlink("a/b", "x"), Entry::fifo("a/b/c")] {
        attack(|_| vec![vec![Entry::file("a", ""), below.clone()]]).refused("a file is where its directory should be");
        attack(|_| vec![vec![Entry::fifo("a")], vec![below.clone()]])
            .refused("a file is where its directory should be");
    }
}

#[test]
fn a_member_of_an_unknown_kind_is_refused() {
    for kind in [b'D', b'V', b'M', b'9', b'\x1b', 0xff] {
        attack(|_| vec![vec![Entry::raw(kind, "a")]]).refused("an unknown type");
    }
}

#[test]
fn the_root_cannot_be_anything_but_a_directory() {
    for kind in [Entry::symlink("/", "/"), Entry::symlink("a/..", ".."), Entry::fifo("."), Entry::hardlink("/", "a")] {
        attack(|_| vec![vec![Entry::file("a", ""), kind.clone()]]).refused("it is the root");
    }
    let outcome = attack(|_| vec![vec![Entry::dir("/").mode(0o711), Entry::dir("../..").mode(0o751)]]);
    assert_eq!(outcome.root().metadata().unwrap().mode() & 0o7777, 0o751);
}

#[test]
fn programs_of_other_identities_are_out_of_everybodys_reach() {
    let outcome = attack(|_| vec![vec![Entry::file("su", "#!").mode(0o6755)]]);
    assert_eq!(outcome.root().join("su").metadata().unwrap().mode() & 0o7777, 0o6755);
    for folder in ["trees", "files", "trash"] {
        assert_eq!(outcome.store.images().join(folder).metadata().unwrap().mode() & 0o7777, 0o700, "{folder}");
    }
}

#[test]
fn directories_that_forbid_everything_do_not_stop_the_rest() {
    let outcome = attack(|_| {
        vec![
            vec![
                Entry::dir("a").mode(0),
                Entry::dir("a/b").mode(0o111),
                Entry::file("a/b/c", "x").mode(0),
                Entry::dir("d").mode(0o555),
            ],
            vec![Entry::file("d/e", "y"), Entry::file("a/b/f", "z"), Entry::whiteout("a/b", "c")],
        ]
    });
    let found = tree(outcome.root());
    let mode = |path: &str| found[path.as_bytes()].mode;
    assert_eq!((mode("/a"), mode("/a/b"), mode("/d")), (0, 0o111, 0o555));
    assert_eq!(outcome.names(), ["/a", "/a/b", "/a/b/f", "/d", "/d/e"]);
    // Such a tree can be removed.
    outcome.store.trees.remove(DIGEST).unwrap();
    outcome.store.check();
}

// Attributes and numbers.

#[test]
fn attributes_that_would_lead_a_file_system_above_are_left_out() {
    let outcome = attack(|_| {
        let notes = |entry: Entry| {
            entry
                .xattr("user.kept", "line\nend\0")
                .xattr("user.overlay.opaque", "y")
                .xattr("user.overlay.redirect", "/etc")
                .xattr("user.overlay.metacopy", "")
                .xattr("trusted.overlay.opaque", "y")
                .xattr("trusted.other", "y")
                .xattr("security.selinux", "x")
                .xattr("system.posix_acl_access", "x")
                .xattr("security.ima", "x")
        };
        vec![vec![notes(Entry::dir("d")), notes(Entry::file("d/f", "x"))]]
    });
    for path in ["d", "d/f"] {
        let found = xattrs(&outcome.root().join(path));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(b"user.kept".to_vec(), b"line\nend\0".to_vec())], "{path}");
    }
}

#[test]
fn an_attribute_that_is_too_long_is_refused() {
    attack(|_| vec![vec![Entry::file("f", "").xattr("user.a", vec![b'x'; 70_000])]]).refused("too long");
    attack(|_| vec![vec![Entry::file("f", "").xattr(&format!("user.{}", "x".repeat(300)), "")]]).refused("too long");
}

#[test]
fn an_owner_that_no_box_has_is_refused() {
    for (uid, gid) in [(65_536, 0), (0, 65_536), (u64::from(u32::MAX), 0), (1 << 32, 0), (1 << 55, 1 << 55)] {
        let outcome = attack(|_| vec![vec![Entry::file("f", "").owner(uid, gid)]]);
        if is_root() {
            outcome.refused("users and groups only up to 65535");
        } else {
            assert_eq!(outcome.root().join("f").metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
        }
    }
    attack(|_| vec![vec![Entry::file("f", "").owner(65_535, 65_535)]]).holds("f", "");
}

#[test]
fn times_from_before_and_after_all_time_are_taken_as_far_as_they_go() {
    for seconds in ["-9223372036854775808", "9223372036854775807", "-1.5", "99999999999"] {
        attack(|_| {
            vec![vec![Entry::file("f", "x").pax("mtime", seconds), Entry::symlink("l", "f").pax("mtime", seconds)]]
        })
        .holds("f", "x");
    }
    attack(|_| vec![vec![Entry::file("f", "x").pax("mtime", "soon")]]).refused("an invalid time");
}

#[test]
fn sizes_that_are_none_are_refused() {
    let with_size = |size: &'static [u8]| {
        move |_: &str| {
            let mut tar = layer(&[Entry::file("f", "x")]);
            tar[124..124 + size.len()].copy_from_slice(size);
            checksum(&mut tar[..512]);
            vec![tar]
        }
    };
    attack_raw(with_size(&[0xff; 12])).refused("negative");
    attack_raw(with_size(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")).refused("an invalid number");
    attack_raw(with_size(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")).refused("truncated");
    attack_raw(with_size(b"99999999999\0")).refused("an invalid number");
    attack_raw(with_size(b"77777777777\0")).refused("truncated");
    attack_raw(with_size(b"-0000000001\0")).refused("an invalid number");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "18446744073709551615")]]).refused("truncated");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "18446744073709551616")]]).refused("an invalid number");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "-1")]]).refused("an invalid number");
}

// Archives that lie about themselves.

#[test]
fn a_member_hidden_in_the_content_of_another_is_content() {
    // The header and the pax header state different sizes. A reader that takes the wrong one sees
    // a member that another reader does not.
    let hidden = layer(&[Entry::file("hidden", "bad")]);
    let outcome = attack_raw(|_| {
        let mut tar = Vec::new();
        let records = record("size", hidden.len().to_string().as_bytes());
        header(&mut tar, b'x', b"pax", b"", records.len() as u64, 0o644, (0, 0), 0);
        tar.extend(&records);
        tar.resize(tar.len().next_multiple_of(512), 0);
        header(&mut tar, b'0', b"outer", b"", 0, 0o644, (0, 0), 0);
        tar.extend(&hidden);
        tar.extend(layer(&[Entry::file("last", "")]));
        vec![tar]
    });
    assert_eq!(outcome.names(), ["/last", "/outer"]);
    assert_eq!(outcome.root().join("outer").metadata().unwrap().len(), hidden.len() as u64);
}

#[test]
fn a_size_on_something_without_content_hides_nothing() {
    let outcome = attack_raw(|_| {
        let mut tar = Vec::new();
        header(&mut tar, b'5', b"dir", b"", 1024, 0o755, (0, 0), 0);
        tar.extend(layer(&[Entry::file("seen", "x")]));
        vec![tar]
    });
    assert_eq!(outcome.names(), ["/dir", "/seen"]);
}

#[test]
fn members_after_the_end_are_refused() {
    let outcome = attack_raw(|_| {
        let mut tar = layer(&[Entry::file("a", "")]);
        tar.truncate(tar.len() - 512);
        tar.extend(layer(&[Entry::file("b", "")]));
        vec![tar]
    });
    outcome.refused("members after the end");
}

#[test]
fn an_archive_that_is_none_is_refused() {
    attack_raw(|_| vec![b"#!/bin/sh\nexit 1\n".repeat(100)]).refused("checksum is wrong");
    attack_raw(|_| vec![vec![1; 100]]).refused("truncated");
    let mut tar = layer(&[Entry::file("a", "")]);
    tar[0] ^= 1;
    attack_raw(|_| vec![tar]).refused("checksum is wrong");
}

#[test]
fn content_that_ends_early_is_refused() {
    let tar = layer(&[Entry::file("a", vec![b'x'; 400_000]), Entry::file("b", vec![b'y'; 3_000])]);
    for cut in [511, 600, 200_000, 401_500, 402_500] {
        attack_raw(|_| vec![tar[..cut].to_vec()]).refused("truncated");
    }
}

#[test]
fn of_two_members_with_one_name_the_last_one_counts() {
    let outcome = attack(|outside| {
        vec![vec![
            Entry::file("a", "first").mode(0o777),
            Entry::symlink("a", format!("{outside}/file")),
            Entry::dir("a"),
            Entry::file("a/b", ""),
            Entry::fifo("a"),
            Entry::file("a", "last").mode(0o600),
        ]]
    });
    outcome.holds("a", "last");
    assert_eq!(outcome.names(), ["/a"]);
}

#[test]
fn names_that_are_no_text_are_kept_and_shown_without_harm() {
    let odd: &[u8] = b"\x1b[31m\xff\xfe\n\r\t\"'$(id)`;\x7f";
    let outcome = attack(|_| vec![vec![Entry::file(odd, "x"), Entry::symlink(b"l\xff", odd), Entry::dir(b"\xc3\x28")]]);
    let found = tree(outcome.root());
    assert!(found.contains_key(&[b"/", odd].concat()));
    assert_eq!(found[&b"/l\xff"[..]].content, odd);
    attack(|_| vec![vec![Entry::file(odd, "x"), Entry::file([odd, b"/x"].concat(), "")]])
        .refused("a file is where its directory should be");
}
