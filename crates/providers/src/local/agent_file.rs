//! The agent as a file that nothing can change.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::{Error, Result};

static AGENT: &[u8] = include_bytes!(env!("TIDEBOX_AGENT"));

/// The agent program, for whoever wants to run one of its other modes.
#[must_use]
pub fn agent_binary() -> &'static [u8] {
    AGENT
}

/// The agent in memory, sealed: a box executes this very file, and no power in
/// the world writes to it, not even through `/proc/<pid>/exe`.
#[derive(Debug)]
pub(crate) struct AgentFile {
    file: OwnedFd,
}

impl AgentFile {
    pub(crate) fn sealed() -> Result<AgentFile> {
        let sealed = || -> std::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = match memfd_create("tidebox-agent", flags | MemfdFlags::EXEC) {
                // Kernels before 6.3 do not know the flag, and need none.
                Err(Errno::INVAL) => memfd_create("tidebox-agent", flags)?,
                other => other?,
            };
            let mut file = std::fs::File::from(file);
            file.write_all(AGENT)?;
            fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file.into())
        };
        Ok(AgentFile { file: sealed().map_err(|source| Error::failed("seal the agent", source))? })
    }

    /// Where a child that has not closed its descriptors yet finds it.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    pub(crate) fn duplicate(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }
}
