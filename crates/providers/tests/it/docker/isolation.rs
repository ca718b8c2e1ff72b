//! Isolation of a box: things that it must not see, reach or use.

use std::time::Duration;

use domain::Resources;
use fixtures::Engine;
use providers::docker::{Docker, DockerConfig};
use providers::{Command, Provider, Spec};

use crate::docker::engine::proxied;
use crate::docker::harness::{EMPTY, SPEAKING, TestBox, TestProvider, command, furnish, new_id, new_store, spec};

fn sized(memory_mb: u32, pids: u32) -> Spec {
    Spec { resources: Resources { memory_mb, vcpus: 1, disk_mb: 0, pids }, ..spec() }
}

async fn still_answers(other: &TestBox) {
    let answer = tokio::time::timeout(Duration::from_secs(30), other.text("echo here")).await;
    assert_eq!(answer.expect("another box answers"), "here\n");
}

#[tokio::test]
async fn no_file_socket_or_device_of_the_host_shows() {
    let Some(provider) = TestProvider::new().await else { return };
    let canary = provider.engine.folder().join(format!("canary-{}", provider.config.store_id.as_str()));
    std::fs::write(&canary, "secret").unwrap();
    let sandbox = provider.start().await;
    let name = canary.file_name().unwrap().to_string_lossy();
    let script = format!("find / -xdev -name '{name}' 2>/dev/null; find / -name 'docker*.sock' 2>/dev/null; true");
    assert_eq!(sandbox.text(&script).await, "");
    sandbox.refuses(&format!("cat /proc/1/root/..{}", canary.display())).await;
    sandbox.refuses(&format!("cat /../../..{}", canary.display())).await;
    assert_eq!(sandbox.text("find /dev -type b; true").await, "");
    for node in ["b 8 0", "c 1 1", "c 1 11"] {
        sandbox.refuses(&format!("mknod /tmp/node {node}")).await;
    }
    // The Engine's folder is shown in the source column of mounts, and cannot be opened.
    sandbox.refuses(&format!("ls {}", provider.engine.folder().display())).await;
    assert_eq!(sandbox.text("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").await, "lo\n");
}

#[tokio::test]
async fn capabilities_are_those_that_are_documented_and_nothing_gains_more() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    // CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, NET_BIND_SERVICE.
    let expected = "00000000000004fb";
    let status = sandbox.text("grep -E '^(Cap(Eff|Bnd|Prm)|NoNewPrivs|Seccomp):' /proc/self/status").await;
    for line in [
        format!("CapPrm:\t{expected}"),
        format!("CapEff:\t{expected}"),
        format!("CapBnd:\t{expected}"),
        "NoNewPrivs:\t1".to_owned(),
        "Seccomp:\t2".to_owned(),
    ] {
        assert!(status.contains(&line), "{line} is not in {status}");
    }
    // `busybox` is set-user-id root in the image.
    let mut as_ann = command(&["/bin/busybox", "id", "-u"]);
    as_ann.user = Some("ann".to_owned());
    assert_eq!(sandbox.run(as_ann).await.stdout, "1000\n");
    sandbox.refuses("mount -t tmpfs none /mnt").await;
    sandbox.refuses("unshare -U true").await;
    sandbox.refuses("chroot /proc/1/root /bin/true && false").await;
}

#[tokio::test]
async fn settings_of_the_kernel_and_control_groups_cannot_be_written() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    for file in ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger"] {
        sandbox.refuses(&format!("echo 1 > {file}")).await;
    }
    for masked in ["kcore", "keys", "timer_list"] {
        assert_eq!(sandbox.text(&format!("head -c 64 /proc/{masked} 2>/dev/null | wc -c")).await, "0\n", "{masked}");
    }
    sandbox
        .refuses("find /sys/fs/cgroup -type d | while read d; do mkdir $d/x 2>/dev/null && exit 0; done; exit 1")
        .await;
    sandbox
        .refuses("find / -name release_agent 2>/dev/null | while read f; do echo x > $f && exit 0; done; exit 1")
        .await;
}

#[tokio::test]
async fn a_command_has_three_descriptors_and_the_agent_is_out_of_reach() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    assert_eq!(sandbox.text("ls /proc/self/fd | tr '\\n' ' '").await, "0 1 2 3 ");
    for hidden in ["environ", "mem", "maps", "exe", "fd/0", "fd/3", "root/etc/passwd", "cwd/etc/passwd"] {
        sandbox.refuses(&format!("cat < /proc/1/{hidden}")).await;
    }
    sandbox.refuses("readlink /proc/1/fd/3 || readlink /proc/1/exe").await;
    for change in ["echo x > /.tidebox/agent", "rm /.tidebox/agent", "touch /.tidebox/x", "mv /.tidebox /x"] {
        sandbox.refuses(change).await;
    }
    sandbox.sh("kill -9 -1; kill -9 1; kill -TERM 1; kill -STOP 1; kill -SEGV 1").await;
    sandbox.text("true").await;
}

