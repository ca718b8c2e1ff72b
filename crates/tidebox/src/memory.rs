//! The allocator: one that gives back what it does not use, and can say what it holds.

use server::Memory;
use tikv_jemalloc_ctl::{background_thread, epoch, stats};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that hold before `main`: few arenas, since each keeps pages of its
/// own, and pages that are free for a second go back to the kernel.
#[expect(unsafe_code, reason = "the allocator takes its options from a symbol of this name")]
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static OPTIONS: &[u8; 72] = b"narenas:2,max_background_threads:1,dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// Lets pages go back to the kernel also while nothing is allocated. Only for
/// the server: it takes a thread.
pub fn give_back() {
    if let Err(error) = background_thread::write(true) {
        tracing::warn!(%error, "memory that is free goes back to the kernel only while the server works");
    }
}

/// What the allocator holds.
pub fn figures() -> Memory {
    // Without it, the figures are those of the last time.
    let _ = epoch::advance();
    let bytes = |read: Result<usize, _>| read.map_or(0, |bytes: usize| bytes as u64);
    Memory {
        allocated: bytes(stats::allocated::read().map_err(drop)),
        active: bytes(stats::active::read().map_err(drop)),
        resident: bytes(stats::resident::read().map_err(drop)),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_figures_are_those_of_this_program() {
        let before = figures();
        let held = vec![1_u8; 64 << 20];
        let after = figures();
        assert!(after.allocated >= before.allocated + (60 << 20), "{before:?} {after:?}");
        assert!(after.allocated <= after.active && after.active <= after.resident, "{after:?}");
        drop(held);
    }

    #[test]
    fn the_options_are_taken() {
        assert_eq!(tikv_jemalloc_ctl::opt::narenas::read().unwrap(), 2);
    }
}
