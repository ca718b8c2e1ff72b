//! End of a run of code.

use api::RunOutcome;

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunEnd {
    pub outcome: RunOutcome,
    /// True if the interpreter was replaced.
    pub restarted: bool,
}

impl RunEnd {
    /// Returns the exit code of a program that ran the code.
    pub fn exit_code(self) -> u8 {
        match self.outcome {
            RunOutcome::Ok => 0,
            RunOutcome::Error | RunOutcome::Died => 1,
            RunOutcome::TimedOut => 124,
            RunOutcome::Interrupted => 130,
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_exit_code_says_how_the_code_ended() {
        for (outcome, exit) in [
            (RunOutcome::Ok, 0),
            (RunOutcome::Error, 1),
            (RunOutcome::Died, 1),
            (RunOutcome::TimedOut, 124),
            (RunOutcome::Interrupted, 130),
        ] {
            assert_eq!(RunEnd { outcome, restarted: false }.exit_code(), exit, "{outcome:?}");
        }
    }
}