/// The agent's socket is in the box, for later servers. A process of the box that finds it gets
/// no answer.
#[tokio::test]
async fn a_process_of_the_box_cannot_speak_to_the_agent() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let ran = sandbox.sh("/.tidebox/agent relay < /dev/null | wc -c").await;
    assert_eq!(ran.stdout, "0\n", "{ran:?}");
    // With the preface of a connection, to which a server would get an answer.
    let preface = "printf 'PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n\\0\\0\\0\\4\\0\\0\\0\\0\\0'; sleep 2";
    let ran = sandbox.sh(&format!("({preface}) | timeout 5 /.tidebox/agent relay | wc -c")).await;
    assert_eq!(ran.stdout, "0\n", "{ran:?}");
    // A connection from outside is answered, so this check can fail.
    TestBox::of(&provider.reopen().await, sandbox.id.clone()).text("true").await;
}

/// The relay is a process of the box from its first instruction on, and holds the stream to the
/// server.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_the_box_cannot_look_into_the_relay_at_any_moment() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    // Without a fork in the loop. Looks for processes whose parent is outside, and for the files
    // that they write to.
    let spy = "while [ ! -e /tmp/over ]; do for p in /proc/[0-9]*; do \
               read -r a b c parent rest < $p/stat && [ \"$parent\" = 0 ] && [ $p != /proc/1 ] && echo seen >> /tmp/seen && \
               while [ -e $p/stat ] && [ ! -s /tmp/found ]; do true > $p/fd/1 && echo $p >> /tmp/found; done; \
               done; done 2> /dev/null";
    sandbox.text(&format!("touch /tmp/found /tmp/seen; for i in 1 2; do ({spy}) > /dev/null 2>&1 & done")).await;
    let (address, _proxy) = proxied(provider.engine.socket(), None).await;
    let far = DockerConfig { socket: format!("tcp://{address}"), ..provider.config.clone() };
    for _ in 0..20 {
        let far = TestBox::of(&Docker::open(far.clone()).await.unwrap(), sandbox.id.clone());
        assert_eq!(far.text("echo far").await, "far\n");
    }
    sandbox.text("touch /tmp/over").await;
    assert_ne!(sandbox.text("cat /tmp/seen").await, "", "the relays were looked for");
    assert_eq!(sandbox.text("cat /tmp/found").await, "");
}

#[tokio::test]
async fn a_socket_of_a_container_holds_few_options() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0u32));
    let expected = if (numbers.next(), numbers.next()) >= (Some(6), Some(7)) { "8192\n" } else { "" };
    let file = "/proc/sys/net/core/optmem_max";
    assert_eq!(sandbox.text(&format!("cat {file} 2>/dev/null; true")).await, expected);
    sandbox.refuses(&format!("echo 131072 > {file}")).await;
}

/// An Engine opens a descriptor for each level of the tree that it removes.
#[tokio::test]
async fn a_tree_deeper_than_the_engine_has_descriptors_goes_with_its_box() {
    const DESCRIPTORS: u32 = 1024;
    let Some(engine) = Engine::start() else { return };
    furnish(&engine);
    let limit = Some(u64::from(DESCRIPTORS));
    let pid = rustix::process::Pid::from_raw(engine.pid()).unwrap();
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).unwrap();
    let config = DockerConfig { socket: engine.socket().display().to_string(), ..DockerConfig::new(new_store()) };
    let docker = Docker::open(config.clone()).await.unwrap();
    let start = async |spec: Spec| {
        let id = new_id();
        docker.start(&id, &spec).await.unwrap();
        TestBox::of(&docker, id)
    };
    let other = start(spec()).await;
    let volume = Spec { image: SPEAKING.to_owned(), ..spec() };
    for (spec, folder) in [(spec(), "/tmp"), (volume, "/data")] {
        let sandbox = start(spec).await;
        // A folder of the image is copied to the box once something is written there.
        sandbox.sh("touch /tmp/file").await;
        let container = format!("tidebox-{}-{}", config.store_id.as_str(), sandbox.id);
        let inspected = engine.api("GET", &format!("/containers/{container}/json"), b"");
        let inspected: serde_json::Value = serde_json::from_slice(&inspected.1).unwrap();
        let root = inspected["GraphDriver"]["Data"]["UpperDir"].as_str().unwrap().to_owned();
        let mounts = inspected["Mounts"].as_array().unwrap();
        let volume = mounts.iter().find(|mount| mount["Destination"] == folder);
        let written = match volume {
            Some(volume) => volume["Source"].as_str().unwrap().to_owned(),
            None => format!("{root}{folder}"),
        };
        deepen(&written, DESCRIPTORS + 100);
        docker.stop(&sandbox.id).await.unwrap();
        assert!(!std::path::Path::new(&written).exists() && !std::path::Path::new(&root).exists(), "{folder}");
        still_answers(&other).await;
    }
    assert_eq!(docker.inventory().await.unwrap().len(), 1);
    docker.stop(&other.id).await.unwrap();
}

