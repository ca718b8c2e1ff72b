//! Fair sharing of places among callers.

use crate::{NoPlace, Places, Share};

/// Share of the places that all callers at one address may have together: more than one caller has,
/// since several may be behind it, but never all.
const ADDRESS: Share = Share::times_free(4);

/// Caller that work is done for, as numbers that only serve to compare callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asker {
    /// Number of the caller: of its owner, key or address.
    pub caller: u64,
    /// Number of the address that the caller connects from.
    pub address: u64,
}

impl Asker {
    /// Decides whether `asker` gets one more of `all` places. `taken` has the holder of each place
    /// that is not free; `None` is the server's own work, which is limited only by `all`.
    ///
    /// A caller may hold as many places as it leaves free. All callers at one address together may
    /// hold four times as many as they leave free, and in any case one.
    ///
    /// # Errors
    /// [`NoPlace::Queue`] if no place is free, [`NoPlace::Share`] if the caller or its address has
    /// its share.
    pub fn admit(
        asker: Option<Asker>,
        all: usize,
        taken: impl Iterator<Item = Option<Asker>> + Clone,
    ) -> Result<(), NoPlace> {
        let count = taken.clone().count();
        let free = all.saturating_sub(count);
        let Some(asker) = asker else { return if free == 0 { Err(NoPlace::Queue) } else { Ok(()) } };
        let own = taken.clone().flatten().filter(|other| other.caller == asker.caller).count();
        Places { all, of_one: None }.admit(count, own)?;
        let near = taken.flatten().filter(|other| other.address == asker.address).count();
        if ADDRESS.admits(free as u64, near as u64, 1) || near == 0 { Ok(()) } else { Err(NoPlace::Share) }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    /// Returns the number of places that callers get in total if each in turn takes all it may.
    fn filled(callers: &[(u64, u64)], all: usize) -> usize {
        let mut taken = Vec::new();
        for (caller, address) in callers {
            let asker = Some(Asker { caller: *caller, address: *address });
            while Asker::admit(asker, all, taken.iter().copied()).is_ok() {
                taken.push(asker);
            }
        }
        taken.len()
    }

    #[test]
    fn a_caller_leaves_places_to_others() {
        assert_eq!(filled(&[(1, 1)], 64), 32);
        assert_eq!(filled(&[(1, 1), (2, 2)], 64), 48);
        assert_eq!(filled(&[(1, 1)], 1), 1);
    }

    #[test]
    fn made_up_owners_of_one_address_leave_places_to_other_addresses() {
        let owners: Vec<_> = (0..100).map(|owner| (owner, 1)).collect();
        assert_eq!(filled(&owners, 64), 51);
        assert_eq!(filled(&owners, 16), 12);
    }

    #[test]
    fn the_server_itself_may_have_what_is_there() {
        let taken = vec![None; 63];
        assert_eq!(Asker::admit(None, 64, taken.iter().copied()), Ok(()));
        assert_eq!(Asker::admit(None, 63, taken.iter().copied()), Err(NoPlace::Queue));
    }
}
