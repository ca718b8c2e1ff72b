//! Tests of the table of keys, with a clock that a test sets.

use std::sync::atomic::AtomicI64;

use domain::KeyScopes;

use super::*;

#[derive(Debug)]
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        from_ms(self.0.load(Ordering::Relaxed))
    }

    fn step(&self) -> Option<i64> {
        None
    }

    fn follow(&self, _: i64) {}
}

struct Keys {
    keys: OwnerKeys,
    clock: Arc<TestClock>,
}

impl Keys {
    fn at(now: i64) -> Self {
        let clock = Arc::new(TestClock(AtomicI64::new(now)));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        Self { keys: OwnerKeys::new(shared), clock }
    }

    fn set(&self, now: i64) {
        self.clock.0.store(now, Ordering::Relaxed);
    }

    /// Returns the state of a key, as a word.
    fn state(&self, n: u8) -> &'static str {
        match self.keys.find(&hash(&[n])) {
            None => "unknown",
            Some(Found::Valid(_)) => "valid",
            Some(Found::Revoked(_)) => "revoked",
            Some(Found::Expired(_)) => "expired",
        }
    }

    fn valid(&self, n: u8) -> Arc<OwnerKey> {
        let Some(Found::Valid(key)) = self.keys.find(&hash(&[n])) else { panic!("key {n} is {}", self.state(n)) };
        key
    }
}

fn row(n: u8, owner: &str) -> Row {
    Row {
        id: OwnerKeyId::from_entropy([n; 10]),
        name: None,
        owner: OwnerId::parse(owner).unwrap(),
        scopes: KeyScopes::default(),
        hash: hash(&[n]),
        prefix: format!("tbx_{n}"),
        created_at: from_ms(i64::from(n)),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}

#[test]
fn a_key_is_found_by_its_whole_text_until_it_ends() {
    let keys = Keys::at(100);
    keys.keys.insert([
        row(1, "ann"),
        Row { expires_at: Some(from_ms(200)), ..row(2, "ann") },
        Row { revoked_at: Some(from_ms(50)), ..row(3, "ann") },
    ]);
    assert_eq!([1, 2, 3, 4].map(|n| keys.state(n)), ["valid", "valid", "revoked", "unknown"]);
    keys.set(199);
    assert_eq!(keys.state(2), "valid");
    keys.set(200);
    assert_eq!(keys.state(2), "expired");
    assert!(keys.keys.find(&hash(b"\x01\x01")).is_none());
}

#[test]
fn what_goes_on_with_a_key_ends_when_the_key_does_and_with_no_other() {
    let keys = Keys::at(100);
    keys.keys.insert([row(1, "ann"), Row { expires_at: Some(from_ms(200)), ..row(2, "ann") }, row(3, "ann")]);
    let held = [1, 2, 3].map(|n| keys.valid(n));
    let ended = || [0, 1, 2].map(|at: usize| held[at].ended().is_cancelled());
    keys.keys.end_expired();
    assert_eq!(ended(), [false, false, false]);
    keys.keys.revoke(Row { revoked_at: Some(from_ms(100)), ..row(1, "ann") });
    assert_eq!((ended(), keys.state(1)), ([true, false, false], "revoked"));
    keys.set(200);
    keys.keys.end_expired();
    assert_eq!(ended(), [true, true, false]);
    keys.set(100);
    assert_eq!(keys.state(2), "expired", "a clock that is set back brings no key back");
    keys.keys.remove([&row(3, "ann").id]);
    assert_eq!((ended(), keys.state(3)), ([true, true, true], "unknown"));
}

#[test]
fn a_list_in_parts_is_the_list_newest_first() {
    let keys = Keys::at(0);
    keys.keys.insert((1..=9).map(|n| row(n, if n % 3 == 0 { "bob" } else { "ann" })));
    let read = |owner: Option<&str>, limit| {
        let owner = owner.map(|owner| OwnerId::parse(owner).unwrap());
        let (mut read, mut after) = (Vec::new(), None);
        loop {
            let part = keys.keys.page(owner.as_ref(), after, limit);
            let Some(last) = part.last() else { return read };
            after = Some((last.created_at, last.id.clone()));
            read.extend(part.iter().map(|row| row.created_at.as_millisecond()));
        }
    };
    for limit in [1, 2, 9, 99] {
        assert_eq!(read(None, limit), [9, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(read(Some("bob"), limit), [9, 6, 3]);
        assert_eq!(read(Some("cyd"), limit), [0; 0]);
    }
}

#[test]
fn a_use_is_listed_at_once_and_stored_once() {
    let keys = Keys::at(0);
    keys.keys.insert([row(1, "ann"), Row { last_used_at: Some(from_ms(5)), ..row(2, "ann") }]);
    assert!(keys.keys.unstored_uses().is_empty());
    keys.valid(1).note_use(from_ms(7));
    keys.valid(1).note_use(from_ms(6));
    let listed: Vec<_> = keys.keys.page(None, None, 9).into_iter().map(|row| row.last_used_at).collect();
    assert_eq!(listed, [Some(from_ms(5)), Some(from_ms(7))]);
    let uses = keys.keys.unstored_uses();
    assert_eq!(uses, [(row(1, "ann").id, from_ms(7))]);
    keys.valid(1).note_use(from_ms(8));
    keys.keys.uses_were_stored(&uses);
    assert_eq!(keys.keys.unstored_uses(), [(row(1, "ann").id, from_ms(8))], "the use in between is not lost");
    keys.keys.revoke(Row { revoked_at: Some(from_ms(9)), ..row(1, "ann") });
    assert_eq!(keys.keys.page(None, None, 9)[1].last_used_at, Some(from_ms(8)), "a revoked key keeps its last use");
}
