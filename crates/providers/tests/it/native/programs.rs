//! Programs that people run in boxes, and what such programs ask of a kernel.

use futures_util::StreamExt as _;
use providers::native::NativeConfig;
use providers::{Chain, OutputEvent, Provider as _};

use crate::native::harness::{TestProvider, is_root, spec};
use crate::test_box::command;

#[tokio::test]
async fn a_browser_shows_a_page() {
    if fixtures::found("chromium", &[]).is_none() {
        return;
    }
    let provider = TestProvider::new().await;
    let mut spec = spec();
    // As a spawn has them that names none.
    spec.resources.memory_mb = 512;
    spec.resources.pids = 256;
    let sandbox = provider.start_with(spec).await;
    let page = "data:text/html,<p id=sum></p><script>sum.textContent=6*7</script>";
    let shown = sandbox.sh(&format!("{BROWSER} --dump-dom '{page}'")).await;
    assert!(shown.stdout.contains("<p id=\"sum\">42</p>"), "{shown:?}");
    let picture = sandbox
        .sh(&format!("{BROWSER} --screenshot=/tmp/page.png '{page}' && head -c 4 /tmp/page.png | tail -c 3"))
        .await;
    assert!(picture.stdout.contains("PNG"), "{picture:?}");
}

/// Command line of a browser, as the page on programs has it.
const BROWSER: &str = "chromium --headless --no-sandbox --disable-gpu";

/// Probes of what a kernel knows, by flags that none has.
const PROBES: &str = r#"
import ctypes, errno, os, socket
c = ctypes.CDLL(None, use_errno=True)
def answer(got):
    return "made" if got >= 0 else errno.errorcode[ctypes.get_errno()]
c.mmap.restype = ctypes.c_ssize_t
page, shared, anonymous, huge = 4096, 1, 0x20, 0x40000
print("memfd", answer(c.memfd_create(b"", ctypes.c_uint(0xffffffff))))
print("memfd of huge pages", answer(c.memfd_create(b"", 4)))
print("mapping", answer(c.mmap(None, page, 3, anonymous | huge, -1, ctypes.c_long(0))))
with open("/tmp/file", "w+b") as file:
    file.truncate(page)
    print("mapping of a file", answer(c.mmap(None, page, 3, shared | huge, file.fileno(), ctypes.c_long(0))))
print("segment", answer(c.shmget(12345, page, 0o4000)))
print("unshare", answer(c.unshare(0x100000)))
print("unshare of a thread", answer(c.unshare(0x200)))
print("clone", answer(c.syscall(56 if os.uname().machine == "x86_64" else 220, ctypes.c_ulong(0x20200), 0, 0, 0, 0)))
print("pair", answer(c.socketpair(30, 1, 0, (ctypes.c_int * 2)())))
print("netlink", answer(c.socket(16, 3, 4)))
"#;

#[tokio::test]
async fn a_probe_with_unknown_flags_is_answered_as_on_a_host() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let told = sandbox.python(PROBES).await;
    assert_eq!(
        told.stdout,
        "memfd EINVAL\nmemfd of huge pages ENOMEM\nmapping EINVAL\nmapping of a file EINVAL\nsegment ENOENT\n\
         unshare EINVAL\nunshare of a thread made\nclone EINVAL\npair EAFNOSUPPORT\nnetlink EPROTONOSUPPORT\n",
        "{told:?}"
    );
}

/// Threads that make calls which take turns, without end.
const CROWD: &str = r#"
import ctypes, socket, threading
c = ctypes.CDLL(None)
group = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
def call():
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            c.setsockopt(s.fileno(), 0, 35, group, len(group))
for _ in range(40):
    threading.Thread(target=call).start()
print("calling", flush=True)
"#;

#[tokio::test]
async fn a_box_is_paused_whatever_waits_for_its_turn() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let Some(pauses) = provider.native.pauses() else { return };
    let guest = sandbox.guest().await;
    let mut crowd = guest.exec(command(&["/usr/bin/python3", "-c", CROWD])).await.unwrap();
    assert!(matches!(crowd.next().await, Some(Ok(OutputEvent::Stdout(_)))), "the threads call");
    for _ in 0..3 {
        pauses.pause(&sandbox.id).await.unwrap_or_else(|error| panic!("it is paused: {}", Chain(&error)));
        pauses.resume(&sandbox.id).await.unwrap();
    }
    drop(crowd);
}

