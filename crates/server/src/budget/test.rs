use super::*;

const MIB: usize = 1 << 20;

fn owner(name: &str) -> OwnerId {
    OwnerId::parse(name).unwrap()
}

fn of(budget: &Arc<Budget>, name: &str, address: [u8; 4]) -> Account {
    budget.account(Caller::Owner(&owner(name)), Some(address.into()))
}

fn used(budget: &Budget) -> u64 {
    budget.stats().used_bytes
}

#[test]
fn what_is_dropped_is_given_back_to_the_byte() {
    let budget = Budget::new(16 * MIB as u64);
    let account = of(&budget, "a", [10, 0, 0, 1]);
    let mut first = account.reserve(1000).unwrap();
    let second = account.reserve(MIB).unwrap();
    first.grow(24).unwrap();
    first.grow_regardless(64 * MIB);
    assert_eq!(used(&budget), (65 * MIB + 1024) as u64);
    assert!(account.reserve(1).is_err() && !account.has_room(1));
    first.shrink_to(10);
    first.merge(second);
    assert_eq!((first.bytes(), used(&budget)), (MIB + 10, (MIB + 10) as u64));
    drop(first);
    let stats = budget.stats();
    assert_eq!((stats.used_bytes, stats.peak_bytes), (0, (65 * MIB + 1024) as u64));
    assert_eq!(stats.refused_total, 1);
    assert!(budget.lock().held.is_empty(), "who holds nothing is forgotten");
}

#[test]
fn one_caller_leaves_room_for_its_neighbour() {
    let budget = Budget::new(30 * MIB as u64);
    let greedy = of(&budget, "greedy", [10, 0, 0, 1]);
    let mut held: Vec<_> = std::iter::from_fn(|| greedy.reserve(MIB / 4).ok()).collect();
    assert_eq!(used(&budget), 20 * MIB as u64);
    held.push(of(&budget, "honest", [10, 0, 0, 1]).reserve(2 * MIB).unwrap());
    held.push(of(&budget, "another", [10, 0, 0, 2]).reserve(2 * MIB).unwrap());
    drop(held);
    assert_eq!(used(&budget), 0);
}

#[test]
fn made_up_owners_of_one_address_leave_room_for_another_address() {
    let budget = Budget::new(50 * MIB as u64);
    let mut held = Vec::new();
    for index in 0..200 {
        let account = of(&budget, &format!("owner-{index}"), [10, 0, 0, 1]);
        held.extend(std::iter::from_fn(|| account.reserve(MIB / 8).ok()));
    }
    assert!(used(&budget) <= 40 * MIB as u64, "{}", used(&budget));
    of(&budget, "honest", [10, 0, 0, 2]).reserve(6 * MIB).unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_who_waits_gets_what_is_given_back_in_time() {
    let budget = Budget::new(3 * MIB as u64);
    let account = of(&budget, "a", [10, 0, 0, 1]);
    let wait = Duration::from_secs(10);
    let held = account.reserve(2 * MIB).unwrap();
    assert_eq!(account.reserve_within(MIB, wait).await.unwrap_err(), Spent);
    assert_eq!(budget.stats().refused_total, 1);
    let leaving = async {
        tokio::time::sleep(wait / 2).await;
        drop(held);
    };
    let (waited, ()) = tokio::join!(account.reserve_within(MIB, wait), leaving);
    assert_eq!(waited.unwrap().bytes(), MIB);
}
