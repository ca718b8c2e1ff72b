//! What gives the server control groups: a remedy that is true for who asks.

use std::io;

use super::controller::Controller;
use super::manager;

/// Properties of the server and its host that decide which remedy helps.
#[derive(Debug, Clone, Copy)]
struct Asker {
    is_root: bool,
    /// True if systemd runs the host.
    has_systemd: bool,
}

impl Asker {
    fn this() -> Asker {
        Asker { is_root: rustix::process::geteuid().is_root(), has_systemd: manager::is_running() }
    }

    /// Returns what gives the server a group that it may divide.
    fn group(self, error: Option<&io::Error>) -> &'static str {
        let is_read_only = error.is_some_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem);
        match (is_read_only, self.is_root, self.has_systemd) {
            (true, _, _) => {
                "/sys/fs/cgroup is read-only here: mount it writable, or start the container with it writable (Docker: \
                 --privileged --cgroupns=private)"
            }
            (false, true, true) => {
                "start the server with `systemd-run --scope -p Delegate=yes tidebox serve`, or as a unit with \
                 Delegate=yes"
            }
            (false, true, false) => {
                "make a group without processes, and name it in providers.native.cgroup_parent, or, in a container, \
                 restart the container with a writable /sys/fs/cgroup (Docker: --privileged --cgroupns=private)"
            }
            (false, false, true) => {
                "start the server in a session of this user with `systemd-run --user --scope -p Delegate=yes tidebox \
                 serve`, or as a unit with Delegate=yes and User=, or as root"
            }
            (false, false, false) => {
                "have root make a group, give it and its files to this user, and start the server in it, or start the \
                 server as root"
            }
        }
    }

    /// Returns what gives the server a controller that no group here has.
    fn controller(self) -> &'static str {
        match (self.is_root, self.has_systemd) {
            (true, true) => {
                "boot a kernel that has it without cgroup_disable=, or start the server as a unit with Delegate=yes"
            }
            (true, false) => {
                "boot a kernel that has it without cgroup_disable=, or mount its hierarchy; in a container, have the \
                 host delegate it"
            }
            (false, true) => {
                "have root delegate it to users (`systemctl edit user@.service`: [Service] Delegate=cpu memory pids) \
                 and log in again, or start the server as root"
            }
            (false, false) => {
                "have root enable it in cgroup.subtree_control above the server's group, or start the server as root"
            }
        }
    }
}

/// Returns the remedy for a group that cannot be used, without a full stop.
pub(super) fn of_group(error: &io::Error) -> &'static str {
    Asker::this().group(Some(error))
}

/// Returns the remedy for a server without groups for its boxes, without a full stop.
pub(crate) fn of_missing_group() -> &'static str {
    Asker::this().group(None)
}

/// Returns a sentence on a limit that no group holds.
pub(super) fn of_controller(controller: Controller) -> String {
    format!("No control group here limits {}: {}.", controller.as_str(), Asker::this().controller())
}

/// Returns a sentence on a scope that systemd did not give.
pub(super) fn of_manager(error: &io::Error) -> String {
    let advice = match (error.kind() == io::ErrorKind::NotFound, rustix::process::geteuid().is_root()) {
        (true, _) => "install busctl, a part of systemd, which the server uses",
        (false, true) => "start the server as a unit with Delegate=yes, or install dbus",
        (false, false) => {
            "log in through PAM or run `loginctl enable-linger` for this user, so that its systemd runs, and install \
             dbus-user-session"
        }
    };
    format!("systemd gave the server no scope ({error}): {advice}.")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn nobody_is_told_to_become_what_they_are() {
        let refused = io::Error::other("it has other processes");
        for has_systemd in [true, false] {
            for error in [None, Some(&refused)] {
                let root = Asker { is_root: true, has_systemd };
                assert!(!root.group(error).contains("root") && !root.controller().contains("root"));
                assert_eq!(root.group(error).contains("systemd-run"), has_systemd);
                let user = Asker { is_root: false, has_systemd };
                assert!(user.group(error).contains("as root") && user.controller().contains("as root"));
                assert_eq!(user.group(error).contains("systemd-run --user"), has_systemd);
            }
        }
    }

    #[test]
    fn a_container_with_read_only_groups_is_told_so() {
        let read_only = io::Error::from(io::ErrorKind::ReadOnlyFilesystem);
        for is_root in [true, false] {
            let asker = Asker { is_root, has_systemd: false };
            assert!(asker.group(Some(&read_only)).contains("read-only"));
        }
    }
}
