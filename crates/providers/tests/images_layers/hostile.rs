//! What hostile layers try. Every test unpacks an image beside precious files,
//! and every one of these is then as it was: mode, owner, times, links, content.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::{Duration, Instant};

use fixtures::image::{Entry, Packing, checksum, header, layer, record};
use providers::images::trees::Bounds;

use crate::ground::{BOUNDS, DIGEST, Ground, attack, attack_raw, is_root, tree, xattrs};

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
    let outside = outcome.ground.outside();
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
    let outside = outcome.ground.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn a_file_below_a_link_with_steps_up_stays_inside() {
    let up = "../".repeat(30);
    let outcome = attack(|outside| {
        vec![vec![Entry::symlink("a/link", format!("{up}{outside}")), Entry::file("a/link/file", "bad")]]
    });
    let outside = outcome.ground.outside();
    outcome.holds(outside.join("file").to_str().unwrap(), "bad");
}

#[test]
fn a_link_of_a_lower_layer_leads_nowhere_else() {
    let outcome = attack(|outside| {
        vec![vec![Entry::symlink("etc", outside)], vec![Entry::file("etc/file", "bad"), Entry::dir("etc/dir").mode(0)]]
    });
    let outside = outcome.ground.outside();
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
    let outside = outcome.ground.outside();
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
    let outside = outcome.ground.outside();
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
    attack(circle).refused("round in a circle");
    let itself = |_: &str| vec![vec![Entry::symlink("a", "a/a"), Entry::file("a/x", "")]];
    attack(itself).refused("round in a circle");
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
    outcome.refused("round in a circle");
    assert!(begun.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_link_to_nothing_or_too_far_is_refused() {
    attack(|_| vec![vec![Entry::symlink("a", "")]]).refused("a link to nothing");
    attack(|_| vec![vec![Entry::symlink("a", "x".repeat(5_000))]]).refused("too long");
}

// Hard links.

#[test]
fn a_hard_link_to_an_absolute_name_does_not_reach_out() {
    let outcome = attack(|outside| vec![vec![Entry::hardlink("a", format!("{outside}/file"))]]);
    outcome.refused("which is not there");
}

#[test]
fn a_hard_link_with_steps_up_does_not_reach_out() {
    let up = "../".repeat(30);
    attack(|outside| vec![vec![Entry::hardlink("a", format!("{up}{outside}/file"))]]).refused("which is not there");
}

#[test]
fn a_hard_link_through_a_link_does_not_reach_out() {
    let outcome = attack(|outside| vec![vec![Entry::symlink("link", outside), Entry::hardlink("a", "link/file")]]);
    outcome.refused("which is not there");
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
    let outside = outcome.ground.outside();
    outcome.holds(outside.join("new").to_str().unwrap(), "x");
}

#[test]
fn a_hard_link_to_itself_leaves_the_file() {
    let outcome = attack(|_| vec![vec![Entry::file("d/a", "x"), Entry::hardlink("d/a", "/d/../d/a")]]);
    outcome.holds("d/a", "x");
    attack(|_| vec![vec![Entry::hardlink("a", "a")]]).refused("which is not there");
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
    let ground = Ground::new();
    let secret = || Entry::file("bin/su", "good").mode(0o755);
    let one = ground.unpack_entries(DIGEST, &[vec![secret()]]).unwrap();
    let two = ground.unpack_entries(
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
        outcome.refused("hides a file without a name");
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
        attack(|_| vec![vec![Entry::raw(kind, "a")]]).refused("a kind that is not known");
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
        assert_eq!(outcome.ground.images().join(folder).metadata().unwrap().mode() & 0o7777, 0o700, "{folder}");
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
    // And it goes.
    outcome.ground.trees.remove(DIGEST).unwrap();
    outcome.ground.check();
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
            outcome.refused("users and groups up to 65535 only");
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
    attack(|_| vec![vec![Entry::file("f", "x").pax("mtime", "soon")]]).refused("a time that is none");
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
    attack_raw(with_size(&[0xff; 12])).refused("below zero");
    attack_raw(with_size(b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")).refused("a number that is none");
    attack_raw(with_size(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")).refused("cut short");
    attack_raw(with_size(b"99999999999\0")).refused("a number that is none");
    attack_raw(with_size(b"77777777777\0")).refused("cut short");
    attack_raw(with_size(b"-0000000001\0")).refused("a number that is none");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "18446744073709551615")]]).refused("cut short");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "18446744073709551616")]]).refused("a number that is none");
    attack(|_| vec![vec![Entry::file("f", "x").pax("size", "-1")]]).refused("a number that is none");
}

