//! Limit on the number of concurrent imports.

use std::sync::Arc;

use domain::{Asker, NoPlace};

use crate::error::{Error, Result};
use crate::store::Store;

/// Most archives imported at once.
const IMPORTS_MAX: usize = 16;

/// Slot of a running import, released on drop.
pub(super) struct Place {
    store: Arc<Store>,
    asker: Option<Asker>,
}

impl Place {
    pub(super) fn take(store: &Arc<Store>, asker: Option<Asker>) -> Result<Place> {
        let mut imports = store.pulls.imports.lock();
        Asker::admit(asker, IMPORTS_MAX, imports.iter().copied()).map_err(|none| {
            Error::Unavailable(match none {
                NoPlace::Queue => format!("{IMPORTS_MAX} archives are being imported; try again later"),
                NoPlace::Share => format!(
                    "too many archives are being imported for this caller, which may use only its share of \
                     {IMPORTS_MAX}; wait for them, or try again later"
                ),
            })
        })?;
        imports.push(asker);
        Ok(Place { store: Arc::clone(store), asker })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut imports = self.store.pulls.imports.lock();
        if let Some(at) = imports.iter().position(|other| *other == self.asker) {
            imports.swap_remove(at);
        }
    }
}
