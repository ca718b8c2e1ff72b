//! Limits on time: lifetimes of sandboxes and deadlines of commands.

use std::time::Duration;

/// Global defaults and maxima on time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Lifetime of a sandbox whose request names none.
    pub ttl_default: Duration,
    /// Longest lifetime that a request may ask for.
    pub ttl_max: Duration,
    /// Deadline of a command whose request names none.
    pub exec_timeout_default: Duration,
    /// Longest deadline that a request may ask for.
    pub exec_timeout_max: Duration,
}

/// An explicit duration above its maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AboveMaximum {
    /// Maximum that the duration exceeds.
    pub max: Duration,
}

impl Limits {
    /// Returns the lifetime of a sandbox: the requested one, or the default. A default above the
    /// maximum is lowered to it, since the caller did not choose it.
    ///
    /// # Errors
    /// [`AboveMaximum`] for a requested value above the maximum.
    pub fn ttl(&self, requested: Option<Duration>) -> Result<Duration, AboveMaximum> {
        choose(requested, self.ttl_default, self.ttl_max)
    }

    /// Returns the deadline of a command, by the rule of [`Limits::ttl`].
    ///
    /// # Errors
    /// [`AboveMaximum`] for a requested value above the maximum.
    pub fn exec_timeout(&self, requested: Option<Duration>) -> Result<Duration, AboveMaximum> {
        choose(requested, self.exec_timeout_default, self.exec_timeout_max)
    }
}

fn choose(requested: Option<Duration>, default: Duration, max: Duration) -> Result<Duration, AboveMaximum> {
    match requested {
        None => Ok(default.min(max)),
        Some(duration) if duration <= max => Ok(duration),
        Some(_) => Err(AboveMaximum { max }),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    const LIMITS: Limits = Limits {
        ttl_default: Duration::from_secs(60),
        ttl_max: Duration::from_secs(100),
        exec_timeout_default: Duration::from_secs(50),
        exec_timeout_max: Duration::from_secs(10),
    };

    #[test]
    fn an_explicit_value_above_the_maximum_is_refused() {
        assert_eq!(LIMITS.ttl(Some(Duration::from_secs(101))), Err(AboveMaximum { max: Duration::from_secs(100) }));
        assert_eq!(LIMITS.ttl(Some(Duration::from_secs(100))), Ok(Duration::from_secs(100)));
    }

    #[test]
    fn an_omitted_value_is_lowered_to_the_maximum() {
        assert_eq!(LIMITS.ttl(None), Ok(Duration::from_secs(60)));
        assert_eq!(LIMITS.exec_timeout(None), Ok(Duration::from_secs(10)));
    }
}
