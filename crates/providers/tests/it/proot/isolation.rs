//! Isolation of a box: things hidden from programs that do not evade the tracer, things that the
//! host's own permissions deny, and facts that promise no more than this.

use std::path::PathBuf;

use domain::StoreId;
use providers::proot::{Proot, ProotConfig};
use providers::{Error, Isolation, Provider};

use crate::proot::harness::{TestProvider, has_proot, is_root, spec};

#[tokio::test]
async fn the_facts_say_in_plain_words_that_there_is_no_isolation() {
    let Some(provider) = TestProvider::new().await else { return };
    let facts = provider.proot.facts();
    assert_eq!((facts.isolation, facts.network_mode.as_str()), (Isolation::None, "host"));
    assert!(facts.runtime.starts_with("proot ") && facts.runtime.contains('.'), "{}", facts.runtime);
    assert!(facts.missing.iter().any(|text| text.contains("isolates nothing")), "{:?}", facts.missing);
    assert_eq!(facts.missing.iter().any(|text| text.contains("server's own user")), !is_root());
    assert!(!providers::capabilities(&provider.proot).contains(&"container"));
    assert!(provider.proot.slots().is_none());
}

#[tokio::test]
async fn a_program_sees_the_made_up_root_and_no_file_of_the_host() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    assert_eq!(
        sandbox
            .text("ls -A /home /root /opt /srv /mnt /media /sys /var/tmp /tmp /workspace | grep -v -e : -e '^$'; true")
            .await,
        "user\n"
    );
    assert_eq!(sandbox.text("cut -d: -f1 /etc/passwd | tr '\\n' ' '").await, "root user nobody ");
    for absent in ["/etc/shadow", "/etc/subuid", "/etc/npmrc", "/etc/machine-id", "/boot", "/etc/environment"] {
        sandbox.refuses(&format!("test -e {absent}")).await;
    }
    assert_eq!(sandbox.text("id -u; cd /workspace && pwd").await, "0\n/workspace\n");
}

#[tokio::test]
async fn calls_that_proot_does_not_know_cannot_reach_the_host() {
    let Some(provider) = TestProvider::new().await else { return };
    let name = format!("/tmp/canary-{}", std::process::id());
    std::fs::write(&name, "of the host").unwrap();
    let _canary = tempfile::TempPath::try_from_path(&name).unwrap();
    let sandbox = provider.start().await;
    sandbox.text("echo of the box > /tmp/own").await;
    // `openat2`, `statx`, `faccessat2` with a path of the host. They may be missing, but they
    // must not find it.
    let script = format!(
        "my $how = pack('QQQ', 0, 0, 0); my $buf = \"\\0\" x 256; my $path = '{name}';\n\
         for my $call ([437, -100, $path, $how, 24], [332, -100, $path, 0, 0xfff, $buf], [439, -100, $path, 0, 0]) {{\n\
           my @c = @$call; my $r = syscall($c[0], @c[1..$#c]); print $r, ' '; }}"
    );
    #[cfg(target_arch = "x86_64")]
    assert_eq!(sandbox.run(&["/usr/bin/perl", "-e", &script]).await.stdout, "-1 -1 -1 ");
    // The C library's own fallback works.
    assert_eq!(sandbox.text("stat -c %s /tmp/own; test -r /tmp/own && echo yes").await, "11\nyes\n");
}

#[tokio::test]
async fn the_hosts_programs_cannot_be_changed_from_a_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    sandbox.refuses("touch /usr/bin/planted").await;
    sandbox.refuses("echo x >> /usr/bin/env").await;
    assert!(!std::path::Path::new("/usr/bin/planted").exists());
}

#[tokio::test]
async fn root_in_a_box_is_an_ordinary_user_of_the_host_without_powers() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let status = sandbox.text("cat /proc/self/status").await;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let own = rustix::process::geteuid().as_raw();
    let uids: Vec<u32> = field("Uid:").split_whitespace().map(|uid| uid.parse().unwrap()).collect();
    if is_root() {
        assert!(uids.iter().all(|uid| *uid >= 0x6000_0000), "{uids:?}");
        assert_eq!(field("Groups:"), "");
    } else {
        assert!(uids.iter().all(|uid| *uid == own));
    }
    assert_eq!(u64::from_str_radix(&field("CapEff:"), 16).unwrap(), 0);
    assert_eq!(u64::from_str_radix(&field("CapPrm:"), 16).unwrap(), 0);
    assert_eq!((field("NoNewPrivs:").as_str(), field("Seccomp:").as_str()), ("1", "2"));
}

