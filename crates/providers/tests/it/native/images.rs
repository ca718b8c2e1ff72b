//! Boxes of images: their contents, the images that they use, and the cleanup.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use domain::{Resources, SandboxId, StoreId};
use fixtures::image::{Entry, Image};
use fixtures::suite::{FULL, SCRATCH};
use providers::native::{Native, NativeConfig};
use providers::{Chain, Error, Provider, Spec};
use serde_json::json;

use crate::native::harness::{TestBox, TestProvider, is_root, new_id, open_images, spec, spec_of};

/// Data folder of the server that is killed.
const FOLDER: &str = "TIDEBOX_TEST_DOOMED_IMAGES";
/// Id of that server's store.
const STORE: &str = "TIDEBOX_TEST_DOOMED_IMAGES_STORE";
const DOOMED: &str = "a_server_with_images_that_is_going_to_be_killed";

async fn with_full_image() -> Option<TestProvider> {
    Some(TestProvider::with_images(&[(FULL, fixtures::suite::full()?)]).await)
}

#[tokio::test]
async fn only_a_box_of_an_image_has_an_image_phase() {
    let Some(provider) = with_full_image().await else { return };
    let names = async |spec: &Spec| {
        let started = provider.native.start(&new_id(), spec).await.unwrap();
        started.phases.into_iter().map(|phase| phase.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&spec_of(FULL)).await, ["image", "box", "agent"]);
    assert_eq!(names(&spec()).await, ["box", "agent"]);
}

#[tokio::test]
async fn what_cannot_be_is_refused_with_what_to_change() {
    let Some(full) = fixtures::suite::full() else { return };
    let mut mute = full.clone();
    mute.config = json!({});
    let mute_name = "docker.io/tidebox/mute:1";
    let provider = TestProvider::with_images(&[(FULL, full), (mute_name, mute)]).await;
    for (spec, expected) in [
        (Spec { entrypoint: true, ..spec() }, "`host` has no entry point"),
        (Spec { entrypoint: true, ..spec_of(mute_name) }, "neither an entry point nor a command"),
        (spec_of("docker.io/tidebox/unknown:1"), "tidebox/unknown:1"),
        (spec_of("NO NAME"), "NO NAME"),
        (spec_of(""), "name"),
    ] {
        let refusal = provider.refusal(&spec).await;
        let Error::Invalid(message) = &refusal else { panic!("{expected}: {}", Chain(&refusal)) };
        assert!(message.contains(expected), "{expected}: {message}");
    }
    assert_eq!(provider.native.inventory().await.unwrap(), [], "nothing is left of them");
    let without = TestProvider::new().await;
    let Error::Invalid(message) = without.refusal(&spec_of(FULL)).await else { panic!("it starts") };
    assert!(message.contains("`host`"), "{message}");
}

#[tokio::test]
async fn a_box_of_an_image_has_the_powers_of_any_other_and_no_more() {
    let Some(full) = fixtures::suite::full() else { return };
    let image = full.and(&[Entry::file("bin/id2", "").mode(0o755)]).with("User", "".into());
    let provider = TestProvider::with_images(&[(FULL, image)]).await;
    let (of_image, of_host) = (provider.start_with(spec_of(FULL)).await, provider.start().await);
    let powers = "grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups)' /proc/self/status";
    assert_eq!(of_image.text(powers).await, of_host.text(powers).await);
    for script in ["mount -t tmpfs none /mnt", "umount /proc/sys", "mknod /tmp/d c 1 3"] {
        of_image.refuses(script).await;
    }
    let mounts = of_image.text("grep ' / ' /proc/self/mounts").await;
    assert!(mounts.contains("nosuid") && mounts.contains("nodev"), "{mounts}");
    assert_eq!(of_image.text("ls /sys").await, "devices\nfs\n", "nothing of the host shows");
}

#[tokio::test]
async fn a_setuid_program_of_an_image_gives_nothing() {
    let Some(full) = fixtures::suite::full() else { return };
    let busybox = std::fs::read(fixtures::found("busybox", &[]).unwrap()).unwrap();
    let provider =
        TestProvider::with_images(&[(FULL, full.and(&[Entry::file("bin/sid", busybox).mode(0o6755)]))]).await;
    if !is_root() {
        return;
    }
    let sandbox = provider.start_with(spec_of(FULL)).await;
    // The name under which the program runs decides its function.
    assert_eq!(
        sandbox.text("ln -s /bin/sid /workspace/id; stat -c %a /bin/sid; /workspace/id -u").await,
        "6755\n1234\n"
    );
}

