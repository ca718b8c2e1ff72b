use super::*;

/// Runs the filter as the kernel does.
fn run(program: &[sock_filter], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(number.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0u64.to_ne_bytes());
    data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
    let (mut at, mut accumulator) = (0usize, 0u32);
    loop {
        let step = program[at];
        at += 1;
        match u32::from(step.code) {
            0x20 => accumulator = u32::from_ne_bytes(data[step.k as usize..][..4].try_into().unwrap()),
            0x06 => return step.k,
            code => {
                if code & 0x07 == 0x04 {
                    accumulator &= step.k;
                    continue;
                }
                let hit = match code & 0xf0 {
                    0x00 => {
                        at += usize::try_from(step.k).unwrap();
                        continue;
                    }
                    0x10 => accumulator == step.k,
                    0x20 => accumulator > step.k,
                    0x30 => accumulator >= step.k,
                    0x40 => accumulator & step.k != 0,
                    other => panic!("unknown jump {other:#x}"),
                };
                at += usize::from(if hit { step.jt } else { step.jf });
            }
        }
    }
}

#[track_caller]
fn expect(number: i64, arguments: [u64; 6], expected: u32) {
    let number = u32::try_from(number).unwrap();
    assert_eq!(run(&program(Profile::Kernel).unwrap(), ARCHITECTURE, number, arguments), expected, "call {number}");
}

#[test]
fn every_number_is_treated_as_its_rule_says_and_all_others_are_allowed() {
    let program = program(Profile::Kernel).unwrap();
    let rules = rules::rules();
    for number in 0..=KNOWN_LAST {
        let expected = match rules.iter().find(|rule| rule.number == number).map(|rule| rule.check) {
            None => ALLOW,
            Some(Check::Refuse(errno)) => refuse(errno),
            Some(_) => continue,
        };
        assert_eq!(run(&program, ARCHITECTURE, number, [0; 6]), expected, "call {number}");
    }
}

#[test]
fn a_number_has_one_rule_only() {
    for rules in [rules::rules(), rules::traced()] {
        let mut numbers: Vec<u32> = rules.iter().map(|rule| rule.number).collect();
        numbers.sort_unstable();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }
}

