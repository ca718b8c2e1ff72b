//! Documents and blobs out of registries into the layout: each from the first source
//! that has it, tried again when something passes by, gone on with where it broke off,
//! and checked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use oci_spec::image::Descriptor;
use rand::RngExt as _;
use tokio::sync::{Mutex, watch};

use super::layout::{Ingest, sha256};
use super::name::Name;
use super::pull::{State, again};
use super::registry::{Fault, Source};
use super::{Progress, Store, disk};
use crate::{Error, Result};

/// How often a source is asked while nothing comes of it.
const ATTEMPTS_MAX: u32 = 4;

/// How long the first pause between attempts is; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// An attempt that brought so many bytes does not count as a failed one.
const HEADWAY_BYTES: u64 = 1024 * 1024;

/// So many bytes are collected before they are written.
const WRITE_BYTES: usize = 1024 * 1024;

/// Counts what has come in.
#[derive(Debug)]
pub(super) struct Meter {
    bytes: AtomicU64,
    total: u64,
    state: watch::Sender<State>,
}

impl Meter {
    pub(super) fn new(total: u64, state: watch::Sender<State>) -> Self {
        Self { bytes: AtomicU64::new(0), total, state }
    }

    fn add(&self, bytes: u64) {
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.show(bytes);
    }

    fn take_back(&self, bytes: u64) {
        let bytes = self.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        self.show(bytes);
    }

    fn show(&self, bytes: u64) {
        self.state.send_replace(State::Going(Progress::Downloading { bytes, bytes_total: self.total }));
    }
}

impl Store {
    /// A manifest or index; with its digest, no other one.
    pub(super) async fn document(
        &self,
        name: &Name,
        sources: &[Source],
        version: &str,
        digest: Option<&str>,
    ) -> Result<Vec<u8>> {
        let mut last = Fault::Missing;
        for source in sources {
            let mut attempt = 0;
            last = loop {
                let fault = match self.registries.manifest(source, version).await {
                    Ok(bytes) if digest.is_none_or(|digest| sha256(&bytes) == digest) => return Ok(bytes),
                    Ok(_) => Fault::Broken(format!("`{}` sends another manifest than was asked for", source.registry)),
                    Err(fault) => fault,
                };
                attempt += 1;
                if !pause(attempt, &fault).await {
                    break fault;
                }
            };
            tracing::debug!(%name, registry = source.registry, fault = ?last, "no manifest from here");
            if let Fault::Ours(error) = &last {
                return Err(again(error));
            }
        }
        Err(told(last, &format!("`{name}`")))
    }

