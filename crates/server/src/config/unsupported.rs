//! Keys of the specification that this version does not support.
//!
//! They are distinguished from misspelt ones because ignoring them is dangerous: an operator who
//! sets one relies on its effect.

/// Sections and keys; everything below a section belongs to it.
const UNSUPPORTED: &[&str] = &["events"];

/// Fault message for such a key.
pub(super) const MESSAGE: &str = "is not supported by this version of Tidebox; remove it";

/// Returns whether the dotted `name` is one of them, or lies below one.
pub(super) fn is_unsupported(name: &str) -> bool {
    UNSUPPORTED
        .iter()
        .any(|known| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// Returns the dotted name behind a variable's name without its prefix, if it is one of them:
/// `AUTH_ENABLED` is `auth.enabled`.
pub(super) fn from_variable(name: &str) -> Option<String> {
    UNSUPPORTED.iter().find_map(|known| {
        let rest = name.strip_prefix(&known.to_uppercase().replace('.', "_"))?;
        match rest.strip_prefix('_') {
            Some(rest) => Some(format!("{known}.{}", rest.to_lowercase())),
            None => rest.is_empty().then(|| (*known).to_owned()),
        }
    })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_name_below_an_unsupported_section_is_unsupported() {
        assert!(is_unsupported("events"));
        assert!(is_unsupported("events.size"));
        assert!(!is_unsupported("eventss"));
        assert!(!is_unsupported("server.port"));
    }

    #[test]
    fn a_variable_is_known_by_its_section() {
        assert_eq!(from_variable("EVENTS_SIZE"), Some("events.size".to_owned()));
        assert_eq!(from_variable("EVENTS"), Some("events".to_owned()));
        assert_eq!(from_variable("EVENTSS"), None);
    }
}
