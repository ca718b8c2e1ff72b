//! Builds, from the request to an hour after the end.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{BuildId, OwnerId, SizeOptions, Timestamp};
use parking_lot::Mutex;

use super::archives::Archives;
use super::log::{BuildLog, LogEntry, LogLevel};
use crate::control::error::Result;
use crate::control::limit::{Counted, Limit};
use crate::control::template_name::TemplateRef;

/// Time for which a build is kept after its end, or before its begin.
const KEPT: Duration = Duration::from_secs(3600);
/// Most builds that are kept.
const BUILDS_MAX: usize = 200;
/// Most builds of one owner that are kept.
const BUILDS_OF_OWNER_MAX: usize = 20;

/// A request to build a template, before its steps are known.
#[derive(Debug, Clone)]
pub struct NewBuild {
    pub template: TemplateRef,
    /// Further tags.
    pub tags: Vec<String>,
    /// Owner of the template; `None` for one of the operator.
    pub owner: Option<OwnerId>,
    /// Size of the box, and of the sandboxes.
    pub size: SizeOptions,
}

/// State of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildState {
    /// Its steps are not known yet.
    Waiting,
    Building,
    Ready,
    Failed(BuildFailure),
}

/// End of a build that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildFailure {
    pub message: String,
    pub part: BuildPart,
}

/// Part of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildPart {
    /// The box that it begins with.
    Base,
    /// A step, by its number from 1.
    Step(usize),
    /// The start command, and the snapshot.
    End,
}

impl fmt::Display for BuildPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BuildPart::Base => f.write_str("base"),
            BuildPart::Step(number) => number.fmt(f),
            BuildPart::End => f.write_str("finalize"),
        }
    }
}

/// A build, in any state.
#[derive(Debug)]
pub struct Build {
    pub id: BuildId,
    pub new: NewBuild,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    state: BuildState,
    log: BuildLog,
    /// Time of the last change of the state.
    since: Instant,
}

/// State of a build, and a part of its log.
#[derive(Debug, Clone)]
pub struct BuildStatus {
    pub state: BuildState,
    pub entries: Vec<LogEntry>,
}

impl Build {
    pub(super) fn new(new: NewBuild) -> Self {
        let progress = Progress { state: BuildState::Waiting, log: BuildLog::default(), since: Instant::now() };
        Self { id: BuildId::from_entropy(rand::random()), new, progress: Mutex::new(progress) }
    }

    /// Returns the state, and log entries from a position on, at most `limit`.
    pub fn status(&self, from: usize, limit: usize) -> BuildStatus {
        let progress = self.progress.lock();
        BuildStatus { state: progress.state.clone(), entries: progress.log.from(from, limit) }
    }

    /// Adds an entry to the log.
    pub(super) fn log(&self, at: Timestamp, level: LogLevel, message: &str) {
        self.progress.lock().log.add(at, level, message);
    }

    pub(super) fn set(&self, state: BuildState) {
        let mut progress = self.progress.lock();
        progress.state = state;
        progress.since = Instant::now();
    }

    /// Begins to build; returns false if that was done before.
    pub(super) fn begin(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_first = progress.state == BuildState::Waiting;
        if is_first {
            progress.state = BuildState::Building;
        }
        is_first
    }

    fn is_building(&self) -> bool {
        self.progress.lock().state == BuildState::Building
    }

    fn age(&self) -> Duration {
        self.progress.lock().since.elapsed()
    }
}

/// Builds that are kept, and the archives for them.
#[derive(Debug)]
pub(in crate::control) struct Builds {
    all: Mutex<HashMap<BuildId, Arc<Build>>>,
    pub(super) archives: Archives,
    /// Lock of templates that builds made: their snapshots are removed when no template starts from them.
    pub(super) templates: tokio::sync::Mutex<()>,
}

impl Builds {
    pub(in crate::control) fn new(archives: Archives) -> Self {
        Self { all: Mutex::default(), archives, templates: tokio::sync::Mutex::default() }
    }

    /// Adds a build. Makes room by forgetting the owner's oldest one, or the oldest of all.
    pub(super) fn add(&self, build: Arc<Build>) -> Result<()> {
        let mut all = self.all.lock();
        let owner = build.new.owner.clone();
        let of_owner = |build: &&Arc<Build>| build.new.owner == owner;
        let bound = if all.values().filter(of_owner).count() >= BUILDS_OF_OWNER_MAX {
            Some(BUILDS_OF_OWNER_MAX)
        } else {
            (all.len() >= BUILDS_MAX).then_some(BUILDS_MAX)
        };
        if let Some(max) = bound {
            let mine = all.values().filter(|build| max == BUILDS_MAX || build.new.owner == owner);
            let oldest = mine.filter(|build| !build.is_building()).max_by_key(|build| build.age());
            let Some(oldest) = oldest.map(|build| build.id.clone()) else {
                return Err(Limit::TooMany { objects: Counted::Builds, max: max as u64 }.into());
            };
            all.remove(&oldest);
        }
        all.insert(build.id.clone(), build);
        Ok(())
    }

    /// Returns the build of an id.
    pub(super) fn get(&self, id: &BuildId) -> Option<Arc<Build>> {
        self.all.lock().get(id).cloned()
    }

    pub(super) fn forget_old(&self) {
        self.all.lock().retain(|_, build| build.is_building() || build.age() < KEPT);
        self.archives.forget_old();
    }
}
