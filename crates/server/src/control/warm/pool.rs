//! Boxes that are kept ready: which there are, and which of them a spawn may take.
//!
//! Nothing of them is stored. A box that is taken has a row from its admission on; after a crash the
//! others are boxes without a row, which the reconciler removes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{EgressPolicy, PrepareCommand, Resources, SandboxId};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use providers::{Guest, Provider};
use tokio::sync::Notify;

use crate::control::policy::WarmEntry;

/// Time after a box was taken in which another spawn may follow, which should have the processors.
const QUIET: Duration = Duration::from_millis(20);

/// Properties in which a box has to be what a spawn asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::control) struct Kind {
    pub(in crate::control) provider: String,
    pub(in crate::control) image: String,
    pub(in crate::control) resources: Resources,
    pub(in crate::control) entrypoint: bool,
    /// Policies that the provider holds; none where connections are made here.
    pub(in crate::control) egress: Vec<EgressPolicy>,
    /// Commands that have run in it.
    pub(in crate::control) prepare: Vec<PrepareCommand>,
}

/// A box that is ready.
#[derive(Debug, Clone)]
pub(in crate::control) struct Ready {
    pub(in crate::control) id: SandboxId,
    pub(in crate::control) guest: Arc<dyn Guest>,
    /// Time at which it was ready.
    pub(in crate::control) since: Instant,
    /// Time at which it was made: for one of a snapshot, that at which the snapshot was taken.
    pub(in crate::control) made: Instant,
    /// True if its processes are stopped where they are.
    pub(in crate::control) is_paused: bool,
    /// True if nothing but the agent has run in it.
    pub(in crate::control) is_untouched: bool,
    /// Time at which it ends itself.
    pub(in crate::control) ends: Instant,
}

/// Answer of a box that was asked whether it is there.
pub(in crate::control) type WarmAnswer = BoxFuture<'static, providers::Result<()>>;

/// Way in which a box of the pool is found to be there.
pub(in crate::control) enum WarmCheck {
    /// It is asked, since only it can tell.
    Ask(WarmAnswer),
    /// Its first process is looked at, and it gets its deadline later.
    Look(Arc<dyn Guest>),
}

/// Boxes of an entry that are ready, and its figures.
#[derive(Debug, Default)]
struct Shelf {
    /// Kind of its boxes; `None` until one has been planned.
    kind: Option<Kind>,
    /// Digest of the image that its boxes were made of, where the provider knows one.
    digest: Option<String>,
    /// Number of changes of the two.
    changes: u64,
    /// Boxes that are ready, the oldest first.
    ready: VecDeque<Ready>,
    /// Number of boxes that spawns hold which are not admitted yet.
    lent: usize,
    /// Boxes that a spawn had taken and left without a word, which are to be removed.
    left: Vec<SandboxId>,
    /// Time at which a box was last taken.
    taken: Option<Instant>,
    hits: u64,
    misses: u64,
    /// Number of boxes that were replaced: too old, outdated, or dead.
    replaced: u64,
    /// Number of boxes, also of spawns, that were made of its snapshot.
    of_snapshot: u64,
    /// Reason why its boxes cannot be made now.
    error: Option<String>,
}

impl Shelf {
    /// Returns the rest of [`QUIET`] after `now`.
    fn rest(&self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.taken?);
        QUIET.checked_sub(since).filter(|rest| !rest.is_zero())
    }
}

#[derive(Debug)]
struct Entry {
    wish: WarmEntry,
    shelf: Mutex<Shelf>,
    /// Wakes the task that fills the shelf.
    wanted: Notify,
}

/// Figures of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmFigures {
    /// Name of the entry.
    pub name: String,
    /// Provider of its boxes; `None` until one has been planned.
    pub provider: Option<String>,
    /// Number of boxes that are to be ready.
    pub count: u64,
    /// Number of boxes that are ready.
    pub ready: u64,
    /// Number of spawns that took a box.
    pub hits: u64,
    /// Number of spawns that found none ready and made their own.
    pub misses: u64,
    /// Number of boxes that were replaced unused.
    pub replaced: u64,
    /// Number of boxes, also of spawns that found none ready, that were made of the entry's snapshot.
    pub of_snapshot: u64,
    /// Age of the oldest box that is ready.
    pub oldest: Option<Duration>,
    /// Reason why its boxes cannot be made now.
    pub error: Option<String>,
}

/// The boxes that are kept ready.
#[derive(Debug)]
pub(in crate::control) struct WarmPool {
    entries: Vec<Entry>,
    /// Boxes of the pool, from before they are made until they are removed or have a row.
    members: Mutex<HashMap<SandboxId, Arc<dyn Provider>>>,
}

