//! Users of commands. `/etc/passwd` and `/etc/group` of the box are parsed here and not by the C
//! library, whose name service would load code of the box.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;

use guest_protocol::{Account, Boot, Failure};

use crate::failure::{Result, invalid, not_supported};

/// Maximum number of bytes read from `/etc/passwd` or `/etc/group`.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of groups. The kernel accepts 65,536; no box here has that many.
const GROUPS_MAX: usize = 1024;
/// The id that means "no change" to the kernel, so no user has it.
const NO_ID: u32 = u32::MAX;

/// Ids and home directory of a command's user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// `None` keeps the ids of the agent.
    pub(crate) ids: Option<Ids>,
    /// `HOME`, if the environment has none.
    pub(crate) home: String,
    /// Name of the user, if the request names one.
    pub(crate) asked: Option<String>,
}

/// Ids that the command's process takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

struct Entry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

/// Returns the user that the image names, unless the box has a single user.
pub(crate) fn of_image(boot: &Boot) -> Option<&str> {
    boot.defaults.user.as_deref().filter(|user| !user.is_empty() && !boot.single_user)
}

/// Returns the user `asked` for (`name`, `uid`, `name:group` or `uid:gid`), else the image's, else
/// the agent's own.
///
/// # Errors
/// Invalid for a name that is not in the box; not supported for any but the agent's own user in a
/// box with a single user.
pub(crate) fn resolve(asked: Option<&str>, boot: &Boot) -> Result<User> {
    let passwd = read("/etc/passwd");
    let Some(user) = asked.or(of_image(boot)) else {
        let uid = rustix::process::getuid().as_raw();
        return Ok(User { ids: None, home: home(account_of(&passwd, uid).as_ref(), uid), asked: None });
    };
    let found = lookup(user, &passwd, &read("/etc/group"));
    let (ids, home) = found.map_err(|failure| {
        let message = format!("the image runs its commands as {user:?}, but {}", failure.message);
        if asked.is_none() { Failure { message, ..failure } } else { failure }
    })?;
    let asked = asked.map(|_| name_of(&passwd, ids.uid));
    if !boot.single_user {
        return Ok(User { ids: Some(ids), home, asked });
    }
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    if (ids.uid, ids.gid) != own {
        return Err(not_supported(if own.0 == 0 {
            "this sandbox has only the user root: it was made without privileges on its host"
        } else {
            "commands can run only as the user of this slot: the box is shared"
        }));
    }
    Ok(User { ids: None, home, asked })
}

/// Describes the user `asked` for, else the image's, else the agent's own.
///
/// # Errors
/// Invalid for a name that is not in the box.
pub(crate) fn account(asked: Option<&str>, boot: &Boot) -> Result<Account> {
    let passwd = read("/etc/passwd");
    let is_only = boot.single_user;
    let Some(user) = asked.or(of_image(boot)) else {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let home = home(account_of(&passwd, uid).as_ref(), uid);
        return Ok(Account { name: name_of(&passwd, uid), uid, gid, home, is_only });
    };
    let (ids, home) = lookup(user, &passwd, &read("/etc/group"))?;
    Ok(Account { name: name_of(&passwd, ids.uid), uid: ids.uid, gid: ids.gid, home, is_only })
}

/// Returns the name of a user; the number as text without one.
fn name_of(passwd: &str, uid: u32) -> String {
    account_of(passwd, uid).map_or_else(|| uid.to_string(), |account| account.name.to_owned())
}

/// Returns names by number: those of users in `/etc/passwd`, of groups in `/etc/group`. The first one of a
/// number counts.
pub(crate) fn names(file: &str) -> HashMap<u32, String> {
    let text = read(file);
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(id)) = (fields.next(), fields.nth(1).and_then(id))
            && !name.is_empty()
        {
            names.entry(id).or_insert_with(|| name.to_owned());
        }
    }
    names
}

