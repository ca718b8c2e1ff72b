//! Generated root of `image: host`: files that programs of the host's `/usr` expect around it,
//! without information about the host.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use guest_protocol::Defaults;

use super::shipped::{self, shipped};

/// Names copied from the host's `/etc` if present: plain data without secrets. A directory stands
/// for everything below it.
const ETC_COPIED: [&str; 24] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "gai.conf",
    "host.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "pki/tls/certs",
    "protocols",
    "python3",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];
/// Prefixes of names that are copied likewise, with any version after them.
const ETC_COPIED_PREFIXES: [&str; 3] = ["java-", "python3.", "perl"];
/// Size above which a file is not copied: it is no plain configuration.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Number of times that a skeleton is made which another server removes meanwhile.
const ATTEMPTS_MAX: usize = 5;
/// Most entries of the root; no usual `/etc` holds more.
const ENTRIES_MAX: usize = 50_000;
/// Links or directories of the root that may lead into `/usr`.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files that are the same for every box, as is the host name.
const WRITTEN: [(&str, &str); 14] = [
    ("etc/group", "root:x:0:\ntty:x:5:\nmail:x:8:\nstaff:x:50:\nuser:x:1000:\nnogroup:x:65534:\n"),
    ("etc/hostname", "tidebox\n"),
    ("etc/hosts", "127.0.0.1\tlocalhost tidebox\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
    (
        "etc/nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
    ),
    ("etc/profile", "export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\n"),
    ("etc/resolv.conf", ""),
    ("etc/shells", "/bin/sh\n/bin/bash\n"),
    ("etc/fstab", ""),
    // What programs of the host's distribution find for others to include: each session is allowed, and
    // no password opens anything.
    ("etc/pam.d/common-account", "account required pam_permit.so\n"),
    ("etc/pam.d/common-auth", "auth required pam_unix.so\n"),
    ("etc/pam.d/common-password", "password required pam_unix.so\n"),
    ("etc/pam.d/common-session", "session required pam_permit.so\n"),
    ("etc/pam.d/common-session-noninteractive", "session required pam_permit.so\n"),
    // The host's Python says that packages come from the host's own manager alone; what a box installs
    // stays in the box.
    ("etc/pip.conf", "[global]\nbreak-system-packages = true\nroot-user-action = ignore\n"),
];
/// Directories that `apt` and `dpkg` expect, where the host has them.
const APT_DIRS: [&str; 12] = [
    "etc/apt/apt.conf.d",
    "etc/apt/auth.conf.d",
    "etc/apt/preferences.d",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "etc/dpkg/dpkg.cfg.d",
    "var/cache/apt/archives/partial",
    "var/lib/apt/lists/partial",
    "var/lib/dpkg/info",
    "var/lib/dpkg/triggers",
    "var/lib/dpkg/updates",
    "var/log/apt",
];
/// Archives of the distributions, by the `ID` in `os-release`: the packages, their security updates, and
/// the key that signs both. The host's own sources may have names and passwords.
const ARCHIVES: [(&str, &str, &str, &str); 2] = [
    (
        "debian",
        "http://deb.debian.org/debian",
        "http://deb.debian.org/debian-security",
        "/usr/share/keyrings/debian-archive-keyring.gpg",
    ),
    (
        "ubuntu",
        "http://archive.ubuntu.com/ubuntu",
        "http://security.ubuntu.com/ubuntu",
        "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
    ),
];
const DIRS: [(&str, u32); 24] = [
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/user", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("run/lock", 0o1777),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/mail", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
    // Any user of a box may work there. Without the sticky bit, by which Linux would refuse root to write
    // to files of the others.
    ("workspace", 0o777),
];
/// Folders of programs that are installed by hand, as their own pages say.
const MORE_PROGRAMS: [&str; 1] = ["/usr/local/go/bin"];
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Uid of `user`, which has a home directory and no privileges.
const USER_ID: u32 = 1000;

/// Host name of every box, as written in its `/etc/hosts`.
pub(crate) const HOSTNAME: &str = "tidebox";

/// Root directory on disk, and the host directories mounted over it.
#[derive(Debug, Clone)]
pub(crate) struct HostRootfs {
    pub(crate) path: PathBuf,
    /// Directories of the host's root that hold programs and are shown as they are: `/usr`, and
    /// on old systems `/bin` and the like.
    pub(crate) shown: Vec<String>,
    /// The directory itself, locked: a provider that is opened on the same folder after the host's
    /// `/etc` has changed makes another, and must not remove this one.
    _held: Arc<File>,
}

/// Entry of the skeleton.
#[derive(Debug, Hash)]
enum Item {
    Dir { path: PathBuf, mode: u32 },
    File { path: PathBuf, mode: u32, content: Vec<u8> },
    Link { path: PathBuf, target: PathBuf },
}

/// Returns what commands of a box get unless they say otherwise.
pub(crate) fn defaults() -> Defaults {
    let more = MORE_PROGRAMS.iter().filter(|dir| Path::new(dir).is_dir());
    let path: Vec<&str> = [USUAL_PATH].into_iter().chain(more.copied()).collect();
    // Where there is nothing more the agent sets the usual one.
    let env = if path.len() > 1 { BTreeMap::from([("PATH".to_owned(), path.join(":"))]) } else { BTreeMap::new() };
    Defaults { env, ..Defaults::default() }
}

/// Folder name of the overlay for the root.
pub(crate) const ROOT_OVERLAY: &str = "root";

/// Returns the folder name of the overlay for a directory of the host's root.
pub(crate) fn overlay_of(dir: &str) -> String {
    dir.trim_start_matches('/').to_owned()
}

impl HostRootfs {
    /// Returns the folder names of the overlays that every box has.
    pub(crate) fn overlays(&self) -> Vec<String> {
        let shown = self.shown.iter().map(|dir| overlay_of(dir));
        std::iter::once(ROOT_OVERLAY.to_owned()).chain(shown).collect()
    }

    /// Makes the skeleton below `base`, or returns the existing one with the same content.
    pub(crate) fn make(base: &Path) -> io::Result<HostRootfs> {
        let mut shown = vec!["/usr".to_owned()];
        let items = collect(Path::new("/"), &mut shown)?;
        // Named by its content, so that it never changes under a running box.
        let mut hasher = DefaultHasher::new();
        items.hash(&mut hasher);
        let path = base.join(format!("host-{:016x}", hasher.finish()));
        for _ in 0..ATTEMPTS_MAX {
            if let Some(held) = hold(&path)? {
                return Ok(HostRootfs { path, shown, _held: Arc::new(held) });
            }
            write_items(base, &path, &items)?;
        }
        Err(io::Error::other(format!("{} is repeatedly removed", path.display())))
    }

    /// Removes skeletons below `base` that neither this server nor a box in `used` needs.
    pub(crate) fn remove_others(&self, base: &Path, used: &[String]) -> io::Result<()> {
        for entry in fs::read_dir(base)? {
            let path = entry?.path();
            let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("host-"));
            if ours && path != self.path && !used.iter().any(|used| Path::new(used) == path) {
                let dir = File::open(&path)?;
                match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => host_disk::remove_tree(&path)?,
                    // Another provider makes boxes of it.
                    Err(Errno::WOULDBLOCK) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }
}

/// Opens and locks a skeleton, so that no other provider removes it; `None` if it does not exist.
fn hold(path: &Path) -> io::Result<Option<File>> {
    let dir = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    flock(&dir, FlockOperation::LockShared)?;
    // It may have been removed in between.
    let is_there = fs::metadata(path).is_ok_and(|found| dir.metadata().is_ok_and(|held| held.ino() == found.ino()));
    Ok(is_there.then_some(dir))
}

/// Makes the skeleton at `path`, or finds the one of another server on the same folder.
fn write_items(base: &Path, path: &Path, items: &[Item]) -> io::Result<()> {
    let unfinished = base.join(format!("host-new-{}", std::process::id()));
    host_disk::remove_tree(&unfinished)?;
    fs::DirBuilder::new().mode(0o755).create(&unfinished)?;
    for item in items {
        item.write(&unfinished)?;
    }
    match fs::rename(&unfinished, path) {
        // With the same content.
        Err(_) if path.is_dir() => host_disk::remove_tree(&unfinished),
        outcome => outcome,
    }
}

impl Item {
    fn path(&self) -> &Path {
        match self {
            Item::Dir { path, .. } | Item::File { path, .. } | Item::Link { path, .. } => path,
        }
    }

    fn write(&self, root: &Path) -> io::Result<()> {
        match self {
            Item::Dir { path, mode } => {
                let path = root.join(path);
                fs::DirBuilder::new().recursive(true).create(&path)?;
                // Independent of the server's umask.
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode))?;
                if path.ends_with("home/user") && rustix::process::geteuid().is_root() {
                    std::os::unix::fs::lchown(&path, Some(USER_ID), Some(USER_ID))?;
                }
                Ok(())
            }
            Item::File { path, mode, content } => {
                use io::Write;
                let path = root.join(path);
                fs::DirBuilder::new().recursive(true).mode(0o755).create(path.parent().unwrap_or(root))?;
                fs::OpenOptions::new().write(true).create_new(true).mode(*mode).open(&path)?.write_all(content)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode))
            }
            Item::Link { path, target } => symlink(target, root.join(path)),
        }
    }
}

