//! The user of a slot.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

use guest_protocol::Slot;
use rustix::fs::{Gid, Mode, Uid};

use super::refused::{At, Refused};
use crate::users;

/// Name of a slot's user, the same in all slots: none sees another.
const USER: &str = "user";
/// Home directory of that user.
const HOME: &str = "/home/user";
/// Directory that commands start in.
const WORKSPACE: &str = "/workspace";

/// Gives the slot's user a name, and a home and a workspace that no other user can enter. Runs as
/// the box's root, in the slot's own root.
pub(super) fn settle(slot: &Slot) -> Result<(), Refused> {
    for file in ["/etc/passwd", "/etc/group"] {
        let known = users::read(file);
        // A new file: an image may have anything in its place, such as a pipe.
        fs::remove_file(file).or_else(absent).at("write the users")?;
        let mut written = fs::File::create_new(file).at("write the users")?;
        written.write_all(with_user(&known, file, slot.uid).as_bytes()).at("write the users")?;
        written.set_permissions(fs::Permissions::from_mode(0o644)).at("write the users")?;
    }
    for dir in [HOME, WORKSPACE] {
        fs::create_dir_all(dir).at("make a home directory")?;
        rustix::fs::chown(dir, Some(Uid::from_raw(slot.uid)), Some(Gid::from_raw(slot.uid)))
            .at("set the owner of a home directory")?;
        rustix::fs::chmod(dir, Mode::from_raw_mode(0o700)).at("set the mode of a home directory")?;
    }
    Ok(())
}

/// Ignores a missing file: an image may lack either.
fn absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the lines of `file` with the slot's user in place of any user of that name.
fn with_user(known: &str, file: &str, id: u32) -> String {
    let is_passwd = file.ends_with("passwd");
    let lines = known.lines().filter(|line| line.split(':').next() != Some(USER));
    let mut text: String = lines.flat_map(|line| [line, "\n"]).collect();
    let shell = if fs::exists("/bin/bash").unwrap_or(false) { "/bin/bash" } else { "/bin/sh" };
    text.push_str(&if is_passwd {
        format!("{USER}:x:{id}:{id}:{USER}:{HOME}:{shell}\n")
    } else {
        format!("{USER}:x:{id}:\n")
    });
    text
}

#[cfg(test)]
mod test {
    use super::with_user;

    #[test]
    fn a_user_of_the_same_name_is_replaced_and_all_others_stay() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nuser2:x:7:7::/:/bin/sh\n";
        let text = with_user(passwd, "/etc/passwd", 10_001);
        let users: Vec<&str> = text.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(users, ["root", "user2", "user"]);
        assert!(text.contains("user:x:10001:10001:user:/home/user:/bin/"), "{text}");
        assert_eq!(with_user("", "/etc/group", 10_001), "user:x:10001:\n");
    }
}
