//! Downloads of manifests and blobs from registries into the layout. Each comes from the first
//! source that has it. Transient failures are retried, interrupted downloads are resumed, and
//! digests are checked.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use oci_spec::image::Descriptor;
use rand::RngExt as _;

use crate::digest::sha256;
use crate::disk;
use crate::error::{Error, Result, stopped};
use crate::layout::work::{Ingest, Work};
use crate::name::Name;
use crate::processors::Turn;
use crate::progress::Meter;
use crate::registry::{Fault, Source};
use crate::store::Store;

/// Most attempts at one source without progress.
const ATTEMPTS_MAX: u32 = 4;

/// First pause between attempts; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// Bytes in one attempt that count as progress and reset the number of attempts.
const HEADWAY_BYTES: u64 = 1024 * 1024;

/// Lowest accepted rate of a registry, in bytes per second.
const BYTES_PER_SECOND_MIN: f64 = 10_000.0;

/// Bytes collected in memory before they are written.
const WRITE_BYTES: usize = 1024 * 1024;

impl Store {
    /// Downloads a manifest or index; given `digest`, only the one with that digest.
    pub(super) async fn document(
        &self,
        work: &Work,
        name: &Name,
        sources: &[Source],
        version: &str,
        digest: Option<&str>,
    ) -> Result<Vec<u8>> {
        let mut last = Fault::Missing;
        for source in sources {
            let mut attempt = 0;
            last = loop {
                let fault = match work.unless_stopped(self.registries.manifest(source, version)).await? {
                    Ok(bytes) if digest.is_none_or(|digest| sha256(&bytes) == digest) => return Ok(bytes),
                    Ok(_) => Fault::Broken(format!("`{}` sent a different manifest than requested", source.registry)),
                    Err(fault) => fault,
                };
                attempt += 1;
                if !work.unless_stopped(pause(attempt, &fault)).await? {
                    break fault;
                }
            };
            tracing::debug!(%name, registry = source.registry, fault = ?last, "registry did not provide the manifest");
            if let Fault::Ours(error) = &last {
                return Err(error.again());
            }
        }
        let missing = format!("`{name}` is not in its registry; check the name and the tag");
        Err(told(last, &format!("`{name}`"), missing))
    }

