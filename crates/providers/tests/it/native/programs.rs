//! Programs that people run in boxes, and what such programs ask of a kernel.

use crate::native::harness::TestProvider;

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
