//! Course of a build: a box, its steps, a snapshot, a template.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{Built, PrepareCommand, SandboxId, SnapshotId, SpawnOptions, StopReason};
use providers::Chain;
use serde_json::json;
use store::{Inserted, Sandbox, Template, TemplateBounds};

use super::archives::Archive;
use super::kept::{Build, BuildFailure, BuildPart, BuildState};
use super::log::LogLevel;
use super::recipe::Recipe;
use super::steps::{Failed, Workshop};
use crate::control::conflict::Conflict;
use crate::control::error::{Error, Result};
use crate::control::limit::{Counted, Limit};
use crate::control::service::Control;
use crate::control::snapshots::spawn_options::within;
use crate::control::snapshots::{NewSnapshotRequest, Purpose, snapshots_of};
use crate::control::spawn::SpawnRequest;
use crate::control::templates::{OWNERS_SHARE, Templates};
use crate::events::EventType;

/// Longest build.
const BUILD_TIME_MAX: Duration = Duration::from_secs(3600);
/// Lifetime of the box of a build, which is extended while the build goes on: a crash leaves it for that time.
const BOX_LIFETIME: Duration = Duration::from_secs(120);
/// Interval at which the lifetime is extended.
const EXTEND_EVERY: Duration = Duration::from_secs(30);
/// Label of the box of a build.
const LABEL: &str = "template-build";

/// A failure with the part of the build that failed.
struct FailedIn(BuildPart, Failed);

trait In<T> {
    fn during(self, part: BuildPart) -> Result<T, FailedIn>;
}

impl<T, E: Into<Failed>> In<T> for Result<T, E> {
    fn during(self, part: BuildPart) -> Result<T, FailedIn> {
        self.map_err(|error| FailedIn(part, error.into()))
    }
}

impl Control {
    /// Builds to the end, whatever it is.
    pub(super) async fn run_build(
        self: &Arc<Self>,
        build: &Build,
        recipe: Recipe,
        archives: BTreeMap<String, Arc<Archive>>,
    ) {
        let end = Instant::now() + BUILD_TIME_MAX;
        build.log(self.now(), LogLevel::Info, &format!("building the template `{}`", build.new.template));
        let state = match self.build_in_box(build, recipe, &archives, end).await {
            Ok(()) => {
                build.log(self.now(), LogLevel::Info, "the template is ready");
                BuildState::Ready
            }
            Err(FailedIn(part, failed)) => {
                let message = failed.to_string();
                build.log(self.now(), LogLevel::Error, &message);
                BuildState::Failed(BuildFailure { message, part })
            }
        };
        build.set(state);
    }

    async fn build_in_box(
        self: &Arc<Self>,
        build: &Build,
        recipe: Recipe,
        archives: &BTreeMap<String, Arc<Archive>>,
        end: Instant,
    ) -> Result<(), FailedIn> {
        let sandbox = self.box_of(build, &recipe).await.during(BuildPart::Base)?;
        let id = sandbox.id.clone();
        let work = async {
            tokio::select! {
                built = self.build_from(build, sandbox, &recipe, archives, end) => built,
                error = self.extend_until_it_fails(&id) => Err(FailedIn(BuildPart::Base, error.into())),
            }
        };
        let built = work.await;
        if let Err(error) = self.destroy_because(&id, StopReason::Requested).await {
            tracing::warn!(%id, error = %Chain(&error), "cannot remove the box of a build; retrying later");
        }
        built
    }

    /// Makes the box that a build begins with.
    async fn box_of(self: &Arc<Self>, build: &Build, recipe: &Recipe) -> Result<Sandbox> {
        let mut request = recipe.base.clone();
        let limits = self.limits_of(request.owner.as_ref()).await?;
        let options = &mut request.options;
        options.ttl = Some(BOX_LIFETIME.min(limits.ttl_max));
        options.auto_pause = Some(Duration::ZERO);
        options.size = build.new.size.or(options.size);
        // The start command of the base belongs to its sandboxes, not to what is built from it.
        options.prepare.get_or_insert_default();
        options.metadata.insert(LABEL.to_owned(), build.new.template.to_string());
        let sandbox = self.spawn(request).await?.sandbox;
        // Better now than after all steps.
        let keeps = self.snapshot_runtime(&sandbox).await;
        match keeps {
            Ok(_) => Ok(sandbox),
            Err(error) => {
                let _ = self.destroy_because(&sandbox.id, StopReason::Requested).await;
                Err(error)
            }
        }
    }

    /// Keeps the box of a build alive. Returns when that fails.
    async fn extend_until_it_fails(&self, id: &SandboxId) -> Error {
        loop {
            tokio::time::sleep(EXTEND_EVERY).await;
            match self.lengthen(id.as_str(), BOX_LIFETIME).await {
                // A snapshot, or a request of the caller, may have it paused for a moment.
                Ok(_) | Err(Error::Conflict(_) | Error::LimitReached(_) | Error::Unavailable(_)) => {}
                Err(error) => return error,
            }
        }
    }

