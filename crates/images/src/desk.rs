//! Running pulls by name: the limits on their number, and the choice of the pull that gives way
//! when another needs its slot.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::{Asker, NoPlace};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use crate::error::{Error, Result};
use crate::name::Name;

/// Most pulls at once.
pub const PULLS_MAX: usize = 64;
/// Most pulls at once of one registry: a slow one does not keep the others out.
const REGISTRY_PULLS_MAX: usize = 16;

/// Timeout for resolving the address of a registry.
const RESOLVE_WAIT: Duration = Duration::from_secs(2);

/// Registry as the limit counts it: names that resolve to one address are the same registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    registry: String,
    /// Address, with a port only on loopback, where each port is a registry of its own.
    address: Option<(IpAddr, u16)>,
}

impl Origin {
    /// Resolves the address of the registry of `name`.
    pub async fn of(name: &Name) -> Origin {
        let registry = name.registry().to_owned();
        let target = if registry.contains(':') { registry.clone() } else { format!("{registry}:443") };
        let found = tokio::time::timeout(RESOLVE_WAIT, tokio::net::lookup_host(target)).await;
        // The least address does not depend on the order of the answer.
        let address = found.ok().and_then(std::result::Result::ok).and_then(Iterator::min);
        let address = address.map(|it| (it.ip().to_canonical(), if it.ip().is_loopback() { it.port() } else { 0 }));
        Origin { registry, address }
    }

    fn is(&self, other: &Origin) -> bool {
        self.registry == other.registry || self.address.is_some() && self.address == other.address
    }
}

/// Running pulls, each with the value that its waiters watch.
#[derive(Debug)]
pub struct Desk<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    running: HashMap<String, Running<T>>,
    next: u64,
}

#[derive(Debug)]
struct Running<T> {
    /// Sequence number, which rises with each pull.
    number: u64,
    asker: Option<Asker>,
    origin: Origin,
    is_bounded: bool,
    stop: CancellationToken,
    interest: Arc<()>,
    watched: T,
}

/// Interest in a pull. While one is held, the pull does not give way.
#[derive(Debug, Clone)]
pub struct Interest {
    _held: Arc<()>,
}

/// Slot of a pull, held while its task runs.
#[derive(Debug)]
pub struct Place<T: Clone> {
    desk: Arc<Desk<T>>,
    name: String,
    number: u64,
}

impl<T: Clone> Drop for Place<T> {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        // A pull that gave way may have been started again under this name.
        if state.running.get(&self.name).is_some_and(|running| running.number == self.number) {
            state.running.remove(&self.name);
        }
    }
}

/// Request for the slot of a pull.
#[derive(Debug)]
pub struct Wanted<'a, T> {
    /// Full name of the image.
    pub name: &'a str,
    /// Caller that it counts for; `None` for the server itself.
    pub asker: Option<Asker>,
    /// Registry that is asked.
    pub origin: Origin,
    /// True if the pull counts for the limits. A new pull of an image already in the store does
    /// not.
    pub is_bounded: bool,
    /// Token that cancels it.
    pub stop: CancellationToken,
    /// Value that its waiters watch.
    pub watched: T,
}

/// Outcome of a request for a pull.
#[derive(Debug)]
pub enum Begun<T: Clone> {
    /// Running pull of the same name.
    Joined(T, Interest),
    /// Slot of a new pull, which the caller starts.
    New(Place<T>, Interest),
}

impl<T> Default for Desk<T> {
    fn default() -> Self {
        Desk { state: Mutex::new(State { running: HashMap::new(), next: 0 }) }
    }
}

