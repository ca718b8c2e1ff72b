//! Steps that the kernel refused.

use rustix::io::Errno;

/// A step that the kernel refused.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(super) step: String,
    pub(super) errno: Errno,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {}: {}", self.step, self.errno)
    }
}

/// Conversion of an error to [`Refused`], with the name of its step.
pub(crate) trait At<T> {
    /// Turns the error into [`Refused`].
    fn at(self, step: &str) -> Result<T, Refused>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: &str) -> Result<T, Refused> {
        self.map_err(|errno| Refused { step: step.to_owned(), errno })
    }
}

impl<T> At<T> for Result<T, std::io::Error> {
    fn at(self, step: &str) -> Result<T, Refused> {
        self.map_err(|error| Refused {
            step: step.to_owned(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })
    }
}