/// Reads a file of users or groups of the box; empty if it is missing or not a regular file.
pub(crate) fn read(path: &str) -> String {
    let mut bytes = Vec::new();
    // A box may lack either file; then numeric ids still work.
    if let Ok(file) = open_regular(path) {
        let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Opens a regular file. The box may have put a FIFO there, which must not block the agent.
fn open_regular(path: &str) -> rustix::io::Result<File> {
    use rustix::fs::{FileType, Mode, OFlags, fstat, open};
    let fd = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) == FileType::RegularFile {
        Ok(File::from(fd))
    } else {
        Err(rustix::io::Errno::INVAL)
    }
}

fn lookup(user: &str, passwd: &str, group: &str) -> Result<(Ids, String)> {
    let (user, wanted_group) = match user.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (user, None),
    };
    let account = accounts(passwd).find(|account| account.name == user);
    let numeric = id(user);
    let account = account.or_else(|| account_of(passwd, numeric?));
    let uid = match (&account, numeric) {
        (Some(account), _) => account.uid,
        (None, Some(uid)) => uid,
        (None, None) => return Err(invalid(format!("the box has no user {user:?}"))),
    };
    let (gid, groups) = match wanted_group {
        Some(name) => {
            let gid = groups(group).find(|(n, ..)| *n == name).map(|(_, gid, _)| gid).or_else(|| id(name));
            let gid = gid.ok_or_else(|| invalid(format!("the box has no group {name:?}")))?;
            (gid, vec![gid])
        }
        None => {
            let gid = account.as_ref().map_or(0, |account| account.gid);
            (gid, memberships(group, account.as_ref().map(|account| account.name), gid))
        }
    };
    let home = home(account.as_ref(), uid);
    Ok((Ids { uid, gid, groups }, home))
}

fn home(account: Option<&Entry<'_>>, uid: u32) -> String {
    match account.map(|account| account.home).filter(|home| home.starts_with('/') && !home.contains('\0')) {
        Some(home) => home.to_owned(),
        None if uid == 0 => "/root".to_owned(),
        None => "/".to_owned(),
    }
}

fn account_of(passwd: &str, uid: u32) -> Option<Entry<'_>> {
    accounts(passwd).find(|account| account.uid == uid)
}

fn accounts(passwd: &str) -> impl Iterator<Item = Entry<'_>> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let _password = fields.next()?;
        let uid = id(fields.next()?)?;
        let gid = id(fields.next()?)?;
        let _comment = fields.next()?;
        let home = fields.next()?;
        (!name.is_empty()).then_some(Entry { name, uid, gid, home })
    })
}

/// Returns the name, id and members of each group.
fn groups(group: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    group.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let _password = fields.next()?;
        let gid = id(fields.next()?)?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

fn memberships(group: &str, user: Option<&str>, gid: u32) -> Vec<u32> {
    let mut gids = vec![gid];
    let Some(user) = user else { return gids };
    for (_, other, members) in groups(group) {
        if gids.len() < GROUPS_MAX && !gids.contains(&other) && members.split(',').any(|member| member == user) {
            gids.push(other);
        }
    }
    gids
}

fn id(text: &str) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|id| digits && *id != NO_ID)
}

#[cfg(test)]
mod test {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nbroken line\nann:x:1000:1001:,,,:/home/ann:/bin/sh\n";
    const GROUP: &str = "root:x:0:\nann:x:1001:\naudio:x:29:bob,ann\nvideo:x:44:annabel\n";

    fn ids(user: &str) -> Result<(u32, u32, Vec<u32>, String)> {
        lookup(user, PASSWD, GROUP).map(|(ids, home)| (ids.uid, ids.gid, ids.groups, home))
    }

    #[test]
    fn a_name_has_its_groups_and_its_home() {
        assert_eq!(ids("ann"), Ok((1000, 1001, vec![1001, 29], "/home/ann".into())));
        assert_eq!(ids("1000"), ids("ann"));
    }

    #[test]
    fn a_group_replaces_all_groups() {
        assert_eq!(ids("ann:audio"), Ok((1000, 29, vec![29], "/home/ann".into())));
        assert_eq!(ids("7:8"), Ok((7, 8, vec![8], "/".into())));
    }

    #[test]
    fn a_number_that_nobody_has_is_taken() {
        assert_eq!(ids("4242"), Ok((4242, 0, vec![0], "/".into())));
    }

    #[test]
    fn what_is_nobody_is_refused() {
        for user in
            ["", "eve", "ann:", "ann:eve", "-1", "+1", "4294967295", "4294967296", ":0", "0:4294967295", "a:b:c"]
        {
            assert!(ids(user).is_err(), "{user}");
        }
    }
}
