//! Names of the owners of files.

use std::collections::HashMap;

use guest_protocol::OWNER_BYTES_MAX;

use crate::users;

/// Names of users and groups by number, as the box's files define them.
#[derive(Debug)]
pub(super) struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// Reads the names.
    pub(super) fn read() -> Owners {
        Owners { users: users::names("/etc/passwd"), groups: users::names("/etc/group") }
    }

    pub(super) fn user(&self, uid: u32) -> String {
        name(&self.users, uid)
    }

    pub(super) fn group(&self, gid: u32) -> String {
        name(&self.groups, gid)
    }
}

/// Returns the name of a number; the number as text without a plain and short one, so that a listing has a
/// bound.
fn name(names: &HashMap<u32, String>, id: u32) -> String {
    let is_plain = |name: &&String| {
        name.len() <= OWNER_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'$'))
    };
    names.get(&id).filter(is_plain).map_or_else(|| id.to_string(), String::clone)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_owner_without_a_plain_name_is_a_number() {
        let names =
            HashMap::from([(0, "root".to_owned()), (7, "a\"b".to_owned()), (8, "x".repeat(OWNER_BYTES_MAX + 1))]);
        for (id, expected) in [(0, "root"), (7, "7"), (8, "8"), (9, "9")] {
            assert_eq!(name(&names, id), expected);
        }
    }
}