    /// Brings a blob here, unless it is here already.
    pub(super) async fn blob(self: &Arc<Self>, sources: &[Source], blob: &Descriptor, meter: &Meter) -> Result<()> {
        let digest = blob.digest().to_string();
        let turn = self.turn(&digest);
        // Another pull may be at the same blob; then this one finds it.
        let _turn = turn.lock().await;
        if self.layout.has(&digest, blob.size()) {
            meter.add(blob.size());
            return Ok(());
        }
        let mut ingest = self.ingest(&digest, blob.size()).await?;
        meter.add(ingest.offset());
        let mut last = Fault::Missing;
        for source in sources {
            let mut attempt = 0;
            // Part of it is from an earlier pull or from another source.
            let mut mixed = ingest.offset() > 0;
            last = loop {
                let before = ingest.offset();
                let (back, end) = self.receive(source, &digest, blob.size(), ingest, meter).await;
                ingest = back;
                let fault = match end {
                    Ok(()) => match self.blocking("write a layer", move |_| Ok(ingest.commit())).await? {
                        Ok(_) => return Ok(()),
                        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                            meter.take_back(blob.size());
                            ingest = self.ingest(&digest, blob.size()).await?;
                            if std::mem::take(&mut mixed) {
                                // What was here from before may be what is wrong.
                                continue;
                            }
                            Fault::Broken(format!("`{}` sends another layer than was asked for", source.registry))
                        }
                        Err(error) => return Err(disk("write a layer", error)),
                    },
                    Err(fault) => fault,
                };
                if matches!(fault, Fault::Broken(_)) {
                    meter.take_back(ingest.offset());
                    ingest.restart().map_err(|error| disk("write a layer", error))?;
                }
                if ingest.offset() >= before.saturating_add(HEADWAY_BYTES) {
                    attempt = 0;
                }
                attempt += 1;
                if !pause(attempt, &fault).await {
                    break fault;
                }
            };
            tracing::debug!(digest, registry = source.registry, fault = ?last, "no blob from here");
            if let Fault::Ours(error) = &last {
                if matches!(**error, Error::Full(_)) {
                    let _ = ingest.discard();
                }
                return Err(again(error));
            }
        }
        Err(told(last, &format!("the layer `{digest}`")))
    }

    async fn ingest(self: &Arc<Self>, digest: &str, size: u64) -> Result<Ingest> {
        let digest = digest.to_owned();
        self.blocking("go on with a layer", move |store| {
            store.layout.ingest(&digest, size).map_err(|error| disk("begin a layer", error))
        })
        .await
    }

    /// One attempt: what came of it is written, however it ended.
    async fn receive(
        self: &Arc<Self>,
        source: &Source,
        digest: &str,
        size: u64,
        mut ingest: Ingest,
        meter: &Meter,
    ) -> (Ingest, Result<(), Fault>) {
        if ingest.offset() == size {
            return (ingest, Ok(()));
        }
        let (mut response, begins) = match self.registries.blob(source, digest, ingest.offset()).await {
            Ok(answer) => answer,
            Err(fault) => return (ingest, Err(fault)),
        };
        if begins == 0 && ingest.offset() > 0 {
            meter.take_back(ingest.offset());
            if let Err(error) = ingest.restart() {
                return (ingest, Err(ours(error)));
            }
        }
        let mut chunks: Vec<Bytes> = Vec::new();
        let mut waiting = 0;
        loop {
            let chunk = response.chunk().await.map_err(|error| source.cut(&error));
            let more = matches!(chunk, Ok(Some(_)));
            if let Ok(Some(chunk)) = &chunk {
                waiting += chunk.len();
                chunks.push(chunk.clone());
            }
            if waiting >= WRITE_BYTES || !more && waiting > 0 {
                let came = std::mem::take(&mut chunks);
                let before = ingest.offset();
                let (back, written) = write(ingest, came).await;
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
                    let text = format!("`{}` sends less of a layer than was announced", source.registry);
                    return (ingest, Err(Fault::Broken(text)));
                }
                Err(fault) => return (ingest, Err(fault)),
            }
        }
    }

    /// Whoever has this lock is the only one to write the blob or tree of that digest.
    pub(super) fn turn(&self, digest: &str) -> Arc<Mutex<()>> {
        let mut turns = self.turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(digest).and_then(std::sync::Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Mutex::new(()));
        turns.insert(digest.to_owned(), Arc::downgrade(&turn));
        turn
    }
}

async fn write(mut ingest: Ingest, chunks: Vec<Bytes>) -> (Ingest, Result<(), Fault>) {
    let written = tokio::task::spawn_blocking(move || {
        let end = chunks.iter().try_for_each(|chunk| ingest.write(chunk));
        (ingest, end)
    });
    match written.await {
        Ok((ingest, Ok(()))) => (ingest, Ok(())),
        Ok((ingest, Err(error))) if error.kind() == io::ErrorKind::InvalidData => {
            (ingest, Err(Fault::Broken("the registry sends more of a layer than was announced".to_owned())))
        }
        Ok((ingest, Err(error))) => (ingest, Err(ours(error))),
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

fn ours(error: io::Error) -> Fault {
    Fault::Ours(Arc::new(disk("write a layer", error)))
}

/// Waits before the next attempt; `false` if there is to be none.
async fn pause(attempt: u32, fault: &Fault) -> bool {
    let Fault::Passing(_, asked) = fault else { return false };
    if attempt >= ATTEMPTS_MAX {
        return false;
    }
    // Not in step with the others whom the same registry sent away.
    let share = rand::rng().random_range(0.5..1.5);
    let pause = PAUSE.mul_f64(f64::from(1u32 << (attempt - 1)) * share);
    tokio::time::sleep(pause.max(*asked)).await;
    true
}

/// What the last fault means to the caller.
fn told(fault: Fault, what: &str) -> Error {
    match fault {
        Fault::Missing => Error::Invalid(format!("{what} is not in its registry; check the name and the tag")),
        Fault::Refused(why) => Error::Invalid(format!("{what} may not be pulled, or is not there: {why}")),
        Fault::Passing(why, _) => Error::Unavailable(format!("{what} cannot be pulled now: {why}; try again later")),
        Fault::Broken(why) => Error::Invalid(format!("{what} cannot be pulled: {why}")),
        Fault::Ours(error) => again(&error),
    }
}