// Archives that lie about themselves.

#[test]
fn a_member_hidden_in_the_content_of_another_is_content() {
    // One size in the header and another one in the pax header: whoever takes the
    // wrong one sees a member that the other does not.
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
    attack_raw(|_| vec![vec![1; 100]]).refused("cut short");
    let mut tar = layer(&[Entry::file("a", "")]);
    tar[0] ^= 1;
    attack_raw(|_| vec![tar]).refused("checksum is wrong");
}

#[test]
fn content_that_ends_early_is_refused() {
    let tar = layer(&[Entry::file("a", vec![b'x'; 400_000]), Entry::file("b", vec![b'y'; 3_000])]);
    for cut in [511, 600, 200_000, 401_500, 402_500] {
        attack_raw(|_| vec![tar[..cut].to_vec()]).refused("cut short");
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

// Bombs.

#[test]
fn a_size_bomb_is_stopped_at_the_bound() {
    for packing in [Packing::Gzip, Packing::Zstd] {
        let ground = Ground::new();
        let mut bomb = ground.blob(&layer(&[]), packing);
        // 4 GiB of zeros in one member, some megabytes compressed at the most.
        let mut tar = Vec::new();
        header(&mut tar, b'0', b"bomb", b"", 4 << 30, 0o644, (0, 0), 0);
        let zeros = packing.pack(&vec![0; 1 << 20]);
        let mut blob = packing.pack(&tar);
        (0..4096).for_each(|_| blob.extend(&zeros));
        fs::write(&bomb.path, &blob).unwrap();
        bomb.diff_id = DIGEST.to_owned();
        let begun = Instant::now();
        let error = ground.trees.unpack(DIGEST, &[bomb], &BOUNDS, &|_| ()).unwrap_err();
        assert!(error.to_string().contains("larger than 8388608 bytes"), "{packing:?}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(60), "{packing:?}");
        ground.check();
    }
}

#[test]
fn bytes_that_no_file_needs_are_bounded_too() {
    let ground = Ground::new();
    let mut tar = layer(&[Entry::file("a", "")]);
    tar.resize(12 << 20, 0);
    let bomb = ground.blob(&tar, Packing::Zstd);
    let error = ground.trees.unpack(DIGEST, &[bomb], &BOUNDS, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("larger than"), "{error}");
    ground.check();
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
    with("0,4", "100").refused("does not fit its content");
    with("0,9", "100").refused("does not fit its content");
    with("18446744073709551615,8", "18446744073709551615").refused("malformed");
    with("0,4,6", "100").refused("malformed");
    let outcome = with("0,4,6,4", "20");
    assert_eq!(fs::read(outcome.root().join("f")).unwrap(), [b"1234", &[0; 2][..], b"5678", &[0; 10]].concat());
}

#[test]
fn a_million_entries_are_too_many() {
    let few = Bounds { entries_max: 1_000, ..BOUNDS };
    let ground = Ground::new();
    let entries: Vec<_> = (0..1_001).map(|number| Entry::file(number.to_string(), "")).collect();
    let bomb = ground.blob(&layer(&entries), Packing::Zstd);
    let error = ground.trees.unpack(DIGEST, &[bomb], &few, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("more than 1000 files"), "{error}");
    ground.check();
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
    let ground = Ground::new();
    let mut lying = ground.blob(&layer(&[Entry::file("a", "evil")]), Packing::Gzip);
    lying.diff_id = DIGEST.to_owned();
    let error = ground.trees.unpack(DIGEST, &[lying], &BOUNDS, &|_| ()).unwrap_err();
    assert!(error.to_string().contains("configuration says"), "{error}");
    ground.check();
    assert!(ground.trees.find(DIGEST).is_none());
}

#[test]
fn a_digest_that_leads_elsewhere_is_none() {
    let ground = Ground::new();
    for digest in ["", "sha256:", "sha256:../../outside", "../outside", "sha512:00", &DIGEST.to_uppercase()] {
        assert!(ground.unpack_entries(digest, &[vec![Entry::file("a", "")]]).is_err(), "{digest}");
        assert!(ground.trees.find(digest).is_none());
        ground.trees.remove(digest).unwrap();
        ground.check();
    }
}
