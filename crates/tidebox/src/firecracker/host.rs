//! Findings about the processor, its virtualization, and the user.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::doctor::finding::{Finding, Level};

const KVM: &str = "/dev/kvm";
/// Maximum size of what is read of a file of the system; `/proc/cpuinfo` has 2 KB for a processor.
const TEXT_LEN_MAX: u64 = 16 << 20;
/// The one processor whose guests can be made.
const MACHINE: &str = "x86_64";

const NO_DEVICE: &str = "enable virtualization in the firmware; in a virtual machine, enable nested virtualization on \
                         its host; in a container, pass /dev/kvm through. The other providers do not need it";

/// Returns the findings, and whether this user can start guests.
pub fn findings(is_jailed: bool) -> (Vec<Finding>, bool) {
    let uname = rustix::system::uname();
    let processor = processor(&uname.machine().to_string_lossy(), &text("/proc/cpuinfo"));
    let module = match processor.flag {
        Some("svm") => Some("kvm_amd"),
        Some(_) => Some("kvm_intel"),
        None => None,
    };
    let kvm = kvm(Path::new(KVM), module, &text("/etc/group"));
    let can_start = kvm.level == Level::Ok;
    (vec![processor.finding, kvm, user(rustix::process::geteuid().as_raw(), is_jailed)], can_start)
}

