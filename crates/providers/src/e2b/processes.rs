//! Background processes: started at the service, and kept here, because it keeps no output.
//!
//! The tag of a process says which number and name it has, so that one that an earlier run of this server has started is
//! found, and its output is kept from then on.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::exec::{self, Begun};
use super::far_process::Far;
use super::guest::E2bGuest;
use super::http::LIST_BYTES_MAX;
use super::wire::{Empty, Listed, Process};
use crate::kept_processes::{Found, Launched};
use crate::{Background, ByteStream, Command, Error, ProcessInfo, Result, TerminalSize, process_name_fault};

const LIST: &str = "list the processes of a box";
/// Beginning of the tag of a background process.
const PREFIX: &str = "tidebox-p";
/// Size of a terminal that is not known any more.
const SIZE: TerminalSize = TerminalSize { cols: 80, rows: 24 };

/// Content of the tag of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Tag {
    number: u64,
    has_terminal: bool,
    linger: Option<Duration>,
    name: Option<String>,
}

impl Tag {
    fn text(&self) -> String {
        let kind = if self.has_terminal { 't' } else { 'p' };
        let linger = self.linger.map(|linger| linger.as_millis().to_string()).unwrap_or_default();
        format!("{PREFIX}/{}/{kind}/{linger}/{}", self.number, self.name.as_deref().unwrap_or_default())
    }

    /// Reads a tag of this provider; `None` for another.
    fn of(text: &str) -> Option<Tag> {
        let mut parts = text.split('/');
        let (prefix, number, kind, linger, name) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if prefix != PREFIX || parts.next().is_some() {
            return None;
        }
        let has_terminal = match kind {
            "t" => true,
            "p" => false,
            _ => return None,
        };
        let linger = match linger {
            "" => None,
            linger => Some(Duration::from_millis(linger.parse().ok()?)),
        };
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        if name.as_deref().and_then(process_name_fault).is_some() {
            return None;
        }
        Some(Tag { number: number.parse().ok()?, has_terminal, linger, name })
    }
}

/// Starts a process; see [`crate::Guest::start_process`].
pub(super) async fn start(guest: &E2bGuest, command: Command, background: Background) -> Result<ProcessInfo> {
    // An earlier run of this server may have started one of the same name.
    if background.name.is_some() {
        adopt_all(guest).await?;
    }
    let (name, linger) = (background.name.clone(), background.linger);
    let launch = |number: u64, command: Command| async move {
        let tag = Tag { number, has_terminal: command.terminal.is_some(), linger, name };
        launch(guest, command, tag.text()).await
    };
    guest.known.processes.start(command, background, launch).await
}

async fn launch(guest: &E2bGuest, command: Command, tag: String) -> Result<Launched> {
    let began = Instant::now();
    let plan = exec::Plan::of(guest, &command, tag)?;
    match exec::begin(guest, plan).await? {
        Begun::Followed(followed) => Ok(launched(*followed, command, began)),
        Begun::Failed(code, message) => {
            Ok(Launched { interactive: exec::failed(code, &message), pid: 0, kill: Box::pin(async {}) })
        }
    }
}

fn launched(followed: exec::Followed, command: Command, began: Instant) -> Launched {
    let (far, pid) = (followed.far.clone(), followed.pid);
    let interactive = exec::controlled(followed, command, began, None);
    Launched { interactive, pid, kill: Box::pin(async move { far.kill().await }) }
}

/// Finds the processes that an earlier run of this server has started.
async fn adopt_all(guest: &E2bGuest) -> Result<()> {
    let listed = guest.known.envd.unary::<Listed>("/process.Process/List", &Empty {}, LIST_BYTES_MAX);
    let listed = guest.ask(LIST, listed).await?;
    for process in listed.processes {
        let Some(tag) = process.tag.as_deref().and_then(Tag::of) else { continue };
        if guest.known.processes.has(tag.number) || guest.known.processes.is_starting(tag.number) {
            continue;
        }
        match adopt(guest, process, tag).await {
            // It has ended since.
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn adopt(guest: &E2bGuest, process: Process, tag: Tag) -> Result<()> {
    let text = process.tag.unwrap_or_default();
    let argv: Vec<String> = std::iter::once(process.config.cmd).chain(process.config.args).collect();
    let found = Found {
        number: tag.number,
        name: tag.name,
        command: guest_protocol::process_command(&argv),
        terminal: tag.has_terminal.then_some(SIZE),
        linger: tag.linger,
    };
    let far = Far::new(guest, text, tag.has_terminal);
    let follow = |stdin: ByteStream| async move {
        let followed = exec::follow(&far).await?;
        let command = Command {
            argv,
            env: Default::default(),
            workdir: None,
            user: None,
            timeout: Duration::MAX,
            stdin: Some(stdin),
            terminal: None,
        };
        Ok(launched(followed, command, Instant::now()))
    };
    Arc::clone(&guest.known.processes).adopt(found, follow).await
}

/// Lists the processes; see [`crate::Guest::processes`].
pub(super) async fn list(guest: &E2bGuest) -> Result<Vec<ProcessInfo>> {
    adopt_all(guest).await?;
    Ok(guest.known.processes.list())
}

/// Makes sure that a process is kept, if it runs.
pub(super) async fn find(guest: &E2bGuest, number: u64) -> Result<()> {
    if guest.known.processes.has(number) { Ok(()) } else { adopt_all(guest).await }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_tag_is_read_as_it_was_written_and_no_other_text_is_one() {
        let linger = Some(Duration::from_millis(1500));
        for tag in [
            Tag { number: 1_790_000_000_001, has_terminal: false, linger: None, name: None },
            Tag { number: 7, has_terminal: true, linger, name: Some("web.1".to_owned()) },
        ] {
            assert!(tag.text().len() <= 256);
            assert_eq!(Tag::of(&tag.text()), Some(tag));
        }
        for text in [
            "",
            "tidebox-c-00",
            "tidebox-p",
            "tidebox-p/x/p//",
            "tidebox-p/1/q//",
            "tidebox-p/1/p/x/",
            "tidebox-p/1/p//a b",
            "tidebox-p/1/p//a/b",
            "other/1/p//",
        ] {
            assert_eq!(Tag::of(text), None, "{text}");
        }
    }
}
