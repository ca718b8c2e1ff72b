//! Labels by which the boxes of this server are found at the remote service.

/// Label of a remote sandbox with the id of the box that it is.
pub const ID_LABEL: &str = "tidebox.id";
/// Label of a remote sandbox with the owner of the box: [`super::CustomConfig::label`].
pub const STORE_LABEL: &str = "tidebox.store";