#[tokio::test]
async fn files_of_another_box_and_of_the_server_are_closed_to_a_box_with_an_id_of_its_own() {
    let Some(provider) = TestProvider::new().await else { return };
    if !is_root() {
        return;
    }
    std::fs::write(provider.data_dir().join("tidebox.db"), "secret").unwrap();
    let (one, other) = (provider.start().await, provider.start().await);
    other.text("echo secret > /workspace/secret").await;
    // Even with the paths of the host, as a process that left PRoot would have them: the same
    // user, without a tracer.
    let uid = {
        use std::os::unix::fs::MetadataExt;
        provider.folder_of(&one.id).join("root").metadata().unwrap().uid()
    };
    let reads = |path: PathBuf| {
        use std::os::unix::process::CommandExt;
        let mut command = std::process::Command::new("/bin/cat");
        command.arg(path).uid(uid).gid(uid).stderr(std::process::Stdio::null());
        command.output().unwrap().status.success()
    };
    assert!(reads(provider.folder_of(&one.id).join("root/etc/passwd")), "its own files can be read");
    assert!(!reads(provider.folder_of(&other.id).join("root/workspace/secret")));
    assert!(!reads(provider.folder_of(&other.id).join("box.json")));
    assert!(!reads(provider.data_dir().join("tidebox.db")));
}

#[tokio::test]
async fn nothing_of_the_servers_environment_or_descriptors_reaches_a_box() {
    let Some(provider) = TestProvider::new().await else { return };
    let sandbox = provider.start().await;
    let pids = sandbox.pids();
    for pid in pids {
        let Ok(environ) = std::fs::read(format!("/proc/{pid}/environ")) else { continue };
        let environ = String::from_utf8_lossy(&environ).into_owned();
        for line in environ.split('\0').filter(|line| !line.is_empty()) {
            // Parameters of PRoot and of the agent.
            assert!(line.starts_with("PROOT_") || line.starts_with("TIDEBOX_AGENT="), "{line}");
        }
    }
    let Ok(fds) = std::fs::read_dir(format!("/proc/{}/fd", pids[1])) else { return };
    for fd in fds.flatten() {
        let target = std::fs::read_link(fd.path()).unwrap_or_default().display().to_string();
        let allowed = ["/dev/null", "socket:", "pipe:"].iter().any(|start| target.starts_with(start))
            || target.ends_with("/events");
        assert!(allowed, "{target}");
    }
}

#[tokio::test]
async fn an_image_that_is_not_host_and_an_entry_point_that_is_not_there_are_refused() {
    let Some(provider) = TestProvider::new().await else { return };
    let mut other = spec();
    other.image = "python:3.12".to_owned();
    assert!(matches!(provider.proot.check(&other), Err(Error::Invalid(text)) if text.contains("host")));
    let mut entry = spec();
    entry.entrypoint = true;
    assert!(matches!(provider.proot.check(&entry), Err(Error::Invalid(text)) if text.contains("entry point")));
}

#[tokio::test]
async fn without_the_program_the_health_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    let config = |binary: &str| ProotConfig {
        binary: PathBuf::from(binary),
        data_dir: folder.path().join("data"),
        store_id: StoreId::from_entropy([1; 10]),
        images: None,
        subids: None,
        api_is_open: false,
    };
    for binary in ["/nowhere/proot", "no-such-proot", "/bin/true"] {
        let proot = Proot::open(config(binary)).await.unwrap();
        let error = proot.health().await.error.expect("it is of no use");
        assert!(error.contains("providers.proot.binary") && error.contains("apt install proot"), "{error}");
        let refused = proot.start(&crate::proot::harness::new_id(), &spec()).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn a_data_folder_that_boxes_cannot_reach_is_refused_with_what_to_change() {
    if !has_proot() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let config = |data_dir: PathBuf| ProotConfig {
        binary: PathBuf::from("proot"),
        data_dir,
        store_id: StoreId::from_entropy([1; 10]),
        images: None,
        subids: None,
        api_is_open: false,
    };
    if is_root() {
        let refused = Proot::open(config(folder.path().join("data"))).await;
        assert!(matches!(refused, Err(Error::Invalid(text)) if text.contains("chmod o+x")));
    }
    let colon = Proot::open(config(folder.path().join("a:b"))).await;
    assert!(matches!(colon, Err(Error::Invalid(text)) if text.contains("colon")));
}

#[tokio::test]
async fn where_the_api_asks_for_no_key_the_facts_say_what_a_box_can_do_with_it() {
    let Some(provider) = TestProvider::new().await else { return };
    let says = |proot: &Proot| proot.facts().missing.iter().any(|it| it.contains("auth.enabled"));
    assert!(!says(&provider.proot));
    let open = Proot::open(ProotConfig { api_is_open: true, ..provider.config() }).await.unwrap();
    assert!(says(&open), "{:?}", open.facts().missing);
}
