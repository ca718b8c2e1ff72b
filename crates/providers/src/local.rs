//! Parts shared by the providers that make boxes on this host themselves.

pub(crate) mod agent_file;
pub(crate) mod boxes;
pub(crate) mod cgroup;
pub(crate) mod folder;
pub(crate) mod host_rootfs;
pub(crate) mod ids;
pub(crate) mod kernel;
pub(crate) mod launcher;
pub(crate) mod powers;
pub(crate) mod process;
pub(crate) mod removals;
pub(crate) mod usage;