impl<T: Clone> Desk<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }

    /// Joins the running pull of this name, if there is one.
    pub fn join(&self, name: &str) -> Option<(T, Interest)> {
        self.lock().join(name)
    }

    /// Returns the token that cancels the pull of this name, and the value that its waiters
    /// watch.
    pub(crate) fn find(&self, name: &str) -> Option<(CancellationToken, T)> {
        let state = self.lock();
        let running = state.running.get(name)?;
        Some((running.stop.clone(), running.watched.clone()))
    }

    /// Joins the running pull, or takes a slot for a new one. If no slot is free, a pull without
    /// waiters gives way: it is cancelled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no slot is free and no pull gives way.
    pub fn begin(self: &Arc<Self>, wanted: Wanted<'_, T>) -> Result<Begun<T>> {
        let mut state = self.lock();
        if let Some((watched, interest)) = state.join(wanted.name) {
            return Ok(Begun::Joined(watched, interest));
        }
        let Wanted { name, asker, origin, is_bounded, stop, watched } = wanted;
        if is_bounded {
            let all = "images are being pulled".to_owned();
            let own = format!("images of `{}`", origin.registry);
            state.make_place(
                REGISTRY_PULLS_MAX,
                asker,
                |other| other.origin.is(&origin),
                &format!("{own} are being pulled"),
            )?;
            state.make_place(PULLS_MAX, asker, |_| true, &all)?;
        }
        let number = state.next;
        let held = Arc::new(());
        state.next += 1;
        let interest = Interest { _held: Arc::clone(&held) };
        let running = Running { number, asker, origin, is_bounded, stop, interest: held, watched };
        state.running.insert(name.to_owned(), running);
        Ok(Begun::New(Place { desk: Arc::clone(self), name: name.to_owned(), number }, interest))
    }
}

impl<T: Clone> State<T> {
    fn join(&self, name: &str) -> Option<(T, Interest)> {
        let running = self.running.get(name)?;
        Some((running.watched.clone(), Interest { _held: Arc::clone(&running.interest) }))
    }

    /// Makes sure that one of the `all` slots for pulls that match `of` is free. Of the pulls
    /// without waiters, the oldest of the caller with the most pulls is cancelled.
    fn make_place(
        &mut self,
        all: usize,
        asker: Option<Asker>,
        of: impl Fn(&Running<T>) -> bool,
        what: &str,
    ) -> Result<()> {
        loop {
            let taken: Vec<&Running<T>> = self.running.values().filter(|other| other.is_bounded && of(other)).collect();
            let Err(none) = Asker::admit(asker, all, taken.iter().map(|other| other.asker)) else { return Ok(()) };
            let own = count_of(&taken, asker);
            let gives_way = taken
                .iter()
                .filter(|other| Arc::strong_count(&other.interest) == 1)
                // A caller that has pulls displaces none of a caller with fewer, unless both have
                // one address.
                .filter(|other| own == 0 || are_near(asker, other.asker) || count_of(&taken, other.asker) >= own)
                .max_by_key(|other| (count_of(&taken, other.asker), Reverse(other.number)))
                .map(|other| other.number);
            let Some(number) = gives_way else {
                return Err(Error::Unavailable(match none {
                    NoPlace::Queue => format!("{all} {what}; try again later"),
                    NoPlace::Share => format!(
                        "too many {what} for this caller, which may use only its share of {all}; wait for them, or try \
                         again later"
                    ),
                }));
            };
            for (name, other) in self.running.extract_if(|_, other| other.number == number) {
                tracing::info!(name, "cancelling a pull without waiters to start another");
                other.stop.cancel();
            }
        }
    }
}

/// Returns how many of the pulls are of the caller of `asker`.
fn count_of<T>(pulls: &[&Running<T>], asker: Option<Asker>) -> usize {
    pulls.iter().filter(|other| other.asker.map(|it| it.caller) == asker.map(|it| it.caller)).count()
}

fn are_near(one: Option<Asker>, other: Option<Asker>) -> bool {
    one.zip(other).is_some_and(|(one, other)| one.address == other.address)
}

#[cfg(test)]
mod test {
    use super::*;

    fn origin(registry: &str, address: Option<u8>) -> Origin {
        Origin { registry: registry.to_owned(), address: address.map(|last| (IpAddr::from([192, 0, 2, last]), 0)) }
    }