#[tokio::test]
async fn a_box_finds_its_own_name_and_pings_itself_whatever_hosts_the_image_has() {
    let Some(full) = fixtures::suite::full() else { return };
    let image = full.and(&[Entry::file("etc/hosts", "127.0.0.1 localhost\n")]);
    let provider = TestProvider::with_images(&[(FULL, image)]).await;
    let sandbox = provider.start_with(spec_of(FULL)).await;
    assert_eq!(sandbox.text("cat /etc/hosts").await, "127.0.0.1 localhost\n127.0.0.1\ttidebox\n");
    let host = provider.start().await;
    let ping = "
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
echo.settimeout(10)
echo.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b'ping', ('127.0.0.1', 0))
print(echo.recv(100)[-4:])";
    let ran = host.python(ping).await;
    assert_eq!(ran.stdout, "b'ping'\n", "{ran:?}");
}

#[tokio::test]
async fn a_bounded_disk_bounds_a_box_of_an_image_too() {
    let Some(provider) = with_full_image().await else { return };
    let resources = Resources { disk_mb: 32, ..spec().resources };
    let sandbox = provider.start_with(Spec { resources, ..spec_of(FULL) }).await;
    assert_eq!(sandbox.text("cat owned").await, "of app\n");
    let ran = sandbox.sh("dd if=/dev/zero of=/workspace/big bs=1M count=64").await;
    assert!(ran.exit.code != 0 && ran.stderr.contains("No space"), "{ran:?}");
}

#[tokio::test]
async fn an_image_of_two_hundred_layers_is_one_layer_to_a_box() {
    let Some(mut image) = Image::alpine_like() else { return };
    for n in 0..199 {
        image = image.and(&[Entry::file(format!("opt/{n}"), n.to_string()), Entry::file("opt/last", n.to_string())]);
    }
    let provider = TestProvider::with_images(&[(FULL, image)]).await;
    let sandbox = provider.start_with(spec_of(FULL)).await;
    assert_eq!(sandbox.text("ls /opt | wc -l; cat /opt/last /opt/17").await, "200\n19817");
}

