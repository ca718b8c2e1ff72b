//! Templates: machines that have booted and wait for the line of the host, kept in files. Up to that line
//! all machines of an image and a size are the same, so the next one is made from the files and does not
//! boot. The API lists them as snapshots of images.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use firecracker::requests::RateLimiter;
use host_disk::remove_tree;
use images::Images;
use parking_lot::Mutex;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::drives::UNFINISHED;
use super::machine::BOOT_ARGUMENTS;
use super::saved::{Checks, Saved, SavedRecord};
use super::work_dir::{IMAGE, WorkDir};
use crate::{ImageSnapshot, ImageSnapshots};

/// Least bytes of the disk that are free beside what a template takes while it is made.
const ROOM_LEFT: u64 = 1 << 30;
/// Time in which no template is made of what none could be made of.
const REST: Duration = Duration::from_secs(60);
/// Properties of a processor on which the memory of a machine depends, as the kernel names them.
const PROCESSOR: [&str; 8] =
    ["vendor_id", "cpu family", "model", "stepping", "flags", "CPU implementer", "CPU part", "Features"];

/// Properties of a machine that has booted. One of others needs a template of its own.
#[derive(Debug, Serialize)]
pub(super) struct Properties<'a> {
    pub(super) firecracker: &'a str,
    /// Digest of the kernel and its first files, the agent among them.
    pub(super) kernel: &'a str,
    /// Digest of the image; `None` for one without files.
    pub(super) image: Option<&'a str>,
    pub(super) memory_mb: u32,
    pub(super) vcpus: u8,
    pub(super) limiter: Option<RateLimiter>,
}

impl Properties<'_> {
    /// Returns the name of the template: of these properties, and of the processor and kernel of this host.
    fn name(&self) -> String {
        let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let first = cpuinfo.lines().take_while(|line| !line.is_empty());
        let processor: Vec<_> = first
            .filter(|line| line.split_once(':').is_some_and(|(name, _)| PROCESSOR.contains(&name.trim())))
            .collect();
        let whole = serde_json::to_vec(&(self, BOOT_ARGUMENTS, host, processor)).unwrap_or_default();
        Sha256::digest(whole).iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Templates of this server.
#[derive(Debug)]
pub(super) struct Templates {
    dir: PathBuf,
    /// Most bytes that all of them may take; 0 for none.
    bytes_max: u64,
    known: Arc<Mutex<HashMap<String, State>>>,
    checks: Checks,
    /// Number of machines that could not be made from a template, and booted.
    fallbacks: AtomicU64,
}

#[derive(Debug)]
enum State {
    Making,
    Ready { saved: Saved, used: Instant },
    Resting { until: Instant },
}

impl State {
    /// Returns the files of a template that is ready.
    fn saved(&self) -> Option<&Saved> {
        match self {
            State::Ready { saved, .. } => Some(saved),
            State::Making | State::Resting { .. } => None,
        }
    }
}

fn described(name: &str, saved: &Saved) -> ImageSnapshot {
    ImageSnapshot {
        name: name.to_owned(),
        image: saved.record.image.clone().unwrap_or_default(),
        kernel: saved.record.kernel.clone(),
        // One that is being removed takes nothing.
        size_bytes: saved.size_bytes().unwrap_or_default(),
        created: saved.record.created(),
    }
}

/// Turn to make a template. Dropping it gives the turn up.
#[derive(Debug)]
pub(super) struct Making {
    name: String,
    known: Arc<Mutex<HashMap<String, State>>>,
}

impl Drop for Making {
    fn drop(&mut self) {
        let mut known = self.known.lock();
        if matches!(known.get(&self.name), Some(State::Making)) {
            known.insert(self.name.clone(), State::Resting { until: Instant::now() + REST });
        }
    }
}

/// Files of a template that is being made. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Unfinished {
    dir: PathBuf,
    making: Making,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Of one that is finished there are none under this name; what stays goes with the next start.
        let _ = remove_tree(&self.dir);
    }
}

