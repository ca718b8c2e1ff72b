//! Size that programs of a box see.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use domain::Resources;
use guest_protocol::{CgroupDir, SizeView};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::local::cgroup::view::Views;

/// Longest description of a processor that is handed on, in bytes; with more a box sees none.
const CPUINFO_BYTES_MAX: usize = 16 * 1024;
/// Lines of `/proc/cpuinfo` that differ between processors, or tell how the host's lie together.
const NOT_COMMON: [&str; 8] =
    ["processor", "physical id", "siblings", "core id", "cpu cores", "apicid", "initial apicid", "Serial"];

/// Facts about the host that boxes see, read once, and the processor that the next box starts on.
#[derive(Debug)]
pub(super) struct SizeViews {
    cpuinfo: String,
    highest_processor: u32,
    kernel_started: u64,
    groups: Views,
    next: AtomicU32,
}

impl SizeViews {
    /// Reads the host. `groups` are those that a box sees.
    pub(super) fn read(groups: Views) -> SizeViews {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let started = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
        let possible = fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let usable = usable().into_iter().max().unwrap_or(0);
        SizeViews {
            cpuinfo: common(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()),
            highest_processor: highest(&possible).unwrap_or(usable).max(usable),
            kernel_started: started.unwrap_or(0),
            groups,
            next: AtomicU32::new(0),
        }
    }

    /// Returns what a box of this size with these control groups sees. Boxes start on the processors in turn, because those that
    /// all start on the first ones would wait for each other while the others are idle.
    pub(super) fn of(&self, resources: &Resources, groups: &[CgroupDir]) -> SizeView {
        let usable = usable();
        let first = self.next.fetch_add(resources.vcpus, Ordering::Relaxed);
        SizeView {
            memory_mb: resources.memory_mb,
            processors: chosen(&usable, first, resources.vcpus),
            highest_processor: self.highest_processor,
            cpuinfo: self.cpuinfo.clone(),
            kernel_started: self.kernel_started,
            groups: self.groups.of(groups),
        }
    }
}

/// Returns the processors that the server may use.
fn usable() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|number| set.is_set(*number)).filter_map(|number| u32::try_from(number).ok()).collect()
}

/// Returns `count` of the usable processors from the `first` on, round the end, in ascending order; all
/// of them if there are not more.
fn chosen(usable: &[u32], first: u32, count: u32) -> Vec<u32> {
    let start = first as usize % usable.len().max(1);
    let mut chosen: Vec<u32> =
        usable.iter().cycle().skip(start).take(usable.len().min(count as usize)).copied().collect();
    chosen.sort_unstable();
    chosen
}

/// Returns the lines about the first processor of `/proc/cpuinfo` that hold for each.
fn common(cpuinfo: &str) -> String {
    let first = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
    let lines = first.filter(|line| !NOT_COMMON.contains(&line.split(':').next().unwrap_or_default().trim()));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    if text.len() <= CPUINFO_BYTES_MAX { text } else { String::new() }
}

/// Returns the highest number of a list such as `0-3,8`.
fn highest(list: &str) -> Option<u32> {
    list.trim().rsplit([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn boxes_start_on_the_processors_in_turn() {
        let usable = [0, 2, 3, 7];
        let of = |first, count| chosen(&usable, first, count);
        assert_eq!([of(0, 1), of(1, 1), of(5, 1)], [[0], [2], [2]]);
        assert_eq!(of(3, 2), [0, 7]);
        assert_eq!([of(9, 4), of(1, 64)], [usable, usable]);
        assert_eq!(chosen(&[], 1, 1), Vec::<u32>::new());
    }

    #[test]
    fn what_differs_between_processors_is_not_common() {
        let text = "processor\t: 0\nmodel name\t: A: B\ncore id\t\t: 3\nflags\t\t: fpu\n\nprocessor\t: 1\n";
        assert_eq!(common(text), "model name\t: A: B\nflags\t\t: fpu\n");
        assert_eq!([highest("0-3,8\n"), highest("0\n"), highest("")], [Some(8), Some(0), None]);
    }
}
