//! The allocator of the C library, made to give back what is not used, and its figures.

use std::ops::Range;
use std::time::Duration;

use server::Memory;

/// Arenas of the allocator: each keeps pages of its own.
const ARENAS_MAX: i32 = 2;
/// Pause between two looks at what is free.
const TRIM_EVERY: Duration = Duration::from_secs(1);
/// Free memory that is not worth the work of giving it back, in bytes.
const FREE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Bounds the number of arenas. Call it before the first thread is started.
pub fn limit_arenas() {
    #[expect(unsafe_code, reason = "a function of the C library")]
    // SAFETY: takes two numbers; a value that it does not know changes nothing.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX)
    };
}

/// Lets pages that are free go back to the kernel, once a second. Only for the server: it
/// takes a thread.
pub fn give_back() {
    if let Err(error) = std::thread::Builder::new().name("memory".to_owned()).spawn(trim_repeatedly) {
        tracing::warn!(%error, "free memory is not returned to the system");
    }
}

/// Trims the allocator after each change of its use. Never returns.
fn trim_repeatedly() {
    let mut before = (0, 0);
    loop {
        std::thread::sleep(TRIM_EVERY);
        let info = in_use();
        // What was given back still counts as free.
        let has_changed = before != (info.uordblks, info.fordblks);
        before = (info.uordblks, info.fordblks);
        if has_changed && info.fordblks > FREE_BYTES_MAX {
            #[expect(unsafe_code, reason = "a function of the C library")]
            // SAFETY: takes the number of bytes to keep at the top.
            unsafe {
                libc::malloc_trim(0)
            };
        }
    }
}

/// Returns the counters of the allocator over all arenas.
fn in_use() -> libc::mallinfo2 {
    #[expect(unsafe_code, reason = "a function of the C library")]
    // SAFETY: takes nothing, returns numbers.
    unsafe {
        libc::mallinfo2()
    }
}

/// Drops the pages of the program's file that the start has touched: reading the configuration,
/// opening the store, asking the runtimes. Pages needed again are read from the kernel's cache of
/// the file.
pub fn forget_start() {
    // On failure, they stay until the kernel wants the memory.
    let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return };
    for mapping in unwritten(&smaps) {
        let_go(mapping);
    }
}

#[expect(unsafe_code, reason = "the kernel is told addresses")]
fn let_go(mapping: Range<usize>) {
    // SAFETY: a private mapping of a file, without a page of its own: reads return afterwards
    // what they returned before.
    unsafe { libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), libc::MADV_DONTNEED) };
}

/// Returns the read-only mappings of files without written pages: in these every page is the
/// file's. Relocated mappings have written pages.
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

/// Parses the first line of a mapping: addresses, rights, offset, device, inode, path.
fn mapping<'a>(addresses: &str, mut words: impl Iterator<Item = &'a str>) -> Option<Range<usize>> {
    let rights = words.next()?;
    let path = words.nth(3)?;
    let (start, end) = addresses.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    (matches!(rights, "r-xp" | "r--p") && path.starts_with('/')).then_some(range)
}

/// Returns the memory that the allocator holds.
pub fn figures() -> Memory {
    let info = in_use();
    let resident = anonymous_bytes().unwrap_or(0);
    let heap = (info.arena + info.hblkhd) as u64;
    Memory { allocated: (info.uordblks + info.hblkhd) as u64, active: heap.min(resident), resident }
}

/// Returns the memory of this process that is no page of a file, in bytes.
fn anonymous_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod test {
    use super::*;

    /// Variable that marks the process in which no other test runs.
    const ALONE: &str = "TIDEBOX_TEST_MEMORY_ALONE";

    /// Runs the test of this name in a process of its own, since others allocate, free and touch pages
    /// too. Returns `false` in that process.
    fn runs_alone(name: &str) -> bool {
        if std::env::var_os(ALONE).is_some() {
            return false;
        }
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let name = format!("memory::test::{name}");
        let output = alone.args(["--exact", &name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        assert!(output.status.success() && output.stdout.windows(8).any(|words| words == b"1 passed"), "{output:?}");
        true
    }

    #[test]
    fn the_figures_are_those_of_this_program() {
        if runs_alone("the_figures_are_those_of_this_program") {
            return;
        }
        let before = figures();
        let held = vec![1_u8; 64 << 20];
        let after = figures();
        assert!(after.allocated >= before.allocated + (60 << 20), "{before:?} {after:?}");
        assert!(after.allocated <= after.active && after.active <= after.resident, "{after:?}");
        drop(held);
    }

    #[test]
    fn what_the_start_touched_is_let_go_and_the_program_runs_on() {
        if runs_alone("what_the_start_touched_is_let_go_and_the_program_runs_on") {
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
        // A relocated table, a function of the C library, and code of this program.
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
}
