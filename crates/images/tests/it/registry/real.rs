//! A real registry, filled with the tools that users have.

use std::process::Command;

use fixtures::found;
use fixtures::image::{Entry, Image, Packing, digest};
use fixtures::registry::Registry;
use serde_json::{Value, json};

use super::*;

#[tokio::test]
async fn an_image_is_pulled_unpacked_held_and_read_by_skopeo() {
    let (Some(registry), Some(skopeo)) = (Registry::start(), found("skopeo", &[])) else { return };
    let image = small("it is here\n")
        .with("Env", json!(["A=b"]))
        .with("WorkingDir", json!("/srv"))
        .with("Entrypoint", json!(["/hello"]))
        .with("Cmd", json!(["world"]))
        .with("Labels", json!({"who": "us"}));
    let name = registry.push(&image, "team/app", "v1");
    let store = TestStore::new();
    let images = store.open();
    let held = images.take(&name).await.unwrap();
    assert_eq!(held.digest(), image.digest());
    assert_eq!(read(held.root(), "hello"), "it is here\n");
    assert_eq!(held.run().defaults.env["A"], "b");
    assert_eq!(held.run().defaults.workdir.as_deref(), Some("/srv"));
    assert_eq!(held.run().entrypoint, ["/hello", "world"]);

    let listed = images.list().await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].names.as_slice(), listed[0].boxes), ([name.clone()].as_slice(), 1));
    assert!(listed[0].size_bytes > 0 && listed[0].unpacked_bytes > 0 && listed[0].used_at.is_some());
    let detail = images.inspect(&name).await.unwrap();
    assert_eq!(detail.labels["who"], "us");
    assert_eq!(detail.config_digest, digest(&image.configuration()));
    assert_eq!(images.inspect(&image.digest()).await.unwrap(), detail, "by its digest too");

    let layout = format!("oci:{}:{name}", store.dir().display());
    let seen = Command::new(skopeo).args(["inspect", &layout]).output().unwrap();
    assert!(seen.status.success(), "{}", String::from_utf8_lossy(&seen.stderr));
    let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(seen["Digest"], image.digest());
    assert_eq!(seen["Labels"]["who"], "us");
}

#[tokio::test]
async fn layers_are_taken_as_gzip_zstd_and_plain() {
    let Some(registry) = Registry::start() else { return };
    let store = TestStore::new();
    let images = store.open();
    for (packing, tag) in [(Packing::Plain, "plain"), (Packing::Gzip, "gzip"), (Packing::Zstd, "zstd")] {
        let mut image = small(tag);
        image.packing = packing;
        let held = images.take(&registry.push(&image, "packed", tag)).await.unwrap();
        assert_eq!(read(held.root(), "hello"), tag);
    }
}

#[tokio::test]
async fn an_image_of_docker_s_own_format_is_taken() {
    let (Some(registry), Some(skopeo)) = (Registry::start(), found("skopeo", &[])) else { return };
    let source = tempfile::tempdir().unwrap();
    small("schema 2").write_oci(source.path(), "x");
    let done = Command::new(skopeo)
        .args(["copy", "--insecure-policy", "--dest-tls-verify=false", "--format=v2s2"])
        .arg(format!("oci:{}:x", source.path().display()))
        .arg(format!("docker://{}/docker:1", registry.address()))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let store = TestStore::new();
    let images = store.open();
    let name = format!("{}/docker:1", registry.address());
    let held = images.take(&name).await.unwrap();
    assert_eq!(read(held.root(), "hello"), "schema 2");
    let detail = images.inspect(&name).await.unwrap();
    assert!(detail.layers[0].media_type.starts_with("application/vnd.docker."), "{detail:?}");
}

#[tokio::test]
async fn an_image_of_200_layers_is_one_tree() {
    let Some(registry) = Registry::start() else { return };
    let layers: Vec<_> = (0..200).map(|n| vec![Entry::file(format!("f{n}"), format!("{n}"))]).collect();
    let store = TestStore::new();
    let held = store.open().take(&registry.push(&Image::new(&layers), "deep", "1")).await.unwrap();
    for n in 0..200 {
        assert_eq!(read(held.root(), &format!("f{n}")), n.to_string());
    }
}

fn index_of(images: &[(&str, &Image)]) -> Vec<u8> {
    let manifests: Vec<_> = images
        .iter()
        .map(|(platform, image)| {
            let manifest = image.blobs().pop().unwrap();
            let (os, architecture) = platform.split_once('/').unwrap();
            json!({
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest(&manifest), "size": manifest.len(),
                "platform": {"os": os, "architecture": architecture},
            })
        })
        .collect();
    let index =
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests});
    serde_json::to_vec(&index).unwrap()
}

