//! Isolation between the users of slots in one box.

use std::path::Path;
use std::time::Duration;

use domain::Resources;
use providers::{Provider, Spec};

use crate::native::harness::{TestBox, TestProvider, cgroups_named, eventually, is_root, processes_with, spec};

/// Starts a box with two slots. Returns `None` if slots are not supported here.
async fn shared(provider: &TestProvider) -> Option<(TestBox<'_>, TestBox<'_>)> {
    if !is_root() {
        assert!(provider.native.slots().is_none(), "without root a box has one user");
        return None;
    }
    let host = provider.start_host().await;
    Some((provider.add_slot(&host).await, provider.add_slot(&host).await))
}

async fn still_answers(other: &TestBox<'_>) {
    let answer = tokio::time::timeout(Duration::from_secs(30), other.text("echo here")).await;
    assert_eq!(answer.expect("the neighbour answers"), "here\n");
}

fn sized(memory_mb: u32, disk_mb: u32, pids: u32) -> Spec {
    Spec { resources: Resources { memory_mb, vcpus: 1, disk_mb, pids }, ..spec() }
}

#[tokio::test]
async fn a_host_without_root_has_no_slots_and_says_what_is_missing() {
    let provider = TestProvider::new().await;
    if is_root() {
        assert!(provider.native.slots().is_some());
        return;
    }
    assert!(provider.native.slots().is_none());
    let missing = provider.native.facts().missing;
    assert!(missing.iter().any(|line| line.contains("one user id only")), "{missing:?}");
}

#[tokio::test]
async fn a_slot_has_no_power_at_all() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    let status = one.text("cat /proc/self/status").await;
    for set in ["CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb"] {
        assert!(status.contains(&format!("{set}:\t0000000000000000\n")), "{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1\n") && status.contains("Seccomp:\t2\n"), "{status}");
    assert!(status.contains("Groups:\t \n"), "{status}");
    assert_eq!(one.text("ulimit -H -c").await, "0\n");
    for script in [
        "mount -t tmpfs none /mnt",
        "mount --bind /tmp /mnt",
        "umount -l /proc/sys",
        "unshare --user --map-root-user true",
        "unshare --mount true",
        "nsenter --target 1 --all true",
        "chown 0 /workspace",
        "chroot / /bin/true",
        "mknod /tmp/disk b 8 0",
        "python3 -c 'import os; os.setuid(0)'",
        "python3 -c 'import os; os.setuid(10001)'",
        "python3 -c 'import os; os.setgid(0)'",
        "python3 -c 'import os; os.setgroups([0])'",
        "hostname other",
        "ip link add dummy0 type dummy",
    ] {
        one.refuses(script).await;
    }
}

/// Program that stops each process which the agent forks for a command, over and over, and
/// records the descriptors that it can see.
const LOOK_INTO_REAPERS: &str = r#"
import os, signal, time
last = os.getpid()
open('/workspace/ready', 'w').close()
spins = 0
while not os.path.exists('/workspace/stop'):
    spins += 1
    if spins % 50 == 0:
        last = max(last, int(open('/proc/loadavg').read().split()[-1]))
    for pid in list(range(last + 1, last + 4)) * 20:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            continue
        last = max(last, pid)
        for _ in range(3000):
            try:
                fds = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
                name = open(f'/proc/{pid}/comm').read().strip()
                if name == 'tidebox-reaper' or any('socket' in fd for fd in fds):
                    with open('/workspace/seen', 'a') as seen:
                        print(name, *fds, file=seen)
                    break
            except PermissionError:
                pass
            except OSError:
                break
            try:
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                break
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass
"#;

#[tokio::test]
async fn the_copy_of_an_agent_that_its_slot_can_look_into_holds_nothing_of_the_agent() {
    copies_hold_nothing(TestProvider::new().await).await;
}

#[tokio::test]
async fn as_root_the_copy_of_an_agent_holds_no_socket_that_connections_are_led_to() {
    if is_root() {
        copies_hold_nothing(TestProvider::transparent(&[]).await).await;
    }
}

async fn copies_hold_nothing(provider: TestProvider) {
    const EXECS: usize = 300;
    let Some((one, _)) = shared(&provider).await else { return };
    one.text(&format!("cat > look.py << 'end'\n{LOOK_INTO_REAPERS}end\npython3 look.py > /dev/null 2> look.err &"))
        .await;
    eventually("the other process looks", async || one.guest().await.stat("/workspace/ready").await.is_ok()).await;
    for _ in 0..EXECS {
        one.text("true").await;
    }
    let seen = one.text("touch /workspace/stop; cat /workspace/seen 2>/dev/null; true").await;
    for line in seen.lines() {
        let of_the_agent = ["socket:", "anon_inode:", "/sys/fs/cgroup"].iter().any(|kind| line.contains(kind));
        assert!(!of_the_agent, "{line}");
    }
}

