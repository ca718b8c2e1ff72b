//! Labels by which the containers of this server are found on an Engine.

/// Label with the id of the store that a container belongs to.
pub(super) const STORE_LABEL: &str = "tidebox.store";
/// Label with the id of the sandbox.
pub(super) const SANDBOX_LABEL: &str = "tidebox.sandbox";
