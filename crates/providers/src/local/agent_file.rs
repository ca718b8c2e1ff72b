//! Agent program as a sealed file.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use flate2::read::GzDecoder;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::{Error, Result};

static PACKED: &[u8] = include_bytes!(env!("TIDEBOX_AGENT"));

/// Returns the agent program, for callers that run one of its other modes. Each call unpacks it
/// anew, which takes some milliseconds: it is rarely asked for, and large.
///
/// # Panics
/// If the program was changed after it was built.
#[must_use]
pub fn agent_program() -> Vec<u8> {
    let mut program = Vec::new();
    GzDecoder::new(PACKED).read_to_end(&mut program).expect("the build has packed the agent");
    program
}

/// Returns a text that differs between two agent programs: 16 hexadecimal digits.
pub(crate) fn agent_version() -> String {
    Sha256::digest(PACKED).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// Agent in memory, sealed: a box executes this very file, and even root cannot write to it, not
/// through `/proc/<pid>/exe` either.
#[derive(Debug, Clone)]
pub(crate) struct AgentFile {
    file: Arc<OwnedFd>,
    /// True if the file's owner cannot remove its executable mode.
    stays_executable: bool,
}

impl AgentFile {
    pub(crate) fn sealed() -> Result<AgentFile> {
        Self::make(&agent_program(), true).map_err(|source| Error::failed("seal the agent", source))
    }

    fn make(program: &[u8], kernel_seals_mode: bool) -> io::Result<AgentFile> {
        const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = match memfd_create("tidebox-agent", flags | MemfdFlags::EXEC) {
            // Kernels before 6.3 do not know the flag, and need none.
            Err(Errno::INVAL) => memfd_create("tidebox-agent", flags)?,
            other => other?,
        };
        let mut file = std::fs::File::from(file);
        file.write_all(program)?;
        let mut stays_executable = kernel_seals_mode;
        if kernel_seals_mode {
            match fcntl_add_seals(&file, SealFlags::EXEC) {
                // Kernels before 6.3 do not know the seal either.
                Err(Errno::INVAL) => stays_executable = false,
                added => added?,
            }
        }
        fcntl_add_seals(&file, SEALS | SealFlags::SEAL)?;
        Ok(AgentFile { file: Arc::new(file.into()), stays_executable })
    }

    /// Returns the file for one more box: the same one, unless a box could change its mode. That
    /// is so where the kernel cannot seal the mode and boxes run as the server's user.
    pub(crate) fn for_a_box(&self) -> io::Result<AgentFile> {
        if self.stays_executable || rustix::process::geteuid().is_root() {
            return Ok(AgentFile { file: Arc::clone(&self.file), stays_executable: self.stays_executable });
        }
        Self::make(&std::fs::read(self.path())?, false)
    }

    /// Returns the path at which a child that has not closed its descriptors yet finds the file.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    pub(crate) fn duplicate(&self) -> std::io::Result<OwnedFd> {
        self.file.try_clone()
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::AsFd;

    use rustix::fs::{Mode, fchmod, fstat};

    use super::*;

    fn mode(agent: &AgentFile) -> u32 {
        fstat(agent.file.as_fd()).unwrap().st_mode & 0o777
    }

    #[test]
    fn what_one_box_does_to_its_agent_is_not_done_to_that_of_the_next() {
        for agent in [AgentFile::sealed().unwrap(), AgentFile::make(&agent_program(), false).unwrap()] {
            let sealed = agent.stays_executable;
            let first = agent.for_a_box().unwrap();
            let refused = fchmod(first.file.as_fd(), Mode::empty()).is_err();
            assert_eq!(refused, sealed);
            if sealed || !rustix::process::geteuid().is_root() {
                assert_eq!(mode(&agent.for_a_box().unwrap()) & 0o111, 0o111);
            }
        }
    }
}