#[tokio::test]
async fn the_shared_system_can_be_read_and_not_changed() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    for path in ["/etc/passwd", "/etc/ld.so.cache", "/usr/bin/true", "/usr/lib", "/run", "/var", "/", "/dev", "/home"] {
        one.refuses(&format!("test -w {path}")).await;
    }
    for script in ["ls /root", "rm /usr/bin/true", "echo x >> /etc/passwd", "touch /usr/x", "mv /workspace /other"] {
        one.refuses(script).await;
    }
    assert_eq!(one.text("stat -c %a /workspace /home/user; whoami").await, "700\n700\nuser\n");
    assert_eq!(
        one.text("stat -c %U /workspace /home/user; ls -A /workspace /home/user").await.matches("user\n").count(),
        2
    );
    one.text("python3 -c 'import ssl, json' && touch /tmp/a /var/tmp/a /workspace/a ~/a /dev/shm/a").await;
}

#[tokio::test]
async fn no_file_of_a_neighbour_shows_whatever_way_is_tried() {
    let provider = TestProvider::new().await;
    let Some((one, other)) = shared(&provider).await else { return };
    let name = format!("canary-{}", provider.store());
    let places = "/workspace /home/user /tmp /var/tmp /run/lock /dev/shm";
    let planted =
        one.text(&format!("for dir in {places}; do echo secret > $dir/{name} && echo $dir; done; true")).await;
    assert!(planted.lines().count() >= 5, "{planted}");
    one.text(&format!(
        "chmod -R a+rwX /workspace /home/user; cd /workspace; exec 3< {name}; sleep 1000 > /dev/null 2>&1 &"
    ))
    .await;
    let found = "find / /proc/*/root/ /proc/*/cwd/ /proc/*/fd/ -maxdepth 7 -path '*/proc/*/task' -prune -o";
    assert_eq!(other.text(&format!("{found} -name '{name}' -print 2>/dev/null; true")).await, "");
    // A later slot with the same uid does not find it either.
    let (uid, host) = (one.text("id -u").await, one.host().clone());
    provider.slots().remove(&host, &one.id).await.unwrap();
    let heir = provider.add_slot(&host).await;
    assert_eq!(heir.text("id -u").await, uid, "the uid is used again");
    assert_eq!(heir.text(&format!("{found} -name '{name}' -print 2>/dev/null; true")).await, "");
}

#[tokio::test]
async fn no_process_of_a_neighbour_or_of_the_box_shows_or_is_reached() {
    let provider = TestProvider::new().await;
    let Some((one, other)) = shared(&provider).await else { return };
    one.text("SECRET=word sleep 1000 > /dev/null 2>&1 &").await;
    let seen = other.text("cat /proc/[0-9]*/comm | sort | uniq | tr '\\n' ' '").await;
    assert!(!seen.contains("sleep"), "{seen}");
    assert!(!other.text("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'; true").await.contains("word"));
    // Signals and tracing to every possible id of a process or thread.
    let program = "import ctypes, os, signal\nl = ctypes.CDLL(None, use_errno=True)\nhit = []\nmine = {int(t) for p in os.listdir('/proc') if p.isdigit() for t in os.listdir(f'/proc/{p}/task')}\nfor pid in range(1, 70000):\n  if pid in mine: continue\n  try: os.kill(pid, signal.SIGKILL); hit.append(pid)\n  except OSError: pass\n  if l.ptrace(16, pid, 0, 0) == 0: hit.append(pid)\nprint(hit)";
    assert_eq!(other.python(program).await.stdout, "[]\n");
    other.sh("kill -9 -1; kill -9 1; kill -STOP 1; kill -SEGV 1").await;
    one.text("cat /proc/[0-9]*/comm | grep -q sleep").await;
    still_answers(&one).await;
    still_answers(&other).await;
    // The slot's own first process keeps its secrets too.
    for file in ["environ", "mem", "fd/3", "root/etc/passwd", "cwd/etc", "maps", "exe"] {
        other.refuses(&format!("cat /proc/1/{file}")).await;
    }
}

