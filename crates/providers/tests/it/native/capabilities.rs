//! Privileges that a box must not have.

use crate::native::harness::{TestProvider, is_root};

#[tokio::test]
async fn the_powers_of_a_box_are_exactly_the_listed_ones() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let status = sandbox.text("cat /proc/self/status").await;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    // CHOWN 0, DAC_OVERRIDE 1, FOWNER 3, FSETID 4, KILL 5, SETGID 6, SETUID 7, NET_BIND_SERVICE 10,
    // SYS_CHROOT 18.
    let kept = [0, 1, 3, 4, 5, 6, 7, 10, 18].iter().fold(0u64, |set, bit| set | 1 << bit);
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), kept, "{set}");
    }
    for set in ["CapInh", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&field(set), 16).unwrap(), 0, "{set}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    assert_eq!(u64::from_str_radix(&field("SigIgn"), 16).unwrap(), 0, "signals are not ignored");
}

#[tokio::test]
async fn nothing_can_be_mounted_and_no_namespace_be_made_or_entered() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    for script in [
        "mount -t tmpfs none /mnt",
        "mount --bind / /mnt",
        "mount -o remount,rw /proc/sys",
        "umount /proc/sys",
        "umount -l /dev/null",
        "umount -l /",
        "pivot_root / /mnt",
        "unshare --user --map-root-user true",
        "unshare --mount true",
        "unshare --net true",
        "unshare --pid --fork true",
        "nsenter --mount=/proc/1/ns/mnt true",
        "nsenter --target 1 --all true",
    ] {
        sandbox.refuses(script).await;
    }
}

#[tokio::test]
async fn the_new_ways_to_mount_and_clone_are_closed_too() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    // Number and arguments, the same on every architecture, and the kernel's answer.
    const EPERM: i32 = 1;
    const ENOSYS: i32 = 38;
    for (call, arguments, errno) in [
        (428, "-100, b'/', 1", EPERM),
        (429, "-100, b'/', -100, b'/mnt', 0", EPERM),
        (430, "b'tmpfs', 0", EPERM),
        (432, "3, 0, 0", EPERM),
        (442, "-100, b'/', 0, 0, 0", EPERM),
        (435, "0, 88", ENOSYS),
        (425, "8, 0", EPERM),
        (438, "3, 0, 0", EPERM),
        (440, "3, 0, 0, 0, 0", EPERM),
        (467, "-100, b'/', 1, 0, 0", ENOSYS),
        #[cfg(target_arch = "x86_64")]
        (154, "0, 0, 0", EPERM),
        #[cfg(target_arch = "x86_64")]
        (206, "1, 0", ENOSYS),
        (9999, "0", ENOSYS),
    ] {
        let program = format!(
            "import ctypes; l = ctypes.CDLL(None, use_errno=True); r = l.syscall({call}, {arguments}); print(r, ctypes.get_errno())"
        );
        let ran = sandbox.python(&program).await;
        assert_eq!(ran.stdout, format!("-1 {errno}\n"), "call {call}: {ran:?}");
    }
}

#[tokio::test]
async fn only_harmless_sockets_can_be_made() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let make = |family: i32, kind: i32, protocol: i32| {
        format!(
            "import socket\ntry:\n  socket.socket({family}, {kind}, {protocol}); print('made')\nexcept OSError as e: print(e.errno)"
        )
    };
    for (family, kind, protocol) in
        [(17, 3, 0), (40, 1, 0), (38, 5, 0), (16, 3, 12), (16, 3, 15), (2, 3, 1), (31, 3, 0), (2, 1, 262), (10, 2, 136)]
    {
        let ran = sandbox.python(&make(family, kind, protocol)).await;
        assert!(["97\n", "1\n", "93\n"].contains(&ran.stdout.as_str()), "{family} {kind} {protocol}: {ran:?}");
    }
    for (family, kind, protocol) in [(1, 1, 0), (2, 1, 0), (10, 2, 0), (16, 3, 0)] {
        assert_eq!(sandbox.python(&make(family, kind, protocol)).await.stdout, "made\n", "{family} {kind}");
    }
}