/// Makes `levels` nested directories in `folder`, from the inside out, since no path can be so
/// long.
fn deepen(folder: &str, levels: u32) {
    let (inner, outer) = (format!("{folder}/inner"), format!("{folder}/outer"));
    std::fs::create_dir(&inner).unwrap();
    for _ in 0..levels {
        std::fs::create_dir(&outer).unwrap();
        std::fs::rename(&inner, format!("{outer}/a")).unwrap();
        std::fs::rename(&outer, &inner).unwrap();
    }
}

/// A server on the same machine opens the agent's socket through the box's file system.
#[tokio::test]
async fn what_a_box_puts_in_place_of_the_agents_socket_leads_the_server_nowhere() {
    let Some(provider) = TestProvider::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let listener = std::os::unix::net::UnixListener::bind(folder.path().join("agent.sock")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (socket, outside) = ("/.tidebox/run/agent.sock", folder.path().display());
    for change in [
        format!("ln -s {outside}/agent.sock {socket}"),
        format!("mkfifo {socket}"),
        format!("echo file > {socket}"),
        format!("mkdir {socket}"),
    ] {
        let sandbox = provider.start().await;
        sandbox.text(&format!("rm -f {socket} && {change}")).await;
        let later = provider.reopen().await;
        assert!(later.guest(&sandbox.id).await.is_err(), "{change}");
        let reached = listener.accept().map(drop).map_err(|error| error.kind());
        assert_eq!(reached, Err(std::io::ErrorKind::WouldBlock), "{change}");
        // An existing connection is kept.
        sandbox.text("true").await;
        provider.docker.stop(&sandbox.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_fork_bomb_stays_in_its_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let (bomber, other) = (provider.start_with(sized(128, 32)).await, provider.start().await);
    let ran = bomber.sh("i=0; while [ $i -lt 100 ]; do sleep 600 & i=$((i+1)); done; echo all").await;
    assert!(!ran.stdout.contains("all") || ran.stderr.contains("fork"), "{ran:?}");
    still_answers(&other).await;
    provider.docker.stop(&bomber.id).await.unwrap();
}

#[tokio::test]
async fn a_memory_hog_is_killed_and_told_so_and_its_box_goes_on() {
    let Some(provider) = TestProvider::new().await else { return };
    let (hog, other) = (provider.start_with(sized(64, 64)).await, provider.start().await);
    let ran = hog.sh("exec head -c 500000000 /dev/zero | exec tail -c 400000000 | wc -c").await;
    assert!(ran.exit.oom_killed, "{ran:?}");
    still_answers(&other).await;
    still_answers(&hog).await;
}

#[tokio::test]
async fn what_the_image_says_is_honoured_and_its_entry_point_only_on_request() {
    let Some(provider) = TestProvider::new().await else { return };
    let quiet = provider.start_with(Spec { image: SPEAKING.to_owned(), ..spec() }).await;
    assert_eq!(quiet.text("echo $GREETING; id -un; pwd").await, "hello\nann\n/srv/app\n");
    assert_eq!(quiet.text("stat -c %U /workspace").await, "ann\n");
    let console = quiet.guest().await.console(100).await.unwrap();
    assert!(!console.iter().any(|line| line.contains("entry")), "{console:?}");
    let loud = provider.start_with(Spec { image: SPEAKING.to_owned(), entrypoint: true, ..spec() }).await;
    crate::test_box::eventually("the entry point has spoken", || async {
        let console = loud.guest().await.console(100).await.unwrap();
        console.iter().any(|line| line.contains("entry as ann in /srv/app"))
    })
    .await;
    // The Engine does not run a health check of the image in a box.
    quiet.refuses("test -e /tmp/checked").await;
}

#[tokio::test]
async fn an_image_without_a_shell_or_anything_else_works() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start_with(Spec { image: EMPTY.to_owned(), ..spec() }).await;
    assert_eq!(sandbox.sh("true").await.exit.code, 127);
    let guest = sandbox.guest().await;
    let content = futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"here"))]);
    guest.write_file("/workspace/file", None, Box::pin(content)).await.unwrap();
    assert_eq!(guest.stat("/workspace/file").await.unwrap().size, 4);
}

