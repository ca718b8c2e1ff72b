//! Builds of templates: commands and files that change a box, whose files a snapshot then keeps. The template starts
//! from that snapshot.
//!
//! A build lives in the memory of this server until an hour after its end. After a crash it is gone, its box at the end
//! of a short lifetime, and its snapshot at the next look of the reconciler.

pub mod archives;
pub mod kept;
pub mod log;
mod output;
pub mod recipe;
mod run;
pub mod scripts;
mod steps;
mod tags;

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::{BuildId, OwnerId};

use self::archives::{Archive, Archives};
use self::kept::{Build, NewBuild};
use self::recipe::{Recipe, Step};
use super::conflict::Conflict;
use super::error::{Error, Result};
use super::resource::Resource;
use super::service::Control;
use super::template_name::check_tag;

/// Most steps of one build.
const STEPS_MAX: usize = 1000;

impl Control {
    /// Registers a build, whose steps follow.
    ///
    /// # Errors
    /// [`Error::LimitReached`] if so many builds run.
    pub fn new_build(&self, new: NewBuild) -> Result<Arc<Build>> {
        new.tags.iter().try_for_each(|tag| check_tag(tag))?;
        let build = Arc::new(Build::new(new));
        self.builds.add(Arc::clone(&build))?;
        Ok(build)
    }

    /// Returns a build of `owner`, or of the operator.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this id, or none any more.
    pub fn build(&self, id: &str, owner: Option<&OwnerId>) -> Result<Arc<Build>> {
        let found = BuildId::parse(id).and_then(|id| self.builds.get(&id));
        let found = found.filter(|build| build.new.owner.as_ref() == owner);
        found.ok_or_else(|| Error::NotFound(Resource::Build, id.to_owned()))
    }

    /// Begins a build, which goes on without the caller.
    ///
    /// # Errors
    /// [`Error::Invalid`] for steps that cannot be, [`Error::Conflict`] if it was begun before.
    pub fn begin_build(self: &Arc<Self>, build: &Arc<Build>, recipe: Recipe) -> Result<()> {
        let archives = self.archives_of(build, &recipe.steps)?;
        if !build.begin() {
            return Err(Conflict::Built { build: build.id.clone() }.into());
        }
        let (control, build) = (Arc::clone(self), Arc::clone(build));
        self.tasks.spawn(async move { control.run_build(&build, recipe, archives).await });
        Ok(())
    }

    /// Returns the archives that steps name, which are then kept as long as the build needs them.
    fn archives_of(&self, build: &Build, steps: &[Step]) -> Result<BTreeMap<String, Arc<Archive>>> {
        if steps.len() > STEPS_MAX {
            let fault = format!("a build may have at most {STEPS_MAX} steps; put commands into a script");
            return Err(Error::Invalid(fault));
        }
        let names = steps.iter().filter_map(|step| match step {
            Step::Copy { archive, .. } => Some(archive),
            Step::Run { .. } | Step::Env(_) | Step::Workdir(_) | Step::User(_) => None,
        });
        names
            .map(|name| {
                let found = self.builds.archives.get(build.new.owner.as_ref(), name);
                let missing = || Error::Invalid(format!("the files `{name}` were not uploaded; upload them first"));
                found.map(|archive| (name.clone(), archive)).ok_or_else(missing)
            })
            .collect()
    }

    /// Returns the archives for builds.
    pub fn archives(&self) -> &Archives {
        &self.builds.archives
    }

    /// Forgets builds and archives that are over, and removes files that no template starts from, and archives that a
    /// server before left.
    ///
    /// # Errors
    /// If the store or the disk fails.
    pub(crate) async fn tidy_builds(self: &Arc<Self>) -> Result<()> {
        self.builds.forget_old();
        self.builds.archives.clear_leftovers().await?;
        self.remove_unused_builds().await
    }
}
