//! Labels and names by which what belongs to this server is found on an Engine.

/// Label with the id of the store that a container belongs to.
pub(super) const STORE_LABEL: &str = "tidebox.store";
/// Label with the id of the sandbox.
pub(super) const SANDBOX_LABEL: &str = "tidebox.sandbox";
/// Label of a container with the id of the snapshot that it was made of, or empty: a container has
/// the labels of its image too, which anyone may have written.
pub(super) const SNAPSHOT_LABEL: &str = "tidebox.snapshot";
/// Label of a snapshot's image with the settings of the image below it, in JSON.
pub(super) const ORIGIN_LABEL: &str = "tidebox.origin";
/// Registry in the names of snapshots' images. No host can have this name, so none of them is ever
/// pushed or pulled.
pub(super) const REGISTRY: &str = "tidebox.invalid";
