//! Errors with their causes, for the log.

use std::error::Error;
use std::fmt;

/// An error and all its causes, displayed as `error: cause: cause of the cause`. A cause whose text
/// the one before already contains is left out.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            source = cause.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Link(&'static str, #[source] Option<Box<Link>>);

    #[test]
    fn every_cause_is_told_and_none_twice() {
        let chain = |texts: &[&'static str]| {
            let link = texts.iter().rev().fold(None, |cause, text| Some(Box::new(Link(text, cause)))).unwrap();
            Chain(link.as_ref()).to_string()
        };
        assert_eq!(chain(&["cannot start"]), "cannot start");
        assert_eq!(
            chain(&["cannot start", "the store failed", "disk full"]),
            "cannot start: the store failed: disk full"
        );
        assert_eq!(chain(&["cannot read: disk full; make room", "disk full"]), "cannot read: disk full; make room");
        assert_eq!(chain(&["cannot read: disk full", "disk full", "EIO"]), "cannot read: disk full: EIO");
    }
}
