//! Making and removal of a box, without state in memory.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use domain::Resources;

use super::backend::Backend;
use super::fault::{not_removed, not_written};
use super::folder::BoxFolder;
use super::ids::IdPool;
use super::plan::{BoxPlan, Kind, Made};
use super::probe::{probe_id, probe_spec};
use super::process::Process;
use super::record::Record;
use super::removals::Removals;
use crate::{Phase, Result};

/// Limit for a killed box to end. Its processes may be blocked in the kernel, writing to a slow
/// disk.
const END_WAIT: Duration = Duration::from_secs(20);

/// Makes a box or a slot in a folder that must not exist yet. On error the caller must remove the
/// folder and everything that it records.
pub(crate) async fn make<B: Backend>(backend: &B, plan: &BoxPlan<'_, B::Capabilities>) -> Result<Made> {
    let begin = Instant::now();
    let listener = backend.make_folder(&plan.folder).map_err(not_written)?;
    let id_base = record(backend, plan)?;
    let order = backend.prepare(plan, id_base).await?;
    let files_took = begin.elapsed();
    let running = backend.launch(&plan.folder, listener, order).await?;
    let launch_took = running.launched.saturating_duration_since(begin);
    let agent_took = begin.elapsed().saturating_sub(launch_took);
    let (image_took, box_took) = if B::COPIES_IMAGE {
        (Some(files_took), launch_took.saturating_sub(files_took))
    } else {
        (plan.image.map(|image| image.took), launch_took)
    };
    let took = [("image", image_took), (running.phase, Some(box_took)), ("agent", Some(agent_took))];
    let phases = took.into_iter().filter_map(|(name, took)| Some(Phase { name, took: took? })).collect();
    Ok(Made { process: running.process, guest: running.guest, phases, shares_devices: running.shares_devices })
}

/// Takes ids, and records what will belong to the box. Returns the first id.
fn record<B: Backend>(backend: &B, plan: &BoxPlan<'_, B::Capabilities>) -> Result<Option<u32>> {
    let parts = backend.parts();
    let mut record = Record::new(backend.cgroups(plan));
    let image = plan.image.map(|image| image.held.digest().to_owned());
    if B::COPIES_IMAGE {
        record.copied = image;
    } else {
        record.image = image;
        record.host_rootfs = Some(parts.host_rootfs.path.display().to_string());
    }
    match &plan.kind {
        Kind::Slot { id_base, slot, .. } => {
            record.slot_uid = Some(slot.uid);
            plan.folder.write(&record).map_err(not_written)?;
            return Ok(Some(*id_base));
        }
        Kind::Host => record.holds_slots = true,
        Kind::Box => {}
    }
    let ids = parts.ids.as_ref().filter(|_| backend.properties(Some(plan.can)).has_ids);
    record.id_base = ids.map(IdPool::take).transpose()?;
    if let Err(error) = plan.folder.write(&record) {
        // No record names the ids, so no removal frees them.
        if let (Some(ids), Some(base)) = (ids, record.id_base) {
            ids.give_back(base);
        }
        return Err(not_written(error));
    }
    Ok(record.id_base)
}

/// Ends a box and removes all of it. Its files are moved to the trash and deleted in the
/// background. May be repeated at any time.
pub(crate) async fn remove<B: Backend>(backend: &B, folder: &BoxFolder, process: Option<&Process>) -> Result<()> {
    let record = folder.read().unwrap_or_default();
    // After a start that failed late, no entry holds the process.
    let found = match (process, folder.pid()) {
        (None, Some((pid, started))) => Process::find(pid, started).map_err(not_removed)?,
        _ => None,
    };
    let process = process.or(found.as_ref());
    backend.kill(folder, &record, process).await.map_err(not_removed)?;
    if let Some(process) = process
        && !process.ended_within(END_WAIT).await
    {
        return Err(not_removed("its first process did not exit"));
    }
    backend.release(folder, &record).await.map_err(not_removed)?;
    let parts = backend.parts();
    let trash = parts.folders.trash.join(Removals::name(&folder.name()));
    match fs::rename(folder.path(), &trash) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(not_removed(error)),
    }
    let ids = parts.ids.clone();
    parts.removals.discard(trash, move |removed| {
        // Files that stay belong to these ids, so another box must not get them.
        if let (true, Some(ids), Some(base)) = (removed, ids, record.id_base) {
            ids.give_back(base);
        }
    });
    Ok(())
}

/// Makes a box, tests it, and removes it again. Returns whether its devices are those of the host.
pub(crate) async fn try_box<B: Backend>(backend: &B, resources: &Resources, can: B::Capabilities) -> Result<bool> {
    let id = probe_id();
    let folder = backend.parts().folders.of(&id);
    let spec = probe_spec(resources);
    let plan = BoxPlan { id: &id, spec: &spec, folder, kind: Kind::Box, can, image: None, snapshot: None };
    let made = make(backend, &plan).await;
    let outcome = match &made {
        Ok(made) => backend.test(&made.guest).await,
        Err(_) => Ok(()),
    };
    remove(backend, &plan.folder, made.as_ref().ok().map(|made| &made.process)).await?;
    let shares_devices = made?.shares_devices;
    outcome.map(|()| shares_devices)
}