impl Templates {
    /// Finds the templates that an earlier server made, and removes what it left unfinished. All of them
    /// may take `bytes_max` bytes; 0 for no templates.
    pub(super) fn open(dir: PathBuf, bytes_max: u64) -> io::Result<Templates> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let mut found = Vec::new();
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.starts_with(UNFINISHED));
            match (name.map(str::to_owned), Saved::read(&path)) {
                (Some(name), Some(saved)) => found.push((path.metadata()?.mtime(), name, saved)),
                _ => remove_tree(&path)?,
            }
        }
        // The newest counts as used last.
        found.sort_by_key(|(made, ..)| *made);
        let ready = found.into_iter().map(|(_, name, saved)| (name, State::Ready { saved, used: Instant::now() }));
        let known = Arc::new(Mutex::new(ready.collect()));
        let templates = Templates { dir, bytes_max, known, checks: Checks::default(), fallbacks: AtomicU64::new(0) };
        templates.prune(None)?;
        Ok(templates)
    }

    /// Returns the template with these properties, if there is one and its files are as they were written.
    pub(super) async fn find(&self, properties: &Properties<'_>) -> Option<Saved> {
        let name = properties.name();
        let saved = match self.known.lock().get_mut(&name) {
            Some(State::Ready { saved, used }) => {
                *used = Instant::now();
                saved.clone()
            }
            Some(State::Making | State::Resting { .. }) | None => return None,
        };
        match self.checks.check(&saved).await {
            Ok(()) => Some(saved),
            Err(error) => {
                self.fall_back(&saved, &error);
                None
            }
        }
    }

    /// Removes a template from which a machine could not be made. The machine boots instead.
    pub(super) fn fall_back(&self, saved: &Saved, cause: &dyn std::fmt::Display) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(%cause, "cannot make a machine from its template; booting it instead");
        self.known.lock().retain(|_, state| state.saved().is_none_or(|known| known.dir() != saved.dir()));
        if let Err(error) = saved.remove() {
            tracing::warn!(%error, "cannot remove a template");
        }
    }

    /// Returns the turn to make the template with these properties, unless it is made already, or cannot
    /// be: `reserve` bytes of the disk stay free.
    pub(super) fn begin(&self, properties: &Properties<'_>, reserve: u64) -> Option<Making> {
        // One that takes more than all may would be removed at once, and made again by the next machine.
        let bytes = u64::from(properties.memory_mb) << 20;
        if bytes > self.bytes_max {
            return None;
        }
        // Until its pages of zeros are found it takes all of the memory, and on a full disk boxes are ended.
        if host_disk::Room::of(&self.dir)
            .is_ok_and(|room| room.bytes < bytes.saturating_mul(2).saturating_add(reserve.max(ROOM_LEFT)))
        {
            return None;
        }
        let name = properties.name();
        let mut known = self.known.lock();
        match known.get(&name) {
            Some(State::Making | State::Ready { .. }) => return None,
            Some(State::Resting { until }) if Instant::now() < *until => return None,
            Some(State::Resting { .. }) | None => {}
        }
        known.insert(name.clone(), State::Making);
        Some(Making { name, known: Arc::clone(&self.known) })
    }

    /// Takes the files that a machine was written to out of its room. `image` is the drive that it has
    /// mounted.
    pub(super) fn take(&self, making: Making, room: &WorkDir, image: &Path) -> io::Result<Unfinished> {
        let new = Unfinished { dir: self.dir.join(format!("{UNFINISHED}{}", making.name)), making };
        DirBuilder::new().mode(0o700).create(&new.dir)?;
        room.take_written(&new.dir)?;
        fs::hard_link(image, new.dir.join(IMAGE))?;
        Ok(new)
    }

    /// Makes a template of these files. Takes as long as to read the memory of the machine.
    pub(super) fn finish(&self, new: Unfinished, record: SavedRecord) -> io::Result<()> {
        Saved::finish(&new.dir, record)?;
        let dir = self.dir.join(&new.making.name);
        fs::rename(&new.dir, &dir)?;
        let saved = Saved::read(&dir).ok_or(io::ErrorKind::InvalidData)?;
        self.checks.remember(&saved)?;
        self.known.lock().insert(new.making.name.clone(), State::Ready { saved, used: Instant::now() });
        Ok(())
    }

    /// Returns the folders of the templates that are ready.
    pub(super) fn dirs(&self) -> Vec<PathBuf> {
        self.known.lock().values().filter_map(State::saved).map(|saved| saved.dir().to_owned()).collect()
    }

    /// Returns the templates that are ready, the newest first.
    pub(super) fn list(&self) -> ImageSnapshots {
        let known = self.known.lock();
        let ready = known.iter().filter_map(|(name, state)| Some((name, state.saved()?)));
        let mut snapshots: Vec<_> = ready.map(|(name, saved)| described(name, saved)).collect();
        drop(known);
        snapshots.sort_by(|one, other| (other.created, &other.name).cmp(&(one.created, &one.name)));
        ImageSnapshots { snapshots, fallbacks: self.fallbacks.load(Ordering::Relaxed) }
    }

    /// Removes the templates of images that are not in the store any more, and then those that were used
    /// least recently until the rest fits its bound.
    pub(super) fn prune(&self, images: Option<&Images>) -> io::Result<()> {
        let mut known = self.known.lock();
        let mut ready = Vec::new();
        for (name, state) in known.iter() {
            if let State::Ready { saved, used } = state {
                ready.push((*used, saved.size_bytes()?, name.clone(), saved.clone()));
            }
        }
        ready.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
        let mut total = 0;
        for (_, bytes, name, saved) in ready {
            let image = saved.record.image.as_deref();
            let is_gone = image.zip(images).is_some_and(|(digest, images)| images.hold(digest).is_none());
            total += if is_gone { 0 } else { bytes };
            if is_gone || total > self.bytes_max {
                total -= if is_gone { 0 } else { bytes };
                saved.remove()?;
                known.remove(&name);
            }
        }
        Ok(())
    }
}
