//! What a box can not take from others, since the kernel counts it for each box.

use futures_util::StreamExt;
use providers::{OutputEvent, OutputStream, Provider};

use crate::ground::{Ground, Inside, is_root};
use crate::inside::command;

/// Takes sets of watched files, timers and message queues as the box's root and, where
/// there are others, as four more users: at most `most` of each. Says how many each
/// user got, and keeps them until its stdin ends.
fn taking(most: u32, users: u32) -> String {
    format!(
        r#"
import ctypes, os, sys
kernel = ctypes.CDLL(None, use_errno=True)
def take(name, most, one):
    count = 0
    while count < most and one(count): count += 1
    return f"{{name}} {{count}}"
def timer(_):
    return kernel.timer_create(0, None, ctypes.byref(ctypes.c_void_p())) == 0
def queue(n):
    return kernel.mq_open(b"/%d-%d" % (os.getuid(), n), os.O_CREAT | os.O_RDWR, 0o600, None) >= 0
def everything():
    inotify = take("inotify", {most}, lambda _: kernel.inotify_init1(0) >= 0)
    return "; ".join([inotify, take("timers", {most}, timer), take("queues", {most}, queue)])
for user in range({users}):
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        if user: os.setresuid(user, user, user)
        os.write(tell, everything().encode())
        os.close(tell)
        os.read(0, 1)
        os._exit(0)
    os.close(tell)
    while piece := os.read(told, 100): os.write(1, piece)
    os.write(1, b"\n")
    os.close(told)
os.write(1, b"done\n")
"#
    )
}

/// What one user of the box gets of each, and that it can be had.
const ONE_OF_EACH: &str = "inotify 1; timers 1; queues 1\ndone\n";

/// Takes all that the box can get, and what keeps it.
async fn take_all(inside: &Inside<'_>) -> (String, OutputStream) {
    let users = if is_root() && inside.text("id -u").await == "0\n" { 5 } else { 1 };
    let mut command = command(&["/usr/bin/python3", "-c", &taking(1_000_000, users)]);
    // Its children wait for the end of a stdin that never ends.
    command.stdin = Some(futures_util::stream::pending().boxed());
    let mut output = inside.guest().await.exec(command).await.unwrap();
    let mut told = String::new();
    while !told.ends_with("done\n") {
        match output.next().await.unwrap().unwrap() {
            OutputEvent::Stdout(bytes) | OutputEvent::Stderr(bytes) => told += std::str::from_utf8(&bytes).unwrap(),
            OutputEvent::Exit(exit) => panic!("{told} {exit:?}"),
        }
    }
    (told, output)
}

async fn one_of_each(inside: &Inside<'_>) {
    let ran = inside.python(&taking(1, 1)).await;
    assert_eq!(ran.stdout, ONE_OF_EACH, "{ran:?}");
}

#[tokio::test]
async fn a_box_cannot_take_the_counters_that_others_need() {
    let ground = Ground::new().await;
    let (hog, other) = (ground.start().await, ground.start().await);
    let (taken, _kept) = take_all(&hog).await;
    one_of_each(&other).await;
    one_of_each(&ground.start().await).await;
    // The user of the server has its own, too.
    let output = std::process::Command::new("/usr/bin/python3")
        .args(["-c", &taking(1, 1)])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), ONE_OF_EACH, "beside {taken}");
}

#[tokio::test]
async fn a_slot_cannot_take_the_counters_that_its_neighbours_need() {
    if !is_root() {
        return;
    }
    let ground = Ground::new().await;
    let host = ground.start_host().await;
    let (hog, other) = (ground.add_slot(&host).await, ground.add_slot(&host).await);
    let (_, _kept) = take_all(&hog).await;
    one_of_each(&other).await;
    one_of_each(&ground.add_slot(&host).await).await;
}

/// The score of a process, as the host has it.
fn oom_score(pid: u32) -> i32 {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_box_is_ended_before_the_server_when_memory_runs_out() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let own = oom_score(std::process::id());
    assert!(oom_score(inside.pid()) >= 500.max(own + 1), "{}", oom_score(inside.pid()));
    let ran = inside.sh("echo 0 > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj").await;
    let is_held = ran.stdout.trim().parse::<i32>().unwrap() >= 500;
    let is_said = ground.native.facts().missing.iter().any(|lack| lack.contains("oom_score_adj"));
    assert_ne!(is_held, is_said, "what the kernel does not hold is said: {ran:?}");
}

#[tokio::test]
async fn a_lock_on_a_device_holds_nothing_up_on_the_host() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    let script = "exec 9< /dev/zero 8< /proc/keys; flock -x 9 && flock -x 8 && echo held; sleep 100";
    let mut output = inside.guest().await.exec(command(&["/bin/sh", "-c", script])).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("held\n".into()));
    let is_free = |path: &str| {
        let file = std::fs::File::open(path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    // What covers a file of the kernel is never one of the host.
    assert!(is_free("/dev/null"));
    let is_said = ground.native.facts().missing.iter().any(|lack| lack.contains("device"));
    assert_ne!(is_free("/dev/zero"), is_said, "what cannot be held is said");
}

#[tokio::test]
async fn one_mode_that_a_box_gives_its_agent_stops_no_other_box() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    // The kernel may refuse it, or have given the box a copy.
    let _ = inside.guest().await.chmod("/proc/self/exe", 0).await;
    assert_eq!(ground.start().await.text("echo here").await, "here\n");
    assert_eq!(inside.text("echo here").await, "here\n");
}

/// No control group counts what a socket holds of options, such as keys.
#[tokio::test]
async fn a_socket_of_a_box_holds_few_options() {
    let ground = Ground::new().await;
    let inside = ground.start().await;
    // Kernels before 6.7 have one bound for the whole host, which no box sees.
    let bound = inside.text("cat /proc/sys/net/core/optmem_max 2>/dev/null || echo 8192").await;
    assert_eq!(bound.trim(), "8192");
}