    /// Downloads a blob of an image, unless it is in the layout already.
    pub(super) async fn blob(
        self: &Arc<Self>,
        work: &Arc<Work>,
        image: &str,
        sources: &[Source],
        blob: &Descriptor,
        meter: &Meter,
    ) -> Result<()> {
        let digest = blob.digest().to_string();
        let turn = self.turn(&digest);
        // Another pull may be writing the same blob. When it is done, the blob is found below.
        let _turn = work.unless_stopped(turn.lock()).await?;
        let Some(mut ingest) = self.ingest(work, &digest, blob.size()).await? else {
            meter.add(blob.size());
            return Ok(());
        };
        meter.add(ingest.offset());
        let mut last = Fault::Missing;
        for source in sources {
            let mut attempt = 0;
            // Part of it is from an earlier pull or from another source.
            let mut mixed = ingest.offset() > 0;
            last = loop {
                let before = ingest.offset();
                let (back, end) = self.receive(work, source, &digest, blob.size(), ingest, meter).await;
                ingest = back;
                let fault = match end {
                    Ok(()) => match self.blocking("write a layer", move |_| Ok(ingest.commit())).await? {
                        Ok(_) => return Ok(()),
                        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                            meter.take_back(blob.size());
                            let Some(again) = self.ingest(work, &digest, blob.size()).await? else { return Ok(()) };
                            ingest = again;
                            if std::mem::take(&mut mixed) {
                                // The earlier part may be the wrong one, so this attempt does not
                                // count.
                                continue;
                            }
                            Fault::Broken(format!("`{}` sent a different layer than requested", source.registry))
                        }
                        Err(error) => return Err(disk::failed("write a layer", error)),
                    },
                    Err(fault) => fault,
                };
                if matches!(fault, Fault::Broken(_)) {
                    meter.take_back(ingest.offset());
                    ingest.restart().map_err(disk::failing("write a layer"))?;
                }
                if ingest.offset() >= before.saturating_add(HEADWAY_BYTES) {
                    attempt = 0;
                }
                attempt += 1;
                if !work.unless_stopped(pause(attempt, &fault)).await? {
                    break fault;
                }
            };
            tracing::debug!(digest, registry = source.registry, fault = ?last, "registry did not provide the blob");
            if let Fault::Ours(error) = &last {
                if matches!(**error, Error::Full(_)) {
                    let _ = ingest.discard();
                }
                return Err(error.again());
            }
        }
        // The manifest is there, so the name is right.
        let missing = format!("the registry of {image} lacks its layer `{digest}`; push the image again");
        Err(told(last, &format!("the layer `{digest}` of {image}"), missing))
    }

    /// Starts or resumes writing a blob; `None` if it is in the layout already.
    async fn ingest(self: &Arc<Self>, work: &Arc<Work>, digest: &str, size: u64) -> Result<Option<Ingest>> {
        loop {
            if work.has(digest, size) {
                return Ok(None);
            }
            let writing = Arc::clone(work);
            let digest = digest.to_owned();
            let ingest =
                self.blocking("resume the download of a layer", move |_| Ok(writing.ingest(&digest, size))).await?;
            match ingest {
                Ok(ingest) => return Ok(Some(ingest)),
                // An import is writing it.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    work.unless_stopped(tokio::time::sleep(PAUSE)).await?;
                }
                Err(_) if work.stop().is_cancelled() => return Err(stopped()),
                Err(error) => return Err(disk::failed("start the download of a layer", error)),
            }
        }
    }

    /// Makes one attempt at a blob. The bytes received are written even if the attempt fails.
    async fn receive(
        self: &Arc<Self>,
        work: &Arc<Work>,
        source: &Source,
        digest: &str,
        size: u64,
        mut ingest: Ingest,
        meter: &Meter,
    ) -> (Ingest, Result<(), Fault>) {
        if ingest.offset() == size {
            return (ingest, Ok(()));
        }
        let asked = self.registries.blob(source, digest, ingest.offset());
        let (mut response, begins) = match work.unless_stopped(asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(fault)) => return (ingest, Err(fault)),
            Err(error) => return (ingest, Err(Fault::Ours(Arc::new(error)))),
        };
        if begins == 0 && ingest.offset() > 0 {
            meter.take_back(ingest.offset());
            if let Err(error) = ingest.restart() {
                return (ingest, Err(ours(error)));
            }
        }
        let mut chunks: Vec<Bytes> = Vec::new();
        let mut waiting = 0;
        let mut pace = Pace::new(self.config.stall_timeout);
        loop {
            let asked = Instant::now();
            let chunk = match work.unless_stopped(response.chunk()).await {
                Ok(chunk) => chunk.map_err(|error| source.cut(&error)),
                Err(error) => Err(Fault::Ours(Arc::new(error))),
            };
            let chunk = match &chunk {
                Ok(Some(bytes)) if !pace.keeps(asked.elapsed(), bytes.len()) => Err(source.too_slow()),
                _ => chunk,
            };
            let more = matches!(chunk, Ok(Some(_)));
            if let Ok(Some(chunk)) = &chunk {
                waiting += chunk.len();
                chunks.push(chunk.clone());
            }
            if waiting >= WRITE_BYTES || !more && waiting > 0 {
                let came = std::mem::take(&mut chunks);
                let before = ingest.offset();
                let (back, written) = self.write(ingest, came).await;
                ingest = back;
                waiting = 0;
                meter.add(ingest.offset() - before);
                if let Err(fault) = written {
                    return (ingest, Err(fault));
                }
            }
            match chunk {
                Ok(Some(_)) => {}
                Ok(None) if ingest.offset() == size => return (ingest, Ok(())),
                Ok(None) => {
                    let text = format!("`{}` sent less of a layer than announced", source.registry);
                    return (ingest, Err(Fault::Broken(text)));
                }
                Err(fault) => return (ingest, Err(fault)),
            }
        }
    }

    async fn write(self: &Arc<Self>, mut ingest: Ingest, chunks: Vec<Bytes>) -> (Ingest, Result<(), Fault>) {
        let store = Arc::clone(self);
        let written = tokio::task::spawn_blocking(move || {
            let _turn = Turn::take();
            // Checked before the pull began too, but others write meanwhile.
            if let Err(error) = store.room() {
                return (ingest, Err(Fault::Ours(Arc::new(error))));
            }
            let end = chunks.iter().try_for_each(|chunk| ingest.write(chunk));
            let end = end.map_err(|error| {
                if error.kind() == io::ErrorKind::InvalidData {
                    Fault::Broken("the registry sent more of a layer than announced".to_owned())
                } else {
                    ours(error)
                }
            });
            (ingest, end)
        });
        written.await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
    }
}