    fn asker(number: u64) -> Option<Asker> {
        Some(Asker { caller: number, address: number })
    }

    fn begin(desk: &Arc<Desk<u32>>, name: &str, asker: Option<Asker>, origin: Origin) -> Result<Begun<u32>> {
        let stop = CancellationToken::new();
        desk.begin(Wanted { name, asker, origin, is_bounded: true, stop, watched: 0 })
    }

    /// Begins pulls, each of another registry, until no slot is free.
    fn fill(desk: &Arc<Desk<u32>>, of: Option<Asker>, kind: &str) -> Vec<Begun<u32>> {
        let places =
            (0..=64u8).map_while(|n| begin(desk, &format!("{kind}{n}"), of, origin(&format!("{kind}{n}"), None)).ok());
        places.collect()
    }

    #[test]
    fn pulls_of_one_caller_leave_places_to_others() {
        let desk = Arc::default();
        let first = fill(&desk, asker(1), "a");
        assert_eq!(first.len(), 32);
        let text = begin(&desk, "x", asker(1), origin("x", None)).unwrap_err().to_string();
        assert!(text.contains("for this caller"), "{text}");
        let second = fill(&desk, asker(2), "b");
        assert_eq!(second.len(), 16);
        begin(&desk, "y", asker(3), origin("y", None)).unwrap();
    }

    #[test]
    fn a_pull_that_nothing_waits_for_gives_way() {
        let desk = Arc::default();
        let mut held = fill(&desk, None, "a");
        assert_eq!(held.len(), 64);
        let text = begin(&desk, "x", asker(1), origin("x", None)).unwrap_err().to_string();
        assert!(text.contains("64 images are being pulled"), "{text}");
        // The caller of the third pull hangs up; its task lives on.
        let Begun::New(place, interest) = held.remove(2) else { panic!() };
        let (stop, _) = desk.find("a2").unwrap();
        drop(interest);
        let kept = begin(&desk, "x", asker(1), origin("x", None)).unwrap();
        assert!(stop.is_cancelled() && desk.join("a2").is_none());
        // A pull that gave way does not release the slot of the next one of its name.
        held.remove(0);
        let again = begin(&desk, "a2", asker(2), origin("a2", None)).unwrap();
        drop(place);
        assert!(desk.join("a2").is_some());
        drop((kept, again));
        assert!(desk.join("a2").is_none() && desk.join("x").is_none());
    }

    #[test]
    fn of_the_pulls_that_nothing_waits_for_those_of_the_greediest_go_first() {
        let desk = Arc::default();
        let leave = |begun| {
            let Begun::New(place, _) = begun else { panic!() };
            place
        };
        let _honest = leave(begin(&desk, "honest", asker(1), origin("h", None)).unwrap());
        let _greedy: Vec<_> = fill(&desk, asker(2), "g").into_iter().map(leave).collect();
        let _others = fill(&desk, None, "o");
        let third: Vec<_> = (0..40)
            .map(|n| begin(&desk, &format!("t{n}"), asker(3), origin(&format!("t{n}"), None)))
            .take_while(std::result::Result::is_ok)
            .collect();
        assert!(third.len() > 1, "{}", third.len());
        assert!(desk.join("honest").is_some() && desk.join("g0").is_none());
    }

    #[test]
    fn names_of_one_address_are_one_registry() {
        let desk = Arc::default();
        let held: Vec<_> =
            (0..16).map(|n| begin(&desk, &format!("{n}"), None, origin(&format!("r{n}"), Some(1))).unwrap()).collect();
        let text = begin(&desk, "x", None, origin("other", Some(1))).unwrap_err().to_string();
        assert!(text.contains("16 images of `other`"), "{text}");
        begin(&desk, "x", None, origin("other", Some(2))).unwrap();
        begin(&desk, "x", None, origin("r", None)).unwrap();
        drop(held);
    }
}
