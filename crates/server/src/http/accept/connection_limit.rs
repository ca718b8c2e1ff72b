//! Limits on the number of connections, in all and per address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::idle::{Idle, Turn};
use crate::http::peer::caller;

/// Divisor of the limit: one address may take this fraction of all places.
const SHARE_OF_ONE: usize = 4;

/// Returns `wanted`, but at most half of the descriptor limit: the rest is for everything else.
pub(super) fn bounded_by_descriptors(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (limit / 2).clamp(1, wanted)
}

/// Longest idle time of a connection while more than half of the places are taken.
const CROWDED_WAIT_MAX: Duration = Duration::from_secs(10);

/// Connection limit of a listener.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    free: Arc<Semaphore>,
    each_max: usize,
    taken: Taken,
    idle: Idle,
}

/// Number of connections of each address.
type Taken = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// Connection counted for its address until dropped. Empty if the address is not limited.
#[derive(Debug)]
pub(super) struct Share(Option<(IpAddr, Taken)>);

/// Place of one connection, released on drop.
#[derive(Debug)]
pub(super) struct Place {
    turn: Turn,
    _share: Share,
    permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        let each_max = (max / SHARE_OF_ONE).max(1);
        Self { max, free: Arc::new(Semaphore::new(max)), each_max, taken: Arc::default(), idle: Idle::default() }
    }

    /// Counts a connection for `bounded`; `None` is not limited. Returns `None` if the address
    /// has its full share.
    pub(super) fn share(&self, bounded: Option<IpAddr>) -> Option<Share> {
        let Some(address) = bounded.map(caller) else { return Some(Share(None)) };
        let mut taken = self.taken.lock();
        let count = taken.entry(address).or_insert(0);
        if *count >= self.each_max {
            return None;
        }
        *count += 1;
        Some(Share(Some((address, Arc::clone(&self.taken)))))
    }

    /// Waits for a place. While there is none, the connection that has been idle for longest is
    /// asked to leave.
    pub(super) async fn free(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
                return permit;
            }
            self.idle.ask_longest();
            tokio::select! {
                permit = Arc::clone(&self.free).acquire_owned() => match permit {
                    Ok(permit) => return permit,
                    // The semaphore is never closed.
                    Err(_) => std::future::pending().await,
                },
                () = self.idle.changed() => {}
            }
        }
    }

    /// Takes the place, for a trusted proxy or another client.
    pub(super) fn take(&self, permit: OwnedSemaphorePermit, share: Share, is_trusted: bool) -> Place {
        Place { turn: self.idle.enter(is_trusted), _share: share, permit: Some(permit) }
    }

    /// Returns whether more than half of the places are taken.
    pub(super) fn is_crowded(&self) -> bool {
        self.free.available_permits() < self.max / 2
    }

    /// Asks connections that have been idle for longer than [`CROWDED_WAIT_MAX`] to leave.
    pub(super) fn make_room(&self) {
        self.idle.ask_longer_than(CROWDED_WAIT_MAX);
    }
}

impl Place {
    /// Returns the state of the connection.
    pub(super) fn turn(&self) -> &Turn {
        &self.turn
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // Released first, so that a waiter asks no second connection to leave.
        self.permit = None;
        self.turn.end();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Some((address, taken)) = &self.0 else { return };
        let mut taken = taken.lock();
        if let Some(count) = taken.get_mut(address) {
            *count -= 1;
            if *count == 0 {
                taken.remove(address);
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    async fn take(places: &Places, address: &str) -> Option<Place> {
        let share = places.share(Some(address.parse().unwrap()))?;
        Some(places.take(places.free().await, share, false))
    }

    #[tokio::test]
    async fn one_address_gets_a_quarter_of_the_places() {
        let places = Places::new(8);
        let first = take(&places, "203.0.113.9").await.unwrap();
        let _second = take(&places, "203.0.113.9").await.unwrap();
        assert!(take(&places, "203.0.113.9").await.is_none());
        assert!(take(&places, "::ffff:203.0.113.9").await.is_none());
        let _other = take(&places, "203.0.113.10").await.unwrap();
        drop(first);
        let _again = take(&places, "203.0.113.9").await.unwrap();
    }

    #[tokio::test]
    async fn the_addresses_of_one_ipv6_network_count_together() {
        let places = Places::new(4);
        let _first = take(&places, "2001:db8::1").await.unwrap();
        assert!(take(&places, "2001:db8::ffff:0:0:2").await.is_none());
        let _other = take(&places, "2001:db8:0:1::1").await.unwrap();
    }

    #[tokio::test]
    async fn who_is_refused_or_leaves_takes_no_place_and_no_memory() {
        let places = Places::new(4);
        for _ in 0..20 {
            let kept = take(&places, "203.0.113.9").await;
            assert!(take(&places, "203.0.113.9").await.is_none());
            drop(kept);
        }
        assert_eq!(places.free.available_permits(), 4);
        assert!(places.taken.lock().is_empty());
    }

    #[tokio::test]
    async fn who_is_not_bounded_may_take_every_place() {
        let places = Places::new(4);
        let mut held = Vec::new();
        for _ in 0..4 {
            let share = places.share(None).unwrap();
            held.push(places.take(places.free().await, share, false));
        }
        assert_eq!(places.free.available_permits(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_gets_that_of_the_one_without_a_request_for_longest() {
        let places = Places::new(2);
        let asks = take(&places, "203.0.113.1").await.unwrap();
        let _under_way = asks.turn().begin();
        let waits = take(&places, "203.0.113.2").await.unwrap();
        let leaving = async {
            waits.turn().asked_to_leave().await;
            drop(waits);
        };
        let (new, ()) = tokio::join!(take(&places, "203.0.113.3"), leaving);
        // The new connection sends a request at once: all are busy now, and one has to wait.
        let under_way = new.as_ref().unwrap().turn().begin();
        let mut another = std::pin::pin!(take(&places, "203.0.113.4"));
        assert!(tokio::time::timeout(Duration::from_secs(60), another.as_mut()).await.is_err());
        let leaving = async {
            drop(under_way);
            new.as_ref().unwrap().turn().asked_to_leave().await;
            drop(new);
        };
        tokio::join!(another, leaving).0.unwrap();
    }

    #[tokio::test]
    async fn half_of_the_places_are_no_crowd() {
        let places = Places::new(4);
        let (_first, _second) = (take(&places, "203.0.113.1").await, take(&places, "203.0.113.2").await);
        assert!(!places.is_crowded());
        let third = take(&places, "203.0.113.3").await;
        assert!(places.is_crowded());
        drop(third);
        assert!(!places.is_crowded());
    }
}
