//! Refusal of snapshots where there are none.

use crate::{Error, Provider, Result, Spec};

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
