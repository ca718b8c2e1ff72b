//! `tidebox image` as a person would use it.

use fixtures::image::Image;
use serde_json::Value;

use super::registry_and_server;
use crate::cli::tidebox;
use crate::server::TestServer;

#[track_caller]
fn succeeds(server: &TestServer, arguments: &[&str], stdin: &[u8]) -> (String, String) {
    let output = tidebox(server, arguments, stdin);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    (String::from_utf8(output.stdout).unwrap(), said)
}

#[tokio::test]
async fn images_are_pulled_shown_and_removed_by_the_command_line() {
    let Some((_registry, name, server)) = registry_and_server("").await else { return };
    let work = move || {
        let (digest, said) = succeeds(&server, &["image", "pull", &name], b"");
        assert!(digest.starts_with("sha256:") && digest.trim().len() == 71, "{digest}");
        assert!(said.contains(&name) && said.contains("unpacked") && !said.contains('\u{1b}'), "{said}");
        let (listed, _) = succeeds(&server, &["image", "list"], b"");
        assert!(listed.starts_with("NAME") && listed.contains(&name), "{listed}");
        assert!(listed.contains(&digest.trim()[7..19]), "{listed}");
        let (shown, _) = succeeds(&server, &["image", "inspect", &name], b"");
        assert!(shown.contains("entry point") && shown.contains("/bin/sh"), "{shown}");
        let (json, said) = succeeds(&server, &["--output", "json", "image", "pull", &name], b"");
        let image: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((image["digest"].as_str().unwrap(), said.as_str()), (digest.trim(), ""));
        let (ran, _) = succeeds(&server, &["run", &name, "--", "cat", "/etc/alpine-release"], b"");
        assert_eq!(ran, "3.20.0\n");
        succeeds(&server, &["image", "remove", &name], b"");
        let again = tidebox(&server, &["image", "remove", &name], b"");
        assert_eq!(again.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&again.stderr).contains("does not exist"), "{again:?}");
        let (pruned, _) = succeeds(&server, &["image", "prune", "--all"], b"");
        assert!(pruned.contains("freed"), "{pruned}");
        let missing = tidebox(&server, &["image", "pull", &name.replace("3.20", "9.99")], b"");
        assert_eq!(missing.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&missing.stderr).starts_with("asking") || !missing.stderr.is_empty());
        server
    };
    drop(tokio::task::spawn_blocking(work).await.unwrap());
}

#[tokio::test]
async fn an_archive_is_piped_in_or_named() {
    let Some(image) = Image::alpine_like() else { return };
    let server = TestServer::start(crate::server::NATIVE).await;
    let work = move || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("app.tar");
        std::fs::write(&file, image.docker_save(&["team/app:1"])).unwrap();
        let file = file.to_str().unwrap();
        assert_eq!(succeeds(&server, &["image", "import", file], b"").0, "docker.io/team/app:1\n");
        let (named, _) = succeeds(&server, &["image", "import", "-", "--name", "piped:2"], &image.layers[0]);
        assert_eq!(named, "docker.io/library/piped:2\n");
        let (again, _) = succeeds(&server, &["image", "import", "-", "--name", "piped:3"], &image.layers[0]);
        assert_eq!(again, "docker.io/library/piped:2\ndocker.io/library/piped:3\n", "the same image, by all its names");
        let (ran, _) = succeeds(&server, &["run", "piped:2", "-c", "cat /etc/alpine-release", "-n"], b"");
        assert_eq!(ran, "3.20.0\n");
        let folder = tidebox(&server, &["image", "import", folder.path().to_str().unwrap()], b"");
        assert_eq!(folder.status.code(), Some(2), "{folder:?}");
        let missing = tidebox(&server, &["image", "import", "/no/such/file"], b"");
        assert_eq!(missing.status.code(), Some(1), "{missing:?}");
        server
    };
    drop(tokio::task::spawn_blocking(work).await.unwrap());
}
