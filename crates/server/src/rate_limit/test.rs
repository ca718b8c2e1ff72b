use super::*;

fn config(requests_per_minute: u32, burst: u32, key_by: RateKey) -> config::RateLimit {
    config::RateLimit {
        enabled: true,
        requests_per_minute,
        burst,
        key_by,
        bucket_ttl: Duration::from_secs(900),
        cleanup_interval: Duration::from_secs(60),
    }
}

fn limiter(requests_per_minute: u32, burst: u32, buckets_max: usize) -> RateLimiter {
    RateLimiter::with_room(&config(requests_per_minute, burst, RateKey::Owner), buckets_max)
}

fn owner(name: &str) -> OwnerId {
    OwnerId::parse(name).unwrap()
}

fn address(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns how many requests of the owner go through at once.
fn burst_of(limiter: &RateLimiter, name: &str, at: Option<IpAddr>, now: Duration) -> usize {
    let owner = owner(name);
    (0..1000).take_while(|_| limiter.take_at(Caller::Owner(&owner), at, now).is_ok()).count()
}

#[test]
fn there_is_no_limiter_unless_it_is_asked_for() {
    let off = config::RateLimit { enabled: false, ..config(1, 1, RateKey::Ip) };
    assert!(RateLimiter::new(&off).is_none());
    assert!(RateLimiter::new(&config(1, 1, RateKey::Ip)).is_some());
}

#[test]
fn each_caller_has_a_bucket_and_kinds_do_not_mix() {
    let limiter = limiter(60, 1, 100);
    let at = address("192.0.2.1");
    let (alice, bob) = (owner("alice"), owner("bob"));
    for caller in [
        Caller::Owner(&alice),
        Caller::Owner(&bob),
        Caller::Address(at),
        Caller::Address(address("192.0.2.2")),
        Caller::Address(None),
        Caller::Attempts(at),
        Caller::Attempts(None),
        Caller::WorkerAttempts(at),
    ] {
        assert_eq!(limiter.take_at(caller, at, s(0)), Ok(0));
        assert_eq!(limiter.take_at(caller, at, s(0)).map_err(|it| it.wait), Err(s(1)));
    }
    assert_eq!(
        limiter.stats(),
        stats::RateLimit { active_buckets: 8, allowed_total: 8, limited_total: 8, evicted_total: 0 }
    );
}

#[test]
fn to_look_makes_no_bucket_and_sees_what_was_taken() {
    let limiter = limiter(60, 1, 100);
    let caller = Caller::Attempts(None);
    assert_eq!(limiter.look_at(caller, None, s(0)), Ok(()));
    assert_eq!(limiter.stats(), stats::RateLimit::default());
    limiter.take_at(caller, None, s(0)).unwrap();
    assert_eq!(limiter.look_at(caller, None, s(0)).unwrap_err().wait, s(1));
    assert_eq!(limiter.look_at(caller, None, s(1)), Ok(()));
}

#[test]
fn ten_thousand_owners_have_no_more_buckets_than_there_may_be() {
    let limiter = limiter(60, 3, 1000);
    for number in 0..10_000 {
        // Ten a millisecond: none of the thousand is full again.
        let now = Duration::from_micros(number * 100);
        let owner = owner(&format!("owner-{number}"));
        let _ = limiter.take_at(Caller::Owner(&owner), address("192.0.2.1"), now);
    }
    let stats = limiter.stats();
    assert_eq!((stats.active_buckets, stats.evicted_total), (1000, 0));
    let state = limiter.lock();
    assert_eq!((state.buckets.len(), state.by_full.len()), (1000, 1000));
}

#[test]
fn a_crowd_of_made_up_owners_gives_nobody_a_full_bucket_again() {
    let limiter = limiter(60, 5, 100);
    let attacker = address("192.0.2.1");
    // Of a thousand addresses one shares the bucket of the attacker's, by chance.
    let mut others = (1..=9).map(|number| address(&format!("198.51.100.{number}")));
    let other = others.find(|other| limiter.shared(*other) != limiter.shared(attacker)).unwrap();
    assert_eq!(burst_of(&limiter, "alice", attacker, s(0)), 5);
    for number in 0..1000 {
        let _ = burst_of(&limiter, &format!("made-up-{number}"), attacker, s(0));
    }
    assert_eq!(burst_of(&limiter, "alice", attacker, s(0)), 0, "her bucket is still there, and empty");
    assert_eq!(limiter.stats().allowed_total, 5 * 100 + 5, "beyond the buckets, one address has one");
    assert_eq!(burst_of(&limiter, "carol", other, s(0)), 5, "another address is not in its way");
    assert_eq!(burst_of(&limiter, "alice", attacker, s(2)), 2, "only time fills it");
}

#[test]
fn a_bucket_that_is_full_again_makes_room_for_a_new_caller() {
    let limiter = limiter(60, 2, 2);
    burst_of(&limiter, "slow", None, s(0));
    limiter.take_at(Caller::Owner(&owner("fast")), None, s(1)).unwrap();
    assert_eq!(limiter.stats().evicted_total, 0);
    assert_eq!(burst_of(&limiter, "new", None, s(2)), 2);
    assert_eq!(limiter.stats().evicted_total, 1);
    assert_eq!(limiter.stats().active_buckets, 2);
}

#[test]
fn attempts_count_also_when_there_is_no_room() {
    let limiter = limiter(60, 2, 1);
    burst_of(&limiter, "first", None, s(0));
    let at = address("192.0.2.1");
    let attempts = Caller::Attempts(at);
    for _ in 0..2 {
        limiter.look_at(attempts, at, s(0)).unwrap();
        limiter.take_at(attempts, at, s(0)).unwrap();
    }
    assert!(limiter.look_at(attempts, at, s(0)).is_err());
}

#[test]
fn idle_buckets_are_pruned_once_they_are_full() {
    let limiter = limiter(60, 1, 10_000);
    for number in 0..3000 {
        limiter.take_at(Caller::Owner(&owner(&format!("owner-{number}"))), None, s(0)).unwrap();
    }
    limiter.take_at(Caller::Owner(&owner("later")), None, s(100)).unwrap();
    limiter.prune_at(s(899));
    assert_eq!(limiter.stats().active_buckets, 3001);
    limiter.prune_at(s(900));
    assert_eq!((limiter.stats().active_buckets, limiter.stats().evicted_total), (1, 3000));
    limiter.prune_at(s(1000));
    assert_eq!(limiter.stats().active_buckets, 0);
    let slow = self::limiter(1, 60, 10);
    assert_eq!(burst_of(&slow, "alice", None, s(0)), 60);
    slow.prune_at(s(3599));
    assert_eq!(slow.stats().active_buckets, 1, "to forget it would fill it");
    slow.prune_at(s(3600));
    assert_eq!(slow.stats().active_buckets, 0);
}

#[test]
fn refusals_are_told_once_a_second_with_their_number() {
    let limiter = limiter(1, 1, 100);
    let at = |ms| limiter.take_at(Caller::Address(None), None, Duration::from_millis(ms)).unwrap_err().untold;
    limiter.take_at(Caller::Address(None), None, s(0)).unwrap();
    assert_eq!([at(0), at(1), at(999), at(1000), at(1001), at(5000)], [Some(1), None, None, Some(3), None, Some(2)]);
}

#[test]
fn nothing_of_a_caller_can_be_read_in_the_limiter() {
    let limiter = limiter(60, 1, 100);
    limiter.take_at(Caller::Owner(&owner("alice-in-the-clear")), address("192.0.2.77"), s(0)).unwrap();
    let shown = format!("{limiter:?}");
    assert!(!shown.contains("alice") && !shown.contains("192.0.2.77"), "{shown}");
    let other = self::limiter(60, 1, 100);
    let key = |limiter: &RateLimiter| limiter.key(Caller::Owner(&owner("alice")));
    assert!(key(&limiter) == key(&limiter) && key(&limiter) != key(&other), "the salt is the process's own");
}
