//! Ceilings on the size of a sandbox.

use crate::{Quota, Resources, SizeOptions};

/// Share of the machine's memory that one sandbox may have, unless configured: the rest is for the
/// host and the server, which the kernel's OOM killer would end otherwise.
const MEMORY_SHARE: (u64, u64) = (3, 4);
/// Share of the disk that one sandbox may be promised, unless configured.
const DISK_SHARE: (u64, u64) = (1, 2);

/// The machine that boxes are made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Memory of the machine, in mebibytes.
    pub memory_mb: u64,
    /// Number of CPUs available on it.
    pub cpus: u64,
    /// Size of the disk that boxes are kept on, in mebibytes.
    pub disk_mb: u64,
}

/// Ceilings that the operator configured. `None` derives one from the machine: three quarters of
/// its memory, all its CPUs, half of its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Configured {
    /// Ceiling on memory, in mebibytes.
    pub memory_mb: Option<u32>,
    /// Ceiling on the number of virtual CPUs.
    pub vcpus: Option<u32>,
    /// Ceiling on the size of a file system, in mebibytes.
    pub disk_mb: Option<u32>,
    /// Ceiling on the number of processes and threads; `None` for the highest number that a runtime
    /// accepts.
    pub pids: Option<u32>,
}

/// Machine that a box would be made on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Site {
    /// The machine of this server.
    Here,
    /// Another machine, which applies ceilings of its own.
    Elsewhere,
}

/// Rules that give an owner its [`Ceilings`]: those configured, and those of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRules {
    configured: Configured,
    machine: Ceilings,
}

/// Largest size that one sandbox may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceilings {
    /// Largest memory limit, in mebibytes.
    pub memory_mb: u32,
    /// Largest number of virtual CPUs.
    pub vcpus: u32,
    /// Largest size limit of an own file system, in mebibytes.
    pub disk_mb: u32,
    /// Largest number of processes and threads.
    pub pids: u32,
    /// True if every sandbox gets a limit on its file system, since the ceiling was set on purpose:
    /// a sandbox without a limit would be above it.
    pub always_bounds_disk: bool,
}

/// An explicit size above its ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AboveCeiling {
    /// Field of the request.
    pub field: &'static str,
    /// Ceiling of the field, in its unit.
    pub max: u32,
}

impl SizeRules {
    /// Derives the rules from the configuration and the machine.
    #[must_use]
    pub fn new(configured: Configured, machine: Machine) -> Self {
        let machine = Ceilings {
            memory_mb: clamped(share(machine.memory_mb, MEMORY_SHARE), Resources::MEMORY_MB),
            vcpus: clamped(machine.cpus, Resources::VCPUS),
            disk_mb: clamped(share(machine.disk_mb, DISK_SHARE), (1, Resources::DISK_MB.1)),
            pids: Resources::PIDS.1,
            always_bounds_disk: false,
        };
        Self { configured, machine }
    }

    /// Returns the ceilings of an owner with `quota` for a box at `site`. A quota overrides the
    /// configuration in both directions, up to the ceiling of the machine or, if it is higher, the
    /// configured one. For another machine, a figure is bounded only by [`Resources::MEMORY_MB`],
    /// [`Resources::VCPUS`] and [`Resources::DISK_MB`].
    #[must_use]
    pub fn of(&self, quota: &Quota, site: Site) -> Ceilings {
        let Self { configured, machine } = self;
        Ceilings {
            memory_mb: site.ceiling(
                quota.max_memory_mb,
                configured.memory_mb,
                machine.memory_mb,
                Resources::MEMORY_MB.1,
            ),
            vcpus: site.ceiling(quota.max_vcpus, configured.vcpus, machine.vcpus, Resources::VCPUS.1),
            disk_mb: site.ceiling(quota.max_disk_mb, configured.disk_mb, machine.disk_mb, Resources::DISK_MB.1),
            pids: site.ceiling(0, configured.pids, machine.pids, Resources::PIDS.1),
            always_bounds_disk: quota.max_disk_mb != 0 || configured.disk_mb.is_some(),
        }
    }
}

impl Site {
    /// Returns the ceiling on one figure, from that of a quota (0 for none), the configured one,
    /// that of this machine, and the highest that any runtime accepts.
    fn ceiling(self, quota: u32, configured: Option<u32>, machine: u32, most: u32) -> u32 {
        let top = match self {
            Site::Here => machine.max(configured.unwrap_or(0)),
            Site::Elsewhere => most,
        };
        let chosen = if quota == 0 { configured } else { Some(quota) };
        match (chosen, self) {
            (Some(chosen), _) => chosen.min(top),
            (None, Site::Here) => machine,
            (None, Site::Elsewhere) => most,
        }
    }
}

