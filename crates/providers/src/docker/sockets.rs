//! Buffers of sockets, which control groups of version 1 count apart from memory.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use super::Inner;
use super::direct::{self, FirstProcess};
use super::engine::About;
use crate::local::cgroup;

impl Inner {
    /// Returns what the Engine lacks, unbounded buffers of sockets included.
    pub(super) fn missing(&self, about: Option<About>) -> Vec<String> {
        let Some(about) = about else { return Vec::new() };
        let unbounded = about.groups_v1 && self.has_unbounded_sockets.load(Ordering::Relaxed);
        let sockets = "Control groups of version 1 do not count socket buffers, and the server cannot limit those of \
                       the Engine's boxes: use an Engine with control groups of version 2, or run the server as root \
                       on the Engine's machine.";
        about.missing.into_iter().chain(unbounded.then(|| sockets.to_owned())).collect()
    }

    /// Bounds the buffers of a box's sockets where the Engine's control groups do not: current
    /// runtimes do not set that limit.
    pub(super) fn bound_sockets(&self, process: &FirstProcess, memory_mb: u32) {
        if !self.engine.about().is_some_and(|about| about.groups_v1) {
            return;
        }
        let is_here = self.is_local && direct::is_here(process);
        let bound =
            if is_here { cgroup::bound_sockets(process.pid, memory_mb) } else { Err(ErrorKind::NotFound.into()) };
        if let Err(error) = &bound {
            tracing::debug!(container = process.container, %error, "cannot limit socket buffers");
        }
        self.has_unbounded_sockets.store(bound.is_err(), Ordering::Relaxed);
    }
}