#[tokio::test]
async fn a_read_only_root_leaves_workspace_and_tmp() {
    let Some(provider) = TestProvider::with(|config| config.read_only_rootfs = true).await else { return };
    let sandbox = provider.start().await;
    for path in ["/x", "/etc/x", "/bin/x", "/root/x"] {
        sandbox.refuses(&format!("touch {path}")).await;
    }
    sandbox.text("for d in /workspace /tmp /var/tmp /run; do echo x > $d/x; done").await;
    // A full file system is reported, and no process is killed for it.
    let ran = sandbox.sh("dd if=/dev/zero of=/workspace/file bs=1000000 count=300").await;
    assert!(ran.stderr.contains("No space left") && !ran.exit.oom_killed, "{ran:?}");
    TestBox::of(&provider.reopen().await, sandbox.id.clone()).text("cat /tmp/x").await;
}

#[tokio::test]
async fn a_configured_user_is_all_there_is_in_a_box() {
    let Some(provider) = TestProvider::with(|config| config.user = "1000:1000".to_owned()).await else { return };
    let sandbox = provider.start().await;
    assert_eq!(sandbox.text("id -u; touch /workspace/x && stat -c %u /workspace/x").await, "1000\n1000\n");
    assert!(sandbox.text("grep CapEff /proc/self/status").await.contains("0000000000000000"));
    assert!(sandbox.text("grep Uid: /proc/1/status").await.contains("1000\t1000\t1000"));
    let mut as_root = command(&["/bin/id"]);
    as_root.user = Some("root".to_owned());
    assert!(sandbox.guest().await.exec(as_root).await.is_err());
    TestBox::of(&provider.reopen().await, sandbox.id.clone()).text("test -e /workspace/x").await;
}

#[tokio::test]
async fn capabilities_tmpfs_and_seccomp_are_as_configured() {
    let profile = tempfile::NamedTempFile::new().unwrap();
    let rules = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["symlink", "symlinkat"], "action": "SCMP_ACT_ERRNO"}]}"#;
    std::fs::write(profile.path(), rules).unwrap();
    let provider = TestProvider::with(|config| {
        config.added_caps = vec!["NET_RAW".to_owned()];
        config.dropped_caps = vec!["CAP_KILL".to_owned()];
        config.tmpfs = [("/cache".to_owned(), "size=1m,mode=0777".to_owned())].into();
        config.seccomp_profile = Some(profile.path().to_owned());
        config.pids_limit = Some(20);
    });
    let Some(provider) = provider.await else { return };
    let sandbox = provider.start().await;
    assert!(sandbox.text("grep CapEff /proc/self/status").await.contains("00000000000024db"));
    assert!(sandbox.text("grep ' /cache ' /proc/mounts").await.contains("tmpfs"));
    sandbox.refuses("ln -s a /tmp/x").await;
    let made = sandbox.sh("i=0; while [ $i -lt 40 ]; do sleep 60 & i=$((i+1)); done; echo all").await;
    assert!(!made.stdout.contains("all") || made.stderr.contains("fork"), "{made:?}");
}

#[tokio::test]
async fn what_a_box_writes_outside_of_its_root_is_counted() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start_with(Spec { image: SPEAKING.to_owned(), ..spec() }).await;
    let mut before = provider.docker.disk_usage(&sandbox.id).await.unwrap();
    let files = [("/etc/hosts", 100), ("/etc/hostname", 20), ("/etc/resolv.conf", 20), ("/data/file", 20)];
    for (path, mebibytes) in files {
        let script = format!("head -c {} /dev/zero >> {path}", mebibytes << 20);
        let ran = sandbox.run(Command { user: Some("root".to_owned()), ..command(&["/bin/sh", "-c", &script]) }).await;
        assert_eq!(ran.exit.code, 0, "{ran:?}");
        let after = provider.docker.disk_usage(&sandbox.id).await.unwrap();
        // Blocks that the file system had reserved for the previous file are given back.
        let set_aside = 1 << 20;
        assert!(after.bytes + set_aside >= before.bytes + (mebibytes << 20), "{path}: {before:?} {after:?}");
        before = after;
    }
    assert!(before.entries > 0, "{before:?}");
}

#[tokio::test]
async fn sockets_of_a_box_have_a_bound_where_groups_do_not_count_them_as_memory() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start_with(sized(256, 64)).await;
    let path = sandbox.text("grep :memory: /proc/1/cgroup | cut -d: -f3").await;
    if path.trim().is_empty() {
        fixtures::skip("control-groups-1", "control groups of version 2 count buffers of sockets as memory");
        return;
    }
    let limits = format!(
        "find /sys/fs/cgroup/memory -path '*{}*' -name memory.kmem.tcp.limit_in_bytes",
        provider.engine.group()
    );
    let found = std::process::Command::new("sh").args(["-c", &format!("{limits} -exec cat {{}} +")]).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert!(found.lines().any(|bytes| bytes == (32 << 20).to_string()), "{found}");
    assert!(!provider.docker.facts().missing.iter().any(|lack| lack.contains("socket buffers")));
}
