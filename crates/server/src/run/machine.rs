//! Size of the machine that boxes are made on, at the start.

use std::num::NonZero;
use std::path::Path;

use domain::Machine;

/// Files with the bound on a container's own memory, in either version of control groups. On a
/// host these are absent, or above all memory.
const MEMORY_BOUNDS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// Measures the machine; the disk is that of `data_dir`.
pub(super) fn measure(data_dir: &Path) -> Machine {
    let system = rustix::system::sysinfo();
    let all = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    let bounds = MEMORY_BOUNDS.iter().filter_map(|path| bound(&std::fs::read_to_string(path).ok()?));
    let memory = bounds.fold(all, u64::min);
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
    // A disk that cannot be measured has no size to derive a bound from.
    let disk = rustix::fs::statvfs(data_dir).map_or(u64::MAX, |stat| stat.f_blocks.saturating_mul(stat.f_frsize));
    Machine { memory_mb: memory >> 20, cpus: cpus as u64, disk_mb: disk >> 20 }
}

/// Parses a bound in bytes; `max` is `None`.
fn bound(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_bound_of_a_container_is_read_and_max_is_none() {
        assert_eq!(bound("1073741824\n"), Some(1 << 30));
        assert_eq!(bound("max\n"), None);
    }

    #[test]
    fn a_machine_has_memory_a_processor_and_a_disk() {
        let machine = measure(Path::new("/"));
        assert!(machine.memory_mb > 64 && machine.cpus > 0 && machine.disk_mb > 0, "{machine:?}");
    }
}