#[test]
fn calls_that_an_old_tracer_does_not_see_or_that_outlive_it_do_not_exist_below_one() {
    let program = program(Profile::Tracer).unwrap();
    let answer = |number: i64, arguments| run(&program, ARCHITECTURE, u32::try_from(number).unwrap(), arguments);
    let lasting = [libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget, libc::SYS_mq_open, libc::SYS_shmat];
    for number in [libc::SYS_statx, libc::SYS_openat2, libc::SYS_faccessat2].into_iter().chain(lasting) {
        assert_eq!(answer(number, [0; 6]), refuse(libc::ENOSYS), "call {number}");
    }
    let escape = (libc::CLONE_UNTRACED | libc::SIGCHLD) as u64;
    assert_eq!(answer(libc::SYS_clone, [escape, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
    assert_eq!(answer(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), ALLOW);
    assert_eq!(answer(libc::SYS_kill, [-1i64 as u64, 9, 0, 0, 0, 0]), refuse(libc::EPERM));
    assert_eq!(answer(libc::SYS_kill, [7, 9, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn a_foreign_architecture_is_killed_and_unknown_numbers_do_not_exist() {
    let program = program(Profile::Kernel).unwrap();
    assert_eq!(run(&program, 0x4000_0003, 1, [0; 6]), KILL);
    assert_eq!(run(&program, ARCHITECTURE, KNOWN_LAST + 1, [0; 6]), refuse(libc::ENOSYS));
    assert_eq!(run(&program, ARCHITECTURE, 0x4000_0001, [0; 6]), refuse(libc::ENOSYS));
    assert_eq!(run(&program, ARCHITECTURE, u32::MAX, [0; 6]), refuse(libc::ENOSYS));
}

#[test]
fn a_process_may_be_cloned_but_no_namespace_be_made() {
    expect(libc::SYS_clone, [0x0120_0011, 0, 0, 0, 0, 0], ALLOW);
    for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWNET, libc::CLONE_NEWCGROUP] {
        expect(libc::SYS_clone, [namespace as u64 | 17, 0, 0, 0, 0, 0], refuse(libc::EPERM));
    }
    expect(libc::SYS_clone3, [0; 6], refuse(libc::ENOSYS));
    let apart = (libc::CLONE_FILES | libc::CLONE_FS) as u64;
    expect(libc::SYS_unshare, [apart, 0, 0, 0, 0, 0], ALLOW);
    for namespace in [libc::CLONE_NEWUSER, libc::CLONE_NEWNS, libc::CLONE_NEWPID, 0x80] {
        expect(libc::SYS_unshare, [apart | namespace as u64, 0, 0, 0, 0, 0], refuse(libc::EPERM));
    }
    let traced = program(Profile::Tracer).unwrap();
    let unshare = u32::try_from(libc::SYS_unshare).unwrap();
    assert_eq!(run(&traced, ARCHITECTURE, unshare, [apart, 0, 0, 0, 0, 0]), refuse(libc::EPERM));
}

#[test]
fn a_refused_call_with_unknown_flags_is_answered_as_the_kernel_does() {
    let invalid = refuse(libc::EINVAL);
    let all = u64::from(u32::MAX);
    for (number, argument) in [
        (libc::SYS_memfd_create, 1),
        (libc::SYS_clone, 0),
        (libc::SYS_unshare, 0),
        (libc::SYS_setns, 1),
        (libc::SYS_umount2, 1),
        (libc::SYS_open_tree, 2),
        (libc::SYS_mount_setattr, 2),
        (libc::SYS_name_to_handle_at, 4),
        (libc::SYS_perf_event_open, 4),
        (libc::SYS_io_uring_enter, 3),
        (libc::SYS_pidfd_getfd, 2),
        (libc::SYS_memfd_secret, 0),
        (libc::SYS_process_madvise, 4),
        (libc::SYS_mbind, 5),
        (libc::SYS_move_pages, 5),
    ] {
        let mut arguments = [0; 6];
        arguments[argument] = all;
        expect(number, arguments, invalid);
    }
    // Anonymous, of huge pages, and neither shared nor private.
    expect(libc::SYS_mmap, [0, 4096, 3, all, all, 0], invalid);
    expect(libc::SYS_mmap, [0, 4096, 3, (libc::MAP_ANONYMOUS | libc::MAP_HUGETLB) as u64, all, 0], invalid);
    expect(libc::SYS_unshare, [1 << 37, 0, 0, 0, 0, 0], invalid);
    // The kernel refuses these itself, with or without huge pages.
    let file = (libc::MAP_PRIVATE | libc::MAP_HUGETLB) as u64;
    expect(libc::SYS_mmap, [0, 4096, 3, file, 7, 0], ALLOW);
    expect(libc::SYS_shmget, [7, 4096, libc::SHM_HUGETLB as u64, 0, 0, 0], ALLOW);
    expect(libc::SYS_memfd_create, [8, all & !u64::from(libc::MFD_HUGETLB), 0, 0, 0, 0], ALLOW);
    // Flags that exclude each other.
    let both = u64::from(libc::MFD_EXEC | libc::MFD_NOEXEC_SEAL | libc::MFD_HUGETLB);
    expect(libc::SYS_memfd_create, [8, both, 0, 0, 0, 0], invalid);
    for (namespace, shared) in [
        (libc::CLONE_NEWNS, libc::CLONE_FS),
        (libc::CLONE_NEWUSER, libc::CLONE_FS),
        (libc::CLONE_NEWPID, libc::CLONE_THREAD),
    ] {
        expect(libc::SYS_clone, [(namespace | shared) as u64, 0, 0, 0, 0, 0], invalid);
        expect(libc::SYS_clone, [shared as u64, 0, 0, 0, 0, 0], ALLOW);
    }
    for number in [libc::SYS_socket, libc::SYS_socketpair] {
        expect(number, [libc::AF_PACKET as u64, all, 0, 0, 0, 0], invalid);
        expect(number, [libc::AF_NETLINK as u64, all, all, 0, 0, 0], invalid);
    }
    // Without unknown flags, what a box may not do stays refused.
    for number in [libc::SYS_setns, libc::SYS_open_tree, libc::SYS_pidfd_getfd, libc::SYS_mount_setattr] {
        expect(number, [0; 6], refuse(libc::EPERM));
    }
}

#[test]
fn only_harmless_sockets_exist_alone_and_in_pairs() {
    /// Of these the kernel makes pairs.
    const AF_TIPC: i32 = 30;
    let refused = refuse(libc::EAFNOSUPPORT);
    let rare = refuse(libc::EPROTONOSUPPORT);
    for (domain, protocol, expected) in [
        (libc::AF_UNIX, 0, ALLOW),
        (libc::AF_INET, 6, ALLOW),
        (libc::AF_INET6, 17, ALLOW),
        (libc::AF_INET, libc::IPPROTO_MPTCP, rare),
        (libc::AF_INET6, libc::IPPROTO_UDPLITE, rare),
        (libc::AF_NETLINK, libc::NETLINK_ROUTE, ALLOW),
        (libc::AF_NETLINK, libc::NETLINK_NETFILTER, rare),
        (AF_TIPC, 0, refused),
        (libc::AF_PACKET, 0, refused),
        (libc::AF_VSOCK, 0, refused),
        (libc::AF_ALG, 0, refused),
    ] {
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            let kind = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64;
            expect(call, [domain as u64, kind, protocol as u64, 0, 0, 0], expected);
        }
    }
}

#[test]
fn a_socket_gets_no_program() {
    let level = libc::SOL_SOCKET as u64;
    let programs =
        [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF, libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];
    for option in programs {
        expect(libc::SYS_setsockopt, [3, level, option as u64, 8, 8, 0], refuse(libc::EPERM));
        expect(libc::SYS_setsockopt, [3, libc::IPPROTO_TCP as u64, option as u64, 8, 8, 0], ALLOW);
    }
    expect(libc::SYS_setsockopt, [3, level, libc::SO_REUSEADDR as u64, 8, 8, 0], ALLOW);
}

#[test]
fn calls_that_lock_all_networks_wait_for_their_turn() {
    let (get, set, ioctl) = (libc::SYS_getsockopt, libc::SYS_setsockopt, libc::SYS_ioctl);
    let (ipv4, ipv6, tcp) = (libc::IPPROTO_IP as u64, libc::IPPROTO_IPV6 as u64, libc::IPPROTO_TCP as u64);
    let absent = refuse(libc::ENOPROTOOPT);
    for (number, level, options, expected) in [
        (set, ipv4, vec![35, 36, 41, 42, 48], ASK),
        (set, ipv4, vec![1, 10, 32, 33, 34, 49, 50], ALLOW),
        (get, ipv4, vec![41, 48], ASK),
        (get, ipv4, vec![34, 35, 49], ALLOW),
        (set, ipv6, vec![1, 20, 21, 27, 28, 42, 48], ASK),
        (set, ipv6, vec![32], absent),
        (set, ipv6, vec![16, 17, 18, 19, 22, 26, 29, 41, 49, 67], ALLOW),
        (get, ipv6, vec![48], ASK),
        (get, ipv6, vec![26, 32, 42], ALLOW),
        (set, tcp, vec![14, 32, 38, 39, 40, 41, 42], absent),
        (set, tcp, vec![1, 4, 9, 13, 18, 23, 30, 37], ALLOW),
        (get, tcp, vec![11, 14, 40], ALLOW),
    ] {
        for option in options {
            expect(number, [3, level, option, 8, 8, 0], expected);
        }
    }
    for (requests, expected) in [
        (vec![0x8912, 0x8915, 0x8917, 0x8919, 0x891b, 0x8935], ASK),
        (vec![0x8940, 0x8946, 0x894a, 0x8982, 0x89b1, 0x89f0, 0x89ff], refuse(libc::EOPNOTSUPP)),
        // Name, flags, size, hardware address and number have no such lock; the others do not
        // concern interfaces.
        (vec![0x8910, 0x8913, 0x8921, 0x8927, 0x8933, 0x894b, 0x541b, 0x8905, 0x8a00], ALLOW),
    ] {
        for request in requests {
            expect(ioctl, [3, request, 8, 0, 0, 0], expected);
        }
    }
}

#[test]
fn where_none_listens_such_calls_are_refused_and_below_a_tracer_made() {
    let call = u32::try_from(libc::SYS_ioctl).unwrap();
    let asks = [3, 0x8912, 8, 0, 0, 0];
    assert_eq!(run(&program(Profile::Unheard).unwrap(), ARCHITECTURE, call, asks), refuse(libc::EPERM));
    assert_eq!(run(&program(Profile::Tracer).unwrap(), ARCHITECTURE, call, asks), ALLOW);
}

#[test]
fn huge_pages_are_out_of_reach_and_sync_does_nothing() {
    let none = refuse(libc::ENOMEM);
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    expect(libc::SYS_mmap, [0, 4096, 3, private, 0, 0], ALLOW);
    expect(libc::SYS_mmap, [0, 1 << 21, 3, private | libc::MAP_HUGETLB as u64, 0, 0], none);
    expect(libc::SYS_memfd_create, [8, u64::from(libc::MFD_CLOEXEC), 0, 0, 0, 0], ALLOW);
    expect(libc::SYS_memfd_create, [8, u64::from(libc::MFD_HUGETLB), 0, 0, 0, 0], none);
    expect(libc::SYS_shmget, [1, 4096, 0o1600, 0, 0, 0], ALLOW);
    expect(libc::SYS_shmget, [1, 1 << 21, (0o1600 | libc::SHM_HUGETLB) as u64, 0, 0, 0], none);
    expect(libc::SYS_sync, [0; 6], refuse(0));
}

#[test]
fn the_size_of_core_dumps_can_be_read_and_not_set() {
    let core = u64::from(libc::RLIMIT_CORE);
    let files = u64::from(libc::RLIMIT_NOFILE);
    let (set, upper) = (0x7fff_0000, 1 << 32);
    let own = program(Profile::Kernel).unwrap();
    for program in [own, addition()] {
        let check = |number: i64, arguments, expected| {
            let number = u32::try_from(number).unwrap();
            assert_eq!(run(&program, ARCHITECTURE, number, arguments), expected, "{number} {arguments:?}");
        };
        check(libc::SYS_setrlimit, [core, set, 0, 0, 0, 0], refuse(0));
        check(libc::SYS_setrlimit, [files, set, 0, 0, 0, 0], ALLOW);
        check(libc::SYS_prlimit64, [0, core, 0, set, 0, 0], ALLOW);
        check(libc::SYS_prlimit64, [0, files, set, set, 0, 0], ALLOW);
        for new in [set, upper] {
            check(libc::SYS_prlimit64, [7, core, new, 0, 0, 0], refuse(0));
            for old in [set, upper] {
                check(libc::SYS_prlimit64, [0, core, new, old, 0, 0], refuse(libc::EPERM));
            }
        }
        check(libc::SYS_read, [core; 6], ALLOW);
    }
}

#[test]
fn the_addition_knows_programs_of_32_bits_and_allows_what_is_not_its_own() {
    let core = u64::from(libc::RLIMIT_CORE);
    let addition = addition();
    let (_, (foreign, old, new)) = (LIMIT_CALLS[0], LIMIT_CALLS[1]);
    assert_eq!(run(&addition, foreign, old, [core, 8, 0, 0, 0, 0]), refuse(0));
    assert_eq!(run(&addition, foreign, new, [0, core, 8, 0, 0, 0]), refuse(0));
    assert_eq!(run(&addition, foreign, new, [0, core, 0, 8, 0, 0]), ALLOW);
    assert_eq!(run(&addition, ARCHITECTURE, X32 | LIMIT_CALLS[0].1, [core, 8, 0, 0, 0, 0]), refuse(0));
    assert_eq!(run(&addition, 7, LIMIT_CALLS[0].1, [core, 8, 0, 0, 0, 0]), ALLOW);
    assert_eq!(run(&addition, ARCHITECTURE, 1, [core, 8, 0, 0, 0, 0]), ALLOW);
}

#[test]
fn the_filter_of_a_container_has_no_requests_that_count_for_the_whole_host() {
    let addition = addition();
    for ((architecture, ..), numbers) in LIMIT_CALLS.into_iter().zip(REQUEST_CALLS) {
        for number in numbers {
            assert_eq!(run(&addition, architecture, *number, [1, 8, 0, 0, 0, 0]), refuse(libc::ENOSYS));
            assert_eq!(run(&addition, architecture, number + 1, [1, 8, 0, 0, 0, 0]), ALLOW);
        }
    }
}

#[test]
fn the_upper_half_of_an_argument_hides_nothing() {
    expect(libc::SYS_ioctl, [0, 1 << 32 | libc::TIOCSTI, 0, 0, 0, 0], refuse(libc::EPERM));
    expect(libc::SYS_ioctl, [0, libc::TIOCGWINSZ, 0, 0, 0, 0], ALLOW);
    expect(libc::SYS_ioctl, [0, libc::TIOCLINUX, 0, 0, 0, 0], refuse(libc::ENOTTY));
    expect(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0], refuse(libc::EPERM));
    expect(libc::SYS_personality, [0x0004_0000, 0, 0, 0, 0, 0], ALLOW);
    expect(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], ALLOW);
}
