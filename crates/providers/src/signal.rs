//! Signals by name.

/// Names in the order of their numbers on Linux, from 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// Words for the signals up to `TERM`, by number, as Go's `syscall.Signal` writes them: E2B's API has these.
const WORDS: [&str; 15] = [
    "hangup",
    "interrupt",
    "quit",
    "illegal instruction",
    "trace/breakpoint trap",
    "aborted",
    "bus error",
    "floating point exception",
    "killed",
    "user defined signal 1",
    "segmentation fault",
    "user defined signal 2",
    "broken pipe",
    "alarm clock",
    "terminated",
];

/// A signal of Linux, except the real-time signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// Returns the signal with this name in upper case, such as `TERM` or `SIGTERM`; `None` if
    /// there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Signal> {
        let name = name.strip_prefix("SIG").unwrap_or(name);
        let at = NAMES.iter().position(|known| *known == name)?;
        u8::try_from(at + 1).ok().map(Signal)
    }

    /// Returns the signal with this number on Linux; `None` if there is none, and for real-time signals.
    #[must_use]
    pub fn numbered(number: i32) -> Option<Signal> {
        u8::try_from(number).ok().filter(|number| (1..=NAMES.len()).contains(&usize::from(*number))).map(Signal)
    }

    /// Returns the signal's number on Linux.
    #[must_use]
    pub fn number(self) -> i32 {
        i32::from(self.0)
    }

    /// Returns the name without `SIG`, such as `TERM`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.get(usize::from(self.0) - 1).copied().unwrap_or_default()
    }

    /// Returns the words for the signal, such as `killed`; `signal 31` for one without.
    #[must_use]
    pub fn words(self) -> String {
        WORDS.get(usize::from(self.0) - 1).map_or_else(|| format!("signal {}", self.0), |words| (*words).to_owned())
    }

    /// Returns the signal that these words stand for; `None` if there is none.
    #[must_use]
    pub fn of_words(words: &str) -> Option<Signal> {
        let numbered = words.strip_prefix("signal ").and_then(|number| number.parse().ok());
        let worded = || WORDS.iter().position(|known| *known == words).and_then(|at| i32::try_from(at + 1).ok());
        numbered.or_else(worded).and_then(Signal::numbered)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn words_lead_back_to_their_signal() {
        for number in 1..=31 {
            let signal = Signal::numbered(number).unwrap();
            assert_eq!(Signal::of_words(&signal.words()), Some(signal));
        }
        for (number, words) in [(1, "hangup"), (9, "killed"), (15, "terminated"), (16, "signal 16"), (31, "signal 31")]
        {
            assert_eq!(Signal::numbered(number).unwrap().words(), words);
        }
        for nothing in ["", "Killed", "signal", "signal 0", "signal x", "signal 32"] {
            assert_eq!(Signal::of_words(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn signals_have_the_numbers_of_linux() {
        for (name, number) in [("SIGHUP", 1), ("INT", 2), ("SIGKILL", 9), ("TERM", 15), ("SIGWINCH", 28), ("SYS", 31)] {
            let signal = Signal::named(name).unwrap();
            assert_eq!(signal.number(), number, "{name}");
            assert_eq!(signal.name(), name.trim_start_matches("SIG"));
            assert_eq!(Signal::numbered(number), Some(signal));
        }
        for nothing in [i32::MIN, -1, 0, 32, 64, 265] {
            assert_eq!(Signal::numbered(nothing), None, "{nothing}");
        }
        for nothing in ["", "SIG", "SIGSIGINT", "sigint", "9", "SIGRTMIN", " INT", "INT\0"] {
            assert_eq!(Signal::named(nothing), None, "{nothing:?}");
        }
    }
}
