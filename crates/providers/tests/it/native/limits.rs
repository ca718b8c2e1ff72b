//! Limits: a box that uses all it can get harms only itself.

use std::time::Duration;

use domain::Resources;
use providers::{Chain, Error, Provider, Spec};

use crate::native::harness::{TestBox, TestProvider, cgroups_named, eventually, is_root, new_id, spec};
use crate::test_box::command;

fn sized(memory_mb: u32, disk_mb: u32, pids: u32) -> Spec {
    Spec { resources: Resources { memory_mb, vcpus: 1, disk_mb, pids }, ..spec() }
}

async fn still_answers(other: &TestBox<'_>) {
    let answer = tokio::time::timeout(Duration::from_secs(20), other.text("echo here")).await;
    assert_eq!(answer.expect("another box answers"), "here\n");
}

#[tokio::test]
async fn a_fork_bomb_stays_in_its_box() {
    let provider = TestProvider::new().await;
    let (bomber, other) = (provider.start_with(sized(128, 0, 32)).await, provider.start().await);
    let bomb = "import os, time\nmade = 0\ntry:\n  while made < 1000:\n    if os.fork() == 0: time.sleep(600)\n    made += 1\nexcept OSError as e: print(made, e.errno)";
    let ran = bomber.run(&["/usr/bin/timeout", "20", "/usr/bin/python3", "-c", bomb]).await;
    let (made, errno) = ran.stdout.trim().split_once(' ').unwrap_or_else(|| panic!("{ran:?}"));
    assert!(made.parse::<u32>().unwrap() < 32 && errno == "11", "{ran:?}");
    assert_eq!(ran.exit.pids_exhausted, provider.has_hard_limits(), "{ran:?}");
    still_answers(&other).await;
    provider.native.stop(&bomber.id).await.unwrap();
}

#[tokio::test]
async fn a_memory_hog_is_killed_and_told_so() {
    let provider = TestProvider::new().await;
    let (hog, other) = (provider.start_with(sized(64, 0, 64)).await, provider.start().await);
    let ran = hog.python("x = []\nwhile True: x.append(bytearray(1 << 20))").await;
    assert_eq!(ran.exit.code, 137, "{ran:?}");
    assert!(ran.exit.oom_killed, "{ran:?}");
    still_answers(&other).await;
    // The box itself keeps running.
    still_answers(&hog).await;
}

#[tokio::test]
async fn files_in_shared_memory_count_as_memory() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start_with(sized(64, 0, 64)).await;
    let ran = sandbox.sh("head -c 100M /dev/zero > /dev/shm/file; stat -c %s /dev/shm/file").await;
    let bytes: u64 = ran.stdout.trim().parse().unwrap_or(0);
    assert!(bytes <= 32 << 20, "{ran:?}");
}

#[tokio::test]
async fn shared_memory_takes_half_of_the_memory_of_a_box() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start_with(sized(512, 0, 64)).await;
    let ran = sandbox.sh("head -c 200M /dev/zero > /dev/shm/file && df -m --output=size /dev/shm").await;
    assert_eq!(ran.stdout.split_whitespace().last(), Some("256"), "{ran:?}");
}

#[tokio::test]
async fn a_full_disk_is_the_boxes_own() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start_with(sized(128, 32, 64)).await;
    let ran = sandbox.sh("head -c 100M /dev/zero > /workspace/file; stat -c %s /workspace/file").await;
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let bytes: u64 = ran.stdout.trim().parse().unwrap();
    assert!((8 << 20..=32 << 20).contains(&bytes), "{ran:?}");
    sandbox.text("rm /workspace/file && echo fits > /workspace/file").await;
    let used = provider.native.disk_usage(&sandbox.id).await;
    if is_root() {
        assert!(used.is_some_and(|used| used.bytes <= 40 << 20 && used.entries < 100), "{used:?}");
    }
}

/// Program that fills the buffers of 200 connections of a kind, and prints how many MiB they
/// hold.
const FILL: &str = "
import os, socket, sys
held, keep = 0, []
def fill(send):
    global held
    try:
        while True: held += send(b'x' * 60000)
    except OSError: pass
