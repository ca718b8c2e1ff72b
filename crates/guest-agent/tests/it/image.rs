//! The defaults of an image, and how they apply to commands and files.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use bytes::Bytes;
use guest_protocol::{Console, Defaults, Exec, FailureKind, WriteFile};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::files::kind;
use crate::harness::{Agent, MARK, Pieces, WAIT, answer, eventually, header, within};

/// Uid and gid without an entry on the machine.
const USER: &str = "4711:4712";
const UID: u32 = 4711;
const GID: u32 = 4712;

fn env(dir: &str, pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    pairs.chain([(MARK.to_owned(), dir.to_owned())]).collect()
}

/// Makes a command with the required fields only.
fn bare(script: &str) -> Exec {
    Exec {
        argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: BTreeMap::new(),
        workdir: None,
        user: None,
        timeout_ms: 60_000,
        stdin: false,
        terminal: None,
    }
}

/// Starts an agent whose image names [`USER`], in a folder that all users may enter.
async fn agent_with_user() -> Agent {
    let agent = Agent::start_image(|dir| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
        (Defaults { env: env(dir, &[]), workdir: Some(dir.to_owned()), user: Some(USER.to_owned()) }, None)
    })
    .await;
    fs::create_dir(agent.path("own")).unwrap();
    chown(agent.path("own"), Some(UID), Some(GID)).unwrap();
    agent
}

fn owner(path: &str) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