fn share(all: u64, (part, of): (u64, u64)) -> u64 {
    all.saturating_mul(part) / of
}

fn clamped(value: u64, (min, max): (u32, u32)) -> u32 {
    u32::try_from(value).unwrap_or(max).clamp(min, max)
}

impl Ceilings {
    /// Returns the size of a sandbox. Fields that `asked` leaves out are taken from `default`,
    /// lowered to the ceiling: the caller did not choose them. A limit on the file system that is
    /// left out is the ceiling itself if `default` has none and [`Ceilings::always_bounds_disk`].
    ///
    /// # Errors
    /// [`AboveCeiling`] names the first field whose explicit value is above its ceiling; a
    /// `disk_mb` of 0, no limit, is above it with [`Ceilings::always_bounds_disk`].
    pub fn size(&self, asked: SizeOptions, default: Resources) -> Result<Resources, AboveCeiling> {
        let memory_mb = figure("memory_mb", asked.memory_mb, default.memory_mb, self.memory_mb)?;
        let vcpus = figure("vcpus", asked.vcpus, default.vcpus, self.vcpus)?;
        let pids = figure("pids", asked.pids, default.pids, self.pids)?;
        let disk_mb = figure("disk_mb", asked.disk_mb, default.disk_mb, self.disk_mb)?;
        let disk_mb = match (asked.disk_mb, disk_mb) {
            // No limit is more than any limit.
            (Some(0), _) if self.always_bounds_disk => {
                return Err(AboveCeiling { field: "disk_mb", max: self.disk_mb });
            }
            (None, 0) if self.always_bounds_disk => self.disk_mb,
            (_, disk_mb) => disk_mb,
        };
        Ok(Resources { memory_mb, vcpus, disk_mb, pids })
    }

    /// Returns whether the figures of `size` are within the ceilings. A `disk_mb` of 0 always is.
    #[must_use]
    pub fn allow(&self, size: &Resources) -> bool {
        size.memory_mb <= self.memory_mb
            && size.vcpus <= self.vcpus
            && size.disk_mb <= self.disk_mb
            && size.pids <= self.pids
    }
}