fn collect(host: &Path, shown: &mut Vec<String>) -> io::Result<Vec<Item>> {
    let mut items: Vec<Item> = DIRS.iter().map(|(path, mode)| Item::Dir { path: path.into(), mode: *mode }).collect();
    for name in USR_LINKS {
        match fs::symlink_metadata(host.join(name)) {
            Ok(metadata) if metadata.is_symlink() => {
                items.push(Item::Link { path: name.into(), target: fs::read_link(host.join(name))? });
            }
            Ok(metadata) if metadata.is_dir() => {
                items.push(Item::Dir { path: name.into(), mode: 0o755 });
                shown.push(format!("/{name}"));
            }
            _ => {}
        }
    }
    let shell = if host.join("usr/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let passwd = format!(
        "root:x:0:0:root:/root:{shell}\nuser:x:{USER_ID}:{USER_ID}:user:/home/user:{shell}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    );
    items.push(file("etc/passwd", passwd));
    items.extend(WRITTEN.iter().map(|(path, content)| file(path, (*content).to_owned())));
    items.push(Item::Link { path: "etc/mtab".into(), target: "/proc/self/mounts".into() });
    items.push(Item::Link { path: "var/run".into(), target: "/run".into() });
    items.push(Item::Link { path: "var/lock".into(), target: "/run/lock".into() });
    if host.join("usr/bin/sudo").exists() {
        let root_may_all = "root ALL=(ALL:ALL) NOPASSWD: ALL\n";
        items.push(Item::File { path: "etc/sudoers".into(), mode: 0o440, content: root_may_all.into() });
    }
    if host.join("usr/bin/apt-get").exists() {
        items.extend(apt(host));
    }
    for name in copied_names(host)? {
        copy(host, &Path::new("etc").join(name), &mut items)?;
    }
    for file in shipped(host) {
        let mode = 0o600 | file.mode;
        items.push(Item::File { path: file.path, mode, content: file.content });
    }
    if items.len() >= ENTRIES_MAX {
        return Err(io::Error::other(format!("/etc holds more than {ENTRIES_MAX} entries to copy")));
    }
    // What is written for all boxes wins, and what is named wins over what is only shipped.
    let mut seen = HashSet::new();
    items.retain(|item| seen.insert(item.path().to_owned()));
    Ok(items)
}

/// Returns what `apt-get install` needs: the folders of its tools, the list of what the host's `/usr` has,
/// and the sources of the distribution.
fn apt(host: &Path) -> Vec<Item> {
    let mut items: Vec<Item> = APT_DIRS.iter().map(|path| Item::Dir { path: path.into(), mode: 0o755 }).collect();
    let status = shipped::read(&host.join(shipped::DPKG_STATUS), shipped::STATUS_BYTES_MAX).unwrap_or_default();
    items.push(Item::File { path: shipped::DPKG_STATUS.into(), mode: 0o644, content: status });
    items.push(file("var/lib/dpkg/available", String::new()));
    items.push(file("var/lib/dpkg/info/format", "1\n".to_owned()));
    // A box has no user for downloads.
    items.push(file("etc/apt/apt.conf.d/90tidebox", "APT::Sandbox::User \"root\";\n".to_owned()));
    let release = fs::read_to_string(host.join("usr/lib/os-release")).unwrap_or_default();
    let id = release_value(&release, "ID");
    let codename = release_value(&release, "VERSION_CODENAME");
    let archive = ARCHIVES.iter().find(|(of, ..)| *of == id && !codename.is_empty());
    if let Some((_, archive, security, key)) = archive {
        let sources = apt_source(archive, &format!("{codename} {codename}-updates"), key)
            + &apt_source(security, &format!("{codename}-security"), key);
        items.push(file("etc/apt/sources.list.d/distribution.sources", sources));
    }
    items
}

/// Returns the value of `key` in an `os-release` file; empty if it has none.
fn release_value<'a>(release: &'a str, key: &str) -> &'a str {
    let value = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value.unwrap_or_default().trim_matches('"')
}

