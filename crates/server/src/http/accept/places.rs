//! How many connections there may be, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::http::peer::caller;

/// The part of all places that one address may take is one in so many.
const SHARE_OF_ONE: usize = 4;

/// The most connections that leave half of the descriptors to everything else.
pub(super) fn bounded_by_descriptors(wanted: usize) -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    (limit / 2).clamp(1, wanted)
}

/// The places for connections.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    each_max: usize,
    taken: Taken,
}

/// How many places each caller has.
type Taken = Arc<Mutex<HashMap<IpAddr, usize>>>;

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    _permit: OwnedSemaphorePermit,
    of: Option<(IpAddr, Taken)>,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        let each_max = (max / SHARE_OF_ONE).max(1);
        Self { free: Arc::new(Semaphore::new(max)), each_max, taken: Arc::default() }
    }

    /// Waits for a place.
    pub(super) async fn free(&self) -> OwnedSemaphorePermit {
        match Arc::clone(&self.free).acquire_owned().await {
            Ok(permit) => permit,
            // Nobody closes the semaphore.
            Err(_) => std::future::pending().await,
        }
    }

    /// Takes a place, for an address that is bounded unless it is `None`;
    /// `None` when that one has its share.
    pub(super) fn take(&self, permit: OwnedSemaphorePermit, bounded: Option<IpAddr>) -> Option<Place> {
        let Some(address) = bounded.map(caller) else { return Some(Place { _permit: permit, of: None }) };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(address).or_insert(0);
        if *count >= self.each_max {
            return None;
        }
        *count += 1;
        Some(Place { _permit: permit, of: Some((address, Arc::clone(&self.taken))) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some((address, taken)) = &self.of else { return };
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
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
        let permit = places.free().await;
        places.take(permit, Some(address.parse().unwrap()))
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
        assert!(places.taken.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_is_not_bounded_may_take_every_place() {
        let places = Places::new(4);
        let mut held = Vec::new();
        for _ in 0..4 {
            let permit = places.free().await;
            held.push(places.take(permit, None).unwrap());
        }
        assert_eq!(places.free.available_permits(), 0);
    }
}
