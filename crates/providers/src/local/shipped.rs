//! Configuration of the host that is, byte for byte, what a package of its distribution brought. It is
//! the same on every machine, so it tells nothing about this one but which packages it has, and
//! their programs in `/usr` tell that already.

use std::fs;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use md5::{Digest as _, Md5};

/// List of the packages of Debian and its descendants, with the digests of their configuration.
pub(super) const DPKG_STATUS: &str = "var/lib/dpkg/status";
/// Longest list that is read: those of the largest machines have some ten megabytes.
pub(super) const STATUS_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Size above which a file is not read: it is no plain configuration.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Configuration of what starts, watches and connects the machine, which a box does not: names below
/// `/etc`, with anything after them.
const OF_THE_MACHINE: [&str; 24] = [
    "NetworkManager",
    "X11/xinit",
    "apparmor",
    "binfmt.d",
    "cron",
    "default/grub",
    "dhcp",
    "docker",
    "containerd",
    "grub.d",
    "init",
    "iscsi",
    "kernel",
    "libvirt",
    "logcheck",
    "logrotate",
    "lvm",
    "mod",
    "network/",
    "rc",
    "rsyslog",
    "sysctl",
    "systemd",
    "udev",
];

/// A configuration file that no one has changed.
#[derive(Debug)]
pub(super) struct Shipped {
    /// Path below `/`, such as `etc/maven/m2.conf`.
    pub(super) path: PathBuf,
    pub(super) mode: u32,
    pub(super) content: Vec<u8>,
}

/// Returns the unchanged configuration files below `etc`, ordered by path. A host without a list of
/// packages that we can read has none.
pub(super) fn shipped(host: &Path) -> Vec<Shipped> {
    let Some(status) = read(&host.join(DPKG_STATUS), STATUS_BYTES_MAX) else { return Vec::new() };
    let mut files: Vec<Shipped> = String::from_utf8_lossy(&status)
        .lines()
        .filter_map(listed)
        .filter_map(|(path, digest)| unchanged(host, path, digest))
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    files
}

/// Reads a line of a package's `Conffiles`: a space, the path, and the digest.
fn listed(line: &str) -> Option<(&str, &str)> {
    let (path, digest) = line.strip_prefix(" /")?.split_once(' ')?;
    let digest = digest.split(' ').next()?;
    let name = path.strip_prefix("etc/")?;
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_of_the_machine = OF_THE_MACHINE.iter().any(|prefix| name.starts_with(prefix));
    (digest.len() == 32 && is_plain && !is_of_the_machine).then_some((path, digest))
}

/// Returns a file if its content has this digest. One that is not there, or that the server may not
/// read, is left out.
fn unchanged(host: &Path, path: &str, digest: &str) -> Option<Shipped> {
    use std::os::unix::fs::PermissionsExt as _;
    let at = host.join(path);
    let metadata = fs::symlink_metadata(&at).ok().filter(fs::Metadata::is_file)?;
    let content = read(&at, FILE_BYTES_MAX)?;
    let found: String = Md5::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    (found == digest).then(|| Shipped { path: path.into(), mode: metadata.permissions().mode() & 0o755, content })
}

/// Reads a file of at most this size.
pub(super) fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    let read = fs::File::open(path).ok()?.take(most + 1).read_to_end(&mut content).ok()?;
    (read as u64 <= most).then_some(content)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_is_as_its_package_brought_it_is_shipped() {
        let host = tempfile::tempdir().unwrap();
        let of = |text: &str| Md5::digest(text).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let put = |path: &str, text: &str| {
            let path = host.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("etc/maven/m2.conf", "main");
        put("etc/npmrc", "_authToken=secret");
        put("etc/cron.d/job", "job");
        put("etc/local.conf", "mine");
        put("root/secret", "secret");
        symlink("/root/secret", host.path().join("etc/link")).unwrap();
        let status = format!(
            "Package: maven\nConffiles:\n /etc/maven/m2.conf {}\n /etc/gone.conf {} obsolete\n /etc/npmrc {}\n \
             /etc/cron.d/job {}\n /etc/../root/secret {}\n /etc/link {}\n /usr/x {}\nDescription: x\n /etc\n",
            of("main"),
            of("gone"),
            of("registry"),
            of("job"),
            of("secret"),
            of("secret"),
            of("x")
        );
        put(DPKG_STATUS, &status);
        let paths: Vec<PathBuf> = shipped(host.path()).into_iter().map(|file| file.path).collect();
        assert_eq!(paths, [Path::new("etc/maven/m2.conf")]);
    }
}
