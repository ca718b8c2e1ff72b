//! Signals that stop the process.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

/// Listener for the signals by which a person or a supervisor ends a program. From its making on
/// they no longer end this process by themselves. Signals ignored already (by `nohup`, or in a
/// script's background) stay ignored.
#[derive(Debug)]
pub struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
}

impl Signals {
    pub fn listen() -> Result<Signals> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored(&status);
        Ok(Signals {
            interrupt: listen_unless_ignored(SignalKind::interrupt(), ignored)?,
            terminate: listen_unless_ignored(SignalKind::terminate(), ignored)?,
            hang_up: listen_unless_ignored(SignalKind::hangup(), ignored)?,
        })
    }

    /// Waits for the next signal and returns the exit code for it, 128 plus its number. Cancel safe.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            () = received(&mut self.interrupt) => 128 + 2,
            () = received(&mut self.terminate) => 128 + 15,
            () = received(&mut self.hang_up) => 128 + 1,
        }
    }
}

fn listen_unless_ignored(kind: SignalKind, ignored: u64) -> Result<Option<Signal>> {
    if ignored & bit(kind) != 0 {
        return Ok(None);
    }
    signal(kind).map(Some).map_err(|error| Failure::io("cannot listen for signals", &error))
}

/// Waits for the signal; never returns if it is not listened for.
async fn received(signal: &mut Option<Signal>) {
    let received = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if received.is_none() {
        std::future::pending::<()>().await;
    }
}

fn bit(kind: SignalKind) -> u64 {
    1 << (kind.as_raw_value() - 1)
}

/// Returns the ignored signals, a bit each, as the kernel lists them.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod test {
    use tokio::signal::unix::SignalKind;

    use super::{bit, ignored};

    #[test]
    fn the_kernels_list_is_read() {
        let mask = ignored("SigBlk:\t00000000000000ff\nSigIgn:\t0000000000001003\n");
        assert_eq!(mask & bit(SignalKind::hangup()), 1);
        assert_eq!(mask & bit(SignalKind::interrupt()), 2);
        assert_eq!(mask & bit(SignalKind::terminate()), 0);
        assert_eq!(ignored(""), 0);
    }
}
