//! How much memory all requests together may hold: one budget, counted in bytes.
//!
//! It counts what callers can make the server hold for as long as they like: the
//! bodies that they send, the output that is collected for them, what waits for
//! them to read it. A request takes its part *before* it holds the memory, and
//! gives it back by dropping its [`Reservation`], so that nothing leaks and the
//! figure is exact. What is refused is refused before any work is begun.
//!
//! One caller never gets all of it: it may hold a bounded multiple of what it
//! leaves free ([`domain::Share`]). The same holds of all callers from one
//! address, so that an owner per request, who costs nothing to make up, does not
//! lift the bound.
//!
//! What is bounded by the number of connections alone is not counted: the first
//! few kilobytes of each head, body and answer, the buffers of TLS.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::{Asker, OwnerId, Share};
use tokio::time::Instant;

use crate::auth::KeyId;
use crate::figures::RequestMemory as Figures;

/// The part of a caller,
const CALLER: Share = Share::times_free(2);
/// and of all callers at one address.
const ADDRESS: Share = Share::times_free(4);
/// How often one who waits looks again. Waking all of them at each byte that is
/// given back would cost the more, the more of them wait.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Who takes from the budget.
#[derive(Debug, Clone, Copy, Hash)]
pub enum Caller<'a> {
    /// This owner.
    Owner(&'a OwnerId),
    /// Who has this key.
    Key(&'a KeyId),
    /// Who is at this address; `None` on the Unix socket.
    Address(Option<IpAddr>),
}

/// The caller may not hold more now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the memory for requests is spent")]
pub struct Spent;

/// The memory of all requests.
#[derive(Debug)]
pub struct Budget {
    total: u64,
    /// Makes keys that tell of no caller.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: u64,
    peak: u64,
    refused: u64,
    truncated: u64,
    /// What each holds that holds anything.
    held: HashMap<u64, u64>,
}

/// What a caller takes by, for one request.
#[derive(Debug, Clone)]
pub struct Account {
    budget: Arc<Budget>,
    holders: Holders,
}

/// In whose name something is held: a caller, and all callers at its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holders {
    caller: u64,
    address: u64,
}

impl Holders {
    /// Returns a number for each of both, that tells of neither.
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
    /// A budget of so many bytes, of which nothing is used.
    #[must_use]
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, hasher: RandomState::new(), state: Mutex::default() })
    }

    /// Returns what `caller` takes by, who is at `address`.
    #[must_use]
    pub fn account(self: &Arc<Self>, caller: Caller<'_>, address: Option<IpAddr>) -> Account {
        // The two never share an entry: an address that is a caller too is told apart.
        let holders = Holders {
            caller: self.hasher.hash_one((0u8, caller)),
            address: self.hasher.hash_one((1u8, Caller::Address(address))),
        };
        Account { budget: Arc::clone(self), holders }
    }

    /// Returns the present figures.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let state = self.lock();
        Figures {
            budget_bytes: self.total,
            used_bytes: state.used,
            peak_bytes: state.peak,
            refused_total: state.refused,
            truncated_total: state.truncated,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each statement leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, total: u64, holders: Holders, bytes: u64) -> Result<(), Spent> {
        let free = total.saturating_sub(self.used);
        let held = |holder| self.held.get(&holder).copied().unwrap_or(0);
        if !CALLER.admits(free, held(holders.caller), bytes) || !ADDRESS.admits(free, held(holders.address), bytes) {
            return Err(Spent);
        }
        self.add(holders, bytes);
        Ok(())
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
    /// Takes so many bytes.
    ///
    /// # Errors
    /// [`Spent`] if they would be more than the caller may hold now.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, Spent> {
        let mut reservation = self.nothing();
        reservation.grow(bytes).inspect_err(|_| self.count_refusal())?;
        Ok(reservation)
    }

    /// Takes so many bytes as soon as the caller may hold them, if that is soon.
    ///
    /// # Errors
    /// [`Spent`] if `wait` has passed.
    pub async fn reserve_within(&self, bytes: usize, wait: Duration) -> Result<Reservation, Spent> {
        let mut reservation = self.nothing();
        reservation.grow_within(bytes, wait).await?;
        Ok(reservation)
    }

    /// Returns a part without a byte, which may grow.
    #[must_use]
    pub fn nothing(&self) -> Reservation {
        Reservation { account: self.clone(), bytes: 0 }
    }

    /// Says whether the caller may hold so many bytes more, without taking them.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        self.reserve(bytes).is_ok()
    }

    /// Returns in whose name it takes.
    #[must_use]
    pub fn holders(&self) -> Holders {
        self.holders
    }

    /// Returns the same caller as it shares places with others.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker { caller: self.holders.caller, address: self.holders.address }
    }

    /// Counts an output that was cut since its caller may hold no more.
    pub fn count_truncation(&self) {
        self.budget.lock().truncated += 1;
    }

    fn count_refusal(&self) {
        self.budget.lock().refused += 1;
    }
}

impl Reservation {
    /// Returns how many bytes it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }

    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Spent`] if they would be more than the caller may hold now; what there
    /// is stays.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Spent> {
        if bytes > 0 {
            let Account { budget, holders } = &self.account;
            budget.lock().take(budget.total, *holders, bytes as u64)?;
            self.bytes += bytes as u64;
        }
        Ok(())
    }

    /// Takes so many bytes more as soon as the caller may hold them, if that is soon.
    ///
    /// # Errors
    /// [`Spent`] if `wait` has passed; what there is stays.
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

    /// Takes so many bytes more, whatever the caller holds. For what has been done
    /// and has to be told: nobody may be made to do it twice.
    pub fn grow_regardless(&mut self, bytes: usize) {
        let Account { budget, holders } = &self.account;
        budget.lock().add(*holders, bytes as u64);
        self.bytes += bytes as u64;
    }

    /// Takes over what `other` is.
    pub fn merge(&mut self, mut other: Reservation) {
        debug_assert_eq!(self.account.holders, other.account.holders);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Returns by what it was taken.
    #[must_use]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Gives back all but so many bytes.
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
