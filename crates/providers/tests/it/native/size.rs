//! The size that programs of a box see.

use domain::Resources;
use providers::Spec;

use crate::native::harness::{TestBox, TestProvider, is_root, spec};

fn sized(memory_mb: u32, vcpus: u32) -> Spec {
    Spec { resources: Resources { memory_mb, vcpus, disk_mb: 0, pids: 256 }, ..spec() }
}

fn processors() -> usize {
    std::thread::available_parallelism().unwrap().get()
}

/// Returns the output of a program in a box; `None`, which is said, if the host lacks it.
async fn output_of(sandbox: &TestBox<'_>, program: &str, script: &str) -> Option<String> {
    let has = sandbox.sh(&format!("command -v {program}")).await;
    if has.exit.code != 0 {
        fixtures::skip(program, "a box of `host` has the programs of this machine");
        return None;
    }
    let ran = sandbox.sh(script).await;
    assert_eq!(ran.exit.code, 0, "{ran:?}");
    Some(ran.stdout + &ran.stderr)
}

#[tokio::test]
async fn a_box_sees_its_memory_and_processors() {
    let provider = TestProvider::new().await;
    for (memory_mb, vcpus) in [(256, 1), (512, 2)] {
        let sandbox = provider.start_with(sized(memory_mb, vcpus)).await;
        let total = sandbox.text("grep MemTotal /proc/meminfo | tr -dc 0-9").await;
        assert_eq!(total, (memory_mb * 1024).to_string());
        let count = processors().min(vcpus as usize).to_string();
        let counts =
            "nproc; grep -c ^processor /proc/cpuinfo; grep -c '^cpu[0-9]' /proc/stat; getconf _NPROCESSORS_ONLN";
        assert_eq!(sandbox.text(counts).await, format!("{count}\n").repeat(4));
        let files = "cat /sys/devices/system/cpu/online /sys/devices/system/cpu/possible | wc -l; ls /sys/devices/system/cpu/present";
        assert_eq!(sandbox.text(files).await, "2\n/sys/devices/system/cpu/present\n");
    }
}

#[tokio::test]
async fn what_a_box_uses_is_shown() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        return;
    }
    let sandbox = provider.start_with(sized(512, 1)).await;
    let script = r#"
import time
def free():
    for line in open("/proc/meminfo"):
        if line.startswith("MemAvailable"): return int(line.split()[1])
def used(): return sum(int(it) for it in open("/proc/stat").readline().split()[1:4])
before, ticks, held = free(), used(), b"x" * (200 << 20)
deadline = time.monotonic() + 20
while (free() > before - (150 << 10) or used() <= ticks) and time.monotonic() < deadline: pass
print(before - free() >= 150 << 10, used() > ticks)
"#;
    assert_eq!(sandbox.python(script).await.stdout, "True True\n");
}

/// The group is the box's own, and no process of the box can change it, whoever it is.
#[tokio::test]
async fn a_box_reads_its_own_control_group_and_changes_nothing() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        fixtures::skip("cgroups", "the server can make no control groups here");
        return;
    }
    let sandbox = provider.start_with(sized(256, 1)).await;
    let limit = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null";
    assert_eq!(sandbox.sh(limit).await.stdout, format!("{}\n", 256 << 20));
    assert_eq!(sandbox.text("cut -d: -f3 /proc/self/cgroup | sort -u").await, "/\n");
    let script = r#"
import os
wrote = []
for top, dirs, files in os.walk("/sys"):
    for name in files:
        try: os.close(os.open(os.path.join(top, name), os.O_WRONLY))
        except OSError: continue
        wrote.append(os.path.join(top, name))
    try: os.mkdir(os.path.join(top, "new"))
    except OSError: continue
    wrote.append(top)
for name in ("meminfo", "cpuinfo", "stat"):
    try: os.close(os.open("/proc/" + name, os.O_WRONLY))
    except OSError: continue
    wrote.append(name)
print(wrote)
"#;
    assert_eq!(sandbox.python(script).await.stdout, "[]\n");
    // Neither the groups of other boxes nor those of the host are below.
    let below = sandbox.text("find /sys/fs/cgroup -mindepth 2 -type d; cat /proc/self/mountinfo | grep ' - cgroup' | cut -d' ' -f4 | sort -u").await;
    assert_eq!(below, "/\n");
    let id = sandbox.id.as_str();
    assert_eq!(sandbox.sh(&format!("cat /proc/self/mountinfo | grep -c {id}")).await.stdout, "0\n");
}

#[tokio::test]
async fn runtimes_take_the_size_of_their_box() {
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        fixtures::skip("cgroups", "the server can make no control groups here");
        return;
    }
    for (memory_mb, vcpus) in [(512, 1), (1024, 2)] {
        let sandbox = provider.start_with(sized(memory_mb, vcpus)).await;
        let count = processors().min(vcpus as usize);
        let java = "java -XshowSettings:system -version";
        if let Some(output) = output_of(&sandbox, "java", java).await {
            for line in [format!("Effective CPU Count: {count}"), format!("Memory Limit: {memory_mb}.00M")] {
                let line = line.replace("1024.00M", "1.00G");
                assert!(output.contains(&line), "{line} in {output}");
            }
        }
        let node = r#"node -p 'const os = require("os"); [process.constrainedMemory() >> 20, os.totalmem() >> 20, os.availableParallelism(), os.cpus().length].join(" ")'"#;
        if let Some(output) = output_of(&sandbox, "node", node).await {
            assert_eq!(output, format!("{memory_mb} {memory_mb} {count} {count}\n"));
        }
        let python = "python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'";
        if let Some(output) = output_of(&sandbox, "python3", python).await {
            assert_eq!(output, format!("{count} {count}\n"));
        }
        if let Some(output) = output_of(&sandbox, "lscpu", "lscpu -p=CPU | grep -vc '^#'").await {
            assert_eq!(output, format!("{count}\n"));
        }
    }
}

#[tokio::test]
async fn a_slot_sees_its_own_size() {
    if !is_root() {
        return;
    }
    let provider = TestProvider::new().await;
    if !provider.has_hard_limits() {
        return;
    }
    let host = provider.start_host().await;
    let slot = provider.add_slot_with(&host, sized(128, 1)).await;
    assert_eq!(slot.text("grep MemTotal /proc/meminfo | tr -dc 0-9").await, (128 * 1024).to_string());
    let limit = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null";
    assert_eq!(slot.sh(limit).await.stdout, format!("{}\n", 128 << 20));
}
