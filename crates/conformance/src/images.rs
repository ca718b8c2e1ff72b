//! Boxes of real images: their settings for running are applied, and a request overrides them.
//! The two images are those of the crate `fixtures`, module `suite`.

use std::collections::BTreeMap;

use providers::{Command, Error, Spec};

use super::case::{Case, case};
use super::subject::{Inside, Subject, argv, eventually, pieces, sh};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("a box of an image has the image's files and environment", environment, RealImages),
        case!("the request's environment wins over the image's", request_wins, RealImages),
        case!("a command starts in the image's directory unless it names another", workdir, RealImages),
        case!("a command runs as the image's user, in all its groups", user, RealImages, Users),
        case!("a request may name another user than the image's", other_user, RealImages, Users),
        case!("the workspace belongs to the image's user", workspace, RealImages, Users),
        case!("files are written and read as the image's user", files, RealImages, Users),
        case!("boxes of one image do not see the changes of each other", apart, RealImages),
        case!("localhost has a name in an image that leaves its files empty", localhost, RealImages),
        case!("an entry point that was not asked for does not run", silent, RealImages),
        case!("an entry point runs beside the commands, and its output is the console", entrypoint, RealImages),
        case!("an image that a box was made of is here, and an unknown one is not", here, RealImages, Images),
        case!("an image without a shell or any directory works", scratch, RealImages),
    ]
}

/// Runs a command line that must succeed, and returns its output.
async fn text(inside: &Inside, script: &str) -> String {
    let ran = inside.sh(script).await;
    assert_eq!(ran.code(), 0, "{script}: {}", String::from_utf8_lossy(&ran.stderr));
    ran.text().to_owned()
}

async fn environment(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&inside, "echo $FOO; cat /etc/alpine-release; hello").await, "bar\n3.20.0\nhello of the image\n");
    assert_eq!(inside.run(argv(&["hello"])).await.text(), "hello of the image\n", "by the image's PATH");
    assert_eq!(text(&inside, "echo $LANG $TERM; test -n \"$HOME\"").await, "C.UTF-8 xterm\n");
}

async fn request_wins(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    let env = [("FOO", "mine"), ("PATH", "/usr/bin:/bin"), ("HOME", "/here"), ("TERM", "dumb")];
    let env: BTreeMap<String, String> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let ran = inside.run(Command { env, ..sh("echo $FOO $HOME $TERM; hello || echo none") }).await;
    assert_eq!(ran.text(), "mine /here dumb\nnone\n");
}

async fn workdir(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&inside, "pwd").await, "/srv/app\n");
    let ran = inside.run(Command { workdir: Some("/opt".to_owned()), ..sh("pwd") }).await;
    assert_eq!(ran.text(), "/opt\n");
    assert_eq!(text(&inside, "cd /workspace && pwd").await, "/workspace\n", "every box has it");
}

async fn user(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    assert_eq!(
        text(&inside, "id -un; id -u; id -g; id -G; echo $HOME").await,
        "app\n1234\n1234\n1234 2345\n/home/app\n"
    );
    assert_eq!(text(&inside, "cat owned; cat /srv/secret 2>/dev/null || echo no").await, "of app\nno\n");
}

async fn other_user(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    for (user, expected) in [("root", "0 0\n"), ("nobody", "65534 65534\n"), ("77:88", "77 88\n")] {
        let ran = inside.run(Command { user: Some(user.to_owned()), ..sh("echo $(id -u) $(id -g)") }).await;
        assert_eq!(ran.text(), expected);
    }
    let secret = Command { user: Some("root".to_owned()), ..sh("cat /srv/secret") };
    assert_eq!(inside.run(secret).await.text(), "of root\n");
}

async fn workspace(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&inside, "stat -c '%u %g' /workspace").await, "1234 1234\n");
    assert_eq!(text(&inside, "cd /workspace && echo x > y && cat y").await, "x\n");
    assert_eq!(text(&inside, "stat -c %a /tmp; echo x > /tmp/y && cat /tmp/y").await, "1777\nx\n");
}

