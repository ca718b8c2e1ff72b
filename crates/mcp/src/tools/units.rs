//! Parts that tools share.

use std::time::Duration;

use rmcp::model::ContentBlock;

use crate::failure::{Failure, Result};

/// Most seconds that a tool takes as a time.
const SECONDS_MAX: f64 = 86_400.0;

/// Returns a result of one text.
pub(super) fn text(text: impl Into<String>) -> Vec<ContentBlock> {
    vec![ContentBlock::text(text)]
}

/// Returns a time that a caller chose, as the API writes it.
pub(super) fn span(seconds: Option<f64>, unless_set: Duration) -> Result<String> {
    let seconds = match seconds {
        None => return Ok(format!("{}s", unless_set.as_secs())),
        Some(seconds) if seconds > 0.0 && seconds <= SECONDS_MAX => seconds,
        Some(_) => {
            return Err(Failure::new(format!("`timeout` must be between 0 and {SECONDS_MAX} seconds")));
        }
    };
    Ok(format!("{}ms", (seconds * 1000.0).ceil()))
}

/// Returns a time that a caller chose in minutes.
pub(super) fn minutes(minutes: u32) -> String {
    format!("{minutes}m")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn times_are_within_bounds() {
        assert_eq!(span(None, Duration::from_secs(45)).unwrap(), "45s");
        assert_eq!(span(Some(0.5), Duration::ZERO).unwrap(), "500ms");
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(span(Some(wrong), Duration::ZERO).is_err(), "{wrong}");
        }
    }
}
