//! Files and directories that every box has, made where an image lacks them.
//!
//! Runs in the box, as its root, before anything of the image does: nothing that the image has put
//! in the way, links above all, leads out of the box.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt as _;

use guest_protocol::Boot;
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdir, open, statat, unlinkat,
};
use rustix::io::Errno;

use crate::diverted::NAME_SERVER;
use crate::exec::plan::default_workdir;
use crate::failure::reason;
use crate::files::write::make_dir_and_parents;
use crate::users::{self, Ids};

const HOSTS: &str = "/etc/hosts";
/// Largest such file that is read for the name of the host. A larger one is a list of advertisers.
const HOSTS_BYTES_MAX: u64 = 1024 * 1024;
/// Directory of commands if neither the request nor the image names one.
const WORKSPACE: &str = "/workspace";
/// Directories that programs expect, and their modes.
const DIRS: [(&str, u32); 4] = [("/etc", 0o755), ("/run", 0o755), ("/tmp", 0o1777), (WORKSPACE, 0o755)];

/// Makes what is missing and leaves what exists. Returns a sentence for each item that cannot be
/// made.
pub(crate) fn furnish(boot: &Boot) -> Vec<String> {
    let mut faults = Vec::new();
    for (dir, mode) in DIRS {
        note(&mut faults, dir, make_dir(dir, mode));
    }
    let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // Tools that export images leave these empty.
    for (file, content) in named_files(&hostname).into_iter().chain([("/etc/resolv.conf", String::new())]) {
        note(&mut faults, file, fill(file, &content));
    }
    // One of the image knows the name of the machine that it was made on, at most.
    let named = name_host(HOSTS, &hostname);
    note(&mut faults, HOSTS, named.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)));
    let workdir = default_workdir(boot);
    if workdir != WORKSPACE {
        note(&mut faults, workdir, make_dir_and_parents(workdir.as_bytes()));
    }
    if users::of_image(boot).is_some() {
        match users::resolve(None, boot) {
            Ok(user) => note(&mut faults, WORKSPACE, user.ids.map_or(Ok(()), |ids| give_away(WORKSPACE, &ids))),
            Err(failure) => faults.push(failure.message),
        }
    }
    faults
}

fn note(faults: &mut Vec<String>, what: &str, outcome: Result<(), Errno>) {
    if let Err(errno) = outcome {
        faults.push(format!("{what}: {}", reason(errno)));
    }
}

/// Returns the files that name the host.
fn named_files(hostname: &str) -> [(&'static str, String); 2] {
    let hosts = format!("127.0.0.1\tlocalhost {hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    [("/etc/hostname", format!("{hostname}\n")), (HOSTS, hosts)]
}

/// Replaces the name of the host in the files that [`furnish`] has made, and leaves others.
pub(crate) fn rename_host(earlier: &str, hostname: &str) {
    for ((file, before), (_, now)) in named_files(earlier).into_iter().zip(named_files(hostname)) {
        // One that cannot be written keeps the name.
        let _ = replace(file, &before, &now);
    }
    let _ = name_host(HOSTS, hostname);
}

/// Adds a line for the name of the host to a regular file that has none, and leaves others.
fn name_host(path: &str, hostname: &str) -> std::io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match open(path, flags, Mode::empty()) {
        // The image has a link here, or nothing could be made.
        Err(Errno::LOOP | Errno::NOENT | Errno::NXIO | Errno::ISDIR) => return Ok(()),
        opened => File::from(opened?),
    };
    let metadata = file.metadata()?;
    let size = metadata.len();
    if !metadata.is_file() || size > HOSTS_BYTES_MAX {
        return Ok(());
    }
    let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut content, 0)?;
    let text = String::from_utf8_lossy(&content);
    let names = text.lines().flat_map(|line| line.split('#').next().unwrap_or("").split_whitespace().skip(1));
    if names.into_iter().any(|name| name == hostname) {
        return Ok(());
    }
    let before = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all_at(format!("{before}127.0.0.1\t{hostname}\n").as_bytes(), size)
}

/// Replaces the content of a regular file that has `before`, and leaves others. What the box has put in its place
/// is neither followed nor waited for.
fn replace(path: &str, before: &str, now: &str) -> std::io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.len() != before.len() as u64 {
        return Ok(());
    }
    let mut content = vec![0; before.len()];
    file.read_exact_at(&mut content, 0)?;
    if content == before.as_bytes() {
        // In place: that needs no room, if the two are as long.
        file.write_all_at(now.as_bytes(), 0)?;
        file.set_len(now.len() as u64)?;
    }
    Ok(())
}

