//! Mounts of the host below a directory that a box shows as it is, such as `/usr/local` on a disk of
//! its own. The box sees them read-only.
//!
//! Without privileges, the kernel makes no overlay of a directory with such mounts below it. The
//! directory is then shown read-only, and each directory in it that leads to no mount gets an
//! overlay instead.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use guest_protocol::{Launch, Overlay};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::mount_point::{attach_one, copied, mount_layers};
use super::refused::{At, Refused};
use super::syscall;

/// Most such mounts that a box shows.
const SHOWN_MAX: usize = 256;
/// Most overlays around the mounts below one directory. What is beyond stays read-only.
const OVERLAYS_MAX: usize = 512;
const STEP: &str = "show a mount below a directory of the host";

/// Returns the mounts in `points` below the directory of an overlay that shows one of the host's, those
/// below another of them left out.
pub(super) fn below<'a>(overlay: &Overlay, points: &'a [String]) -> Vec<&'a Path> {
    let shown = Path::new(&overlay.target);
    let is_hosts = shown != Path::new("/") && overlay.lower.iter().any(|lower| Path::new(lower) == shown);
    let mut found: Vec<&Path> = Vec::new();
    if !is_hosts {
        return found;
    }
    let mut below: Vec<&Path> =
        points.iter().map(Path::new).filter(|it| *it != shown && it.starts_with(shown)).collect();
    below.sort_unstable();
    for point in below.into_iter().take(SHOWN_MAX) {
        if !found.last().is_some_and(|above| point.starts_with(above)) {
            found.push(point);
        }
    }
    found
}

/// Attaches the mounts of the host at `inner` to the tree of the box. One that holds the server's
/// own files is covered.
pub(super) fn show(root: &str, launch: &Launch, inner: &[&Path]) -> Result<(), Refused> {
    for point in inner {
        let target = format!("{root}{}", point.display());
        if Path::new(&launch.dir).starts_with(point) {
            let plain = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
            mount("tmpfs", target.as_str(), "tmpfs", plain, c"mode=0555,size=4k,nr_inodes=2").at(STEP)?;
            continue;
        }
        let tree = match copied(*point) {
            Ok(tree) => tree,
            // It is gone, or below another mount, or may not be copied.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::ACCESS) => continue,
            Err(errno) => return Err(errno).at(STEP),
        };
        syscall::make_read_only(&tree).at(STEP)?;
        attach_one(&tree, &target).at(STEP)?;
    }
    Ok(())
}

/// Shows the directory of `overlay`, which has mounts at `inner` below it, and makes what can be
/// written in it.
pub(super) fn cover_around(
    root: &str,
    stage: &str,
    overlay: &Overlay,
    layer: &str,
    inner: &[&Path],
) -> Result<(), Refused> {
    let tree = copied(layer).at(STEP)?;
    syscall::make_read_only(&tree).at(STEP)?;
    attach_one(&tree, &format!("{root}{}", overlay.target)).at(STEP)?;
    let mut left = OVERLAYS_MAX;
    let mut waiting = vec![PathBuf::new()];
    while let Some(within) = waiting.pop() {
        let entries = fs::read_dir(Path::new(layer).join(&within)).map_err(|_| Errno::IO).at(STEP)?;
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = within.join(entry.file_name());
            let at = Path::new(&overlay.target).join(&path);
            if inner.contains(&at.as_path()) {
                continue;
            }
            if inner.iter().any(|point| point.starts_with(&at)) {
                waiting.push(path);
            } else if left > 0 {
                left -= 1;
                cover(root, stage, overlay, layer, &path)?;
            }
        }
    }
    Ok(())
}

/// Mounts an overlay on one directory below that of `overlay`.
fn cover(root: &str, stage: &str, overlay: &Overlay, layer: &str, path: &Path) -> Result<(), Refused> {
    // A name with such a character cannot be given to the kernel in options.
    let Some(path) = path.to_str().filter(|path| !path.contains([':', ',', '\\'])) else { return Ok(()) };
    let storage = format!("{stage}/storage/{}", overlay.name);
    let [upper, work] = ["upper", "work"].map(|part| format!("{storage}/{part}/{path}"));
    for dir in [&upper, &work] {
        fs::create_dir_all(dir).map_err(|_| Errno::IO).at("make the box's storage")?;
    }
    // The upper directory shows its mode, not that of the host's.
    let mode = fs::metadata(format!("{layer}/{path}")).map_or(0o755, |it| it.permissions().mode());
    rustix::fs::chmod(&upper, Mode::from_raw_mode(mode & 0o7777)).at("make the box's storage")?;
    mount_layers(
        &format!("{root}{}/{path}", overlay.target),
        &format!("{layer}/{path}"),
        (&upper, &work),
        overlay.fsync,
    )
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn only_the_highest_mounts_below_a_directory_of_the_host_are_shown() {
        let points = ["/", "/usr", "/usr/local/a b", "/usr/local/a b/c", "/usr2", "/home"].map(str::to_owned);
        let overlay = |target: &str, lower: &str| Overlay {
            target: target.to_owned(),
            lower: vec![lower.to_owned()],
            name: "usr".to_owned(),
            fsync: false,
        };
        assert_eq!(below(&overlay("/usr", "/usr"), &points), [Path::new("/usr/local/a b")]);
        assert!(below(&overlay("/", "/data/image"), &points).is_empty());
        assert!(below(&overlay("/", "/"), &points).is_empty());
    }
}
