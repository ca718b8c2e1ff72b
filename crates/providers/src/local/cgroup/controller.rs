//! Controllers of the kernel's control groups.

/// Resource counted or limited by a control group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Cpu,
    Pids,
    /// Processor time that was used, which version 1 counts apart from its limit.
    CpuUsage,
    /// Stop of all processes, which version 2 has in every group.
    Freezer,
}

impl Controller {
    /// Controllers that hold a limit.
    pub(crate) const LIMITS: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];
    /// Controllers that version 1 may have separate hierarchies for.
    pub(crate) const VERSION_1: [Controller; 5] =
        [Controller::Memory, Controller::Cpu, Controller::Pids, Controller::CpuUsage, Controller::Freezer];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "pids",
            Controller::CpuUsage => "cpuacct",
            Controller::Freezer => "freezer",
        }
    }
}
