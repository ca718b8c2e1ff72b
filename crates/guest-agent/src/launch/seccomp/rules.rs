//! Rules of the system call filter, with their reasons.

/// Check of a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// It is allowed without a check.
    Allow,
    /// It fails with this error.
    Refuse(i32),
    /// It fails with this error, or with `EINVAL` if the flags in the argument have bits other than
    /// the known ones: the kernel looks at those first, and programs probe it so.
    RefuseKnown { argument: u32, known: u32, errno: i32 },
    /// It is allowed unless it makes a namespace or has another of these bits.
    Clone { refused: u32 },
    /// It is allowed unless it makes a namespace.
    Unshare,
    /// It is allowed unless it asks for huge pages.
    Huge(Memory),
    /// It is refused if the argument is one of these.
    NotOneOf { argument: u32, values: &'static [u32] },
    /// It is allowed, slowed or refused by its request to a terminal or an interface.
    Ioctl,
    /// It is refused unless the argument is one of these.
    OneOf { argument: u32, values: &'static [u32] },
    /// It is allowed for the kinds of sockets that a box may have.
    Socket,
    /// It is allowed, slowed or refused by the option that it sets.
    SetOption,
    /// It is allowed or slowed by the option that it reads.
    GetOption,
    /// It is allowed unless it sets the size of core dumps.
    Limit(Setting),
}

/// A call that may ask for huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// The call `mmap`.
    Mapping,
    /// The call `memfd_create`.
    File,
    /// The call `shmget`.
    Segment,
}

/// A call that sets a limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setting {
    /// The call `setrlimit`, which only sets.
    Old,
    /// The call `prlimit64`, which also reads a limit.
    New,
}

/// A system call that is not always allowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule {
    pub(super) number: u32,
    pub(super) check: Check,
}

/// The last call that was known when these rules were written (`removexattrat`). Later ones do not
/// exist in a box until they have been reviewed. Numbers from 424 on are the same on all
/// architectures.
pub(super) const KNOWN_LAST: u32 = 466;

/// Calls that the C library crate has no numbers of yet.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const SETXATTRAT: i64 = 463;
const GETXATTRAT: i64 = 464;
const LISTXATTRAT: i64 = 465;
const REMOVEXATTRAT: i64 = 466;

/// All flags of `clone` that make a namespace.
pub(super) const NAMESPACES: u32 = 0x7e02_0000;
/// Flag of `unshare` and `setns` for a namespace of clocks; `clone` has no such flag.
pub(super) const TIME_NAMESPACE: u32 = 0x80;
/// Flags of `unshare` besides those of namespaces.
pub(super) const UNSHARED: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM)
    .unsigned_abs();
/// Flag of `clone` with which a tracer does not get the child.
const UNTRACED: u32 = 0x0080_0000;
/// Target of `kill`: every process that the caller may signal.
const EVERYBODY: [u32; 1] = [0xffff_ffff];
/// Request that puts input into a terminal.
pub(super) const TYPING: Span = Span(0x5412, 0x5412);
/// Requests to a console, among them one that pastes. A box has none.
pub(super) const CONSOLE: Span = Span(0x541C, 0x541C);
/// Options for programs of a socket, in both forms, alone and for a group: compiled, they take
/// kernel memory that has one limit for the whole host.
pub(super) const SOCKET_PROGRAMS: [u32; 4] = [26, 50, 51, 52];
/// Flags for memory of huge pages, in a mapping, a file in memory and a shared segment.
pub(super) const MAP_HUGE: u32 = 0x4_0000;
pub(super) const MEMFD_HUGE: u32 = 4;
pub(super) const SHARED_HUGE: u32 = 0o4000;
/// Flags of `memfd_create` that no kernel has, and two that exclude each other: to be executable,
/// and never to become so.
pub(super) const MEMFD_UNKNOWN: u32 = 0x03ff_ffe0;
pub(super) const MEMFD_EXCLUSIVE: [u32; 2] = [0x10, 0x08];

/// Numbers from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span(pub(super) u32, pub(super) u32);

