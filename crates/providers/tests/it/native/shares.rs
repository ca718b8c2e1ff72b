//! Resources that a box cannot take from others, since the kernel counts them per box.

use futures_util::StreamExt;
use providers::{KernelShare, OutputEvent, OutputStream, Provider};

use crate::native::harness::{TestBox, TestProvider, is_root};
use crate::test_box::command;

/// Returns a program that takes sets of watched files, timers and message queues as the box's
/// root and, if `users` is larger than one, as further users: at most `most` of each. It prints
/// the number that each user got, and holds them until its stdin ends.
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

/// Output of a user of the box that takes one of each.
const ONE_OF_EACH: &str = "inotify 1; timers 1; queues 1\ndone\n";

/// Takes all that the box can get, and returns the program's output with the stream that keeps it
/// running.
async fn take_all(sandbox: &TestBox<'_>) -> (String, OutputStream) {
    let users = if is_root() && sandbox.text("id -u").await == "0\n" { 5 } else { 1 };
    let mut command = command(&["/usr/bin/python3", "-c", &taking(1_000_000, users)]);
    // The program's children wait for the end of stdin, which never ends.
    command.stdin = Some(futures_util::stream::pending().boxed());
    let mut output = sandbox.guest().await.exec(command).await.unwrap();
    let mut told = String::new();
    while !told.ends_with("done\n") {
        match output.next().await.unwrap().unwrap() {
            OutputEvent::Stdout(bytes) | OutputEvent::Stderr(bytes) => told += std::str::from_utf8(&bytes).unwrap(),
            OutputEvent::Exit(exit) => panic!("{told} {exit:?}"),
        }
    }
    (told, output)
}

async fn one_of_each(sandbox: &TestBox<'_>) {
    let ran = sandbox.python(&taking(1, 1)).await;
    assert_eq!(ran.stdout, ONE_OF_EACH, "{ran:?}");
}

#[tokio::test]
async fn a_box_cannot_take_the_counters_that_others_need() {
    let provider = TestProvider::new().await;
    let (hog, other) = (provider.start().await, provider.start().await);
    let (taken, _kept) = take_all(&hog).await;
    one_of_each(&other).await;
    one_of_each(&provider.start().await).await;
    // The user of the server has a limit of its own, too.
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
    let provider = TestProvider::new().await;
    let host = provider.start_host().await;
    let (hog, other) = (provider.add_slot(&host).await, provider.add_slot(&host).await);
    let (_, _kept) = take_all(&hog).await;
    one_of_each(&other).await;
    one_of_each(&provider.add_slot(&host).await).await;
}

/// Returns the `oom_score_adj` of a process, as seen from the host.
fn oom_score(pid: u32) -> i32 {
    std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_box_is_ended_before_the_server_when_memory_runs_out() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let own = oom_score(std::process::id());
    assert!(oom_score(sandbox.pid()) >= 0.max(own + 1), "{}", oom_score(sandbox.pid()));
    let lowest = own.max(-999) - 1;
    let ran = sandbox.sh(&format!("echo {lowest} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")).await;
    let is_held = ran.stdout.trim().parse::<i32>().unwrap() > own;
    let ran_at_own = sandbox.sh(&format!("echo {own} > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj")).await;
    let is_held = is_held && ran_at_own.stdout.trim().parse::<i32>().unwrap() > own;
    let is_said = provider.native.facts().missing.iter().any(|lack| lack.contains("oom_score_adj"));
    assert_ne!(is_held, is_said, "what the kernel does not hold is said: {ran:?}");
}

/// As in a container: at the highest score nothing could be ranked above anything.
#[tokio::test]
async fn a_program_can_rank_its_processes_for_the_end_by_memory() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        return;
    }
    let sandbox = provider.start().await;
    let script = "cat /proc/self/oom_score_adj; for score in 150 700 150; do echo $score > /proc/self/oom_score_adj; cat /proc/self/oom_score_adj; done";
    let ran = sandbox.sh(script).await;
    let scores: Vec<i32> = ran.stdout.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(scores[1..], [150, 700, 150], "{ran:?}");
    assert!(oom_score(sandbox.pid()) < scores[0] && scores[0] <= 200, "{ran:?}");
}