listening = socket.socket(); listening.bind(('127.0.0.1', 0)); listening.listen(300)
for _ in range(200):
    if sys.argv[1] == 'tcp':
        to = socket.create_connection(listening.getsockname()); keep += [to, listening.accept()[0]]
    elif sys.argv[1] == 'udp':
        at = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); at.bind(('127.0.0.1', 0))
        at.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); to.connect(at.getsockname()); keep += [to, at]
    else:
        to, at = socket.socketpair(); keep += [to, at]
    to.setblocking(False)
    if sys.argv[1] == 'udp':
        for _ in range(70): to.send(b'x' * 60000)
        at.setblocking(False)
    else: fill(to.send)
if sys.argv[1] == 'udp':
    for at in keep[1::2]: fill(lambda _: len(at.recv(65536)))
print(held >> 20)
";

#[tokio::test]
async fn sockets_of_a_box_hold_no_more_than_their_share_of_its_memory() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        fixtures::skip("control-groups", "buffers of sockets are bounded by control groups");
        return;
    }
    for kind in ["tcp", "udp", "unix"] {
        let sandbox = provider.start_with(sized(64, 0, 64)).await;
        let ran = sandbox.run(&["/usr/bin/python3", "-c", FILL, kind]).await;
        // Buffers that count as memory end the process that fills them.
        let held: u64 =
            if ran.exit.oom_killed { 0 } else { ran.stdout.trim().parse().unwrap_or_else(|_| panic!("{ran:?}")) };
        assert!(held <= 48, "{kind}: {held} MiB");
    }
}

#[tokio::test]
async fn the_disk_that_a_box_takes_is_known() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let before = provider.native.disk_usage(&sandbox.id).await.unwrap().bytes;
    sandbox.text("head -c 20M /dev/urandom > /workspace/file && sync /workspace/file").await;
    let after = provider.native.disk_usage(&sandbox.id).await.unwrap().bytes;
    assert!((20 << 20..24 << 20).contains(&(after - before)), "{before} {after}");
}

#[tokio::test]
async fn processor_time_is_bounded() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let spin = "import os, time\nfor _ in range(3): os.fork()\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n";
    let measure = format!(
        "import resource, subprocess, sys, time\nsubprocess.run([sys.executable, '-c', {spin:?} + 'import os\\ntry:\\n  while True: os.wait()\\nexcept OSError: pass\\n'])\nu = resource.getrusage(resource.RUSAGE_CHILDREN)\nprint(u.ru_utime + u.ru_stime)"
    );
    let ran = sandbox.python(&measure).await;
    let seconds: f64 = ran.stdout.trim().parse().unwrap_or_else(|_| panic!("{ran:?}"));
    // Eight processes for two seconds on one processor, and the time of a start and an end, which may be long:
    // then it is still one processor's.
    assert!(seconds < 3.5_f64.max(ran.exit.duration.as_secs_f64()), "{ran:?}");
}

/// Returns whether a box has the low weight where boxes compete for processors.
fn gives_way(sandbox: &TestBox<'_>) -> bool {
    let low = [("cpu.idle", "1"), ("cpu.shares", "32"), ("cpu.weight", "3")];
    let is = |group: &std::path::Path, (file, value)| {
        std::fs::read_to_string(group.join(file)).is_ok_and(|content| content.trim() == value)
    };
    cgroups_named(sandbox.id.as_str()).iter().any(|group| low.into_iter().any(|value| is(group, value)))
}