/// Requests about interfaces for which the kernel takes its one lock of all networks: the list of
/// them, and their addresses.
pub(super) const INTERFACES_SLOWED: [Span; 6] = [
    Span(0x8912, 0x8912),
    Span(0x8915, 0x8915),
    Span(0x8917, 0x8917),
    Span(0x8919, 0x8919),
    Span(0x891b, 0x891b),
    Span(0x8935, 0x8935),
];
/// Requests to drivers, bridges and virtual networks, which a box has none of. The kernel takes the
/// same lock to refuse them, or starts a program to load a module.
pub(super) const INTERFACES_REFUSED: [Span; 3] = [Span(0x8940, 0x8941), Span(0x8946, 0x894a), Span(0x8980, 0x89ff)];
/// Options for which the kernel takes that lock: groups that a socket belongs to, and a change of
/// its address family.
pub(super) const IPV4_SLOWED: [Span; 1] = [Span(35, 48)];
pub(super) const IPV6_SLOWED: [Span; 4] = [Span(1, 1), Span(20, 21), Span(27, 28), Span(42, 48)];
/// Options of both that read the members of a group, with the same lock.
pub(super) const MEMBERS_READ: [&[Span]; 2] = [&[Span(41, 41), Span(48, 48)], &[Span(48, 48)]];
/// Labels of flows, of which all boxes share one table.
pub(super) const IPV6_REFUSED: [Span; 1] = [Span(32, 32)];
/// Keys of signed connections: memory that no control group counts.
pub(super) const TCP_REFUSED: [Span; 3] = [Span(14, 14), Span(32, 32), Span(38, 42)];