impl WarmPool {
    pub(in crate::control) fn new(wishes: &[WarmEntry]) -> Self {
        let entry = |wish: &WarmEntry| Entry { wish: wish.clone(), shelf: Mutex::default(), wanted: Notify::new() };
        Self { entries: wishes.iter().map(entry).collect(), members: Mutex::default() }
    }

    /// Returns the number of entries, by whose index the others are found.
    pub(in crate::control) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(in crate::control) fn wish(&self, entry: usize) -> &WarmEntry {
        &self.entries[entry].wish
    }

    /// Returns whether the box belongs to the pool.
    pub(in crate::control) fn holds(&self, id: &SandboxId) -> bool {
        self.members.lock().contains_key(id)
    }

    /// Returns all boxes of the pool.
    pub(in crate::control) fn members(&self) -> Vec<SandboxId> {
        self.members.lock().keys().cloned().collect()
    }

    /// Returns the provider of a box of the pool.
    pub(in crate::control) fn provider(&self, id: &SandboxId) -> Option<Arc<dyn Provider>> {
        self.members.lock().get(id).cloned()
    }

    /// Adds a box that the provider is about to make.
    pub(in crate::control) fn enroll(&self, id: &SandboxId, provider: Arc<dyn Provider>) {
        self.members.lock().insert(id.clone(), provider);
    }

    /// Forgets a box that is removed.
    pub(in crate::control) fn dismiss(&self, id: &SandboxId) {
        self.members.lock().remove(id);
    }

    /// Waits until a box of the entry was taken, or is to be looked at.
    pub(in crate::control) async fn wanted(&self, entry: usize) {
        self.entries[entry].wanted.notified().await;
    }

    /// Takes the oldest box of this kind. If there are entries of this kind and none has a box, that
    /// is a miss of the first.
    pub(in crate::control) fn take(self: &Arc<Self>, kind: &Kind) -> Option<WarmBox> {
        let mut missed = None;
        for (index, entry) in self.entries.iter().enumerate() {
            let mut shelf = entry.shelf.lock();
            if shelf.kind.as_ref() != Some(kind) {
                continue;
            }
            if let Some(ready) = shelf.ready.pop_front() {
                shelf.taken = Some(Instant::now());
                shelf.lent += 1;
                let changes = shelf.changes;
                return Some(WarmBox { pool: Arc::clone(self), entry: index, changes, ready: Some(ready) });
            }
            missed.get_or_insert(index);
        }
        if let Some(index) = missed {
            self.entries[index].shelf.lock().misses += 1;
        }
        None
    }

    /// Sets what the boxes of an entry are made of now, and returns those that are to be removed: not made
    /// of it, too old at `now`, or left by a spawn.
    pub(in crate::control) fn renew(
        &self,
        entry: usize,
        kind: Kind,
        digest: Option<String>,
        now: Instant,
    ) -> Vec<SandboxId> {
        let Entry { wish, shelf, .. } = &self.entries[entry];
        let mut shelf = shelf.lock();
        let is_other = shelf.kind.as_ref() != Some(&kind) || shelf.digest != digest;
        (shelf.kind, shelf.digest) = (Some(kind), digest);
        shelf.changes += u64::from(is_other);
        let mut gone = std::mem::take(&mut shelf.left);
        shelf.replaced += gone.len() as u64;
        gone.extend(self.sift(&mut shelf, |ready| !is_other && now.duration_since(ready.made) < wish.max_age));
        gone
    }

    /// Returns all boxes of an entry that are ready, which are to be removed.
    pub(in crate::control) fn clear(&self, entry: usize) -> Vec<SandboxId> {
        self.sift(&mut self.entries[entry].shelf.lock(), |_| false)
    }

    /// Returns the boxes of a provider that were ready at `seen` and are not in `alive`.
    pub(in crate::control) fn lost(
        &self,
        provider: &str,
        alive: &HashSet<&SandboxId>,
        seen: Instant,
    ) -> Vec<SandboxId> {
        let mut lost = Vec::new();
        for entry in &self.entries {
            let mut shelf = entry.shelf.lock();
            if shelf.kind.as_ref().is_some_and(|kind| kind.provider == provider) {
                lost.extend(self.sift(&mut shelf, |ready| ready.since > seen || alive.contains(&ready.id)));
                entry.wanted.notify_one();
            }
        }
        lost
    }