#[tokio::test]
async fn no_socket_gets_a_program_that_the_kernel_compiles() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    for option in [26, 50, 51, 52] {
        let program = format!(
            "import socket\ntry:\n  socket.socket().setsockopt(1, {option}, b'x' * 16); print('set')\nexcept OSError as e: print(e.errno)"
        );
        assert_eq!(sandbox.python(&program).await.stdout, "1\n", "{option}");
    }
}

#[tokio::test]
async fn setuid_programs_give_nothing() {
    let provider = TestProvider::new().await;
    if !is_root() {
        // Such a box has only one user, so there is nothing to gain.
        return;
    }
    let sandbox = provider.start().await;
    sandbox.text("cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && cp /usr/bin/id /usr/local/bin/id2 && chmod 6755 /usr/local/bin/id2").await;
    let as_user = "import os, subprocess; os.setgroups([]); os.setgid(1000); os.setuid(1000); ";
    for program in ["/tmp/id", "/usr/local/bin/id2"] {
        let ran = sandbox
            .python(&format!("{as_user}print(subprocess.run(['{program}', '-u'], capture_output=True).stdout)"))
            .await;
        assert_eq!(ran.stdout, "b'1000\\n'\n", "{ran:?}");
    }
    let ran = sandbox.python(&format!("{as_user}print(open('/proc/self/status').read())")).await;
    assert!(ran.stdout.contains("CapEff:\t0000000000000000"), "{ran:?}");
}

#[tokio::test]
async fn ids_of_a_box_are_those_of_no_other_box_and_of_no_user() {
    let provider = TestProvider::new().await;
    let (one, other) = (provider.start().await, provider.start().await);
    let map = |text: String| text.split_whitespace().map(|n| n.parse::<u64>().unwrap()).collect::<Vec<_>>();
    let (a, b) = (map(one.text("cat /proc/self/uid_map").await), map(other.text("cat /proc/self/uid_map").await));
    if !is_root() {
        assert_eq!(a[1..], [65_534, 1]);
        return;
    }
    assert_eq!((a[0], a[2], b[2]), (0, 65_536, 65_536));
    assert!(a[1].abs_diff(b[1]) >= 65_536 && a[1] >= 0x4000_0000, "{a:?} {b:?}");
    let groups = map(one.text("cat /proc/self/gid_map").await);
    assert_eq!(groups, a);
}

#[tokio::test]
async fn the_agent_of_a_box_cannot_be_changed() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let ran = sandbox
        .python("import os\ntry:\n  os.open('/proc/1/exe', os.O_WRONLY); print('open')\nexcept OSError as e: print(e.errno)")
        .await;
    // No permission, or the text of a running program.
    assert!(["13\n", "26\n", "1\n"].contains(&ran.stdout.as_str()), "{ran:?}");
}

#[tokio::test]
async fn typing_for_somebody_else_is_refused() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let program = "import fcntl, os, pty\nm, s = pty.openpty()\ntry:\n  fcntl.ioctl(s, 0x5412, b'x'); print('typed')\nexcept OSError as e: print(e.errno)";
    assert_eq!(sandbox.python(program).await.stdout, "1\n");
}

#[tokio::test]
async fn usual_programs_work() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let ran = sandbox
        .python("import os, json, ssl, threading; print(os.getuid(), os.path.dirname(os.path.realpath('/bin/sh')))")
        .await;
    assert_eq!(ran.stdout, "0 /usr/bin\n", "{ran:?}");
    sandbox.text("bash -c 'echo {1..3} | tr 1 2' && ls -la / && ps aux && df -h && cd /tmp && tar cf x.tar /etc && tar tf x.tar").await;
    sandbox.text("python3 -m http.server 8000 --bind 127.0.0.1 > /dev/null 2>&1 & for i in $(seq 100); do curl -s localhost:8000 > /dev/null && exit 0; sleep 0.1; done; exit 1").await;
    sandbox.text("getent hosts localhost tidebox && hostname | grep -q tidebox").await;
    let pty = "import pty, sys; sys.exit(pty.spawn(['/bin/sh', '-c', 'test -t 0 && tty']))";
    assert_eq!(sandbox.python(pty).await.exit.code, 0);
}