/// Calls of a server of terminals: root gives up the view of the files, and a user opens a terminal that
/// belongs to the group `tty`.
const SERVER: &str = r#"
import os, stat
own = os.stat("/")
os.makedirs("/run/sshd", exist_ok=True)
root = os.open("/", os.O_RDONLY)
if os.fork() == 0:
    os.chroot("/run/sshd")
    assert os.listdir("/") == []
    # Whoever leaves it, as root can, is in the box.
    os.fchdir(root)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    found = os.stat("/")
    print("left to", "the box" if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino) else "elsewhere", flush=True)
    os._exit(0)
os.wait()
try:
    os.setgid(1000)
    os.setuid(1000)
except OSError:
    # The box has one user.
    pass
mine, theirs = os.openpty()
seen = os.fstat(theirs)
print("terminal", seen.st_gid, oct(stat.S_IMODE(seen.st_mode)))
"#;

#[tokio::test]
async fn a_server_of_terminals_confines_itself_and_opens_one() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let told = sandbox.python(SERVER).await;
    // A box with a single user has no group for terminals.
    let group = if is_root() { "5" } else { "0" };
    assert_eq!(told.stdout, format!("left to the box\nterminal {group} 0o620\n"), "{told:?}");
}

#[tokio::test]
async fn lists_of_processes_show_nothing_of_the_agents_parameters() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    assert_eq!(sandbox.text("tr '\\0' ' ' < /proc/1/cmdline").await, "tidebox-agent agent ");
    sandbox.refuses("cat /proc/1/environ").await;
    assert_eq!(sandbox.text("env | grep -c TIDEBOX_AGENT; true").await, "0\n");
}

#[tokio::test]
async fn a_box_of_the_host_has_the_configuration_that_packages_brought_and_no_other() {
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    // What the machine's own administrator wrote is not shown, whoever may read it.
    for own in ["/etc/npmrc", "/etc/environment", "/etc/cron.d", "/etc/init.d", "/etc/apt/sources.list"] {
        sandbox.refuses(&format!("test -e {own}")).await;
    }
    if std::fs::exists("/usr/bin/dpkg").unwrap() {
        sandbox.text("test -s /etc/pam.d/su && test -s /etc/bash.bashrc").await;
        if is_root() {
            sandbox.text("su -s /bin/sh nobody -c true").await;
        }
        // The list of packages is that of the host, whose programs the box has, and sources are there.
        sandbox.text("dpkg-query --show bash && apt-cache policy && test -s /etc/apt/sources.list.d/*.sources").await;
    }
    if std::fs::exists("/usr/share/maven").unwrap() {
        sandbox.text("mvn --version").await;
    }
    if std::fs::exists("/usr/local/go/bin/go").unwrap() {
        sandbox.text("go version").await;
    }
}

#[tokio::test]
async fn files_of_a_box_are_written_to_the_disk_where_that_is_asked_for() {
    let provider = TestProvider::new().await;
    let fsync = "grep ' - overlay ' /proc/self/mountinfo | grep -c fsync=volatile; true";
    assert_ne!(provider.start().await.text(fsync).await, "0\n");
    let config = NativeConfig { fsync: true, ..provider.config() };
    drop(provider);
    let folder = tempfile::Builder::new().prefix("tidebox-test-").tempdir().unwrap();
    let provider = TestProvider::opened(NativeConfig { data_dir: folder.path().to_owned(), ..config }, folder).await;
    let sandbox = provider.start().await;
    assert_eq!(sandbox.text(fsync).await, "0\n");
    sandbox.text("echo kept > f && sync -d f && sync && cat f").await;
}

#[tokio::test]
async fn a_user_of_a_box_works_in_the_workspace() {
    if !is_root() {
        // Such a box has one user.
        return;
    }
    let provider = TestProvider::new().await;
    let sandbox = provider.start().await;
    let as_user = "import os; os.setgid(1000); os.setuid(1000); open('/workspace/mine', 'w').write('x')";
    let ran = sandbox.python(as_user).await;
    assert_eq!(ran.exit.code, 0, "{ran:?}");
    sandbox.text("echo more >> /workspace/mine").await;
}
