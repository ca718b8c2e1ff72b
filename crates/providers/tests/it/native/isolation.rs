//! Isolation of a box: things that it must not see or reach.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use crate::native::harness::{TestProvider, is_root};

#[tokio::test]
async fn no_file_of_the_host_shows_whatever_way_is_tried() {
    let provider = TestProvider::new().await;
    let name = format!("canary-{}", provider.store());
    let places = ["/home", "/root", "/etc", "/var", "/tmp", "/opt", "/run", "/dev/shm"];
    let mut canaries = Vec::new();
    for place in places {
        let path = std::path::Path::new(place).join(&name);
        if std::fs::write(&path, &name).is_ok() {
            canaries.push(tempfile::TempPath::try_from_path(path).unwrap());
        }
    }
    assert!(!canaries.is_empty());
    let sandbox = provider.start().await;
    let script = format!(
        "find / /proc/1/root/ /proc/self/root/../../ /proc/*/cwd/ /proc/*/root/ \
         -maxdepth 6 -path '*/proc/*/task' -prune -o -name '{name}' -print 2>/dev/null; true"
    );
    assert_eq!(sandbox.text(&script).await, "");
    for place in places {
        sandbox.refuses(&format!("cat /proc/1/root/..{place}/{name}")).await;
        sandbox.refuses(&format!("cat /../../..{place}/{name}")).await;
    }
}

/// Files of the box's own control group, which its programs may read: of version 1, and of version 2.
pub(crate) const OWN_EVENTS: [&str; 2] = ["/sys/fs/cgroup/pids/pids.events", "/sys/fs/cgroup/pids.events"];

#[tokio::test]
async fn no_open_file_of_the_agent_names_a_folder_of_the_host() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let open = sandbox.guest().await.list("/proc/self/fd").await.unwrap();
    assert!(open.len() > 3, "{open:?}");
    for file in open {
        let target = file.target.unwrap_or_default();
        let is_seen_by_the_box = OWN_EVENTS.contains(&target.as_str());
        assert!(!target.contains(provider.store()), "{target}");
        assert!(is_seen_by_the_box || !target.contains("cgroup"), "{target}");
    }
}

#[tokio::test]
async fn the_root_holds_only_what_was_made_up() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    assert_eq!(
        sandbox
            .text("ls -A /home /root /opt /srv /mnt /media /var/tmp /tmp /workspace | grep -v -e : -e '^$'; true")
            .await,
        "user\n"
    );
    assert_eq!(sandbox.text("cut -d: -f1 /etc/passwd | tr '\\n' ' '").await, "root user nobody ");
    for absent in
        ["/etc/shadow", "/etc/subuid", "/etc/npmrc", "/etc/machine-id", "/boot", "/.dockerenv", "/etc/environment"]
    {
        sandbox.refuses(&format!("test -e {absent}")).await;
    }
    assert_eq!(sandbox.text("stat -c %u:%g:%a /workspace /root /tmp").await, "0:0:777\n0:0:700\n0:0:1777\n");
}

#[tokio::test]
async fn changes_to_usr_are_the_boxes_own() {
    let provider = TestProvider::new().await;
    let (one, other) = (provider.start().await, provider.start().await);
    let name = format!("/usr/{}", provider.store());
    one.text(&format!("echo mine > {name}")).await;
    other.refuses(&format!("test -e {name}")).await;
    if is_root() {
        one.text("rm /usr/bin/true").await;
    } else {
        // Programs of the host belong to no user of such a box.
        one.refuses("rm /usr/bin/true").await;
    }
    other.text("/usr/bin/true").await;
    assert!(!std::path::Path::new(&name).exists());
    assert!(std::path::Path::new("/usr/bin/true").exists());
}

#[tokio::test]
async fn no_process_of_the_host_or_of_another_box_shows() {
    let provider = TestProvider::new().await;
    let (one, other) = (provider.start().await, provider.start().await);
    one.text("sleep 1000 > /dev/null 2>&1 &").await;
    assert_eq!(other.text("cat /proc/[0-9]*/comm | grep -c sleep; true").await, "0\n");
    let seen = other.text("ls -d /proc/[0-9]* | wc -l").await;
    assert!(seen.trim().parse::<u32>().unwrap() < 8, "{seen}");
    // Signals every process that the box can see, which are only its own.
    other.sh("kill -9 -1").await;
    one.text("cat /proc/[0-9]*/comm | grep -q sleep").await;
}

#[tokio::test]
async fn the_first_process_survives_its_own_box() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    sandbox.sh("kill -9 -1; kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1").await;
    sandbox.text("true").await;
}