#[tokio::test]
async fn no_socket_no_shared_memory_and_no_queue_is_common_to_slots() {
    let provider = TestProvider::new().await;
    let Some((one, other)) = shared(&provider).await else { return };
    let listen = "import socket, time, sys\na = socket.socket(socket.AF_UNIX); a.bind('\\0canary'); a.listen()\nt = socket.socket(); t.bind(('127.0.0.1', 4242)); t.listen()\nprint('up', flush=True)\ntime.sleep(1000)";
    one.text(&format!("python3 -c \"{listen}\" > /tmp/up 2>&1 & for i in $(seq 200); do grep -q up /tmp/up && exit 0; sleep 0.1; done; cat /tmp/up; exit 1"))
        .await;
    for address in ["socket.AF_UNIX, '\\0canary'", "socket.AF_INET, ('127.0.0.1', 4242)"] {
        let program = format!("import socket\nf, a = {address}\nsocket.socket(f).connect(a)\nprint('connected')");
        assert_eq!(one.python(&program).await.stdout, "connected\n");
        let ran = other.python(&program).await;
        assert!(ran.stderr.contains("refused"), "{ran:?}");
    }
    let make = "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\nprint(l.shmget(0x7e57, 4096, 0o1666) >= 0, l.msgget(0x7e57, 0o1666) >= 0, l.semget(0x7e57, 1, 0o1666) >= 0)";
    let find = make.replace("0o1666", "0");
    assert_eq!(one.python(make).await.stdout, "True True True\n");
    assert_eq!(one.python(&find).await.stdout, "True True True\n");
    assert_eq!(other.python(&find).await.stdout, "False False False\n");
}

#[tokio::test]
async fn setuid_programs_and_hard_links_give_a_slot_nothing() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    let uid = one.text("id -u").await;
    for dir in ["/tmp", "/workspace", "/dev/shm"] {
        let ran = one.sh(&format!("cp /usr/bin/id {dir}/id && chmod 6755 {dir}/id && {dir}/id -u")).await;
        assert!(ran.stdout.is_empty() || ran.stdout == uid, "{ran:?}");
    }
    for program in ["/usr/bin/su", "/usr/bin/passwd", "/usr/bin/mount"] {
        let ran = one.sh(&format!("{program} --version; {program} root -c 'id -u' < /dev/null; id -u")).await;
        assert!(ran.stdout.ends_with(&uid) && !ran.stdout.contains("\n0\n"), "{ran:?}");
    }
    for target in ["/etc/passwd", "/usr/bin/true", "/etc/group"] {
        let ran = one.sh(&format!("ln {target} /workspace/link && echo more >> /workspace/link")).await;
        assert!(ran.exit.code != 0, "{ran:?}");
    }
    assert!(one.text("cat /etc/passwd").await.ends_with("/bin/bash\n"));
}

#[tokio::test]
async fn a_fork_bomb_stays_in_its_slot() {
    let provider = TestProvider::new().await;
    let Some((_, other)) = shared(&provider).await else { return };
    let bomber = provider.add_slot_with(other.host(), sized(128, 0, 32)).await;
    let bomb = "import os, time\nmade = 0\ntry:\n  while made < 10000:\n    if os.fork() == 0: time.sleep(600)\n    made += 1\nexcept OSError as e: print(made, e.errno)";
    let ran = bomber.run(&["/usr/bin/timeout", "20", "/usr/bin/python3", "-c", bomb]).await;
    let (made, errno) = ran.stdout.trim().split_once(' ').unwrap_or_else(|| panic!("{ran:?}"));
    assert!(made.parse::<u32>().unwrap() < 32 && errno == "11", "{ran:?}");
    still_answers(&other).await;
    provider.slots().remove(other.host(), &bomber.id).await.unwrap();
    still_answers(&other).await;
}

#[tokio::test]
async fn a_memory_hog_ends_alone_in_its_slot() {
    let provider = TestProvider::new().await;
    let Some((_, other)) = shared(&provider).await else { return };
    other.text("sleep 1000 > /dev/null 2>&1 &").await;
    let hog = provider.add_slot_with(other.host(), sized(64, 0, 64)).await;
    let ran = hog.python("x = []\nwhile True: x.append(bytearray(1 << 20))").await;
    assert_eq!(ran.exit.code, 137, "{ran:?}");
    assert!(ran.exit.oom_killed, "{ran:?}");
    still_answers(&other).await;
    other.text("cat /proc/[0-9]*/comm | grep -q sleep").await;
    // The slot itself keeps running, and many small processes do not end it any more than a large
    // one.
    still_answers(&hog).await;
    let many = "import os, time\nfor n in range(40):\n  if os.fork() == 0:\n    x = bytearray(3 << 20); time.sleep(20); os._exit(0)\ntime.sleep(3)";
    hog.python(many).await;
    still_answers(&hog).await;
    let score = hog.text("python3 -c \"print(open('/proc/self/oom_score_adj').read().strip())\"").await;
    let own = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", hog.pid())).unwrap();
    assert!(score.trim().parse::<i32>().unwrap() > own.trim().parse().unwrap(), "{score} {own}");
}