    /// Removes the boxes from the shelf that are not to be kept, and returns them.
    fn sift(&self, shelf: &mut Shelf, keep: impl Fn(&Ready) -> bool) -> Vec<SandboxId> {
        let (kept, gone): (VecDeque<_>, VecDeque<_>) = shelf.ready.drain(..).partition(keep);
        shelf.ready = kept;
        shelf.replaced += gone.len() as u64;
        gone.into_iter().map(|ready| ready.id).collect()
    }

    /// Returns whether an entry has fewer boxes than it should. Those that waiting spawns hold come back if
    /// the spawns are refused.
    pub(in crate::control) fn lacks(&self, entry: usize) -> bool {
        let Entry { wish, shelf, .. } = &self.entries[entry];
        let shelf = shelf.lock();
        shelf.ready.len() + shelf.lent < wish.count
    }

    /// Returns for how long after `now` no box of an entry should be made, since spawns that take them follow
    /// each other; `None` if it may be made, as always when more than half of them are gone.
    pub(in crate::control) fn rest(&self, entry: usize, now: Instant) -> Option<Duration> {
        let Entry { wish, shelf, .. } = &self.entries[entry];
        let shelf = shelf.lock();
        shelf.rest(now).filter(|_| shelf.ready.len() * 2 >= wish.count)
    }

    /// Returns for how long after `now` spawns that take boxes are likely to follow each other; `None` if no
    /// other is likely.
    pub(in crate::control) fn rest_of_all(&self, now: Instant) -> Option<Duration> {
        self.entries.iter().filter_map(|entry| entry.shelf.lock().rest(now)).max()
    }

    /// Adds a box that is ready. Returns `false` if the entry wants another kind by now.
    pub(in crate::control) fn put(&self, entry: usize, kind: &Kind, ready: Ready) -> bool {
        let mut shelf = self.entries[entry].shelf.lock();
        let is_wanted = shelf.kind.as_ref() == Some(kind);
        if is_wanted {
            shelf.ready.push_back(ready);
        }
        is_wanted
    }

    /// Notes that a box was dead when a sandbox got it, which then had to have one made.
    pub(in crate::control) fn died(&self, entry: usize) {
        let mut shelf = self.entries[entry].shelf.lock();
        shelf.hits -= 1;
        shelf.misses += 1;
        shelf.replaced += 1;
    }

    /// Notes that a box was made of the snapshot of an entry.
    pub(in crate::control) fn made_of_snapshot(&self, entry: usize) {
        self.entries[entry].shelf.lock().of_snapshot += 1;
    }

    /// Notes why the boxes of an entry cannot be made, or that they can. Returns whether that is new.
    pub(in crate::control) fn note(&self, entry: usize, error: Option<String>) -> bool {
        let mut shelf = self.entries[entry].shelf.lock();
        let is_new = shelf.error != error;
        shelf.error = error;
        is_new
    }

    /// Returns the figures of every entry.
    pub(in crate::control) fn figures(&self) -> Vec<WarmFigures> {
        let figures = |entry: &Entry| {
            let shelf = entry.shelf.lock();
            WarmFigures {
                name: entry.wish.name.clone(),
                provider: shelf.kind.as_ref().map(|kind| kind.provider.clone()),
                count: entry.wish.count as u64,
                ready: shelf.ready.len() as u64,
                hits: shelf.hits,
                misses: shelf.misses,
                replaced: shelf.replaced,
                of_snapshot: shelf.of_snapshot,
                oldest: shelf.ready.iter().map(|ready| ready.since.elapsed()).max(),
                error: shelf.error.clone(),
            }
        };
        self.entries.iter().map(figures).collect()
    }
}

/// A box that a spawn has taken. If the spawn goes away with it, its admission may have been under way,
/// and a row with its id: it is removed then, and no other spawn gets it.
#[derive(Debug)]
pub(in crate::control) struct WarmBox {
    pool: Arc<WarmPool>,
    entry: usize,
    /// Changes of what the boxes of the entry are made of, when it was taken.
    changes: u64,
    /// The box, until it is used or found dead.
    ready: Option<Ready>,
}

impl WarmBox {
    /// Returns the box.
    pub(in crate::control) fn ready(&self) -> &Ready {
        self.ready.as_ref().expect("it is there until the guard is consumed")
    }

    /// Returns the id of the box, which its sandbox has too.
    pub(in crate::control) fn id(&self) -> &SandboxId {
        &self.ready().id
    }

    /// Gives the box back to the others, unless they are made of something else by now: its spawn was refused,
    /// so that there is no row.
    pub(in crate::control) fn give_back(mut self) {
        let mut shelf = self.pool.entries[self.entry].shelf.lock();
        let is_as_others = shelf.changes == self.changes;
        if let Some(ready) = self.ready.take_if(|_| is_as_others) {
            shelf.lent -= 1;
            shelf.ready.push_front(ready);
        }
    }