#[tokio::test]
async fn a_command_gets_what_the_image_says_and_the_request_wins() {
    let mut agent = Agent::start_image(|dir| {
        let bin = format!("{dir}/bin");
        fs::create_dir(&bin).unwrap();
        fs::write(format!("{bin}/hello"), "#!/bin/sh\necho hello of the image\n").unwrap();
        fs::set_permissions(format!("{bin}/hello"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{bin}:/usr/bin:/bin");
        let defaults = Defaults {
            env: env(dir, &[("PATH", &path), ("FOO", "bar"), ("LANG", "de")]),
            workdir: Some(bin),
            user: None,
        };
        (defaults, None)
    })
    .await;
    let output = agent.exec(&bare("echo $FOO $LANG $TERM $HOME; pwd; hello")).await;
    let expected = format!("bar de xterm /root\n{}\nhello of the image\n", agent.path("bin"));
    assert_eq!(output.out(), expected, "{output:?}");
    // The program itself is looked up on the image's path too.
    let found = agent.exec(&Exec { argv: vec!["hello".to_owned()], ..bare("") }).await;
    assert_eq!(found.out(), "hello of the image\n");
    let asked = Exec {
        env: env("", &[("FOO", "mine"), ("PATH", "/usr/bin:/bin"), ("HOME", "/h")]),
        workdir: Some("/usr".to_owned()),
        ..bare("echo $FOO $HOME; pwd; hello 2>/dev/null || echo none")
    };
    assert_eq!(agent.exec(&asked).await.out(), "mine /h\n/usr\nnone\n");
    agent.end().await;
}

#[tokio::test]
async fn without_an_image_a_command_gets_what_every_process_needs() {
    let mut agent = Agent::start_without_proxy().await;
    let exec = Exec { workdir: Some("/".to_owned()), ..bare("echo $PATH $HOME $LANG $TERM; env | wc -l") };
    let output = agent.exec(&exec).await;
    let all = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /root C.UTF-8 xterm\n";
    // The shell adds PWD, OLDPWD perhaps, SHLVL and _.
    assert!(output.out().starts_with(all), "{output:?}");
    let without = agent.exec(&Exec { workdir: Some("/".to_owned()), argv: vec!["env".to_owned()], ..bare("") }).await;
    assert_eq!(without.out().lines().count(), 4, "{without:?}");
    agent.end().await;
}

#[tokio::test]
async fn a_command_runs_as_the_user_of_the_image_unless_it_names_another() {
    let mut agent = agent_with_user().await;
    let script = "echo $(id -u) $(id -g) $(id -G) $HOME";
    assert_eq!(agent.exec(&bare(script)).await.out(), "4711 4712 4712 /\n");
    let as_root = Exec { user: Some("root".to_owned()), ..bare(script) };
    assert!(agent.exec(&as_root).await.out().starts_with("0 0 "), "a request may name another user");
    agent.end().await;
}

#[tokio::test]
async fn an_image_whose_user_is_not_in_the_box_says_so_at_the_command_and_at_the_file() {
    let defaults = |user: &str| Defaults { user: Some(user.to_owned()), ..Defaults::default() };
    let mut agent = Agent::start_image(|_| (defaults("nobody-here"), None)).await;
    let failure = agent.exec(&bare("true")).await.end.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Invalid);
    assert!(failure.message.contains("image") && failure.message.contains("\"nobody-here\""), "{failure:?}");
    let failure = agent.stat("/").await.unwrap_err();
    assert!(failure.message.contains("\"nobody-here\""), "{failure:?}");
    let as_root = Exec { user: Some("root".to_owned()), workdir: Some("/".to_owned()), ..bare("true") };
    assert_eq!(agent.exec(&as_root).await.code(), 0);
    agent.end().await;
}

#[tokio::test]
async fn in_a_box_with_a_single_user_the_image_has_no_say_in_it() {
    let boot = guest_protocol::Boot {
        deadline_ms: 600_000,
        single_user: true,
        defaults: Defaults { user: Some(USER.to_owned()), ..Defaults::default() },
        ..Default::default()
    };
    let mut agent = Agent::start_with(boot).await;
    let exec = Exec { workdir: Some("/".to_owned()), ..bare("id -u") };
    assert_eq!(agent.exec(&exec).await.out(), "0\n");
    let path = agent.path("file");
    agent.write(&path, None, "x").await.unwrap();
    assert_eq!(owner(&path), (0, 0));
    agent.end().await;
}

#[tokio::test]
async fn files_are_the_image_users_and_so_are_the_parents_made_for_them() {
    let mut agent = agent_with_user().await;
    let path = agent.path("own/a/b/file");
    agent.write(&path, None, "text").await.unwrap();
    for made in ["own/a", "own/a/b", "own/a/b/file"] {
        assert_eq!(owner(&agent.path(made)), (UID, GID), "{made}");
    }
    assert_eq!(agent.read(&path, 0, None).await.unwrap().1, "text");
    assert_eq!(agent.list(&agent.path("own/a/b")).await.unwrap().len(), 1);
    agent.rename(&path, &agent.path("own/new/file")).await.unwrap();
    assert_eq!(owner(&agent.path("own/new")), (UID, GID));
    agent.delete(&agent.path("own/new"), true).await.unwrap();
    assert!(!fs::exists(agent.path("own/new")).unwrap());
    agent.end().await;
}

#[tokio::test]
async fn what_the_image_user_may_not_do_a_file_operation_may_not_either() {
    let mut agent = agent_with_user().await;
    let [secret, closed, foreign] = ["secret", "closed", "own/foreign"].map(|name| agent.path(name));
    fs::write(&secret, "root's").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&foreign, "root's").unwrap();
    assert_eq!(kind(agent.read(&secret, 0, None).await), FailureKind::Invalid);
    assert_eq!(kind(agent.write(&agent.path("new"), None, "x").await), FailureKind::Invalid);
    assert_eq!(kind(agent.list(&closed).await), FailureKind::Invalid);
    assert_eq!(kind(agent.delete(&secret, false).await), FailureKind::Invalid);
    assert_eq!(kind(agent.rename(&secret, &agent.path("own/stolen")).await), FailureKind::Invalid);
    let chmod = guest_protocol::Chmod { path: secret.clone(), mode: 0o666 };
    assert_eq!(kind(agent.ask::<Value>("/files/chmod", &chmod).await), FailureKind::Invalid);
    // Its directory is the user's, so it could be replaced; that would not be writing.
    assert_eq!(kind(agent.write(&foreign, None, "x").await), FailureKind::Invalid);
    assert_eq!(fs::read_to_string(&foreign).unwrap(), "root's");
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o4666)).unwrap();
    agent.write(&foreign, None, "x").await.unwrap();
    let mode = fs::metadata(&foreign).unwrap().permissions().mode() & 0o7777;
    assert_eq!((owner(&foreign), mode), ((UID, GID), 0o666), "set-uid does not stay on another's content");
    assert_eq!(agent.glob(&agent.path("closed/*")).await.unwrap(), Vec::<String>::new());
    agent.end().await;
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_taken_back_as_its_user_and_the_agent_is_itself_again() {
    let mut agent = agent_with_user().await;
    let path = agent.path("own/deep/file");
    let (name, value) = header(&WriteFile { path: path.clone(), mode: None, in_place: false, xattrs: None });
    let (sender, receiver) = mpsc::channel(1);
    let mut second = agent.connect().await;
    let request = hyper::Request::builder()
        .method("PUT")
        .uri("http://box/file")
        .header(guest_protocol::VERSION_HEADER, guest_protocol::VERSION.to_string())
        .header(name, value)
        .body(Pieces(receiver).boxed_unsync())
        .unwrap();
    let mut upload = tokio::task::JoinSet::new();
    upload.spawn(async move { second.send_request(request).await });
    sender.send(Bytes::from(vec![7; 100_000])).await.unwrap();
    eventually("the upload has begun", || fs::exists(agent.path("own/deep")).unwrap()).await;
    // Commands of other users run meanwhile, with their own ids.
    for _ in 0..20 {
        let as_root = Exec { user: Some("0:0".to_owned()), ..bare("id -u; grep -c . /proc/1/environ >&2; id -G") };
        assert_eq!(agent.exec(&as_root).await.out(), "0\n0\n");
        assert_eq!(agent.exec(&bare("id -u")).await.out(), "4711\n");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    assert!(status.contains("Uid:\t0\t0\t0\t0") && status.contains("Gid:\t0\t0\t0\t0"), "{status}");
    upload.abort_all();
    drop(sender);
    eventually("nothing is left of it", || fs::read_dir(agent.path("own")).unwrap().next().is_none()).await;
    agent.end().await;
}

#[tokio::test]
async fn many_files_at_once_do_not_mix_up_who_is_who() {
    let mut agent = agent_with_user().await;
    let mut uploads = tokio::task::JoinSet::new();
    for n in 0..16 {
        let (name, value) =
            header(&WriteFile { path: agent.path(&format!("own/{n}")), mode: None, in_place: false, xattrs: None });
        let (sender, receiver) = mpsc::channel(1);
        let mut connection = agent.connect().await;
        uploads.spawn(async move {
            let request = hyper::Request::builder()
                .method("PUT")
                .uri("http://box/file")
                .header(guest_protocol::VERSION_HEADER, guest_protocol::VERSION.to_string())
                .header(name, value)
                .body(Pieces(receiver).boxed_unsync())
                .unwrap();
            let feed = async {
                for _ in 0..8 {
                    sender.send(Bytes::from(vec![7; 300_000])).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(sender);
            };
            let (response, ()) = tokio::join!(connection.send_request(request), feed);
            answer::<Value>(response.unwrap()).await.unwrap();
        });
    }
    while !uploads.is_empty() {
        let as_root = Exec { user: Some("0:0".to_owned()), ..bare("id -u") };
        assert_eq!(agent.exec(&as_root).await.out(), "0\n");
        if let Ok(Some(done)) = tokio::time::timeout(std::time::Duration::from_millis(1), uploads.join_next()).await {
            done.unwrap();
        }
    }
    for n in 0..16 {
        assert_eq!(owner(&agent.path(&format!("own/{n}"))), (UID, GID));
    }
    agent.end().await;
}

async fn console(agent: &mut Agent) -> Vec<String> {
    agent.ask("/console", &Console { lines: 100 }).await.unwrap()
}

/// Waits for a line of the console.
async fn line(agent: &mut Agent, wanted: &str) {
    let started = std::time::Instant::now();
    loop {
        let lines = console(agent).await;
        if lines.iter().any(|line| line == wanted) {
            return;
        }
        assert!(started.elapsed() < WAIT, "no {wanted:?} in {lines:?}");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn image(dir: &str, argv: &[&str]) -> (Defaults, Option<Vec<String>>) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    let defaults =
        Defaults { env: env(dir, &[("FOO", "bar")]), workdir: Some("/usr".to_owned()), user: Some(USER.to_owned()) };
    (defaults, Some(argv.iter().map(|arg| (*arg).to_owned()).collect()))
}

#[tokio::test]
async fn the_entry_point_runs_as_the_image_says_and_its_output_is_the_console() {
    let script = "echo one $FOO; pwd; id -u; echo two >&2; printf unended; exit 7";
    let mut agent = Agent::start_image(|dir| image(dir, &["sh", "-c", script])).await;
    line(&mut agent, "tidebox: the entry point exited with code 7").await;
    let mut lines = console(&mut agent).await;
    assert_eq!(lines.pop().unwrap(), "tidebox: the entry point exited with code 7", "its own words come first");
    lines.sort();
    assert_eq!(lines, ["/usr", "4711", "one bar", "two", "unended"]);
    assert_eq!(agent.exec(&bare("echo on")).await.out(), "on\n", "the box goes on");
    agent.end().await;
}

#[tokio::test]
async fn commands_work_beside_an_entry_point_that_stays() {
    let mut agent =
        Agent::start_image(|dir| image(dir, &["sh", "-c", "echo up; while :; do echo tick; sleep 0.05; done"])).await;
    line(&mut agent, "up").await;
    for _ in 0..10 {
        assert_eq!(agent.exec(&bare("echo on")).await.out(), "on\n");
    }
    let before = console(&mut agent).await.len();
    within(async {
        while console(&mut agent).await.len() <= before.min(90) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(!agent.alive().is_empty(), "it runs on");
    agent.end().await;
}

#[tokio::test]
async fn an_entry_point_that_is_killed_or_cannot_be_started_says_why() {
    for (argv, expected) in [
        (&["sh", "-c", "kill -9 $$"][..], "tidebox: the entry point was killed by signal 9"),
        (&["/no/such/program"], "tidebox: the entry point cannot be started: /no/such/program: not found"),
        (&["/dev/null"], "tidebox: the entry point cannot be started: /dev/null: permission denied"),
        (&[], "tidebox: the entry point cannot be started: the command is empty"),
    ] {
        let mut agent = Agent::start_image(|dir| image(dir, argv)).await;
        line(&mut agent, expected).await;
        assert_eq!(agent.exec(&bare("echo on")).await.out(), "on\n");
        agent.end().await;
    }
    let nowhere = |_: &str| {
        let defaults = Defaults { workdir: Some("/no/such/dir".to_owned()), ..Defaults::default() };
        (defaults, Some(vec!["true".to_owned()]))
    };
    let mut agent = Agent::start_image(nowhere).await;
    let expected =
        "tidebox: the entry point cannot be started: the working directory /no/such/dir: no such file or directory";
    line(&mut agent, expected).await;
    agent.end().await;
}

#[tokio::test]
async fn what_an_entry_point_leaves_behind_goes_on_writing_to_the_console() {
    let script = "(while [ ! -e $GO ]; do sleep 0.01; done; echo late) & echo early";
    let mut agent = Agent::start_image(|dir| {
        let (mut defaults, argv) = image(dir, &["sh", "-c", script]);
        defaults.env.insert("GO".to_owned(), format!("{dir}/go"));
        (defaults, argv)
    })
    .await;
    line(&mut agent, "tidebox: the entry point exited with code 0").await;
    assert!(!console(&mut agent).await.contains(&"late".to_owned()));
    fs::write(agent.path("go"), "").unwrap();
    line(&mut agent, "late").await;
    agent.nothing_is_alive().await;
    agent.end().await;
}