#[tokio::test]
async fn a_lock_on_a_device_holds_nothing_up_on_the_host() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let script = "exec 9< /dev/zero 8< /proc/keys; flock -x 9 && flock -x 8 && echo held; sleep 100";
    let mut output = sandbox.guest().await.exec(command(&["/bin/sh", "-c", script])).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("held\n".into()));
    let is_free = |path: &str| {
        let file = std::fs::File::open(path).unwrap();
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    // A file that covers one of the kernel's is never one of the host.
    assert!(is_free("/dev/null"));
    let is_said = provider.native.facts().missing.iter().any(|lack| lack.contains("device"));
    assert_ne!(is_free("/dev/zero"), is_said, "what cannot be held is said");
}

#[tokio::test]
async fn one_mode_that_a_box_gives_its_agent_stops_no_other_box() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    // The kernel may refuse it, or have given the box a copy.
    let _ = sandbox.guest().await.chmod("/proc/self/exe", 0).await;
    assert_eq!(provider.start().await.text("echo here").await, "here\n");
    assert_eq!(sandbox.text("echo here").await, "here\n");
}

/// Options that a socket holds, such as keys, count to no control group.
#[tokio::test]
async fn a_socket_of_a_box_holds_few_options() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    // Kernels before 6.7 have one limit for the whole host, which no box sees.
    let bound = sandbox.text("cat /proc/sys/net/core/optmem_max 2>/dev/null || echo 8192").await;
    assert_eq!(bound.trim(), "8192");
}

/// Program that requests the list of interfaces and joins a group from many processes for a
/// second. It prints the number of calls, and the first name in the list.
const ASKING: &str = r#"
import array, fcntl, os, socket, struct, time
def interfaces(asking):
    names = array.array("B", bytes(4096))
    room = struct.pack("iL", len(names), names.buffer_info()[0])
    length = struct.unpack("iL", fcntl.ioctl(asking, 0x8912, room))[0]
    return bytes(names[:length])[:16].rstrip(b"\0").split(b"\0")[0].decode()
group = socket.inet_aton("225.1.2.3") + socket.inet_aton("127.0.0.1")
read, write = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        asking, calls, end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), 0, time.monotonic() + 1
        while time.monotonic() < end:
            first = interfaces(asking)
            asking.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            asking.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, group)
            calls += 3
        os.write(write, f"{calls} {first}\n".encode())
        os._exit(0)
os.close(write)
lines = open(read).read().split("\n")[:-1]
print(sum(int(line.split()[0]) for line in lines), *{line.split()[1] for line in lines})
"#;

/// The kernel has one lock for the interfaces and groups of all boxes, and making a box needs it.
#[tokio::test]
async fn a_box_asks_for_interfaces_and_groups_one_call_at_a_time() {
    let provider = TestProvider::new().await;
    let ran = provider.start().await.python(ASKING).await;
    let (calls, first) = ran.stdout.trim().split_once(' ').unwrap_or_else(|| panic!("{ran:?}"));
    assert_eq!(first, "lo", "{ran:?}");
    // Without a limit it is some hundred thousand. Each process may begin and end late.
    assert!(calls.parse::<u32>().unwrap() < 10_000, "{calls}");
}

/// A table and memory that no control group counts. The calls fail as on a kernel that was built
/// without them.
#[tokio::test]
async fn labels_of_flows_and_keys_of_connections_cannot_be_had() {
    let script = r#"
import socket
def errno(family, kind, level, option):
    try: socket.socket(family, kind).setsockopt(level, option, bytes(1) * 216)
    except OSError as error: return error.errno
print(errno(socket.AF_INET6, socket.SOCK_DGRAM, 41, 32))
for option in (14, 32, 38): print(errno(socket.AF_INET, socket.SOCK_STREAM, 6, option))
"#;
    let provider = TestProvider::new().await;
    let ran = provider.start().await.python(script).await;
    assert_eq!(ran.stdout, "92\n92\n92\n92\n", "{ran:?}");
}