async fn files(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    inside.write("/workspace/new/file", "text").await;
    assert_eq!(text(&inside, "stat -c '%u %g' /workspace/new /workspace/new/file").await, "1234 1234\n1234 1234\n");
    assert_eq!(inside.read("/srv/app/owned").await, b"of app\n");
    let refused = inside.guest.read_file("/srv/secret", 0, None).await.map(drop);
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let refused = inside.guest.write_file("/etc/new", None, pieces(b"x")).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    let refused = inside.guest.delete("/srv/secret", false).await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    // A refused write leaves no temporary file.
    assert_eq!(inside.guest.glob("/etc/.tidebox*").await.unwrap(), Vec::<String>::new());
}

async fn apart(subject: Subject) {
    let first = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&first, "echo changed > owned; rm -f /tmp/x; touch new; cat owned").await, "changed\n");
    let second = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&second, "cat owned; ls").await, "of app\nowned\n");
    assert_eq!(text(&first, "ls").await, "new\nowned\n");
}

async fn localhost(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    let hosts = text(&inside, "cat /etc/hosts").await;
    assert!(hosts.lines().any(|line| line.starts_with("127.0.0.1") && line.contains("localhost")), "{hosts}");
    assert!(!text(&inside, "cat /etc/hostname").await.trim().is_empty());
}

async fn silent(subject: Subject) {
    let inside = subject.start_as(&subject.full_image()).await;
    assert_eq!(text(&inside, "echo on").await, "on\n");
    let console = inside.guest.console(100).await.unwrap();
    assert!(!console.iter().any(|line| line.contains("entry")), "{console:?}");
}

async fn entrypoint(subject: Subject) {
    let inside = subject.start_as(&Spec { entrypoint: true, ..subject.full_image() }).await;
    eventually("the entry point has ended", async || {
        let console = inside.guest.console(100).await.unwrap();
        console.iter().any(|line| line == "tidebox: the entry point exited with code 3")
    })
    .await;
    let console = inside.guest.console(100).await.unwrap();
    assert!(console.iter().any(|line| line == "entry bar /srv/app"), "{console:?}");
    assert_eq!(text(&inside, "echo on").await, "on\n", "the box goes on");
}

async fn here(subject: Subject) {
    let spec = subject.full_image();
    subject.start_as(&spec).await;
    let images = subject.provider().images().expect("its images come from somewhere");
    let digest = images.digest(&spec.image).await.expect("a box was made of it");
    assert!(digest.starts_with("sha256:") && digest.len() == 71, "{digest}");
    assert!(!images.is_awaited(&spec.image).await);
    images.check_image(&spec.image).await.unwrap();
    assert_eq!(images.digest(&subject.missing_image().image).await, None);
    let refused = images.check_image("No Name").await;
    assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    assert!(!images.is_awaited("No Name").await);
}

async fn scratch(subject: Subject) {
    let inside = subject.start_as(&Spec { entrypoint: true, ..subject.scratch_image() }).await;
    let busybox = async |args: &[&str]| inside.run(argv(&[&["/busybox"], args].concat())).await;
    assert_eq!(busybox(&["pwd"]).await.text(), "/workspace\n");
    assert_eq!(inside.sh("true").await.code(), 127, "it has no shell");
    for dir in ["/workspace", "/tmp", "/proc/self", "/dev"] {
        assert_eq!(busybox(&["test", "-d", dir]).await.code(), 0, "{dir}");
    }
    assert_eq!(busybox(&["stat", "-c", "%a", "/tmp"]).await.text(), "1777\n");
    assert_eq!(busybox(&["test", "-c", "/dev/null"]).await.code(), 0);
    let hosts = busybox(&["cat", "/etc/hosts"]).await;
    assert!(hosts.text().contains("localhost"), "{hosts:?}");
    inside.write("/workspace/file", "text").await;
    assert_eq!(inside.read("/workspace/file").await, b"text");
    inside.write("/new/place/file", "text").await;
    eventually("the entry point has ended", async || {
        let console = inside.guest.console(100).await.unwrap();
        console.iter().any(|line| line == "from scratch")
    })
    .await;
}
