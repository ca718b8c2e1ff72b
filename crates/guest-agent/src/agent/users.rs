//! Users of the box, from its own files: a static program has no name service.

use std::io::Read;

use guest_protocol::FailureKind;

use super::failure::{Result, failure, invalid};

/// More of a file than this is not looked at.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// The kernel takes no more supplementary groups.
const GROUPS_MAX: usize = 65_536;

/// Who a command runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Supplementary groups.
    pub(crate) groups: Vec<u32>,
    /// `HOME`, unless the request says otherwise.
    pub(crate) home: String,
}

/// Finds `name`, `uid`, `name:group` or `uid:gid`; `None` is the box's own user.
pub(crate) fn find(user: Option<&str>, is_single_user: bool) -> Result<User> {
    let found = look_up(user.unwrap_or("0"), &read("/etc/passwd"), &read("/etc/group"))?;
    if is_single_user && (found.uid, found.gid) != (0, 0) {
        return Err(failure(
            FailureKind::NotSupported,
            "this sandbox has one user only, because its server runs without privileges; leave `user` out",
        ));
    }
    Ok(found)
}

fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    // A box without the file has no names; numbers still work.
    let _ = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn look_up(user: &str, passwd: &str, group: &str) -> Result<User> {
    let (name, group_name) = match user.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user, None),
    };
    let id: Option<u32> = name.parse().ok();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| {
        fields.first() == Some(&name) || (id.is_some() && fields.get(2).and_then(|uid| uid.parse().ok()) == id)
    });
    let field = |n: usize| entry.as_ref().and_then(|fields| fields.get(n).copied());
    let number = |n: usize| field(n).and_then(|text| text.parse::<u32>().ok());
    let uid = number(2).or(id).ok_or_else(|| invalid(format!("there is no user `{name}` in the sandbox")))?;
    let gid = match group_name {
        None => number(3).unwrap_or(0),
        Some(wanted) => group_id(wanted, group)?,
    };
    let login = field(0).unwrap_or_default();
    let groups = if group_name.is_some() { Vec::new() } else { memberships(login, group) };
    let home = field(5).filter(|home| !home.is_empty()).unwrap_or("/").to_owned();
    Ok(User { uid, gid, groups, home })
}

fn group_id(wanted: &str, group: &str) -> Result<u32> {
    let named = group.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(wanted)).then(|| fields.nth(1)?.parse().ok())?
    });
    named.or_else(|| wanted.parse().ok()).ok_or_else(|| invalid(format!("there is no group `{wanted}` in the sandbox")))
}

fn memberships(login: &str, group: &str) -> Vec<u32> {
    let is_member = |list: &str| !login.is_empty() && list.split(',').any(|member| member.trim() == login);
    group
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            fields.get(3).filter(|list| is_member(list)).and_then(|_| fields.get(2)?.parse().ok())
        })
        .take(GROUPS_MAX)
        .collect()
}

#[cfg(test)]
mod test {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\nbroken\n";
    const GROUP: &str = "root:x:0:\nuser:x:1000:\naudio:x:29:user,root\n";

    #[test]
    fn users_are_found_by_name_and_number_with_their_groups() {
        let check = |text: &str, uid, gid, groups: &[u32], home: &str| {
            let expected = User { uid, gid, groups: groups.to_vec(), home: home.to_owned() };
            assert_eq!(look_up(text, PASSWD, GROUP), Ok(expected), "{text}");
        };
        check("user", 1000, 1000, &[29], "/home/user");
        check("1000", 1000, 1000, &[29], "/home/user");
        check("user:audio", 1000, 29, &[], "/home/user");
        check("7:8", 7, 8, &[], "/");
        check("7", 7, 0, &[], "/");
        check("0", 0, 0, &[29], "/root");
    }

    #[test]
    fn unknown_names_are_told() {
        assert!(look_up("nobody", PASSWD, GROUP).unwrap_err().message.contains("user `nobody`"));
        assert!(look_up("user:wheel", PASSWD, GROUP).unwrap_err().message.contains("group `wheel`"));
        assert!(look_up("", PASSWD, GROUP).is_err());
        assert!(look_up("-1", PASSWD, GROUP).is_err());
    }
}
