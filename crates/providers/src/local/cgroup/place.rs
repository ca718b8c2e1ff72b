//! Places for the groups of boxes in version 2, where the server's own group cannot have them.
//!
//! In a terminal the server shares its group with a shell, and a group with members cannot limit
//! those below it. systemd gives it a scope; without systemd, root makes a group at the top of the
//! hierarchy.

use domain::StoreId;
use parking_lot::Mutex;

use super::controller::Controller;
use super::parent::{Parent, prepare};
use super::tree::{self, Hierarchy};
use super::{manager, remedy};

/// Only one thread looks for a place at a time, because the search may move this process.
static SEARCH: Mutex<()> = Mutex::new(());

/// Groups found for a store, and a sentence for each that cannot be used.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) parents: Vec<Parent>,
    pub(super) refused: Vec<String>,
}

impl Found {
    fn has(&self, controller: Controller) -> bool {
        self.parents.iter().any(|parent| parent.has(controller))
    }

    fn count(&self) -> usize {
        Controller::LIMITS.iter().filter(|controller| self.has(**controller)).count()
    }
}

/// Finds groups for the boxes of `store` below `parent`, or below the server's own group, or where
/// else the server may have them.
pub(super) fn find(parent: Option<&str>, store: &StoreId) -> Found {
    let _searching = SEARCH.lock();
    let own = below(tree::hierarchies(parent), store);
    let Some(top) = tree::top() else { return own };
    // What version 1 counts, version 2 cannot.
    let gains = Controller::LIMITS.iter().any(|wanted| !own.has(*wanted) && top.controllers.contains(wanted));
    if parent.is_some() || !gains {
        return own;
    }
    let mut refusal = None;
    if manager::is_running() {
        match manager::give_scope(store) {
            Ok(()) => {
                let scope = below(tree::hierarchies(None), store);
                // The server has left its former group.
                if scope.count() >= own.count() {
                    return scope;
                }
            }
            Err(error) => refusal = Some(error),
        }
    }
    if rustix::process::geteuid().is_root() {
        let at_top = below(tree::hierarchies_at(top), store);
        if at_top.count() > own.count() {
            return at_top;
        }
    }
    Found { refused: own.refused.into_iter().chain(refusal.map(|error| remedy::of_manager(&error))).collect(), ..own }
}

fn below(hierarchies: Vec<Hierarchy>, store: &StoreId) -> Found {
    let mut found = Found::default();
    for hierarchy in &hierarchies {
        match prepare(hierarchy, store) {
            Ok(parent) => found.parents.push(parent),
            Err(error) => found.refused.push(format!(
                "Control groups below {} cannot be used ({error}): {}.",
                hierarchy.base.display(),
                remedy::of_group(&error)
            )),
        }
    }
    found
}
