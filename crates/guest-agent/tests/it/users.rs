//! The users that commands run as.

use bytes::Bytes;
use guest_protocol::{Account, AccountOf, Boot, Exec, Failure, FailureKind, FileInfo, USER_HEADER};
use http_body_util::{BodyExt, Full};

use crate::harness::{Agent, answer};

#[tokio::test]
async fn a_command_runs_as_the_user_that_it_names() {
    let mut agent = Agent::start().await;
    for (user, expected) in [
        ("root", "0 0 0"),
        ("nobody", "65534 65534 65534"),
        ("65534", "65534 65534 65534"),
        ("nobody:root", "65534 0 0"),
        ("4000:5000", "4000 5000 5000"),
    ] {
        let script = "echo $(id -u) $(id -g) $(id -G)";
        let exec = Exec { user: Some(user.to_owned()), workdir: Some("/".to_owned()), ..agent.shell(script) };
        let output = agent.exec(&exec).await;
        assert_eq!(output.out().trim(), expected, "{user}: {output:?}");
    }
    for user in ["nobody-here", "4294967295", "", "root:nothing"] {
        let exec = Exec { user: Some(user.to_owned()), ..agent.shell("true") };
        assert_eq!(agent.exec(&exec).await.end.unwrap_err().kind, FailureKind::Invalid, "{user}");
    }
    agent.end().await;
}

#[tokio::test]
async fn a_box_with_one_user_says_that_it_has_no_other() {
    let mut agent = Agent::start_with(Boot { deadline_ms: 600_000, single_user: true, ..Boot::default() }).await;
    for (user, kind) in [("nobody", FailureKind::NotSupported), ("nobody-here", FailureKind::Invalid)] {
        let exec = Exec { user: Some(user.to_owned()), ..agent.shell("true") };
        assert_eq!(agent.exec(&exec).await.end.unwrap_err().kind, kind);
    }
    for user in ["root", "0", "0:0", "root:root"] {
        let exec = Exec { user: Some(user.to_owned()), ..agent.shell("true") };
        assert_eq!(agent.exec(&exec).await.code(), 0);
    }
    agent.end().await;
}

async fn stat_as(agent: &mut Agent, user: &str) -> Result<FileInfo, Failure> {
    let body = Full::new(Bytes::from(r#"{"path":"/"}"#)).boxed_unsync();
    answer(agent.send("POST", "/files/stat", body, &[(USER_HEADER, user)]).await).await
}

#[tokio::test]
async fn a_request_about_files_names_a_user_of_the_box_or_is_refused() {
    let mut agent = Agent::start().await;
    for user in ["\"root\"", "\"65534:65534\"", "%22nobody%22"] {
        let root = stat_as(&mut agent, user).await.unwrap();
        assert_eq!((root.owner.as_str(), root.is_dir), ("root", true), "{user}");
    }
    for user in ["root", "", "7", "null", "{}", "\"nobody-here\"", "\"\"", "%ff"] {
        assert_eq!(stat_as(&mut agent, user).await.unwrap_err().kind, FailureKind::Invalid, "{user}");
    }
    agent.end().await;
}

#[tokio::test]
async fn in_a_box_with_one_user_an_account_is_found_and_not_acted_as() {
    let mut agent = Agent::start_with(Boot { deadline_ms: 600_000, single_user: true, ..Boot::default() }).await;
    let asked = |user: Option<&str>| AccountOf { user: user.map(str::to_owned) };
    let nobody: Account = agent.ask("/account", &asked(Some("nobody"))).await.unwrap();
    assert_eq!((nobody.name.as_str(), nobody.uid, nobody.is_only), ("nobody", 65534, true));
    let own: Account = agent.ask("/account", &asked(None)).await.unwrap();
    assert_eq!((own.uid, own.is_only), (0, true));
    assert_eq!(stat_as(&mut agent, "\"nobody\"").await.unwrap_err().kind, FailureKind::NotSupported);
    assert!(stat_as(&mut agent, "\"root\"").await.is_ok());
    agent.end().await;
}
