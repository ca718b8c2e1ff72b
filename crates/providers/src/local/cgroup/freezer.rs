//! Freezers of control groups: all processes of a box stop where they are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_protocol::CgroupDir;
use tokio::time::Instant;

/// Time for all processes of a box to stop. One that waits in the kernel stops at its end.
const FREEZE_WAIT: Duration = Duration::from_secs(5);
/// First pause between two looks at a group that is being frozen; doubles up to [`LOOK_PAUSE_MAX`].
const LOOK_PAUSE: Duration = Duration::from_micros(200);
/// Longest such pause.
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(20);
/// Time after which a group that does not stop runs for a moment: a call of a box may wait for the
/// agent, which has stopped already. The agent takes a longer pause than `LATE` in its `syscall_queue.rs` for
/// this.
const STOP_WAIT: Duration = Duration::from_millis(60);
/// That moment. The agent makes no new call wait in the time that follows.
const MOMENT: Duration = Duration::from_millis(5);
/// Version 1 file of a group's state.
const STATE: &str = "freezer.state";
/// Version 2 file that asks for a state.
const FREEZE: &str = "cgroup.freeze";

/// Freezer of a box.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Freezer {
    dir: PathBuf,
    v2: bool,
}

impl Freezer {
    /// Returns the freezer among the groups of a box; `None` if they have none.
    pub(crate) fn of(groups: &[CgroupDir]) -> Option<Freezer> {
        groups.iter().find_map(Freezer::of_group)
    }

    fn of_group(CgroupDir { path, v2 }: &CgroupDir) -> Option<Freezer> {
        let dir = Path::new(path);
        let file = if *v2 { FREEZE } else { STATE };
        dir.join(file).exists().then(|| Freezer { dir: dir.to_owned(), v2: *v2 })
    }

    /// Freezes the group, and returns once no process of it runs. If one still runs after a while,
    /// all go on, and the result is `false`.
    pub(crate) async fn freeze(&self) -> io::Result<bool> {
        let deadline = Instant::now() + FREEZE_WAIT;
        let mut pause = LOOK_PAUSE;
        let mut asked = Instant::now();
        loop {
            // Version 1 may miss a process that is being made; another request finds it.
            self.ask(true)?;
            if self.is_frozen()? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                self.thaw()?;
                return Ok(false);
            }
            if asked.elapsed() >= STOP_WAIT {
                self.thaw()?;
                tokio::time::sleep(MOMENT).await;
                asked = Instant::now();
                pause = LOOK_PAUSE;
                continue;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_PAUSE_MAX);
        }
    }

    /// Lets the processes go on.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.ask(false)
    }

    /// Returns whether the group is frozen, or is being frozen.
    pub(crate) fn is_asked(&self) -> io::Result<bool> {
        let file = if self.v2 { FREEZE } else { STATE };
        let text = fs::read_to_string(self.dir.join(file))?;
        Ok(!matches!(text.trim(), "0" | "THAWED"))
    }

    fn is_frozen(&self) -> io::Result<bool> {
        if self.v2 {
            let events = fs::read_to_string(self.dir.join("cgroup.events"))?;
            return Ok(events.lines().any(|line| line == "frozen 1"));
        }
        Ok(fs::read_to_string(self.dir.join(STATE))?.trim() == "FROZEN")
    }

    fn ask(&self, frozen: bool) -> io::Result<()> {
        let (file, value) = match (self.v2, frozen) {
            (false, true) => (STATE, "FROZEN"),
            (false, false) => (STATE, "THAWED"),
            (true, true) => (FREEZE, "1"),
            (true, false) => (FREEZE, "0"),
        };
        fs::write(self.dir.join(file), value)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn group(v2: bool, files: &[(&str, &str)]) -> (tempfile::TempDir, Freezer) {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(file, text)| fs::write(dir.path().join(file), text).unwrap());
        let path = dir.path().display().to_string();
        let other = CgroupDir { path: "/nowhere".to_owned(), v2 };
        let freezer = Freezer::of(&[other, CgroupDir { path, v2 }]).unwrap();
        (dir, freezer)
    }

    #[tokio::test]
    async fn a_group_of_version_1_is_frozen_once_the_kernel_says_so() {
        let (dir, freezer) = group(false, &[(STATE, "THAWED\n")]);
        assert!(!freezer.is_asked().unwrap());
        // The file takes the kernel's part and keeps what is written.
        assert!(freezer.freeze().await.unwrap() && freezer.is_asked().unwrap());
        fs::write(dir.path().join(STATE), "FREEZING\n").unwrap();
        assert!(freezer.is_asked().unwrap() && !freezer.is_frozen().unwrap());
        freezer.thaw().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join(STATE)).unwrap(), "THAWED");
    }

    #[tokio::test]
    async fn a_group_of_version_2_is_frozen_once_its_events_say_so() {
        let (dir, freezer) = group(true, &[(FREEZE, "0\n"), ("cgroup.events", "populated 1\nfrozen 1\n")]);
        assert!(!freezer.is_asked().unwrap());
        assert!(freezer.freeze().await.unwrap() && freezer.is_asked().unwrap());
        freezer.thaw().unwrap();
        assert_eq!(fs::read_to_string(dir.path().join(FREEZE)).unwrap(), "0");
        assert_eq!(Freezer::of(&[CgroupDir { path: "/nowhere".to_owned(), v2: true }]), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_box_that_does_not_stop_goes_on() {
        let (dir, freezer) = group(true, &[(FREEZE, "0\n"), ("cgroup.events", "populated 1\nfrozen 0\n")]);
        assert!(!freezer.freeze().await.unwrap());
        assert_eq!(fs::read_to_string(dir.path().join(FREEZE)).unwrap(), "0");
    }
}