/// Transfer rate of a layer. Time spent on writing does not count.
#[derive(Debug)]
struct Pace {
    window: Duration,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    /// Measures over windows of twice `stall_timeout`, the longest silence allowed.
    fn new(stall_timeout: Duration) -> Self {
        Self { window: 2 * stall_timeout, waited: Duration::ZERO, bytes: 0 }
    }

    /// Counts bytes received after a wait of `waited`; returns `false` if the window that they
    /// end was too slow.
    fn keeps(&mut self, waited: Duration, bytes: usize) -> bool {
        self.waited += waited;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.waited < self.window {
            return true;
        }
        let needed = self.waited.as_secs_f64() * BYTES_PER_SECOND_MIN;
        let keeps = self.bytes as f64 >= needed;
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        keeps
    }
}

fn ours(error: io::Error) -> Fault {
    Fault::Ours(Arc::new(disk::failed("write a layer", error)))
}

/// Waits before the next attempt; returns `false` if there is to be none.
async fn pause(attempt: u32, fault: &Fault) -> bool {
    let Fault::Passing(_, asked) = fault else { return false };
    if attempt >= ATTEMPTS_MAX {
        return false;
    }
    // Jitter: the registry may have rejected other clients at the same time.
    let share = rand::rng().random_range(0.5..1.5);
    let pause = PAUSE.mul_f64(f64::from(1u32 << (attempt - 1)) * share);
    tokio::time::sleep(pause.max(*asked)).await;
    true
}

/// Converts the last fault into an error; `missing` is its text if no source has the document or
/// blob.
fn told(fault: Fault, what: &str, missing: String) -> Error {
    match fault {
        Fault::Missing => Error::Invalid(missing),
        Fault::Refused(why) => Error::Invalid(format!("{what} may not be pulled or does not exist: {why}")),
        Fault::Passing(why, _) => Error::Unavailable(format!("{what} cannot be pulled now: {why}; try again later")),
        Fault::Broken(why) => Error::Invalid(format!("{what} cannot be pulled: {why}")),
        Fault::Ours(error) => error.again(),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_registry_is_given_up_for_what_it_sends_and_not_for_how() {
        let second = Duration::from_secs(1);
        let judged = |waits: &[(u32, usize)]| {
            let mut pace = Pace::new(30 * second);
            waits.iter().all(|(waited, bytes)| pace.keeps(*waited * second, *bytes))
        };
        assert!(!judged(&[(5, 1); 12]), "a byte now and then");
        assert!(judged(&[(5, 1); 11]), "it is judged over a minute");
        assert!(judged(&[(5, 50_000); 24]), "just enough");
        assert!(judged(&[(29, 0), (1, 700_000), (29, 0), (1, 0)]), "in bursts");
        assert!(!judged(&[(1, 10_000_000), (59, 0), (30, 0), (30, 1)]), "what came long ago does not count");
    }
}