#[tokio::test]
async fn no_socket_of_the_host_can_be_reached() {
    let provider = TestProvider::new().await;
    let name = format!("tidebox-test-{}", provider.store());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = tcp.local_addr().unwrap().port();
    let sandbox = provider.start().await;
    let connect = |family: &str, address: &str| {
        format!("import socket; s = socket.socket(socket.{family}); s.settimeout(5); s.connect({address})")
    };
    for program in [
        connect("AF_UNIX", &format!("'\\0{name}'")),
        connect("AF_INET", &format!("('127.0.0.1', {port})")),
        connect("AF_INET", "('169.254.169.254', 80)"),
        connect("AF_INET", "('1.1.1.1', 53)"),
    ] {
        let ran = sandbox.python(&program).await;
        assert_eq!(ran.exit.code, 1, "{program}: {ran:?}");
        assert!(ran.stderr.contains("refused") || ran.stderr.contains("unreachable"), "{ran:?}");
    }
    assert_eq!(
        sandbox.text("ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await,
        "lo\n"
    );
}

#[tokio::test]
async fn the_environment_of_the_server_is_not_that_of_a_box() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let own = std::fs::read("/proc/self/environ").unwrap();
    let marked = own.split(|byte| *byte == 0).find(|line| line.starts_with(b"CARGO")).map(<[u8]>::to_vec);
    let seen = sandbox.text("cat /proc/[0-9]*/environ | tr '\\0' '\\n'; env").await;
    assert!(!seen.contains("CARGO"), "{marked:?} shows in {seen}");
}

#[tokio::test]
async fn devices_are_the_harmless_ones_and_no_other_can_be_made() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    assert_eq!(
        sandbox.text("ls /dev | tr '\\n' ' '").await,
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "
    );
    sandbox.refuses("mknod /tmp/disk b 8 0").await;
    sandbox.refuses("mknod /tmp/mem c 1 1").await;
    sandbox.refuses("mknod /tmp/kmsg c 1 11").await;
    assert_eq!(sandbox.text("find / -xdev -type b 2>/dev/null; true").await, "");
}

#[tokio::test]
async fn settings_of_the_kernel_can_not_be_written() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    for file in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/kernel/modprobe",
        "/proc/irq/default_smp_affinity",
    ] {
        sandbox.refuses(&format!("test -e {file} && cat {file} > /tmp/value && cat /tmp/value > {file}")).await;
    }
    sandbox.refuses("test -e /proc/pressure/cpu && echo some 500000 2000000 > /proc/pressure/cpu").await;
    let masked =
        ["kcore", "keys", "kmsg", "timer_list", "sched_debug", "sysrq-trigger", "cmdline", "locks", "diskstats"];
    for masked in masked {
        assert_eq!(sandbox.text(&format!("head -c 64 /proc/{masked} 2>/dev/null | wc -c")).await, "0\n", "{masked}");
    }
    assert_eq!(sandbox.text("ls -A /proc/acpi /proc/scsi 2>/dev/null | grep -v -e : -e '^$'; true").await, "");
    // Of the devices of the host nothing shows but the numbers of processors.
    let places = "cd /sys && find . -maxdepth 3 -not -path './fs/cgroup/*' | sort | tr '\n' ' '";
    let seen = ". ./devices ./devices/system ./devices/system/cpu ./fs ./fs/cgroup ";
    assert_eq!(sandbox.text(places).await, seen);
}

#[tokio::test]
async fn control_groups_are_out_of_reach() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let groups = sandbox.text("cut -d: -f3 /proc/self/cgroup | sort -u").await;
    assert!(!groups.contains("tidebox"), "{groups}");
    for kind in ["cgroup", "cgroup2"] {
        sandbox.refuses(&format!("mount -t {kind} none /mnt")).await;
    }
    // What the box sees of its own group, it can only read.
    assert_eq!(sandbox.text("grep cgroup /proc/mounts | grep -vc ' ro,'; true").await, "0\n");
}

#[tokio::test]
async fn a_command_has_three_descriptors_and_the_agents_are_hidden() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    // `ls` itself opens the directory that it lists.
    assert_eq!(sandbox.text("/bin/ls /proc/self/fd | tr '\\n' ' '").await, "0 1 2 3 ");
    for hidden in ["/proc/1/fd/", "/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/root/", "/proc/1/cwd/"] {
        sandbox.refuses(&format!("ls {hidden} | grep . && head -c 1 {hidden}")).await;
    }
    let attach = sandbox
        .python("import ctypes; l = ctypes.CDLL(None, use_errno=True); exit(7 if l.ptrace(16, 1, 0, 0) == -1 else 0)")
        .await;
    assert_eq!(attach.exit.code, 7, "{attach:?}");
    sandbox.refuses("cat < /dev/null > /proc/1/exe").await;
}

#[tokio::test]
async fn mounts_of_the_host_are_not_listed() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let mounts = sandbox.text("cat /proc/self/mountinfo").await;
    let folder = provider.folder().display().to_string();
    assert!(!mounts.contains(&folder), "{mounts}");
    assert!(!mounts.contains("ext4") && !mounts.contains("sysfs"), "{mounts}");
}
