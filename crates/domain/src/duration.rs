//! Durations in the API's notation: Go's `time.Duration`.
//!
//! Source: <https://pkg.go.dev/time#ParseDuration>, narrowed to the units that the specification
//! names (`ms`, `s`, `m`, `h`) and to non-negative values.

use std::time::Duration;

/// Longest accepted duration: 100 years, so that no sum of a timestamp and a duration can overflow.
const MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The rule that the text of a duration breaks. Each message describes a valid one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text does not follow the notation.
    #[error("is not a duration; write numbers with units ms, s, m or h, such as 30s or 1h30m")]
    Malformed,
    /// The duration is negative.
    #[error("is negative; durations cannot be negative")]
    Negative,
    /// The duration is longer than 100 years.
    #[error("is too long; the longest duration is 876000h")]
    TooLong,
}

/// Reads a duration, such as `90s`, `1h30m`, `1.5s`, `250ms`, or a bare `0`: from zero to 876000h
/// (100 years), with the units `h`, `m`, `s` and `ms`. Fractions of a nanosecond are dropped.
///
/// # Errors
/// [`DurationError`] names the broken rule; it does not repeat `text`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    use DurationError::{Malformed, Negative, TooLong};
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = match text.strip_prefix('-') {
        Some(magnitude) => return parse_duration(magnitude).and(Err(Negative)),
        None => text,
    };
    if rest.is_empty() {
        return Err(Malformed);
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, next) = split(after, |c| c.is_ascii_alphabetic());
        let unit_ns: u128 = match unit {
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(Malformed),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(Malformed);
        }
        total = nanoseconds(whole, fraction, unit_ns).and_then(|ns| total.checked_add(ns)).ok_or(TooLong)?;
        rest = next;
    }
    match u64::try_from(total).map(Duration::from_nanos) {
        Ok(duration) if duration <= MAX => Ok(duration),
        _ => Err(TooLong),
    }
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// Returns `whole.fraction` times `unit_ns`; digits below a nanosecond are dropped. `None` on
/// overflow.
fn nanoseconds(whole: &str, fraction: &str, unit_ns: u128) -> Option<u128> {
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut total = whole.checked_mul(unit_ns)?;
    let mut scale = unit_ns;
    for digit in fraction.bytes() {
        scale /= 10;
        total = total.checked_add(u128::from(digit - b'0') * scale)?;
    }
    Some(total)
}

/// Writes a duration in Go's form: `1h30m0s`, `1m0s`, `45s`, `1.5s`, `250ms`, `0s`. Below a
/// millisecond it is a fraction of one, since [`parse_duration`] and the specification know no
/// smaller unit.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    if seconds == 0 {
        return match nanos {
            0 => "0s".to_owned(),
            _ => format!("{}ms", decimal(u64::from(nanos / 1_000_000), nanos % 1_000_000, 6)),
        };
    }
    let tail = format!("{}s", decimal(seconds % 60, nanos, 9));
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => tail,
        (0, minutes) => format!("{minutes}m{tail}"),
        (hours, minutes) => format!("{hours}h{minutes}m{tail}"),
    }
}

fn decimal(whole: u64, fraction: u32, digits: usize) -> String {
    if fraction == 0 {
        return whole.to_string();
    }
    let fraction = format!("{fraction:0digits$}");
    format!("{whole}.{}", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&str, DurationError>) {
        assert_eq!(parse_duration(text).map(format_duration), expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn durations_come_back_in_the_form_of_go() {
        check("1h30m", Ok("1h30m0s"));
        check("90s", Ok("1m30s"));
        check("60s", Ok("1m0s"));
        check("1500ms", Ok("1.5s"));
        check("0.25s", Ok("250ms"));
        check(".5m", Ok("30s"));
        check("0s", Ok("0s"));
        check("0", Ok("0s"));
        check("24h", Ok("24h0m0s"));
        check("1h1ms", Ok("1h0m0.001s"));
    }

    #[test]
    fn what_is_no_duration_is_told_why() {
        use DurationError::{Malformed, Negative, TooLong};
        for text in
            ["", "5", "m", "5x", "5m3", "1..5s", "1.5.5s", ".s", " 5s", "5s ", "NaNs", "5S", "1e3s", "+5s", "٣s"]
        {
            check(text, Err(Malformed));
        }
        check("-5s", Err(Negative));
        check("-x", Err(Malformed));
        check("876001h", Err(TooLong));
        check("99999999999999999999999999999999999999999h", Err(TooLong));
    }

    proptest! {
        #[test]
        fn every_duration_survives_a_round_trip(ms in 0u64..3_000_000_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in "\\PC{0,40}") {
            let _ = parse_duration(&text);
        }
    }
}
