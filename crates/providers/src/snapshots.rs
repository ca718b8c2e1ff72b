//! Refusal of snapshots where there are none.

use crate::{Error, Provider, Result, Spec};

/// Returns the error of a copy that could write nothing.
pub(crate) fn copy_is_full(taken_mb: u32, bound_mb: u32) -> Error {
    Error::Invalid(format!(
        "the sandbox's files use {taken_mb} MiB, so a copy with its `disk_mb` of {bound_mb} would have no free space; \
         take a snapshot, and spawn from the snapshot with a larger `disk_mb`"
    ))
}

/// Checks that a provider without snapshots is not asked for a box of one.
///
/// # Errors
/// [`Error::NotSupported`] if `spec` names a snapshot and the provider has none.
pub(crate) fn check_snapshot(provider: &dyn Provider, spec: &Spec) -> Result<()> {
    if spec.snapshot.is_some() && provider.snapshots().is_none() {
        return Err(Error::NotSupported(format!(
            "the provider {} has no snapshots; name another provider",
            provider.name()
        )));
    }
    Ok(())
}
