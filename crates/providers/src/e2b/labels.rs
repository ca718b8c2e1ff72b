//! Labels by which the sandboxes of this server are found in an account.

/// Label of a sandbox with the id of the box that it is.
pub const ID_LABEL: &str = "tidebox.e2b.id";
/// Label of a sandbox with the store of the server that made it: [`super::E2bConfig::label`].
pub const STORE_LABEL: &str = "tidebox.e2b.store";
/// Label of a sandbox with the host of the server that made it, for whoever looks at the account.
pub const SERVER_LABEL: &str = "tidebox.e2b.server";
