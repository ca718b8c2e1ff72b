//! The users that commands run as.

use guest_protocol::{Boot, Exec, FailureKind};

use crate::harness::Agent;

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