fn apt_source(url: &str, suites: &str, key: &str) -> String {
    format!("Types: deb\nURIs: {url}\nSuites: {suites}\nComponents: main\nSigned-By: {key}\n\n")
}

fn file(path: &str, content: String) -> Item {
    Item::File { path: path.into(), mode: 0o644, content: content.into_bytes() }
}

fn copied_names(host: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = ETC_COPIED.iter().map(|name| (*name).to_owned()).collect();
    for entry in fs::read_dir(host.join("etc"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if ETC_COPIED_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Collects `path` and everything below it. Links stay links. A file that is not readable by
/// every user of the host is left out.
fn copy(host: &Path, path: &Path, items: &mut Vec<Item>) -> io::Result<()> {
    let mut parents: Vec<&Path> =
        path.ancestors().skip(1).filter(|p| *p != Path::new("") && *p != Path::new("etc")).collect();
    parents.reverse();
    let mut waiting = vec![path.to_owned()];
    let mut parents = Some(parents);
    while let Some(path) = waiting.pop() {
        let Ok(metadata) = fs::symlink_metadata(host.join(&path)) else { continue };
        for parent in parents.take().unwrap_or_default() {
            items.push(Item::Dir { path: parent.to_owned(), mode: 0o755 });
        }
        if items.len() >= ENTRIES_MAX {
            return Err(io::Error::other(format!("/etc holds more than {ENTRIES_MAX} entries to copy")));
        }
        let mode = metadata.permissions().mode();
        if metadata.is_symlink() {
            let Some(target) = present(&path, fs::read_link(host.join(&path)))? else { continue };
            items.push(Item::Link { target, path });
        } else if metadata.is_dir() && mode & 0o005 == 0o005 {
            let Some(entries) = present(&path, fs::read_dir(host.join(&path)))? else { continue };
            let mut below: Vec<PathBuf> =
                entries.map(|entry| Ok(path.join(entry?.file_name()))).collect::<io::Result<_>>()?;
            // A fixed order gives the same name at every start.
            below.sort_by(|a, b| b.cmp(a));
            items.push(Item::Dir { path, mode: 0o755 });
            waiting.extend(below);
        } else if metadata.is_file() && mode & 0o004 != 0 && metadata.len() <= FILE_BYTES_MAX {
            let Some(content) = present(&path, fs::read(host.join(&path)))? else { continue };
            items.push(Item::File { path, mode: 0o644 | mode & 0o111, content });
        }
    }
    Ok(())
}

/// Returns what was found at `path` of the host; `None` if it was removed, or replaced by something of
/// another kind, after it was listed: packages of the host come and go.
fn present<T>(path: &Path, found: io::Result<T>) -> io::Result<Option<T>> {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory | InvalidInput) => {
            tracing::info!(path = %path.display(), "a file of the host vanished while it was copied");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_what_everybody_may_read_is_copied() {
        let host = tempfile::tempdir().unwrap();
        let etc = host.path().join("etc");
        fs::create_dir_all(etc.join("ssl/certs")).unwrap();
        fs::create_dir_all(etc.join("ssl/private")).unwrap();
        for (name, mode) in [
            ("ssl/certs/ca.pem", 0o644),
            ("ssl/certs/secret.pem", 0o600),
            ("ssl/private/key", 0o644),
            ("shadow", 0o644),
        ] {
            fs::write(etc.join(name), name).unwrap();
            fs::set_permissions(etc.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        symlink("/etc/shadow", etc.join("ssl/certs/link.pem")).unwrap();
        let mut shown = Vec::new();
        let items = collect(host.path(), &mut shown).unwrap();
        let has = |wanted: &str| items.iter().any(|item| item.path() == Path::new(wanted));
        assert!(has("etc/ssl/certs/ca.pem") && has("etc/ssl/certs/link.pem") && has("etc/ssl"));
        assert!(!has("etc/ssl/certs/secret.pem") && !has("etc/ssl/private/key") && !has("etc/shadow"));
    }

    #[test]
    fn the_same_host_gives_the_same_skeleton() {
        let base = tempfile::tempdir().unwrap();
        let first = HostRootfs::make(base.path()).unwrap();
        let again = HostRootfs::make(base.path()).unwrap();
        assert_eq!(first.path, again.path);
        fs::create_dir(base.path().join("host-0000000000000000")).unwrap();
        fs::create_dir(base.path().join("host-1111111111111111")).unwrap();
        let used = [base.path().join("host-1111111111111111").display().to_string()];
        again.remove_others(base.path(), &used).unwrap();
        assert!(again.path.is_dir() && base.path().join("host-1111111111111111").is_dir());
        assert!(!base.path().join("host-0000000000000000").exists());
    }

    #[test]
    fn a_skeleton_that_a_provider_makes_boxes_of_outlives_a_later_one() {
        let base = tempfile::tempdir().unwrap();
        let first = HostRootfs::make(base.path()).unwrap();
        // As if packages of the host had changed its `/etc` in between.
        let path = base.path().join("host-1111111111111111");
        fs::create_dir(&path).unwrap();
        let held = hold(&path).unwrap().expect("it exists");
        let later = HostRootfs { path: path.clone(), shown: Vec::new(), _held: Arc::new(held) };
        later.remove_others(base.path(), &[]).unwrap();
        assert!(first.path.is_dir());
        first.remove_others(base.path(), &[]).unwrap();
        assert!(path.is_dir());
        drop(later);
        first.remove_others(base.path(), &[]).unwrap();
        assert!(!path.exists());
    }
}
