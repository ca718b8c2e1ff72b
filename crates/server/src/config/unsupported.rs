//! Keys that the service will have and this version has not.
//!
//! They are told apart from misspelt ones because ignoring them is dangerous:
//! an operator who sets one counts on what it does.

/// Sections and keys; everything below a section belongs to it.
const UNSUPPORTED: &[&str] = &[
    "auth",
    "rate_limit",
    "pool",
    "warm_pool",
    "workers",
    "events",
    "server.tls",
    "server.unix_socket",
    "server.cors_allowed_origins",
    "server.trusted_proxies",
    "server.path_proxy",
    "defaults.spawn_overflow",
    "defaults.spawn_queue_timeout",
    "defaults.max_spawn_queue",
    "providers.docker",
    "providers.firecracker",
    "providers.proot",
    "providers.custom",
    "providers.e2b",
];

/// What is said about such a key.
pub(super) const MESSAGE: &str = "is not supported by this version of Tidebox; remove it";

/// Whether the dotted `name` is one of them, or lies below one.
pub(super) fn is_unsupported(name: &str) -> bool {
    UNSUPPORTED
        .iter()
        .any(|known| name.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// The dotted name behind a variable's name without its prefix, if it is one of
/// them: `AUTH_ENABLED` is `auth.enabled`.
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
        assert!(is_unsupported("auth"));
        assert!(is_unsupported("auth.worker_tokens.w1"));
        assert!(is_unsupported("server.tls.cert_file"));
        assert!(!is_unsupported("author"));
        assert!(!is_unsupported("server.port"));
    }

    #[test]
    fn a_variable_is_known_by_its_section() {
        assert_eq!(from_variable("AUTH_ENABLED"), Some("auth.enabled".to_owned()));
        assert_eq!(from_variable("POOL"), Some("pool".to_owned()));
        assert_eq!(from_variable("AUTHOR"), None);
    }
}
