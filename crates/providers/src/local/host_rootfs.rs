//! Generated root of `image: host`: files that programs of the host's `/usr` expect around it,
//! without information about the host.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

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
/// Most entries of the root; no usual `/etc` holds more.
const ENTRIES_MAX: usize = 50_000;
/// Links or directories of the root that may lead into `/usr`.
const USR_LINKS: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files that are the same for every box, as is the host name.
const WRITTEN: [(&str, &str); 8] = [
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
    ("workspace", 0o755),
];
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
}

/// Entry of the skeleton.
#[derive(Debug, Hash)]
enum Item {
    Dir { path: PathBuf, mode: u32 },
    File { path: PathBuf, mode: u32, content: Vec<u8> },
    Link { path: PathBuf, target: PathBuf },
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
        if path.is_dir() {
            return Ok(HostRootfs { path, shown });
        }
        let unfinished = base.join(format!("host-new-{}", std::process::id()));
        host_disk::remove_tree(&unfinished)?;
        fs::DirBuilder::new().mode(0o755).create(&unfinished)?;
        for item in &items {
            item.write(&unfinished)?;
        }
        match fs::rename(&unfinished, &path) {
            // Another server on the same folder has just made it, with the same content.
            Err(_) if path.is_dir() => host_disk::remove_tree(&unfinished)?,
            outcome => outcome?,
        }
        Ok(HostRootfs { path, shown })
    }

    /// Removes skeletons below `base` that neither this server nor a box in `used` needs.
    pub(crate) fn remove_others(&self, base: &Path, used: &[String]) -> io::Result<()> {
        for entry in fs::read_dir(base)? {
            let path = entry?.path();
            let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("host-"));
            if ours && path != self.path && !used.iter().any(|used| Path::new(used) == path) {
                host_disk::remove_tree(&path)?;
            }
        }
        Ok(())
    }
}

impl Item {
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
    for name in copied_names(host)? {
        copy(host, &Path::new("etc").join(name), &mut items)?;
    }
    Ok(items)
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
            items.push(Item::Link { target: fs::read_link(host.join(&path))?, path });
        } else if metadata.is_dir() && mode & 0o005 == 0o005 {
            let mut below: Vec<PathBuf> = fs::read_dir(host.join(&path))?
                .map(|entry| Ok(path.join(entry?.file_name())))
                .collect::<io::Result<_>>()?;
            // A fixed order gives the same name at every start.
            below.sort_by(|a, b| b.cmp(a));
            items.push(Item::Dir { path, mode: 0o755 });
            waiting.extend(below);
        } else if metadata.is_file() && mode & 0o004 != 0 && metadata.len() <= FILE_BYTES_MAX {
            let content = fs::read(host.join(&path))?;
            items.push(Item::File { path, mode: 0o644 | mode & 0o111, content });
        }
    }
    Ok(())
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
        let has = |wanted: &str| {
            items.iter().any(|item| match item {
                Item::Dir { path, .. } | Item::File { path, .. } | Item::Link { path, .. } => path == Path::new(wanted),
            })
        };
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
}
