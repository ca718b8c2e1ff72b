//! Memory budget of all requests together, counted in bytes.
//!
//! It counts what callers can make the server hold for as long as they like: the bodies that
//! they send, the output that is collected for them, and output that waits until they read it. A
//! request takes its part *before* it holds the memory, and gives it back by dropping its
//! [`Reservation`], so that nothing leaks and the count is exact. A request is refused before
//! any of its work begins.
//!
//! One caller never gets all of it: it may hold a bounded multiple of what it leaves free
//! ([`domain::Share`]). The same holds for all callers from one address, so that an owner per
//! request, which costs nothing to make up, does not lift the bound.
//!
//! What is bounded by the number of connections alone is not counted: the first
//! few kilobytes of each head, body and answer, the buffers of TLS.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use domain::{Asker, OwnerId, SandboxId, Share};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::auth::KeyId;
use crate::stats;

/// Share of a single caller.
const CALLER: Share = Share::times_free(2);
/// Share of all callers at one address.
const ADDRESS: Share = Share::times_free(4);
/// Interval at which a waiting request checks again. Waking all waiting requests at each byte
/// that is given back would cost more the more there are.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Identity that takes from the budget.
#[derive(Debug, Clone, Copy, Hash)]
pub enum Caller<'a> {
    Owner(&'a OwnerId),
    /// Holder of this key.
    Key(&'a KeyId),
    /// Client at this address; `None` on the Unix socket.
    Address(Option<IpAddr>),
}

/// Refusal: the caller may not hold more now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory for requests is used up")]
pub struct Spent;

/// Memory budget of all requests.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    /// Hasher for the keys of `held`, from which no caller can be read.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    peak: u64,
    refused: u64,
    truncated: u64,
    /// Bytes by holder, without holders of none.
    held: HashMap<u64, u64>,
}

/// Access of one request to the budget, in the name of its caller.
#[derive(Debug, Clone)]
pub struct Account {
    budget: Arc<Budget>,
    holders: Holders,
}

/// Holders that a reservation counts for: a caller, and all callers at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holders {
    caller: u64,
    address: u64,
}

impl Holders {
    /// Returns a number for each of the two, from which neither can be read.
    #[must_use]
    pub fn keys(self) -> [u64; 2] {
        [self.caller, self.address]
    }
}

/// A part of the budget, given back when dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    bytes: u64,
}

impl Budget {
    /// Creates a budget of `total` bytes, of which nothing is used.
    #[must_use]
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, hasher: RandomState::new(), state: Mutex::default() })
    }

    /// Returns the account of `caller`, who is at `address`.
    #[must_use]
    pub fn account(self: &Arc<Self>, caller: Caller<'_>, address: Option<IpAddr>) -> Account {
        // The two never share an entry, even if the caller is an address.
        let holders = Holders {
            caller: self.hasher.hash_one((0u8, caller)),
            address: self.hasher.hash_one((1u8, Caller::Address(address))),
        };
        Account { budget: Arc::clone(self), holders }
    }

    /// Returns the account of a sandbox, for the bytes of its connections.
    #[must_use]
    pub fn account_of_sandbox(self: &Arc<Self>, id: &SandboxId) -> Account {
        let holders = Holders { caller: self.hasher.hash_one((0u8, id)), address: self.hasher.hash_one((1u8, id)) };
        Account { budget: Arc::clone(self), holders }
    }

    /// Returns the present counts.
    #[must_use]
    pub fn stats(&self) -> stats::RequestMemory {
        let state = self.lock();
        stats::RequestMemory {
            budget_bytes: self.total,
            used_bytes: state.used,
            peak_bytes: state.peak,
            refused_total: state.refused,
            truncated_total: state.truncated,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each statement leaves the state consistent.
        self.state.lock()
    }
}

impl State {
    fn admits(&self, total: u64, holders: Holders, bytes: u64) -> bool {
        let free = total.saturating_sub(self.used);
        let held = |holder| self.held.get(&holder).copied().unwrap_or(0);
        CALLER.admits(free, held(holders.caller), bytes) && ADDRESS.admits(free, held(holders.address), bytes)
    }