#[tokio::test]
async fn slots_share_an_image_and_not_their_changes() {
    let Some(full) = fixtures::suite::full() else { return };
    // Making a slot must not block on a pipe.
    let image = full.and(&[Entry::whiteout("etc", "passwd"), Entry::fifo("etc/passwd"), Entry::whiteout("", "tmp")]);
    let provider = TestProvider::with_images(&[(FULL, image)]).await;
    if !is_root() {
        return;
    }
    let (host, shared) =
        (new_id(), Spec { resources: Resources { memory_mb: 1024, vcpus: 4, disk_mb: 0, pids: 256 }, ..spec_of(FULL) });
    provider.slots().start_host(&host, &shared).await.unwrap();
    let with_entry = Spec { entrypoint: true, ..spec_of(FULL) };
    let one = provider.add_slot_with(&host, with_entry).await;
    let two = provider.add_slot_with(&host, spec_of(FULL)).await;
    assert_eq!(
        one.text("echo $FOO; pwd; id -un; echo $HOME; cat /etc/alpine-release").await,
        "bar\n/srv/app\nuser\n/home/user\n3.20.0\n"
    );
    assert_eq!(one.text("echo x > /tmp/mine; echo y > /workspace/mine; stat -c %a /tmp").await, "1777\n");
    two.refuses("ls /tmp/mine /workspace/mine").await;
    let guest = one.guest().await;
    let until = Instant::now() + Duration::from_secs(20);
    while !guest.console(50).await.unwrap().iter().any(|line| line.contains("exited with code 3")) {
        assert!(Instant::now() < until, "{:?}", guest.console(50).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let Err(images::Error::Conflict(_)) = provider.images().remove(FULL).await else {
        panic!("the image of slots is removed")
    };
}

#[tokio::test]
async fn the_image_of_a_box_cannot_be_removed_before_the_box_is() {
    let Some(provider) = with_full_image().await else { return };
    let sandbox = provider.start_with(spec_of(FULL)).await;
    let refused = provider.images().remove(FULL).await;
    assert!(matches!(refused, Err(images::Error::Conflict(_))), "{refused:?}");
    assert_eq!(provider.images().prune(true).await.unwrap().images, Vec::<String>::new());
    assert_eq!(sandbox.text("cat owned; hello").await, "of app\nhello of the image\n");
    provider.native.stop(&sandbox.id).await.unwrap();
    provider.images().remove(FULL).await.unwrap();
    assert!(matches!(provider.refusal(&spec_of(FULL)).await, Error::Invalid(_)));
}

#[tokio::test]
async fn a_box_whose_first_process_was_killed_holds_its_image_until_it_is_removed() {
    let Some(provider) = with_full_image().await else { return };
    let sandbox = provider.start_with(spec_of(FULL)).await;
    let pid = rustix::process::Pid::from_raw(sandbox.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while provider.native.inventory().await.unwrap()[0].alive {
        assert!(Instant::now() < until);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(matches!(provider.images().remove(FULL).await, Err(images::Error::Conflict(_))));
    provider.native.stop(&sandbox.id).await.unwrap();
    provider.images().remove(FULL).await.unwrap();
}

/// Runs in a process of its own, started by the next test; does nothing otherwise.
#[tokio::test]
async fn a_server_with_images_that_is_going_to_be_killed() {
    let (Ok(folder), Ok(store)) = (std::env::var(FOLDER), std::env::var(STORE)) else { return };
    let images = Some(open_images(folder.as_ref()));
    let store_id = StoreId::parse(&store).unwrap();
    let config = NativeConfig {
        data_dir: folder.into(),
        store_id,
        cgroup_parent: None,
        subids: None,
        images,
        transparent_egress: false,
        fsync: false,
    };
    let native = Native::open(config).await.unwrap();
    for image in [FULL, SCRATCH] {
        let id = new_id();
        native.start(&id, &spec_of(image)).await.unwrap();
        println!("started {id}");
    }
    println!("started all");
    std::future::pending::<()>().await;
}

/// Starts two boxes in a server of its own, one of each image, and kills the server.
fn killed_server(provider: &TestProvider) -> Vec<SandboxId> {
    let mut server = fixtures::again(module_path!(), DOOMED)
        .env(FOLDER, provider.config().data_dir)
        .env(STORE, provider.store())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let mut started = Vec::new();
    for line in lines.map_while(Result::ok) {
        match line.split_once("started ").map(|(_, what)| what) {
            Some("all") => break,
            Some(id) => started.push(SandboxId::parse(id).unwrap()),
            None => {}
        }
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(started.len(), 2);
    started
}

#[tokio::test]
async fn boxes_of_images_are_found_after_a_kill_and_hold_their_images_again() {
    let Some((full, scratch)) = fixtures::suite::full().zip(fixtures::suite::scratch()) else { return };
    let provider = TestProvider::with_images(&[(FULL, full), (SCRATCH, scratch)]).await;
    let started = killed_server(&provider);
    let images = open_images(&provider.config().data_dir);
    let native = Native::open(NativeConfig { images: Some(images.clone()), ..provider.config() }).await.unwrap();
    assert!(native.inventory().await.unwrap().iter().all(|found| found.alive && started.contains(&found.id)));
    for name in [FULL, SCRATCH] {
        assert!(matches!(images.remove(name).await, Err(images::Error::Conflict(_))), "{name} is held");
    }
    assert_eq!(images.prune(true).await.unwrap().images, Vec::<String>::new());
    // A file that was never read before is read from the image now.
    assert_eq!(TestBox::of(&provider, started[0].clone()).text("hello; echo $FOO").await, "hello of the image\nbar\n");
    for id in &started {
        native.stop(id).await.unwrap();
    }
    for name in [FULL, SCRATCH] {
        images.remove(name).await.unwrap();
    }
    native.idle().await;
}

#[tokio::test]
async fn a_box_whose_image_was_deleted_by_hand_is_listed_and_can_be_removed() {
    let Some((full, scratch)) = fixtures::suite::full().zip(fixtures::suite::scratch()) else { return };
    let provider = TestProvider::with_images(&[(FULL, full), (SCRATCH, scratch)]).await;
    let started = killed_server(&provider);
    let folder = provider.config().data_dir.join("images");
    assert!(Command::new("rm").arg("-rf").arg(&folder).status().unwrap().success());
    let images = open_images(&provider.config().data_dir);
    let native = Native::open(NativeConfig { images: Some(images), ..provider.config() }).await.unwrap();
    assert_eq!(native.inventory().await.unwrap().len(), 2);
    assert!(matches!(native.start(&new_id(), &spec_of(FULL)).await, Err(Error::Invalid(_))));
    for id in &started {
        native.stop(id).await.unwrap();
    }
    assert_eq!(native.inventory().await.unwrap(), []);
    native.idle().await;
}
