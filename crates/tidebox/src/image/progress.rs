//! The progress of a pull on stderr: one line that changes on a terminal, a line for each stage
//! elsewhere, nothing with `--output json`.

use std::io::Write as _;
use std::mem::Discriminant;

use api::PullProgress;

use crate::output::{Format, Output, note, stderr_is_terminal};

/// Width of the bar, in characters.
const WIDTH: u64 = 30;

/// Progress shown at this point.
#[derive(Debug)]
pub struct Shown {
    way: Way,
    stage: Option<Discriminant<PullProgress>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Bar,
    Lines,
    Nothing,
}

impl Shown {
    /// Chooses the display by the output format and by whether stderr is a terminal.
    pub fn new(output: Output) -> Self {
        let way = match output.format {
            Format::Json => Way::Nothing,
            Format::Table if stderr_is_terminal() => Way::Bar,
            Format::Table => Way::Lines,
        };
        Self { way, stage: None }
    }

    pub fn show(&mut self, step: &PullProgress) {
        let stage = std::mem::discriminant(step);
        let is_new = self.stage.replace(stage) != Some(stage);
        match self.way {
            Way::Bar => {
                // Returns to the start of the line and erases it.
                let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K{}", line(step));
            }
            Way::Lines if is_new => note(stage_of(step)),
            Way::Lines | Way::Nothing => {}
        }
    }

    /// Erases the line that changes.
    pub fn clear(&mut self) {
        if self.way == Way::Bar && self.stage.is_some() {
            let _ = write!(std::io::stderr().lock(), "\r\u{1b}[K");
        }
    }
}

fn stage_of(step: &PullProgress) -> &'static str {
    match step {
        PullProgress::Resolving => "asking the registry",
        PullProgress::Downloading { .. } => "downloading",
        PullProgress::Unpacking { .. } => "unpacking",
        PullProgress::Done { .. } => "done",
        PullProgress::Error { .. } => "failed",
    }
}

fn line(step: &PullProgress) -> String {
    let stage = stage_of(step);
    match step {
        PullProgress::Downloading { bytes: here, bytes_total } if *bytes_total > 0 => {
            let here = here.min(bytes_total);
            let full = here.saturating_mul(WIDTH) / bytes_total;
            let bar: String = (0..WIDTH).map(|at| if at < full { '#' } else { '-' }).collect();
            format!("{stage} [{bar}] {} of {}", bytes(*here), bytes(*bytes_total))
        }
        PullProgress::Unpacking { bytes: written } => format!("{stage}, {} so far", bytes(*written)),
        PullProgress::Resolving
        | PullProgress::Downloading { .. }
        | PullProgress::Done { .. }
        | PullProgress::Error { .. } => stage.to_owned(),
    }
}

/// Formats a number of bytes for people.
pub fn bytes(count: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Tenths, so that no float rounds 1023.99 KiB up to 1024.
    let mut tenths = u128::from(count) * 10 / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < units.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        for (count, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1_048_575, "1023.9 KiB"),
            (1_048_576, "1.0 MiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(count), shown);
        }
    }

    #[test]
    fn the_bar_fills_and_never_overflows() {
        let at = |bytes, bytes_total| line(&PullProgress::Downloading { bytes, bytes_total });
        assert_eq!(at(0, 10), "downloading [------------------------------] 0 B of 10 B");
        assert_eq!(at(5, 10), "downloading [###############---------------] 5 B of 10 B");
        assert_eq!(at(99, 10), "downloading [##############################] 10 B of 10 B");
        assert_eq!(at(0, 0), "downloading");
        assert_eq!(line(&PullProgress::Unpacking { bytes: 2048 }), "unpacking, 2.0 KiB so far");
    }
}