fn text(path: &str) -> String {
    let mut bytes = Vec::new();
    // A file that cannot be read is as one that says nothing.
    let _ = File::open(path).and_then(|file| file.take(TEXT_LEN_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

struct Processor {
    finding: Finding,
    /// Flag of its virtualization.
    flag: Option<&'static str>,
}

fn processor(machine: &str, cpuinfo: &str) -> Processor {
    if machine != MACHINE {
        let fact = format!("is {machine}, but guests require {MACHINE}");
        let finding = Finding::lacking("processor", Level::Missing, fact, "use another provider on this host");
        return Processor { finding, flag: None };
    }
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let known = [("vmx", "Intel VT-x"), ("svm", "AMD-V")];
    match known.into_iter().find(|(flag, _)| flags.split_whitespace().any(|other| other == *flag)) {
        Some((flag, name)) => {
            Processor { finding: Finding::ok("processor", format!("{name} ({flag})")), flag: Some(flag) }
        }
        None => {
            let fact = "has no virtualization: neither vmx nor svm is in /proc/cpuinfo";
            let finding = Finding::lacking("processor", Level::Warn, fact, NO_DEVICE);
            Processor { finding, flag: None }
        }
    }
}

/// Returns the finding about the device; `module` is the one that makes it, if the processor has what
/// it needs, and `groups` the content of `/etc/group`.
fn kvm(device: &Path, module: Option<&str>, groups: &str) -> Finding {
    let path = device.display();
    let error = match File::options().read(true).write(true).open(device) {
        Ok(_) => return Finding::ok("kvm", format!("{path} opens")),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::PermissionDenied {
        return missing(format!("this user cannot open {path}"), join(device, groups));
    }
    if error.kind() != io::ErrorKind::NotFound {
        return missing(format!("{path} cannot be opened: {error}"), NO_DEVICE);
    }
    let fact = format!("{path} does not exist");
    match module {
        Some(module) => missing(fact, format!("load its module: `modprobe {module}`; in a container, pass it through")),
        None => missing(fact, NO_DEVICE),
    }
}

fn missing(fact: String, remedy: impl Into<String>) -> Finding {
    Finding::lacking("kvm", Level::Missing, fact, remedy)
}

/// Says how a user gets to open the device.
fn join(device: &Path, groups: &str) -> String {
    const GROUP_READS_AND_WRITES: u32 = 0o060;
    let group = std::fs::metadata(device).ok().filter(|found| {
        // Root's group has more rights than this one.
        found.gid() != 0 && found.mode() & GROUP_READS_AND_WRITES == GROUP_READS_AND_WRITES
    });
    match group.map(|found| (group_name(groups, found.gid()), found.gid())) {
        Some((Some(group), _)) => format!("join its group: `usermod -aG {group} USER` as root; then log in again"),
        Some((None, gid)) => format!("join its group, {gid}, which has no name: `groupadd -g {gid} kvm` as root first"),
        None => format!("let this user use it: `setfacl -m u:USER:rw {}` as root", device.display()),
    }
}

fn group_name(groups: &str, wanted: u32) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        // The second field is the password.
        let gid = fields.nth(1)?;
        (gid.parse() == Ok(wanted)).then_some(name)
    })
}

/// Returns the finding about the user, who can have the machines in jails only as root.
fn user(uid: u32, is_jailed: bool) -> Finding {
    let (level, fact, remedy) = match (uid, is_jailed) {
        (0, true) => return Finding::ok("user", "root: each machine runs as its own user, in a jail"),
        (_, true) => (
            Level::Missing,
            "providers.firecracker.jailer.enabled is true, and the jailer needs root",
            "run the server and this command as root, or remove that key",
        ),
        (0, false) => (
            Level::Warn,
            "machines run as root, without a jail",
            "remove providers.firecracker.jailer.enabled, so that each machine gets its own user and jail",
        ),
        (_, false) => (
            Level::Warn,
            "machines run as this user, without a jail",
            "run the server as root, so that each machine gets its own user and jail",
        ),
    };
    Finding::lacking("user", level, format!("{uid}: {fact}"), remedy)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn virtualization_is_a_flag_of_the_processor() {
        let with = |machine: &str, cpuinfo: &str| {
            let Processor { finding, flag } = processor(machine, cpuinfo);
            (finding.level, finding.fact, flag)
        };
        let intel = with("x86_64", "processor\t: 0\nflags\t\t: fpu vmx sse\nvmx flags\t: vnmi\n");
        assert_eq!(intel, (Level::Ok, "Intel VT-x (vmx)".to_owned(), Some("vmx")));
        let amd = with("x86_64", "flags\t\t: fpu svm\n");
        assert_eq!(amd, (Level::Ok, "AMD-V (svm)".to_owned(), Some("svm")));
        for none in ["", "flags\t\t: fpu vmxoff svm_lock\nbugs : vmx\n"] {
            let (level, fact, flag) = with("x86_64", none);
            assert_eq!((level, flag), (Level::Warn, None), "{fact}");
        }
        let (level, fact, _) = with("aarch64", "flags : vmx");
        assert_eq!((level, fact.as_str()), (Level::Missing, "is aarch64, but guests require x86_64"));
    }

    #[test]
    fn a_device_that_is_not_there_has_a_module_to_load() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("kvm");
        let finding = kvm(&device, Some("kvm_amd"), "");
        assert_eq!((finding.level, finding.fact), (Level::Missing, format!("{} does not exist", device.display())));
        assert_eq!(finding.remedy.unwrap(), "load its module: `modprobe kvm_amd`; in a container, pass it through");
        assert_eq!(kvm(&device, None, "").remedy.as_deref(), Some(NO_DEVICE));
        std::fs::write(&device, "").unwrap();
        assert_eq!(kvm(&device, None, "").level, Level::Ok);
        let folder = kvm(folder.path(), None, "");
        assert_eq!(folder.level, Level::Missing, "{folder:?}");
    }

    #[test]
    fn only_root_has_machines_in_jails() {
        let levels = [(0, true), (0, false), (7, true), (7, false)].map(|(uid, is_jailed)| user(uid, is_jailed).level);
        assert_eq!(levels, [Level::Ok, Level::Warn, Level::Missing, Level::Warn]);
    }

    #[test]
    fn who_may_not_open_it_joins_its_group() {
        let groups = "root:x:0:\nkvm:x:4294967290:me\nbroken\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        let gid = file.as_file().metadata().unwrap().gid();
        assert_eq!((group_name(groups, 4_294_967_290), group_name(groups, 7)), (Some("kvm"), None));
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(join(file.path(), groups).contains("setfacl -m u:USER:rw"));
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o660)).unwrap();
        // Tests run as root, or with a group of their own.
        let expected = if gid == 0 { "setfacl" } else { "has no name" };
        assert!(join(file.path(), groups).contains(expected), "{}", join(file.path(), groups));
        if gid != 0 {
            assert!(join(file.path(), &format!("ours:x:{gid}:")).contains("`usermod -aG ours USER`"));
        }
    }
}