#[tokio::test]
async fn a_full_disk_is_the_slots_own() {
    let provider = TestProvider::new().await;
    let Some((_, other)) = shared(&provider).await else { return };
    let filler = provider.add_slot_with(other.host(), sized(128, 32, 64)).await;
    for place in ["/workspace", "/tmp", "/var/tmp", "/home/user"] {
        filler.sh(&format!("head -c 100M /dev/zero > {place}/file")).await;
    }
    let ran = filler.sh("head -c 8M /dev/zero > /workspace/more").await;
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    other.text("head -c 1M /dev/zero > /workspace/file && echo fits > /tmp/fits").await;
    filler.text("rm /workspace/file && echo fits > /workspace/fits").await;
    let host = other.host();
    assert!(provider.slots().slot_disk_usage(host, &filler.id).await.is_some());
    provider.slots().remove(host, &filler.id).await.unwrap();
    assert_eq!(provider.slots().slot_disk_usage(host, &filler.id).await, None);
    still_answers(&other).await;
}

#[tokio::test]
async fn control_groups_are_out_of_a_slots_reach() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    for line in
        one.text("cat /proc/self/cgroup").await.lines().filter(|line| line.contains("memory") || line.contains("pids"))
    {
        assert!(line.ends_with(":/"), "{line}");
    }
    assert_eq!(
        one.text(
            "grep cgroup /proc/self/mounts | grep -vc ' ro,'; find / -xdev -name 'cgroup.procs' 2>/dev/null; true"
        )
        .await,
        "0\n"
    );
    if provider.has_hard_limits() {
        let host = one.host().as_str();
        let own = cgroups_named(one.id.as_str());
        assert!(!own.is_empty() && own.iter().all(|dir| dir.parent().unwrap().ends_with(host)), "{own:?}");
    }
}

#[tokio::test]
async fn after_a_removal_nothing_of_a_slot_is_left_and_its_neighbour_has_all() {
    let provider = TestProvider::new().await;
    let Some((one, other)) = shared(&provider).await else { return };
    one.text("(setsid sh -c 'trap \"\" TERM HUP INT; sleep 4343' > /dev/null 2>&1 &); sleep 4343 > /dev/null 2>&1 & kill -STOP $!; echo > /workspace/x").await;
    other.text("sleep 4444 > /dev/null 2>&1 & echo mine > /workspace/mine").await;
    let (host, pid) = (one.host().clone(), one.pid());
    provider.slots().remove(&host, &one.id).await.unwrap();
    // At once, not later.
    assert!(cgroups_named(one.id.as_str()).is_empty());
    assert!(!provider.folder_of(&host).join("slots").join(one.id.as_str()).exists());
    eventually("the agent of the box has taken its exit", async || !Path::new(&format!("/proc/{pid}")).exists()).await;
    assert_eq!(processes_with("cmdline", "sleep\u{0}4343"), Vec::<String>::new());
    assert_eq!(processes_with("cmdline", "sleep\u{0}4444").len(), 1);
    assert_eq!(other.text("cat /workspace/mine").await, "mine\n");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(one.id.as_str()));
    provider.native.stop(&host).await.unwrap();
    assert_eq!(processes_with("cmdline", "sleep\u{0}4444"), Vec::<String>::new());
    assert!(cgroups_named(host.as_str()).is_empty() && cgroups_named(other.id.as_str()).is_empty());
    provider.native.idle().await;
    assert_eq!(std::fs::read_dir(provider.folder().join("trash")).unwrap().count(), 0);
}

#[tokio::test]
async fn an_addition_that_was_cut_off_is_found_dead_and_removed() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    let (host, id) = (one.host().clone(), crate::native::harness::new_id());
    let folder = provider.folder_of(&host).join("slots").join(id.as_str());
    for content in [None, Some(""), Some("{\"format\":1,")] {
        std::fs::create_dir(&folder).unwrap();
        if let Some(content) = content {
            std::fs::write(folder.join("box.json"), content).unwrap();
            std::fs::write(folder.join("pid"), "").unwrap();
        }
        let later = provider.reopen().await;
        let slots = later.slots().unwrap();
        assert!(slots.list(&host).await.unwrap().iter().any(|found| found.id == id && !found.alive));
        slots.remove(&host, &id).await.unwrap();
        assert!(!folder.exists());
    }
    still_answers(&one).await;
}

#[tokio::test]
async fn the_box_of_slots_runs_no_command_itself() {
    let provider = TestProvider::new().await;
    let Some((one, _)) = shared(&provider).await else { return };
    let guest = provider.native.guest(one.host()).await.unwrap();
    let command = providers::Command {
        argv: vec!["/bin/true".to_owned()],
        env: Default::default(),
        workdir: Some("/".to_owned()),
        user: None,
        timeout: Duration::from_secs(5),
        stdin: None,
        terminal: None,
    };
    let refused = guest.exec(command).await.map(|_| ());
    assert!(matches!(refused, Err(providers::Error::NotSupported(_))), "{refused:?}");
}
