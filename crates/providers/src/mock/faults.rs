//! Faults and delays that the labels of a box request.

use std::time::Duration;

use domain::{Metadata, parse_duration};

use crate::{Error, Result};

/// Faults and delays of one box.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    pub(super) start_delay: Option<Duration>,
    pub(super) start_fail: u32,
    pub(super) lose_reply: u32,
    pub(super) stop_delay: Option<Duration>,
    pub(super) stop_fail: u32,
    pub(super) exec_delay: Option<Duration>,
    pub(super) exec_fail: u32,
    pub(super) file_delay: Option<Duration>,
    pub(super) snapshot_delay: Option<Duration>,
    pub(super) snapshot_fail: u32,
    pub(super) vanish_after: Option<Duration>,
    pub(super) die_after: Option<Duration>,
    pub(super) health: Option<String>,
}

impl Faults {
    /// Parses the labels that begin with `mock.`.
    pub(super) fn parse(metadata: &Metadata) -> Result<Faults> {
        let mut faults = Faults::default();
        for (key, value) in metadata {
            let Some(name) = key.strip_prefix("mock.") else { continue };
            match name {
                "start_delay" => faults.start_delay = Some(duration(key, value)?),
                "start_fail" => faults.start_fail = count(key, value)?,
                "lose_reply" => faults.lose_reply = count(key, value)?,
                "stop_delay" => faults.stop_delay = Some(duration(key, value)?),
                "stop_fail" => faults.stop_fail = count(key, value)?,
                "exec_delay" => faults.exec_delay = Some(duration(key, value)?),
                "exec_fail" => faults.exec_fail = count(key, value)?,
                "file_delay" => faults.file_delay = Some(duration(key, value)?),
                "snapshot_delay" => faults.snapshot_delay = Some(duration(key, value)?),
                "snapshot_fail" => faults.snapshot_fail = count(key, value)?,
                "vanish_after" => faults.vanish_after = Some(duration(key, value)?),
                "die_after" => faults.die_after = Some(duration(key, value)?),
                "health" => faults.health = Some(value.clone()),
                _ => return Err(Error::Invalid(format!("mock has no label {key}"))),
            }
        }
        Ok(faults)
    }
}

fn duration(key: &str, value: &str) -> Result<Duration> {
    parse_duration(value).map_err(|error| Error::Invalid(format!("the label {key} {error}")))
}

fn count(key: &str, value: &str) -> Result<u32> {
    value.parse().map_err(|_| Error::Invalid(format!("the label {key} is not a count; write a number such as 1")))
}

#[cfg(test)]
mod test {
    use super::*;

    fn parse(key: &str, value: &str) -> Result<Faults> {
        Faults::parse(&Metadata::from([(key.to_owned(), value.to_owned())]))
    }

    #[test]
    fn labels_of_others_are_left_alone() {
        assert!(parse("team", "mock").is_ok());
    }

    #[test]
    fn a_label_that_makes_no_sense_is_named() {
        for (key, value) in [("mock.start_dealy", "1s"), ("mock.start_delay", "soon"), ("mock.stop_fail", "-1")] {
            let Err(Error::Invalid(message)) = parse(key, value) else { panic!("{key}={value}") };
            assert!(message.contains(key), "{message}");
        }
        assert_eq!(parse("mock.stop_fail", "2").unwrap().stop_fail, 2);
    }
}
