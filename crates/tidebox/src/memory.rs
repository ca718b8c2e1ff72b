//! The allocator: one that gives back what it does not use, and can say what it holds.

use std::ops::Range;

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

/// Lets go of the pages of the program's file that the start has touched: reading
/// the configuration, opening the store, asking the runtimes. What is needed again
/// comes back by itself, from the kernel's cache of the file.
pub fn forget_start() {
    // Without it, they stay until the kernel wants the memory.
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for mapping in unwritten(&smaps) {
        let_go(mapping);
    }
}

#[expect(unsafe_code, reason = "the kernel is told addresses")]
fn let_go(mapping: Range<usize>) {
    // SAFETY: a private mapping of a file, without a page of its own: what is read
    // there afterwards is what was there before.
    unsafe { libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), libc::MADV_DONTNEED) };
}

/// The mappings of files that nobody may write to, and nobody has: in these every
/// page is the file's. Relocated ones are not.
fn unwritten(smaps: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut current = None;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        match first.strip_suffix(':') {
            None => current = mapping(first, words),
            Some("Anonymous" | "Swap") if words.next() != Some("0") => current = None,
            // The last line of each.
            Some("VmFlags") => found.extend(current.take()),
            Some(_) => {}
        }
    }
    found
}

/// The first line of a mapping: addresses, rights, offset, device, inode, path.
fn mapping<'a>(addresses: &str, mut words: impl Iterator<Item = &'a str>) -> Option<Range<usize>> {
    let (rights, path) = (words.next()?, words.nth(3)?);
    let (start, end) = addresses.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    (matches!(rights, "r-xp" | "r--p") && path.starts_with('/')).then_some(range)
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

    /// Says that this process is the one in which nothing else runs.
    const ALONE: &str = "TIDEBOX_TEST_MEMORY_ALONE";

    #[test]
    fn what_the_start_touched_is_let_go_and_the_program_runs_on() {
        if std::env::var_os(ALONE).is_none() {
            // Other tests touch pages of the program too.
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            let name = "memory::test::what_the_start_touched_is_let_go_and_the_program_runs_on";
            let output = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
            assert!(output.status.success(), "{output:?}");
            return;
        }
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
        };
        let before = resident();
        forget_start();
        let after = resident();
        assert!(after < before / 2, "{before} kB before, {after} kB after");
        // A relocated table, a function of the C library, and code of ours.
        assert_eq!(format!("{:.1}", std::hint::black_box(0.25_f64).sqrt()), "0.5");
    }

    #[test]
    fn only_mappings_in_which_every_page_is_the_files_are_let_go() {
        let mapping = |head: &str, anonymous: u32, swap: u32| {
            format!("{head}\nRss: 8 kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nVmFlags: rd mr mw me\n")
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 7 /bin/program", 0, 0),
            mapping("3000-8000 r-xp 00002000 fe:00 7 /bin/a program", 0, 0),
            mapping("8000-9000 r--p 00007000 fe:00 7 /bin/program", 4, 0),
            mapping("9000-a000 r--p 00008000 fe:00 7 /bin/program", 0, 4),
            mapping("a000-b000 rw-p 00009000 fe:00 7 /bin/program", 0, 0),
            mapping("b000-c000 r--p 00000000 00:00 0", 0, 0),
            mapping("c000-d000 r-xp 00000000 00:00 0 [vdso]", 0, 0),
            mapping("d000-e000 r--s 00000000 fe:00 8 /lib/shared", 0, 0),
        ];
        assert_eq!(unwritten(&smaps.concat()), [0x1000..0x3000, 0x3000..0x8000]);
    }

    #[test]
    fn the_options_are_taken() {
        assert_eq!(tikv_jemalloc_ctl::opt::narenas::read().unwrap(), 2);
    }
}