/// Protocols of internet sockets that few programs know and none needs in a box: one over several
/// paths, and one with partial checksums.
pub(super) const RARE_PROTOCOLS: [u32; 2] = [262, 136];
/// Personalities: plain, without address randomization (debuggers), 64 and 32 bit of uname, and the
/// query of the current one.
const PERSONALITIES: [u32; 6] = [0, 8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

/// Mounts and namespaces: the isolation of the box. More are in [`FLAGGED`].
const WALLS: [i64; 8] = [
    libc::SYS_mount,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_open_by_handle_at,
];

/// Refused calls whose flags the kernel looks at before it asks whether the caller may: the number,
/// the argument with the flags, and those that it knows.
const FLAGGED: [(i64, u32, u32); 15] = [
    (libc::SYS_umount2, 1, 0xf),
    (libc::SYS_setns, 1, NAMESPACES | TIME_NAMESPACE),
    (libc::SYS_open_tree, 2, 0x0008_9901),
    (libc::SYS_mount_setattr, 2, 0x9900),
    (STATMOUNT, 3, 0),
    (LISTMOUNT, 3, 1),
    (libc::SYS_name_to_handle_at, 4, 0x1603),
    (libc::SYS_perf_event_open, 4, 0xf),
    (libc::SYS_io_uring_enter, 3, 0xff),
    (libc::SYS_pidfd_getfd, 2, 0),
    (libc::SYS_memfd_secret, 0, libc::O_CLOEXEC.unsigned_abs()),
    (libc::SYS_process_madvise, 4, 0),
    (libc::SYS_mbind, 5, 7),
    (libc::SYS_set_mempolicy_home_node, 3, 0),
    (libc::SYS_move_pages, 5, 6),
];

/// Parts of the kernel with a long record of faults and no use in a box. More are in [`FLAGGED`].
const RISKY: [i64; 14] = [
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_register,
    libc::SYS_kcmp,
    libc::SYS_fanotify_init,
    libc::SYS_set_mempolicy,
    libc::SYS_migrate_pages,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
];

/// Calls that change the state of the whole machine.
const MACHINE: [i64; 18] = [
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
];

/// Old calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLD: [i64; 7] = [
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: [i64; 0] = [];

/// Returns every rule of a box with namespaces, in no order.
pub(super) fn rules() -> Vec<Rule> {
    let mut rules = common();
    rules.push(rule(libc::SYS_unshare, Check::Unshare));
    rules
}

/// Returns the rules that all boxes have, in no order.
fn common() -> Vec<Rule> {
    let refused = WALLS.into_iter().chain(RISKY).chain(MACHINE).chain(OLD);
    let mut rules: Vec<Rule> = refused.map(|number| rule(number, Check::Refuse(libc::EPERM))).collect();
    rules.extend(FLAGGED.map(|(number, argument, known)| rule(number, refuse_known(argument, known))));
    rules.extend([
        rule(libc::SYS_clone, Check::Clone { refused: NAMESPACES }),
        // Its flags are in memory, where a filter cannot look; C libraries then use clone.
        rule(libc::SYS_clone3, Check::Refuse(libc::ENOSYS)),
        rule(libc::SYS_personality, Check::OneOf { argument: 0, values: &PERSONALITIES }),
        rule(libc::SYS_ioctl, Check::Ioctl),
        rule(libc::SYS_socket, Check::Socket),
        // Some of the families that a box has none of make pairs.
        rule(libc::SYS_socketpair, Check::Socket),
        rule(libc::SYS_setsockopt, Check::SetOption),
        rule(libc::SYS_getsockopt, Check::GetOption),
        // Requests are counted for the whole host. Programs work without them.
        rule(libc::SYS_io_setup, Check::Refuse(libc::ENOSYS)),
        // It would write the changes of the whole host to disk. A box keeps nothing beyond its end,
        // so there is nothing to write.
        rule(libc::SYS_sync, Check::Refuse(0)),
        // Huge pages are the host's, and count towards no limit of a box. Programs take this for a
        // host that has none left.
        rule(libc::SYS_mmap, Check::Huge(Memory::Mapping)),
        rule(libc::SYS_memfd_create, Check::Huge(Memory::File)),
        rule(libc::SYS_shmget, Check::Huge(Memory::Segment)),
        rule(libc::SYS_setrlimit, Check::Limit(Setting::Old)),
        rule(libc::SYS_prlimit64, Check::Limit(Setting::New)),
    ]);
    rules
}

/// Calls whose paths would reach the host's files unchanged: PRoot 5.1, which distributions still
/// have, does not know them. C libraries then use the older ones. `file_getattr` and `file_setattr`
/// are above [`KNOWN_LAST`].
const UNTRANSLATED: [i64; 9] = [
    libc::SYS_statx,
    libc::SYS_openat2,
    libc::SYS_faccessat2,
    libc::SYS_fchmodat2,
    libc::SYS_execveat,
    SETXATTRAT,
    GETXATTRAT,
    LISTXATTRAT,
    REMOVEXATTRAT,
];

/// Calls of System V and POSIX for objects with a number or a name that programs share: below a
/// tracer these are the host's, and outlive the box.
const LASTING: [i64; 14] = [
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
];

/// Returns every rule for a box below a tracer, in no order.
///
/// Its processes have the rights of the user that they run as on the host, and the tracer must see
/// all of them.
pub(super) fn traced() -> Vec<Rule> {
    let mut rules = common();
    // A tracer would not see that a thread has another working directory from then on.
    rules.push(rule(libc::SYS_unshare, refuse_known(0, NAMESPACES | TIME_NAMESPACE | UNSHARED)));
    // It would take the files of the host. Elsewhere whoever leaves such a root finds that of the box, which
    // is the root of its mounts.
    rules.push(rule(libc::SYS_chroot, Check::Refuse(libc::EPERM)));
    let replaced = [libc::SYS_clone, libc::SYS_shmget].map(number_of);
    rules.retain(|rule| !replaced.contains(&rule.number));
    rules.push(rule(libc::SYS_clone, Check::Clone { refused: NAMESPACES | UNTRACED }));
    rules.push(rule(libc::SYS_kill, Check::NotOneOf { argument: 0, values: &EVERYBODY }));
    let absent = UNTRANSLATED.into_iter().chain(LASTING);
    rules.extend(absent.map(|number| rule(number, Check::Refuse(libc::ENOSYS))));
    rules
}

fn refuse_known(argument: u32, known: u32) -> Check {
    Check::RefuseKnown { argument, known, errno: libc::EPERM }
}

fn rule(number: i64, check: Check) -> Rule {
    Rule { number: number_of(number), check }
}

fn number_of(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
