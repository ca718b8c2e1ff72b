//! Owners of sandboxes, remembered: a request with an owner's key asks for one each time, and it never changes.

use std::collections::HashMap;

use domain::{OwnerId, SandboxId};
use parking_lot::Mutex;

/// Maximum number of remembered owners, a few MiB. Beyond it all are forgotten, and read again.
const KNOWN_MAX: usize = 50_000;

/// Owners of sandboxes that were asked for.
#[derive(Debug, Default)]
pub(super) struct Owners(Mutex<HashMap<SandboxId, Option<OwnerId>>>);

impl Owners {
    pub(super) fn get(&self, id: &SandboxId) -> Option<Option<OwnerId>> {
        self.0.lock().get(id).cloned()
    }

    pub(super) fn insert(&self, id: SandboxId, owner: Option<OwnerId>) {
        let mut known = self.0.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(id, owner);
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn no_more_owners_are_remembered_than_there_may_be() {
        let owners = Owners::default();
        let id = |n: usize| {
            let mut entropy = [0; 10];
            entropy[..8].copy_from_slice(&(n as u64).to_be_bytes());
            SandboxId::from_entropy(entropy)
        };
        for n in 0..=KNOWN_MAX {
            owners.insert(id(n), None);
            assert_eq!(owners.get(&id(n)), Some(None));
        }
        assert_eq!(owners.get(&id(0)), None);
        assert_eq!(owners.0.lock().len(), 1);
    }
}
