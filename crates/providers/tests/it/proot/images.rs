//! Boxes of images from the store.

use std::time::Duration;

use fixtures::image::{Entry, Image};
use fixtures::registry::Registry;
use images::{Images, ImagesConfig};
use providers::{Error, Provider, Spec};
use serde_json::json;

use crate::proot::harness::{TestBox, TestProvider, eventually, has_proot, new_id, spec};

/// Makes a provider with a store that has one image. Returns `None` if a part is not installed
/// here.
async fn provider(change: impl FnOnce(Image) -> Image) -> Option<(TestProvider, tempfile::TempDir, Registry, Spec)> {
    if !has_proot() {
        return None;
    }
    let (registry, image) = (Registry::start()?, change(Image::alpine_like()?));
    let name = registry.push(&image, "alpine-like", "1");
    let folder = tempfile::tempdir().unwrap();
    let config =
        ImagesConfig { pull_timeout: Duration::from_secs(300), ..ImagesConfig::new(folder.path().join("images")) };
    let provider = TestProvider::with(Some(Images::open(config).unwrap())).await?;
    Some((provider, folder, registry, Spec { image: name, ..spec() }))
}

#[tokio::test]
async fn a_box_is_a_copy_of_its_image_with_the_images_environment() {
    let change = |image: Image| {
        image
            .and(&[
                Entry::dir("srv/app").mode(0o555),
                Entry::file("srv/app/read-only", "from the image\n").mode(0o444).owner(1000, 1000),
                Entry::file("srv/one", "same\n"),
                Entry::file("srv/two", "same\n"),
            ])
            .with("Env", json!(["FROM_IMAGE=yes"]))
            .with("WorkingDir", json!("/srv/app"))
    };
    let Some((provider, folder, _registry, spec)) = provider(change).await else { return };
    let sandbox = provider.start_with(spec.clone()).await;
    assert_eq!(sandbox.text("cat /etc/alpine-release").await, "3.20.0\n");
    assert_eq!(
        sandbox.text("id -u; ls -ld /workspace /tmp | wc -l; ls -d /dev/null /proc/self").await,
        "0\n2\n/dev/null\n/proc/self\n"
    );
    // Files that root could write in the image can be written by the box's root.
    sandbox.text("echo changed > /srv/app/read-only && echo more > /srv/app/new").await;
    // Two names of the same content are two files.
    assert_eq!(sandbox.text("echo changed > /srv/one; cat /srv/two").await, "same\n");
    // None of the changes is visible in another box, or in the store.
    let other = provider.start_with(spec).await;
    assert_eq!(other.text("cat /srv/app/read-only /srv/one; ls /srv/app").await, "from the image\nsame\nread-only\n");
    let trees = folder.path().join("images/trees");
    let tree = std::fs::read_dir(trees).unwrap().next().unwrap().unwrap().path();
    assert_eq!(std::fs::read_to_string(tree.join("root/srv/one")).unwrap(), "same\n");
}

#[tokio::test]
async fn what_an_image_puts_in_the_way_leads_nowhere_but_into_the_box() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().to_str().unwrap().to_owned();
    let change = |image: Image| {
        image.and(&[
            Entry::symlink("workspace", &path),
            Entry::symlink(".tidebox", &path),
            Entry::symlink("srv/out", &path),
            Entry::fifo("srv/fifo"),
        ])
    };
    let Some((provider, _folder, _registry, spec)) = provider(change).await else { return };
    let sandbox = provider.start_with(spec).await;
    // There is no workspace, so commands start elsewhere.
    let script = "echo x > /workspace/planted; echo x > /srv/out/planted; exit 3";
    assert_eq!(sandbox.run_in(Some("/"), &["/bin/sh", "-c", script]).await.exit.code, 3);
    let content = Box::pin(futures_util::stream::iter([Ok(bytes::Bytes::from_static(b"x"))]));
    let _ = sandbox.guest().await.write_file("/srv/out/written", None, content).await;
    provider.proot.stop(&sandbox.id).await.unwrap();
    provider.proot.idle().await;
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn the_entry_point_runs_when_it_is_asked_for_and_is_on_the_console() {
    let change = |image: Image| image.with("Entrypoint", json!(["/bin/sh", "-c", "echo begun; sleep 1000"]));
    let Some((provider, _folder, _registry, mut spec)) = provider(change).await else { return };
    spec.entrypoint = true;
    let sandbox = provider.start_with(spec).await;
    let guest = sandbox.guest().await;
    let mut lines = Vec::new();
    let seen = async {
        while !lines.contains(&"begun".to_owned()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            lines = guest.console(10).await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(20), seen).await.expect("its output is the console");
    let pids = sandbox.pids();
    provider.proot.stop(&sandbox.id).await.unwrap();
    eventually("all has ended", async || pids.iter().all(|pid| !crate::proot::harness::lives(*pid))).await;
}

#[tokio::test]
async fn an_image_that_is_not_there_leaves_nothing() {
    let Some((provider, _folder, registry, spec)) = provider(|image| image).await else { return };
    let id = new_id();
    let absent = Spec { image: format!("{}/absent:1", registry.address()), ..spec.clone() };
    let refused = provider.proot.start(&id, &absent).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(provider.proot.inventory().await.unwrap().is_empty() && !provider.folder_of(&id).exists());
    provider.proot.start(&id, &spec).await.unwrap();
    assert_eq!(TestBox::of(&provider, id).text("echo fine").await, "fine\n");
}
