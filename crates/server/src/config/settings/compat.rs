//! Settings of the fronts for other clients.

use super::super::declare::{Nested, section};
use super::super::read::Optional;
use super::super::text::IMAGE;

section! {
    /// Fronts for clients of other services.
    pub struct Compat {
        pub e2b: CompatE2b as Nested,
    }
}

section! {
    /// Front for E2B's SDKs, on the port of the API.
    pub struct CompatE2b {
        /// True to serve E2B's SDKs under the same keys and limits as the API.
        pub enabled: bool = "true",
        /// Image of the templates `base` and `code-interpreter-v1`. Clients expect bash, Python and the account
        /// `user` in it. Unset: the default image of the provider.
        pub image: Option<String> as Optional(IMAGE),
    }
}