/// Has programs ask the agent for the addresses of names, whatever the image or the host says. Returns
/// a sentence if it cannot.
pub(crate) fn name_server() -> Option<String> {
    const FILE: &str = "/etc/resolv.conf";
    let written = make_dir("/etc", 0o755).and_then(|()| {
        // A new file: an image may have a link here that leads nowhere.
        match unlinkat(CWD, FILE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => fill(FILE, &format!("nameserver {NAME_SERVER}\n")),
            Err(errno) => Err(errno),
        }
    });
    written.err().map(|errno| format!("{FILE}: {}; names do not resolve in this box", reason(errno)))
}

/// Makes a directory, in place of a file that does not lead to one.
fn make_dir(path: &str, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode);
    let made = match mkdir(path, mode) {
        Err(Errno::EXIST) if !leads_to_a_directory(path) => {
            unlinkat(CWD, path, AtFlags::empty())?;
            mkdir(path, mode)
        }
        made => made,
    };
    match made {
        // The mode does not depend on the process's umask.
        Ok(()) => fchmod(open_dir(path)?, mode),
        // Also on read-only file systems that have the directory already.
        Err(_) if leads_to_a_directory(path) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn leads_to_a_directory(path: &str) -> bool {
    statat(CWD, path, AtFlags::empty()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

fn open_dir(path: &str) -> Result<rustix::fd::OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(path, flags, Mode::empty())
}

/// Writes a file that is missing or empty.
fn fill(path: &str, content: &str) -> Result<(), Errno> {
    match statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat)
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile
                || stat.st_size > 0
                || content.is_empty() =>
        {
            return Ok(());
        }
        Ok(_) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    // A file that is not a regular one any more must not block.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::from_raw_mode(0o644))?);
    (&file).write_all(content.as_bytes()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Gives a directory to a user; a link itself keeps its owner.
fn give_away(path: &str, ids: &Ids) -> Result<(), Errno> {
    let dir = match open_dir(path) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Ok(()),
        opened => opened?,
    };
    let stat = fstat(&dir)?;
    if (stat.st_uid, stat.st_gid) == (ids.uid, ids.gid) {
        return Ok(());
    }
    fchown(&dir, Some(Uid::from_raw(ids.uid)), Some(Gid::from_raw(ids.gid)))
}

#[cfg(test)]
mod test {
    use rustix::fs::mknodat;

    use super::*;

    #[test]
    fn the_name_of_the_host_is_added_to_hosts_that_lack_it() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("hosts");
        let path = path.to_str().unwrap();
        for (content, after) in [
            ("127.0.0.1 localhost", "127.0.0.1 localhost\n127.0.0.1\tbox\n"),
            ("127.0.0.1 localhost # box\n", "127.0.0.1 localhost # box\n127.0.0.1\tbox\n"),
            ("::1 box\n", "::1 box\n"),
            ("127.0.0.1 inbox\n", "127.0.0.1 inbox\n127.0.0.1\tbox\n"),
        ] {
            std::fs::write(path, content).unwrap();
            name_host(path, "box").unwrap();
            name_host(path, "box").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), after);
        }
        std::fs::remove_file(path).unwrap();
        name_host(path, "box").unwrap();
        assert!(!std::path::Path::new(path).exists());
    }

    #[test]
    fn only_a_file_that_was_made_for_the_box_gets_another_name() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("hostname");
        let path = path.to_str().unwrap();
        for (content, after) in [("before\n", "later\n"), ("before\nmine\n", "before\nmine\n"), ("", "")] {
            std::fs::write(path, content).unwrap();
            replace(path, "before\n", "later\n").unwrap();
            assert_eq!(std::fs::read_to_string(path).unwrap(), after);
        }
        std::fs::write(path, "before\n").unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(path, &link).unwrap();
        replace(link.to_str().unwrap(), "before\n", "later\n").unwrap_err();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "before\n");
        std::fs::remove_file(path).unwrap();
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // It does not wait for a writer.
        replace(path, "before\n", "later\n").unwrap();
    }
}