/// Huge pages are the host's, and count to no limit of a box.
#[tokio::test]
async fn a_box_gets_no_huge_pages() {
    let script = r#"
import ctypes, os
kernel = ctypes.CDLL(None, use_errno=True)
kernel.mmap.restype = ctypes.c_long
kernel.mmap.argtypes = [ctypes.c_long] * 6
def errno(answer): return ctypes.get_errno() if answer == -1 else 0
print(errno(kernel.mmap(0, 1 << 21, 3, 0x40022, -1, 0)))
print(errno(kernel.memfd_create(b"huge", 4)))
print(errno(kernel.shmget(0, 1 << 21, 0o5600)))
print(errno(kernel.memfd_create(b"small", 1)))
"#;
    let provider = TestProvider::new().await;
    let ran = provider.start().await.python(script).await;
    assert_eq!(ran.stdout, "12\n12\n12\n0\n", "{ran:?}");
}

/// Returns a program that opens connections to a listener of its own that accepts none, sends to
/// each, closes it, and waits. With a small buffer most of the data does not fit the other end.
fn connecting(connections: u32, buffer: u32) -> String {
    format!(
        r#"
import os, socket
listener = socket.socket()
if {buffer}: listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, {buffer})
listener.bind(("127.0.0.1", 0))
listener.listen(4096)
for _ in range({connections}):
    with socket.socket() as connection:
        connection.connect(listener.getsockname())
        connection.setblocking(False)
        try:
            while connection.send(bytes(8192)): pass
        except BlockingIOError: pass
os.write(1, b"done\n")
os.read(0, 1)
"#
    )
}

/// Runs the script in a new box and measures the share while the script waits.
async fn share_of(script: &str, share: KernelShare) -> u64 {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    assert_eq!(provider.native.kernel_usage(&sandbox.id, share).await, Some(0), "a box takes none by itself");
    let mut command = command(&["/usr/bin/python3", "-c", script]);
    command.stdin = Some(futures_util::stream::pending().boxed());
    let mut output = sandbox.guest().await.exec(command).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("done\n".into()));
    provider.native.kernel_usage(&sandbox.id, share).await.unwrap()
}

/// Such bytes count to no control group.
#[tokio::test]
async fn connections_that_a_box_does_not_accept_are_counted() {
    let bytes = share_of(&connecting(50, 0), KernelShare::TcpBytes).await;
    assert!(bytes > 50 * 8192, "{bytes}");
}

#[tokio::test]
async fn closed_connections_whose_data_is_not_taken_are_counted() {
    let orphans = share_of(&connecting(50, 2048), KernelShare::TcpOrphans).await;
    assert!((40..=50).contains(&orphans), "{orphans}");
}

#[tokio::test]
async fn files_that_a_box_watches_are_counted() {
    let script = r#"
import os, select
watched, polls = [os.eventfd(0) for _ in range(100)], [select.epoll() for _ in range(100)]
for poll in polls:
    for file in watched: poll.register(file)
os.write(1, b"done\n")
os.read(0, 1)
"#;
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let before = provider.native.kernel_usage(&sandbox.id, KernelShare::Watches).await.unwrap();
    let mut command = command(&["/usr/bin/python3", "-c", script]);
    command.stdin = Some(futures_util::stream::pending().boxed());
    let mut output = sandbox.guest().await.exec(command).await.unwrap();
    assert_eq!(output.next().await.unwrap().unwrap(), OutputEvent::Stdout("done\n".into()));
    let after = provider.native.kernel_usage(&sandbox.id, KernelShare::Watches).await.unwrap();
    assert!(after >= before + 10_000, "{before} {after}");
}
