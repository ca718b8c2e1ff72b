//! Spawns of snapshots: their options, and the providers that can make them.

use domain::{Built, Limits, PrepareCommand, Resources, SizeOptions, SpawnOptions};
use providers::Provider;

use super::image_names::name_of;
use super::snapshots_of;
use crate::control::error::{Error, Result};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::control::spawn::{Source, SpawnRequest};
use crate::control::unavailable::{Unavailable, Unhealthy};
use crate::control::workers::placement::Offer;
use store::{Snapshot, SnapshotState};

impl Control {
    /// Fills options that a spawn leaves out from its snapshot.
    pub(in crate::control) async fn with_snapshot(&self, mut request: SpawnRequest) -> Result<SpawnRequest> {
        let Some(id) = request.snapshot.take() else { return Ok(request) };
        let options = &request.options;
        for (field, is_given) in [
            ("image", options.image.is_some()),
            ("template", request.template.is_some()),
            ("prepare", options.prepare.as_ref().is_some_and(|commands| !commands.is_empty())),
        ] {
            if is_given {
                return Err(Error::Invalid(format!("`snapshot` and `{field}` cannot be combined; leave out one")));
            }
        }
        let viewer = request.owner.as_ref().filter(|_| request.only_own);
        let snapshot = self.snapshot(&id, viewer).await?;
        if options.provider.as_ref().is_some_and(|provider| *provider != snapshot.provider) {
            return Ok(of_image(request, snapshot));
        }
        Ok(of_snapshot(request, snapshot))
    }

    /// Returns the request with the files and the defaults that a build gave its template.
    pub(in crate::control) async fn with_built(
        &self,
        template: &str,
        built: Built,
        mut request: SpawnRequest,
    ) -> Result<SpawnRequest> {
        if request.options.image.is_some() {
            let fault = format!("the template `{template}` has files of its own; leave out `image`");
            return Err(Error::Invalid(fault));
        }
        let row = self.store.snapshot(&built.snapshot).await?;
        let is_ready = |row: &Snapshot| row.state == SnapshotState::Ready;
        let lost = || Error::NotFound(Resource::Snapshot, built.snapshot.to_string());
        let snapshot = row.filter(is_ready).ok_or_else(lost)?;
        let is_elsewhere = request.options.provider.as_ref().is_some_and(|name| *name != snapshot.provider);
        if is_elsewhere || !snapshot.has_memory {
            let limits = self.limits_of(request.owner.as_ref()).await?;
            request.options.prepare.get_or_insert_with(|| within(built.start, &limits));
        }
        request.defaults = built.defaults;
        Ok(if is_elsewhere { of_image(request, snapshot) } else { of_snapshot(request, snapshot) })
    }

    /// Restricts an offer to this server, where the snapshots are.
    pub(in crate::control) fn keep_here(&self, offer: &mut Offer, source: &Source) -> Result<()> {
        self.check_not_shared()?;
        let provider = offer.here.as_deref().ok_or_else(|| Unavailable::ProviderUnhealthy {
            provider: offer.name.clone(),
            unhealthy: Unhealthy::KeepsSnapshots,
        })?;
        match source {
            Source::Kept(_) => snapshots_of(provider).map(drop)?,
            Source::Image(snapshot) => check_takes_images(provider, snapshot)?,
        }
        offer.elsewhere = false;
        Ok(())
    }

    /// Checks that a box which goes on from the memory of a machine has the limit on processes of that machine,
    /// which holds it itself.
    pub(in crate::control) fn check_pids(source: Option<&Source>, resources: &Resources) -> Result<()> {
        let Some(Source::Kept(snapshot)) = source else { return Ok(()) };
        let pids = snapshot.resources.pids;
        if !snapshot.has_memory || resources.pids == pids {
            return Ok(());
        }
        Err(Error::Invalid(format!(
            "the machine of the snapshot has `pids` {pids}, which cannot change; leave `pids` out"
        )))
    }
}

/// Returns the commands that start what a template runs, with no deadline above the owner's maximum: the template may
/// have been built with another.
pub(in crate::control) fn within(mut commands: Vec<PrepareCommand>, limits: &Limits) -> Vec<PrepareCommand> {
    for command in &mut commands {
        command.timeout = command.timeout.map(|timeout| timeout.min(limits.exec_timeout_max));
    }
    commands
}

/// Returns the request with the options of the snapshot's box for those that it leaves out.
pub(in crate::control) fn of_snapshot(request: SpawnRequest, snapshot: Snapshot) -> SpawnRequest {
    let Resources { memory_mb, vcpus, disk_mb, pids } = snapshot.resources;
    let size = SizeOptions {
        memory_mb: Some(memory_mb),
        vcpus: Some(vcpus),
        disk_mb: Some(disk_mb).filter(|disk| *disk > 0),
        pids: Some(pids),
    };
    let (image, provider) = (Some(snapshot.image.clone()), Some(snapshot.provider.clone()));
    let options = request.options.or(SpawnOptions { image, provider, size, ..SpawnOptions::default() });
    SpawnRequest { options, snapshot: None, source: Some(Source::Kept(snapshot)), ..request }
}

/// Returns the request with an image of the snapshot's files for another provider.
pub(in crate::control) fn of_image(request: SpawnRequest, snapshot: Snapshot) -> SpawnRequest {
    // Not every provider can bound a disk.
    let size = SizeOptions {
        memory_mb: Some(snapshot.resources.memory_mb),
        vcpus: Some(snapshot.resources.vcpus),
        disk_mb: None,
        pids: Some(snapshot.resources.pids),
    };
    let image = Some(name_of(&snapshot.id));
    let options = request.options.or(SpawnOptions { image, size, ..SpawnOptions::default() });
    SpawnRequest { options, snapshot: None, source: Some(Source::Image(snapshot)), ..request }
}

/// Checks that a provider makes boxes of images of this server's store.
pub(in crate::control) fn check_takes_images(provider: &dyn Provider, snapshot: &Snapshot) -> Result<()> {
    if provider.images().is_some_and(|images| images.store().is_some()) {
        return Ok(());
    }
    Err(Error::NotSupported(format!(
        "the provider `{}` cannot use the images of this server, which it needs to get the files of the snapshot `{}`; \
         name `{}`, or a provider whose images are in GET /api/v1/images",
        provider.name(),
        snapshot.id,
        snapshot.provider
    )))
}