#[tokio::test]
async fn a_box_that_computes_without_end_gives_way_until_it_is_another_one() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        fixtures::skip("control-groups", "weights are of control groups");
        return;
    }
    let all = u32::try_from(std::thread::available_parallelism().unwrap().get()).unwrap();
    let spec = Spec { resources: Resources { memory_mb: 128, vcpus: all, disk_mb: 0, pids: 1024 }, ..spec() };
    let boxes = [provider.start_with(spec.clone()).await, provider.start_with(spec).await];
    let computes = format!("import os\nfor _ in range({all}): os.fork() or exec('while True: pass')\nos.wait()");
    // A twentieth of a processor, however fast it is.
    let little = "import time\nwhile True:\n  time.sleep(0.01)\n  end = time.process_time() + 0.0005\n  while time.process_time() < end: pass";
    for [heavy, light] in [[0, 1], [1, 0]].map(|order| order.map(|number| &boxes[number])) {
        let run = async |sandbox: &TestBox<'_>, program: &str| {
            sandbox.guest().await.exec(command(&["/usr/bin/python3", "-c", program])).await.unwrap()
        };
        let commands = (run(heavy, &computes).await, run(light, little).await);
        eventually("the heavy box gives way, and no other", async || gives_way(heavy) && !gives_way(light)).await;
        // Dropping the output ends a command.
        drop(commands);
    }
}

#[tokio::test]
async fn the_smallest_box_that_may_be_asked_for_works() {
    let provider = TestProvider::new().await;
    let smallest = sized(16, 0, 8);
    assert!(smallest.resources.check().is_ok());
    let sandbox = provider.start_with(smallest).await;
    assert_eq!(sandbox.text("echo small").await, "small\n");
}

#[tokio::test]
async fn what_cannot_be_had_is_refused_before_anything_is_made() {
    let provider = TestProvider::new().await;
    let id = new_id();
    let other_image = Spec { image: "ubuntu".to_owned(), ..spec() };
    let error = provider.native.start(&id, &other_image).await.unwrap_err();
    assert!(matches!(&error, Error::Invalid(text) if text.contains("host")), "{}", Chain(&error));
    if !is_root() {
        let error = provider.native.check(&sized(64, 65, 64)).unwrap_err();
        assert!(matches!(&error, Error::NotSupported(text) if text.contains("disk_mb")), "{}", Chain(&error));
    }
    assert!(provider.native.inventory().await.unwrap().is_empty());
    assert!(!provider.folder_of(&id).exists());
}

#[tokio::test]
async fn the_facts_tell_who_holds_the_limits() {
    let provider = TestProvider::new().await;
    let facts = provider.native.facts();
    assert_eq!(facts.runtime, "namespaces");
    if is_root() {
        assert!(provider.has_hard_limits(), "{facts:?}");
        // Other features that the root of this machine may lack are tested elsewhere.
        let lacks: Vec<_> = facts.missing.iter().filter(|lack| !lack.contains("oom_score_adj")).collect();
        assert!(lacks.is_empty(), "{lacks:?}");
    } else {
        assert!(!facts.missing.is_empty(), "{facts:?}");
    }
}

#[tokio::test]
async fn a_host_that_cannot_stop_the_processes_of_a_box_says_so() {
    let provider = TestProvider::new().await;
    let says_so = provider.native.facts().missing.iter().any(|lack| lack.contains("cannot be paused"));
    assert_ne!(says_so, provider.native.pauses().is_some());
    if says_so {
        assert!(provider.native.snapshots().is_none());
    }
}

/// Environment variable that is set when the test below runs for the second time, without a
/// umask.
const UNMASKED: &str = "TIDEBOX_TEST_UNMASKED";

#[tokio::test]
async fn control_groups_are_closed_to_other_users_whatever_the_umask_says() {
    use std::os::unix::fs::PermissionsExt;
    if std::env::var_os(UNMASKED).is_none() {
        let name = "control_groups_are_closed_to_other_users_whatever_the_umask_says";
        let again = fixtures::again(module_path!(), name);
        let mut unmasked = std::process::Command::new("/bin/sh");
        unmasked.args(["-c", r#"umask 000; exec "$0" "$@""#]).arg(again.get_program()).args(again.get_args());
        let ran = unmasked.env(UNMASKED, "1").output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    for group in [cgroups_named(provider.store()), cgroups_named(sandbox.id.as_str())].concat() {
        let mode = std::fs::metadata(&group).unwrap().permissions().mode();
        assert_eq!(mode & 0o022, 0, "{}", group.display());
    }
}