#[tokio::test]
async fn the_image_for_this_machine_is_taken_of_an_index() {
    let Some(registry) = Registry::start() else { return };
    let ours = small("ours");
    let mut other = small("other");
    other.architecture = "s390x".to_owned();
    for image in [&ours, &other] {
        registry.push(image, "multi", "parts");
    }
    let host = format!("linux/{}", ours.architecture);
    let index = index_of(&[("linux/s390x", &other), (&host, &ours)]);
    let index_type = "application/vnd.oci.image.index.v1+json";
    registry.push_manifest("multi", "1", index_type, &index);
    let store = TestStore::new();
    let images = store.open();
    let base = format!("{}/multi", registry.address());
    let held = images.take(&format!("{base}:1")).await.unwrap();
    assert_eq!((held.digest(), read(held.root(), "hello").as_str()), (ours.digest().as_str(), "ours"));
    // By the digest of the index, and of the manifest.
    for name in [format!("{base}@{}", digest(&index)), format!("{base}:x@{}", ours.digest())] {
        assert_eq!(images.take(&name).await.unwrap().digest(), ours.digest(), "{name}");
    }
    let text = invalid(images.take(&format!("{base}@{}", other.digest())).await);
    assert!(text.contains("linux/s390x") && text.contains(&host), "{text}");
    registry.push_manifest("multi", "2", index_type, &index_of(&[("linux/s390x", &other), ("windows/amd64", &other)]));
    let text = invalid(images.take(&format!("{base}:2")).await);
    assert!(text.contains("`linux/s390x`, `windows/amd64`") && text.contains(&host), "{text}");
}

#[tokio::test]
async fn what_a_registry_does_not_have_is_an_error_that_says_so() {
    let Some(registry) = Registry::start() else { return };
    registry.push(&small("x"), "there", "1");
    let store = TestStore::new();
    let images = store.open();
    let none = format!("sha256:{}", "0".repeat(64));
    for rest in ["there:2", "not-there:1", &format!("there@{none}")] {
        let name = format!("{}/{rest}", registry.address());
        let text = invalid(images.take(&name).await);
        assert!(text.contains(&name) && text.contains("check the name"), "{text}");
    }
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_layer_that_was_damaged_in_the_registry_is_refused() {
    let Some(registry) = Registry::start() else { return };
    let image = small("right");
    let name = registry.push(&image, "damaged", "1");
    let layer = image.blobs().remove(0);
    let mut wrong = layer.clone();
    wrong[20] ^= 1;
    std::fs::write(registry.blob_file(&digest(&layer)), wrong).unwrap();
    let store = TestStore::new();
    let images = store.open();
    let text = invalid(images.take(&name).await);
    assert!(text.contains("a different layer"), "{text}");
    nothing_is_trusted(&store, &images).await;
    std::fs::write(registry.blob_file(&digest(&layer)), layer).unwrap();
    assert_eq!(read(images.take(&name).await.unwrap().root(), "hello"), "right", "mended, it is taken");
}

#[tokio::test]
async fn a_registry_that_is_down_is_told_from_an_image_that_is_not_there() {
    let Some(registry) = Registry::start() else { return };
    let name = registry.push(&small("x"), "app", "1");
    drop(registry);
    let store = TestStore::new();
    let images = store.open();
    let text = unavailable(images.take(&name).await);
    assert!(text.contains("cannot be reached") && text.contains("try again"), "{text}");
    nothing_is_trusted(&store, &images).await;
}

#[tokio::test]
async fn a_registry_with_a_certificate_of_its_own_is_trusted_only_as_told() {
    use images::RegistryConfig;
    let Some(plain) = Registry::start() else { return };
    let name = plain.push(&small("over TLS"), "app", "1");
    let store = TestStore::new();
    let folder = store.folder.path();
    let issue = |file: &str| {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (folder.join(file), folder.join(format!("{file}.key")));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (certificate, key)
    };
    let ((certificate, key), (other, _)) = (issue("theirs.pem"), issue("other.pem"));
    let registry = plain.with_tls(&certificate, &key).unwrap();
    let name = name.replace(plain.address(), registry.address());
    let with = |ca_file: Option<std::path::PathBuf>| {
        store.open_with(|config| {
            let trusting = RegistryConfig { ca_file, ..RegistryConfig::default() };
            config.registries.insert(registry.address().to_owned(), trusting);
        })
    };
    for (ca_file, why) in [
        (None, "if it uses TLS"),
        (Some(other), "not trusted (set `ca_file`"),
        (Some(key), "no PEM"),
        (Some(folder.join("none")), "cannot be used"),
    ] {
        let text = invalid(with(ca_file).take(&name).await);
        assert!(text.contains(why), "{text}");
    }
    assert_eq!(read(with(Some(certificate)).take(&name).await.unwrap().root(), "hello"), "over TLS");
}