/// Returns an explicit value, which may not be above `max`, or else the default, lowered to `max`.
fn figure(field: &'static str, asked: Option<u32>, default: u32, max: u32) -> Result<u32, AboveCeiling> {
    match asked {
        None => Ok(default.min(max)),
        Some(value) if value <= max => Ok(value),
        Some(_) => Err(AboveCeiling { field, max }),
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    const MACHINE: Machine = Machine { memory_mb: 8_000, cpus: 4, disk_mb: 100_000 };
    const DEFAULT: Resources = Resources { memory_mb: 512, vcpus: 1, disk_mb: 0, pids: 256 };

    fn rules(memory_mb: Option<u32>, disk_mb: Option<u32>) -> SizeRules {
        SizeRules::new(Configured { memory_mb, vcpus: None, disk_mb, pids: None }, MACHINE)
    }

    fn asked(memory_mb: Option<u32>, vcpus: Option<u32>, disk_mb: Option<u32>) -> SizeOptions {
        SizeOptions { memory_mb, vcpus, disk_mb, pids: None }
    }

    #[test]
    fn the_number_of_processes_has_a_ceiling() {
        let rules = SizeRules::new(Configured { pids: Some(1000), ..Configured::default() }, MACHINE);
        let own = rules.of(&Quota::default(), Site::Here);
        let asked = |pids| own.size(SizeOptions { pids, ..SizeOptions::default() }, DEFAULT).map(|size| size.pids);
        assert_eq!([asked(None), asked(Some(1000)), asked(Some(8))], [Ok(256), Ok(1000), Ok(8)]);
        assert_eq!(asked(Some(1001)), Err(AboveCeiling { field: "pids", max: 1000 }));
    }

    #[test]
    fn what_nothing_sets_is_what_the_machine_has() {
        let own = rules(None, None).of(&Quota::default(), Site::Here);
        assert_eq!((own.memory_mb, own.vcpus, own.disk_mb, own.always_bounds_disk), (6_000, 4, 50_000, false));
        let far = rules(None, None).of(&Quota::default(), Site::Elsewhere);
        assert_eq!((far.memory_mb, far.vcpus, far.disk_mb), (16_777_216, 1024, 16_777_216));
        let none = SizeRules::new(Configured::default(), Machine { memory_mb: 0, cpus: 0, disk_mb: 0 });
        let none = none.of(&Quota::default(), Site::Here);
        assert_eq!((none.memory_mb, none.vcpus, none.disk_mb), (16, 1, 1), "the smallest box is always one");
        let huge = Machine { memory_mb: u64::MAX, cpus: u64::MAX, disk_mb: u64::MAX };
        assert_eq!(SizeRules::new(Configured::default(), huge).of(&Quota::default(), Site::Here).vcpus, 1024);
    }

    #[test]
    fn a_quota_overrides_in_both_directions_up_to_what_the_machine_has() {
        let quota = |max_memory_mb| Quota { max_memory_mb, ..Quota::default() };
        let memory = |configured, own, site| rules(configured, None).of(&quota(own), site).memory_mb;
        for (configured, own, expected) in [
            (Some(1_000), 0, 1_000),
            (Some(1_000), 100, 100),
            (Some(1_000), 2_000, 2_000),
            (Some(1_000), 16_777_216, 6_000),
            (Some(9_000), 16_777_216, 9_000),
            (None, 16_777_216, 6_000),
            (None, 100, 100),
        ] {
            assert_eq!(memory(configured, own, Site::Here), expected, "{configured:?} {own}");
        }
        assert_eq!(memory(Some(9_000), 0, Site::Here), 9_000, "the operator may promise more than there is");
        assert_eq!(memory(Some(1_000), 20_000, Site::Elsewhere), 20_000);
        assert_eq!(memory(Some(1_000), 0, Site::Elsewhere), 1_000);
    }

    #[test]
    fn an_explicit_size_above_the_ceiling_is_refused_and_the_field_is_named() {
        let own = rules(None, None).of(&Quota::default(), Site::Here);
        let refused = |asked| own.size(asked, DEFAULT).unwrap_err();
        assert_eq!(refused(asked(Some(6_001), None, None)), AboveCeiling { field: "memory_mb", max: 6_000 });
        assert_eq!(refused(asked(None, Some(5), None)), AboveCeiling { field: "vcpus", max: 4 });
        assert_eq!(refused(asked(None, None, Some(50_001))), AboveCeiling { field: "disk_mb", max: 50_000 });
        let most = own.size(asked(Some(6_000), Some(4), Some(50_000)), DEFAULT).unwrap();
        assert_eq!((most.memory_mb, most.vcpus, most.disk_mb), (6_000, 4, 50_000));
    }

    #[test]
    fn a_size_that_is_left_out_is_lowered_to_the_ceiling() {
        let own = rules(Some(100), None).of(&Quota::default(), Site::Here);
        assert_eq!(own.size(SizeOptions::default(), DEFAULT), Ok(Resources { memory_mb: 100, ..DEFAULT }));
    }

    #[test]
    fn a_ceiling_on_the_disk_that_was_set_bounds_every_sandbox() {
        let own = rules(None, Some(200)).of(&Quota::default(), Site::Here);
        assert_eq!(own.size(SizeOptions::default(), DEFAULT).unwrap().disk_mb, 200);
        let unbounded = own.size(asked(None, None, Some(0)), DEFAULT);
        assert_eq!(unbounded, Err(AboveCeiling { field: "disk_mb", max: 200 }));
        let machine = rules(None, None).of(&Quota::default(), Site::Here);
        assert_eq!(machine.size(SizeOptions::default(), DEFAULT).unwrap().disk_mb, 0);
        assert_eq!(machine.size(asked(None, None, Some(0)), DEFAULT).unwrap().disk_mb, 0);
    }

    proptest! {
        #[test]
        fn no_size_is_above_its_ceiling(
            set in prop::option::of(16..16_777_216u32), own in prop_oneof![Just(0), 16..16_777_216u32],
            memory_mb in prop::option::of(16..16_777_216u32), disk_mb in prop::option::of(0..16_777_216u32),
            here: bool,
        ) {
            let quota = Quota { max_memory_mb: own, max_disk_mb: own, ..Quota::default() };
            let site = if here { Site::Here } else { Site::Elsewhere };
            let ceilings = rules(set, set).of(&quota, site);
            if let Ok(size) = ceilings.size(asked(memory_mb, None, disk_mb), DEFAULT) {
                prop_assert!(ceilings.allow(&size));
                prop_assert!(size.disk_mb > 0 || !ceilings.always_bounds_disk);
                prop_assert!(memory_mb.is_none_or(|asked| asked == size.memory_mb));
            }
        }
    }
}