    async fn build_from(
        self: &Arc<Self>,
        build: &Build,
        sandbox: Sandbox,
        recipe: &Recipe,
        archives: &BTreeMap<String, Arc<Archive>>,
        end: Instant,
    ) -> Result<(), FailedIn> {
        let of_base = self.base_of(recipe).await.during(BuildPart::Base)?;
        let defaults = of_base.as_ref().map(|built| built.defaults.clone()).unwrap_or_default();
        let guest = self.guest(&sandbox).await.during(BuildPart::Base)?;
        let workshop = Workshop::open(self, build, guest, defaults, &recipe.user, end);
        let mut workshop = workshop.await.during(BuildPart::Base)?;
        let count = recipe.steps.len();
        for (number, step) in (1..).zip(&recipe.steps) {
            build.log(self.now(), LogLevel::Info, &format!("[{number}/{count}] {step}"));
            workshop.take(step, archives).await.during(BuildPart::Step(number))?;
        }
        let start = match (&recipe.start, of_base) {
            (Some(line), _) => workshop.start_commands(line, recipe.ready.as_deref()).during(BuildPart::End)?,
            (None, Some(built)) => built.start,
            (None, None) => Vec::new(),
        };
        self.end_build(build, &sandbox, workshop, start).await.during(BuildPart::End)
    }

    /// Returns the outcome of the build that a build begins with, if it does.
    async fn base_of(&self, recipe: &Recipe) -> Result<Option<Built>> {
        let SpawnRequest { template: Some(name), owner, .. } = &recipe.base else { return Ok(None) };
        Ok(self.template(&Templates::usable_by(owner.as_ref()), name).await?.built)
    }

    /// Takes the snapshot, before the start command where it has files alone and after it where it has the processes
    /// too, and stores the template.
    async fn end_build(
        self: &Arc<Self>,
        build: &Build,
        sandbox: &Sandbox,
        workshop: Workshop<'_>,
        start: Vec<PrepareCommand>,
    ) -> Result<(), Failed> {
        let runtime = self.snapshot_runtime(sandbox).await?;
        let has_memory = snapshots_of(runtime.as_ref())?.has_memory();
        if has_memory {
            self.start_in(build, sandbox, &workshop, &start).await?;
        }
        build.log(self.now(), LogLevel::Info, "saving the files");
        let snapshot = SnapshotId::from_entropy(rand::random());
        // Until the template has it, the snapshot is in hand, and not unused.
        let _in_hand = self.snapshotting.in_progress.begin(&snapshot);
        let request = NewSnapshotRequest { name: None, memory: None };
        self.keep_state(sandbox.id.as_str(), snapshot.clone(), request, Purpose::Template, || true).await?;
        let kept = async {
            if !has_memory {
                self.start_in(build, sandbox, &workshop, &start).await?;
            }
            let (build_id, defaults) = (build.id.clone(), workshop.into_defaults());
            self.save_build(build, Built { build: build_id, snapshot: snapshot.clone(), defaults, start }).await?;
            Ok(())
        };
        let kept = kept.await;
        if kept.is_err() {
            self.discard_snapshot(&snapshot).await;
        } else if let Err(error) = self.remove_unused_builds().await {
            tracing::warn!(error = %Chain(&error), "cannot remove the files of earlier builds; retrying later");
        }
        kept
    }

    async fn start_in(
        &self,
        build: &Build,
        sandbox: &Sandbox,
        workshop: &Workshop<'_>,
        start: &[PrepareCommand],
    ) -> Result<(), Failed> {
        if start.is_empty() {
            return Ok(());
        }
        build.log(self.now(), LogLevel::Info, "starting the start command");
        let limits = self.limits_of(sandbox.owner.as_ref()).await?;
        workshop.prepare(sandbox, &within(start.to_vec(), &limits), &limits).await
    }

    /// Stores the template, with its tags, in the place of what an earlier build made.
    async fn save_build(&self, build: &Build, built: Built) -> Result<()> {
        let now = self.now();
        let template = Template {
            name: String::new(),
            owner: build.new.owner.clone(),
            options: SpawnOptions { size: build.new.size, ..SpawnOptions::default() },
            built: Some(built),
            created_at: now,
            updated_at: now,
        };
        let names = build.new.template.names(&build.new.tags);
        let templates: Vec<_> = names.into_iter().map(|name| Template { name, ..template.clone() }).collect();
        let _lock = self.builds.templates.lock().await;
        self.save_templates(&templates).await
    }

    /// Stores templates that a build made.
    pub(super) async fn save_templates(&self, templates: &[Template]) -> Result<()> {
        let bounds = self.template_bounds();
        match self.store.save_built(templates, bounds).await? {
            Inserted::Done => {
                for template in templates {
                    let data = json!({"name": template.name});
                    self.publish_of(template.owner.as_ref(), EventType::TemplateSaved, data);
                }
                Ok(())
            }
            Inserted::Taken => Err(Error::Conflict(Conflict::NotBuilt {
                template: templates.first().map(|template| template.name.clone()).unwrap_or_default(),
            })),
            Inserted::Full => Err(Limit::TooMany { objects: Counted::Templates, max: bounds.total }.into()),
            Inserted::FullOfOwner => {
                Err(Limit::TooMany { objects: Counted::TemplatesOfOwner, max: bounds.per_owner }.into())
            }
        }
    }

    /// Returns the bounds on templates.
    pub(in crate::control) fn template_bounds(&self) -> TemplateBounds {
        let total = self.policy.templates_max;
        TemplateBounds { total, per_owner: total.div_ceil(OWNERS_SHARE) }
    }

    /// Removes files of templates that no template starts from any more.
    ///
    /// # Errors
    /// If the store fails.
    pub(in crate::control) async fn remove_unused_builds(self: &Arc<Self>) -> Result<()> {
        let unused = {
            let _lock = self.builds.templates.lock().await;
            let mut unused = self.store.unused_builds().await?;
            unused.retain(|id| !self.snapshotting.in_progress.holds(id));
            for id in &unused {
                self.store.begin_snapshot_removal(id).await?;
            }
            unused
        };
        for id in unused {
            self.discard_snapshot(&id).await;
        }
        Ok(())
    }
}