    fn add(&mut self, holders: Holders, bytes: u64) {
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        *self.held.entry(holders.caller).or_default() += bytes;
        *self.held.entry(holders.address).or_default() += bytes;
    }

    fn give_back(&mut self, holders: Holders, bytes: u64) {
        self.used -= bytes;
        for holder in [holders.caller, holders.address] {
            if let Entry::Occupied(mut held) = self.held.entry(holder) {
                *held.get_mut() -= bytes;
                if *held.get() == 0 {
                    held.remove();
                }
            }
        }
    }
}

impl Account {
    /// Takes `bytes` from the budget.
    ///
    /// # Errors
    /// [`Spent`] if they would be more than the caller may hold now.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, Spent> {
        let mut reservation = self.nothing();
        reservation.grow(bytes).inspect_err(|_| self.count_refusal())?;
        Ok(reservation)
    }

    /// Takes `bytes` as soon as the caller may hold them, and waits no longer than `wait`.
    ///
    /// # Errors
    /// [`Spent`] if `wait` has passed.
    pub async fn reserve_within(&self, bytes: usize, wait: Duration) -> Result<Reservation, Spent> {
        let mut reservation = self.nothing();
        reservation.grow_within(bytes, wait).await?;
        Ok(reservation)
    }

    /// Returns a reservation of nothing, which may grow.
    #[must_use]
    pub fn nothing(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    /// Returns whether the caller may hold `bytes` more, without taking them.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.budget.lock().admits(self.budget.total, self.holders, bytes as u64)
    }

    /// Returns the holders that it counts for.
    #[must_use]
    pub fn holders(&self) -> Holders {
        self.holders
    }

    /// Returns the same caller as an asker, which shares places with others.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker { caller: self.holders.caller, address: self.holders.address }
    }

    /// Counts an output that was cut because its caller may hold no more.
    pub fn count_truncation(&self) {
        self.budget.lock().truncated += 1;
    }

    /// Counts a request that was refused because its caller may hold no more.
    pub fn count_refusal(&self) {
        self.budget.lock().refused += 1;
    }
}

impl Reservation {
    /// Returns its size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Takes `bytes` more from the budget.
    ///
    /// # Errors
    /// [`Spent`] if they would be more than the caller may hold now; the reservation stays as it
    /// was.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Spent> {
        if bytes == 0 {
            return Ok(());
        }
        let Account { budget, holders } = &self.account;
        let mut state = budget.lock();
        if !state.admits(budget.total, *holders, bytes as u64) {
            return Err(Spent);
        }
        state.add(*holders, bytes as u64);
        drop(state);
        self.bytes += bytes as u64;
        Ok(())
    }

    /// Takes `bytes` more as soon as the caller may hold them, and waits no longer than `wait`.
    ///
    /// # Errors
    /// [`Spent`] if `wait` has passed; the reservation stays as it was.
    pub async fn grow_within(&mut self, bytes: usize, wait: Duration) -> Result<(), Spent> {
        let until = Instant::now() + wait;
        while self.grow(bytes).is_err() {
            if Instant::now() >= until {
                self.account.count_refusal();
                return Err(Spent);
            }
            tokio::time::sleep_until(until.min(Instant::now() + LOOK_EVERY)).await;
        }
        Ok(())
    }

    /// Takes `bytes` more, regardless of what the caller holds. For the result of work that is
    /// done, so that no caller has to repeat it.
    pub fn grow_regardless(&mut self, bytes: usize) {
        let Account { budget, holders } = &self.account;
        budget.lock().add(*holders, bytes as u64);
        self.bytes += bytes as u64;
    }

    /// Takes over the bytes of `other`, which has the same holders.
    pub fn merge(&mut self, mut other: Reservation) {
        debug_assert_eq!(self.account.holders, other.account.holders);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns the account from which it was taken.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.bytes.saturating_sub(bytes as u64);
        if surplus > 0 {
            let Account { budget, holders } = &self.account;
            budget.lock().give_back(*holders, surplus);
            self.bytes -= surplus;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

#[cfg(test)]
mod test;