    /// Gives the box to the sandbox that has a row of its id now. Returns the entry that it was of.
    pub(in crate::control) fn used(mut self) -> usize {
        if let Some(ready) = self.ready.take() {
            let entry = &self.pool.entries[self.entry];
            let mut shelf = entry.shelf.lock();
            shelf.lent -= 1;
            shelf.hits += 1;
            drop(shelf);
            self.pool.dismiss(&ready.id);
            entry.wanted.notify_one();
        }
        self.entry
    }
}

impl Drop for WarmBox {
    fn drop(&mut self) {
        if let Some(ready) = self.ready.take() {
            let entry = &self.pool.entries[self.entry];
            let mut shelf = entry.shelf.lock();
            shelf.lent -= 1;
            shelf.left.push(ready.id);
            drop(shelf);
            entry.wanted.notify_one();
        }
    }
}

#[cfg(test)]
mod test {
    use domain::{Metadata, SpawnOptions, Timestamp};
    use providers::Spec;
    use providers::mock::Mock;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn id(n: u8) -> SandboxId {
        SandboxId::from_entropy([n; 10])
    }

    fn kind(image: &str) -> Kind {
        Kind {
            provider: "mock".to_owned(),
            image: image.to_owned(),
            resources: Resources { memory_mb: 64, vcpus: 1, disk_mb: 0, pids: 64 },
            entrypoint: false,
            egress: Vec::new(),
            prepare: Vec::new(),
        }
    }

    /// A pool with one entry, for two boxes.
    struct Pool {
        pool: Arc<WarmPool>,
        mock: Arc<dyn Provider>,
    }

    impl Pool {
        /// Makes a pool that has the boxes 1 to `boxes`.
        async fn of(boxes: u8) -> Pool {
            let (name, template, options) = ("a".to_owned(), None, SpawnOptions::default());
            let pool =
                WarmPool::new(&[WarmEntry { name, template, options, count: 2, max_age: HOUR, snapshot: false }]);
            assert!(pool.renew(0, kind("host"), None, Instant::now()).is_empty());
            let pool = Pool { pool: Arc::new(pool), mock: Arc::new(Mock::new(|| Timestamp::MIN)) };
            for n in 1..=boxes {
                assert!(pool.put(n, "host", Instant::now()).await);
            }
            pool
        }

        async fn put(&self, n: u8, image: &str, since: Instant) -> bool {
            let spec = Spec {
                image: image.to_owned(),
                resources: kind(image).resources,
                entrypoint: false,
                metadata: Metadata::new(),
                lifetime: HOUR,
                egress: Vec::new(),
                trust: None,
                snapshot: None,
                is_copy: false,
                asker: None,
            };
            self.mock.start(&id(n), &spec).await.unwrap();
            let guest = self.mock.guest(&id(n)).await.unwrap();
            self.pool.enroll(&id(n), Arc::clone(&self.mock));
            let ready = Ready {
                id: id(n),
                guest,
                since,
                made: since,
                is_paused: false,
                is_untouched: true,
                ends: since + HOUR,
            };
            self.pool.put(0, &kind(image), ready)
        }

        fn take(&self, kind: &Kind) -> Option<WarmBox> {
            self.pool.take(kind)
        }

        fn renew(&self, image: &str, digest: Option<&str>, now: Instant) -> Vec<SandboxId> {
            self.pool.renew(0, kind(image), digest.map(str::to_owned), now)
        }
    }

    #[tokio::test]
    async fn a_box_is_taken_once_and_comes_back_if_its_spawn_is_refused() {
        let pool = Pool::of(2).await;
        let (first, second) = (pool.take(&kind("host")).unwrap(), pool.take(&kind("host")).unwrap());
        assert_eq!((first.id(), second.id()), (&id(1), &id(2)));
        assert!(pool.take(&kind("host")).is_none());
        first.give_back();
        pool.take(&kind("host")).unwrap().give_back();
        assert!(pool.pool.holds(&id(1)) && pool.pool.holds(&id(2)));
        second.used();
        assert!(!pool.pool.holds(&id(2)), "it belongs to its sandbox");
        let figures = &pool.pool.figures()[0];
        assert_eq!((figures.ready, figures.hits, figures.misses), (1, 1, 1));
    }

    #[tokio::test]
    async fn no_other_is_made_for_one_that_a_waiting_spawn_holds() {
        let pool = Pool::of(2).await;
        let (first, second) = (pool.take(&kind("host")).unwrap(), pool.take(&kind("host")).unwrap());
        assert!(!pool.pool.lacks(0));
        first.give_back();
        assert!(!pool.pool.lacks(0));
        second.used();
        assert!(pool.pool.lacks(0));
        drop(pool.take(&kind("host")).unwrap());
        assert!(pool.put(3, "host", Instant::now()).await && pool.pool.lacks(0));
        assert!(pool.put(4, "host", Instant::now()).await && !pool.pool.lacks(0));
    }

    #[tokio::test]
    async fn one_that_comes_back_after_a_change_goes_to_no_other_spawn() {
        let pool = Pool::of(1).await;
        let held = pool.take(&kind("host")).unwrap();
        assert!(pool.renew("alpine", None, Instant::now()).is_empty());
        held.give_back();
        assert!(pool.take(&kind("alpine")).is_none() && pool.pool.holds(&id(1)));
        assert_eq!(pool.renew("alpine", None, Instant::now()), [id(1)]);
    }

    #[tokio::test]
    async fn spawns_that_follow_each_other_are_left_in_peace_while_half_of_the_boxes_are_there() {
        let pool = Pool::of(2).await;
        let now = Instant::now;
        assert_eq!(pool.pool.rest(0, now()), None, "none was taken");
        let _first = pool.take(&kind("host"));
        assert!(pool.pool.rest(0, now()).is_some_and(|rest| rest <= QUIET));
        assert_eq!(pool.pool.rest(0, now() + QUIET), None);
        let _second = pool.take(&kind("host"));
        assert_eq!(pool.pool.rest(0, now()), None, "more than half of them are gone");
    }

    #[tokio::test]
    async fn only_a_spawn_of_the_same_kind_takes_one_and_only_such_a_one_misses() {
        let pool = Pool::of(1).await;
        assert!(pool.take(&kind("alpine")).is_none());
        let large = Kind { resources: Resources { memory_mb: 128, ..kind("host").resources }, ..kind("host") };
        assert!(pool.take(&large).is_none() && pool.take(&Kind { entrypoint: true, ..kind("host") }).is_none());
        assert_eq!(pool.pool.figures()[0].misses, 0);
        assert!(pool.take(&kind("host")).is_some());
    }

    #[tokio::test]
    async fn what_is_too_old_of_another_kind_or_another_image_is_replaced() {
        let now = Instant::now();
        assert!(Pool::of(2).await.renew("host", None, now).is_empty());
        assert_eq!(Pool::of(2).await.renew("host", None, now + HOUR * 2), [id(1), id(2)]);
        assert_eq!(Pool::of(2).await.renew("alpine", None, now), [id(1), id(2)]);
        assert_eq!(Pool::of(1).await.renew("host", Some("sha256:1"), now), [id(1)]);
        let pool = Pool::of(1).await;
        assert_eq!(pool.renew("other", None, now), [id(1)]);
        assert!(!pool.put(9, "host", now).await, "planned before the change, ready after it");
    }

    #[tokio::test]
    async fn what_a_look_at_the_provider_did_not_find_is_lost_unless_it_is_newer() {
        let pool = Pool::of(2).await;
        let (alive, seen) = ([id(2)], Instant::now());
        assert!(pool.put(3, "host", seen + Duration::from_millis(1)).await);
        let alive = alive.iter().collect();
        assert!(pool.pool.lost("docker", &alive, seen).is_empty());
        assert_eq!(pool.pool.lost("mock", &alive, seen), [id(1)]);
        assert_eq!(pool.pool.figures()[0].ready, 2);
        let taken = pool.take(&kind("host")).unwrap();
        assert!(!pool.pool.lost("mock", &HashSet::new(), seen + HOUR).contains(taken.id()), "it is not on the shelf");
    }

    #[tokio::test]
    async fn one_whose_spawn_went_away_is_removed_and_never_given_to_another() {
        let pool = Pool::of(1).await;
        drop(pool.take(&kind("host")).unwrap());
        assert!(pool.take(&kind("host")).is_none() && pool.pool.holds(&id(1)));
        assert_eq!(pool.renew("host", None, Instant::now()), [id(1)]);
        assert!(pool.renew("host", None, Instant::now()).is_empty());
    }

    #[tokio::test]
    async fn one_that_was_dead_is_a_miss_after_all() {
        let pool = Pool::of(1).await;
        let entry = pool.take(&kind("host")).unwrap().used();
        pool.pool.died(entry);
        let figures = &pool.pool.figures()[0];
        assert_eq!((figures.hits, figures.misses, figures.replaced), (0, 1, 1));
        assert!(pool.pool.lacks(0));
    }
}
