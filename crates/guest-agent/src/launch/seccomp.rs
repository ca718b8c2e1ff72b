//! System call filter of a box: refuses calls that have no use in a box and a long record of kernel
//! faults.
//!
//! The kernel runs the filter once for every call number when it is installed, so the numbers are a
//! balanced tree of comparisons: about seven steps each instead of seventy.

mod rules;
#[cfg(test)]
mod test;

use libc::sock_filter;

use rules::{
    CONSOLE, Check, INTERFACES_REFUSED, INTERFACES_SLOWED, IPV4_SLOWED, IPV6_REFUSED, IPV6_SLOWED, KNOWN_LAST,
    MAP_HUGE, MEMBERS_READ, MEMFD_EXCLUSIVE, MEMFD_HUGE, MEMFD_UNKNOWN, Memory, NAMESPACES, RARE_PROTOCOLS, Rule,
    SHARED_HUGE, SOCKET_PROGRAMS, Setting, Span, TCP_REFUSED, TIME_NAMESPACE, TYPING, UNSHARED,
};

/// Offsets in the kernel's input of a filter: number, architecture, instruction pointer, and six
/// arguments of 64 bits.
const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;

/// Architectures whose programs this kernel runs, with their numbers of `setrlimit` and
/// `prlimit64`.
#[cfg(target_arch = "x86_64")]
const LIMIT_CALLS: [(u32, u32, u32); 2] = [(ARCHITECTURE, 160, 302), (0x4000_0003, 75, 340)];
#[cfg(target_arch = "aarch64")]
const LIMIT_CALLS: [(u32, u32, u32); 2] = [(ARCHITECTURE, 164, 261), (0x4000_0028, 75, 369)];
/// Numbers of `io_setup`; programs of `x86_64` with short pointers have one of their own.
#[cfg(target_arch = "x86_64")]
const REQUEST_CALLS: [&[u32]; 2] = [&[206, 543], &[245]];
#[cfg(target_arch = "aarch64")]
const REQUEST_CALLS: [&[u32]; 2] = [&[0], &[243]];
/// Bit in the call numbers of programs of `x86_64` with short pointers.
const X32: u32 = 0x4000_0000;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;
/// Answer that makes the call wait until the listener of the filter lets it continue.
const ASK: u32 = libc::SECCOMP_RET_USER_NOTIF;
/// Answer of the kernel to flags that it does not know, or that exclude each other.
const INVALID: sock_filter =
    sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: refuse(libc::EINVAL) };

/// A jump of a filter that does not fit its eight bits.
#[derive(Debug)]
pub(super) struct TooLong;

/// Returns the answer that refuses a call with this error.
const fn refuse(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
}

/// Isolation of a box besides the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// Namespaces, with a listener that lets calls for which the kernel takes a lock of the whole
    /// host continue one at a time.
    Kernel,
    /// Namespaces without a listener: those calls are refused.
    Unheard,
    /// A tracer that rewrites the paths of system calls. The box has no namespaces, so the networks
    /// are those of the host, and its programs may query them.
    Tracer,
}

impl Profile {
    /// Returns the answer to a call for which the kernel takes a lock of the whole host.
    const fn slowed(self) -> u32 {
        match self {
            Profile::Kernel => ASK,
            Profile::Unheard => refuse(libc::EPERM),
            Profile::Tracer => ALLOW,
        }
    }
}

/// Builds the whole filter.
pub(super) fn program(walls: Profile) -> Result<Vec<sock_filter>, TooLong> {
    let mut rules = match walls {
        Profile::Kernel | Profile::Unheard => rules::rules(),
        Profile::Tracer => rules::traced(),
    };
    rules.sort_by_key(|rule| rule.number);
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        jump(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        // Another architecture has other numbers, which this filter does not know.
        answer(KILL),
        load(NUMBER_OFFSET),
        jump(libc::BPF_JGT, KNOWN_LAST, 0, 1),
        // A C library takes this for an old kernel. The numbers of x32 are above the limit too.
        answer(refuse(libc::ENOSYS)),
    ];
    program.extend(tree(&ranges(&rules), walls.slowed())?);
    Ok(program)
}

/// Range of call numbers from `first` up to the next range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    first: u32,
    check: Check,
}

/// Divides all numbers into ranges with one check each.
fn ranges(sorted: &[Rule]) -> Vec<Range> {
    let mut ranges = vec![Range { first: 0, check: Check::Allow }];
    for rule in sorted {
        push(&mut ranges, Range { first: rule.number, check: rule.check });
        push(&mut ranges, Range { first: rule.number + 1, check: Check::Allow });
    }
    ranges
}

/// Adds a range. One that starts where the last one does replaces it, and one with the same check
/// extends it.
fn push(ranges: &mut Vec<Range>, range: Range) {
    if ranges.last().is_some_and(|last| last.first == range.first) {
        ranges.pop();
    }
    if ranges.last().is_none_or(|last| last.check != range.check) {
        ranges.push(range);
    }
}

fn tree(ranges: &[Range], slowed: u32) -> Result<Vec<sock_filter>, TooLong> {
    match ranges {
        [] => Ok(vec![answer(ALLOW)]),
        [only] => check(only.check, slowed),
        _ => {
            let (low, high) = ranges.split_at(ranges.len() / 2);
            let below = tree(low, slowed)?;
            let above = tree(high, slowed)?;
            let first = high[0].first;
            let mut code = match u8::try_from(below.len()) {
                Ok(skip) => vec![jump(libc::BPF_JGE, first, skip, 0)],
                Err(_) => vec![jump(libc::BPF_JGE, first, 0, 1), far_jump(&below)?],
            };
            code.extend(below);
            code.extend(above);
            Ok(code)
        }
    }
}

/// Returns the instructions that decide on one range; each path ends in an answer.
fn check(check: Check, slowed: u32) -> Result<Vec<sock_filter>, TooLong> {
    Ok(match check {
        Check::Allow => vec![answer(ALLOW)],
        Check::Refuse(errno) => vec![answer(refuse(errno))],
        Check::RefuseKnown { argument, known, errno } => {
            vec![load_argument(argument), jump(libc::BPF_JSET, !known, 0, 1), INVALID, answer(refuse(errno))]
        }
        Check::Clone { refused } => clone(refused),
        Check::Unshare => unshare(),
        Check::Huge(memory) => huge(memory),
        Check::NotOneOf { argument, values } => listed(argument, values, refuse(libc::EPERM), ALLOW)?,
        Check::OneOf { argument, values } => listed(argument, values, ALLOW, refuse(libc::EPERM))?,
        Check::Socket => socket()?,
        Check::Ioctl => ioctl(slowed),
        Check::SetOption => set_option(slowed)?,
        Check::GetOption => {
            let [ipv4, ipv6] = MEMBERS_READ.map(|spans| by_span(2, &[(spans, slowed)]));
            by_level([(libc::IPPROTO_IP, ipv4), (libc::IPPROTO_IPV6, ipv6)])?
        }
        Check::Limit(setting) => core_limit(setting),
    })
}

fn listed(argument: u32, values: &[u32], found: u32, not_found: u32) -> Result<Vec<sock_filter>, TooLong> {
    let mut code = vec![load_argument(argument)];
    for (index, value) in values.iter().enumerate() {
        let to_found = u8::try_from(values.len() - index).map_err(|_| TooLong)?;
        code.push(jump(libc::BPF_JEQ, *value, to_found, 0));
    }
    code.extend([answer(not_found), answer(found)]);
    Ok(code)
}

/// Refuses new namespaces, as a kernel does that does not let the caller make any: what excludes each
/// other is found first.
fn clone(refused: u32) -> Vec<sock_filter> {
    let [mounts, users, pids, paths, thread] =
        [libc::CLONE_NEWNS, libc::CLONE_NEWUSER, libc::CLONE_NEWPID, libc::CLONE_FS, libc::CLONE_THREAD]
            .map(i32::unsigned_abs);
    vec![
        load_argument(0),
        jump(libc::BPF_JSET, refused, 1, 0),
        answer(ALLOW),
        jump(libc::BPF_JSET, mounts | users, 0, 1),
        jump(libc::BPF_JSET, paths, 2, 0),
        jump(libc::BPF_JSET, users | pids, 0, 2),
        jump(libc::BPF_JSET, thread, 0, 1),
        INVALID,
        answer(refuse(libc::EPERM)),
    ]
}

/// Lets a thread stop to share its working directory, files and the like, and refuses new namespaces.
/// Later kernels may have more of these.
fn unshare() -> Vec<sock_filter> {
    let namespaces = NAMESPACES | TIME_NAMESPACE;
    vec![
        load_upper_half(0),
        jump(libc::BPF_JEQ, 0, 0, 2),
        load_argument(0),
        jump(libc::BPF_JSET, !(namespaces | UNSHARED), 0, 1),
        INVALID,
        jump(libc::BPF_JSET, namespaces, 0, 1),
        answer(refuse(libc::EPERM)),
        answer(ALLOW),
    ]
}

/// Refuses huge pages. Flags that the kernel refuses by themselves are left to it, or answered as it
/// would: programs ask with them what it knows.
fn huge(memory: Memory) -> Vec<sock_filter> {
    let none_left = answer(refuse(libc::ENOMEM));
    match memory {
        Memory::File => {
            let [executable, sealed] = MEMFD_EXCLUSIVE;
            let mut code = vec![load_argument(1)];
            code.extend(only_if(MEMFD_HUGE));
            code.extend([
                jump(libc::BPF_JSET, MEMFD_UNKNOWN, 2, 0),
                jump(libc::BPF_JSET, executable, 0, 2),
                jump(libc::BPF_JSET, sealed, 0, 1),
                INVALID,
                none_left,
            ]);
            code
        }
        Memory::Mapping => {
            let mut code = vec![load_argument(3)];
            code.extend(only_if(MAP_HUGE));
            // Of a file it is an error, since no file of a box has huge pages.
            code.extend(only_if(libc::MAP_ANONYMOUS.unsigned_abs()));
            let kinds = libc::MAP_TYPE.unsigned_abs();
            code.extend([
                instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, kinds, 0, 0),
                jump(libc::BPF_JEQ, 0, 1, 0),
                jump(libc::BPF_JGT, libc::MAP_SHARED_VALIDATE.unsigned_abs(), 0, 1),
                INVALID,
                none_left,
            ]);
            code
        }
        Memory::Segment => {
            let mut code = vec![load_argument(2)];
            code.extend(only_if(SHARED_HUGE));
            code.extend([
                jump(libc::BPF_JSET, libc::IPC_CREAT.unsigned_abs(), 2, 0),
                load_argument(0),
                // It looks for a segment that there is, or is not.
                jump(libc::BPF_JEQ, libc::IPC_PRIVATE.unsigned_abs(), 0, 1),
                none_left,
                answer(ALLOW),
            ]);
            code
        }
    }
}

/// Allows the call unless the loaded argument has a flag of `mask`.
fn only_if(mask: u32) -> [sock_filter; 2] {
    [jump(libc::BPF_JSET, mask, 1, 0), answer(ALLOW)]
}

/// Allows local and internet sockets, and the one netlink protocol that programs use to list
/// interfaces.
fn socket() -> Result<Vec<sock_filter>, TooLong> {
    let [unix, inet, inet6, netlink] =
        [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK].map(i32::unsigned_abs);
    let internet = by_protocol(&RARE_PROTOCOLS, unsupported(libc::EPROTONOSUPPORT), vec![answer(ALLOW)])?;
    let route = [libc::NETLINK_ROUTE.unsigned_abs()];
    let netlinks = by_protocol(&route, vec![answer(ALLOW)], unsupported(libc::EPROTONOSUPPORT))?;
    let mut code = vec![load_argument(0)];
    for (family, decides) in
        [(unix, vec![answer(ALLOW)]), (inet, internet.clone()), (inet6, internet), (netlink, netlinks)]
    {
        code.extend(case(family, decides)?);
    }
    code.extend(unsupported(libc::EAFNOSUPPORT));
    Ok(code)
}

/// Decides on a socket by whether its protocol is listed.
fn by_protocol(
    listed: &[u32],
    found: Vec<sock_filter>,
    not_found: Vec<sock_filter>,
) -> Result<Vec<sock_filter>, TooLong> {
    let mut code = vec![load_argument(2)];
    for protocol in listed {
        code.extend(case(*protocol, found.clone())?);
    }
    code.extend(not_found);
    Ok(code)
}

/// Refuses a socket whose family or protocol a box does not have. The kernel looks at the flags in its
/// type first.
fn unsupported(errno: i32) -> Vec<sock_filter> {
    /// Kinds of sockets, and the flags `SOCK_NONBLOCK` and `SOCK_CLOEXEC`.
    const KNOWN: u32 = 0xf | libc::SOCK_NONBLOCK.unsigned_abs() | libc::SOCK_CLOEXEC.unsigned_abs();
    vec![load_argument(1), jump(libc::BPF_JSET, !KNOWN, 0, 1), INVALID, answer(refuse(errno))]
}

/// Returns code that runs `decides`, each path of which ends in an answer, if the loaded value is this.
fn case(value: u32, decides: Vec<sock_filter>) -> Result<Vec<sock_filter>, TooLong> {
    let skip = u8::try_from(decides.len()).map_err(|_| TooLong)?;
    let mut code = vec![jump(libc::BPF_JEQ, value, 0, skip)];
    code.extend(decides);
    Ok(code)
}

/// Refuses input to terminals of others and requests to drivers; slows requests about interfaces.
fn ioctl(slowed: u32) -> Vec<sock_filter> {
    by_span(
        1,
        &[
            (&[TYPING], refuse(libc::EPERM)),
            // The answer of every other terminal.
            (&[CONSOLE], refuse(libc::ENOTTY)),
            (&INTERFACES_SLOWED, slowed),
            // The answer of a loopback interface.
            (&INTERFACES_REFUSED, refuse(libc::EOPNOTSUPP)),
        ],
    )
}

fn set_option(slowed: u32) -> Result<Vec<sock_filter>, TooLong> {
    // The answer of a kernel that was built without the option.
    let absent = refuse(libc::ENOPROTOOPT);
    by_level([
        (libc::SOL_SOCKET, listed(2, &SOCKET_PROGRAMS, refuse(libc::EPERM), ALLOW)?),
        (libc::IPPROTO_IP, by_span(2, &[(&IPV4_SLOWED, slowed)])),
        (libc::IPPROTO_TCP, by_span(2, &[(&TCP_REFUSED, absent)])),
        (libc::IPPROTO_IPV6, by_span(2, &[(&IPV6_SLOWED, slowed), (&IPV6_REFUSED, absent)])),
    ])
}

/// Decides on an option of a socket by the code for its level.
fn by_level<const N: usize>(levels: [(i32, Vec<sock_filter>); N]) -> Result<Vec<sock_filter>, TooLong> {
    let mut code = vec![load_argument(1)];
    for (level, decides) in levels {
        code.extend(case(level.unsigned_abs(), decides)?);
    }
    code.push(answer(ALLOW));
    Ok(code)
}

/// Returns code that answers by the span in which the argument lies.
fn by_span(argument: u32, answers: &[(&[Span], u32)]) -> Vec<sock_filter> {
    let mut code = vec![load_argument(argument)];
    for (spans, value) in answers {
        for Span(first, last) in *spans {
            if first == last {
                code.push(jump(libc::BPF_JEQ, *first, 0, 1));
            } else {
                code.extend([jump(libc::BPF_JGE, *first, 0, 2), jump(libc::BPF_JGT, *last, 1, 0)]);
            }
            code.push(answer(*value));
        }
    }
    code.push(answer(ALLOW));
    code
}

/// Answers a change of the size of core dumps as if it was made: programs that hold secrets set it
/// to 0 and exit when they cannot. A call that also asks for the old size would read memory that
/// was not written, and is refused.
fn core_limit(setting: Setting) -> Vec<sock_filter> {
    let done = answer(refuse(0));
    let refused = answer(refuse(libc::EPERM));
    match setting {
        Setting::Old => only_if_core(0).into_iter().chain([done]).collect(),
        Setting::New => {
            let mut code = Vec::from(only_if_core(1));
            code.extend([
                load_argument(2),
                jump(libc::BPF_JEQ, 0, 0, 3),
                load_upper_half(2),
                jump(libc::BPF_JEQ, 0, 0, 1),
                answer(ALLOW),
                load_argument(3),
                jump(libc::BPF_JEQ, 0, 0, 2),
                load_upper_half(3),
                jump(libc::BPF_JEQ, 0, 1, 0),
                refused,
                done,
            ]);
            code
        }
    }
}

/// Allows the call unless `argument` names the size of core dumps.
fn only_if_core(argument: u32) -> [sock_filter; 3] {
    [load_argument(argument), jump(libc::BPF_JEQ, libc::RLIMIT_CORE, 1, 0), answer(ALLOW)]
}

/// Builds the filter of a box that another runtime isolates, with the rules that most of their
/// filters lack. Programs of 32 bits have other numbers.
pub(super) fn addition() -> Vec<sock_filter> {
    let mut program = vec![load(ARCHITECTURE_OFFSET)];
    let mut rest: Vec<sock_filter> = Vec::new();
    for ((architecture, old, new), requests) in LIMIT_CALLS.iter().zip(REQUEST_CALLS).rev() {
        let old_code = core_limit(Setting::Old);
        let mut code = vec![load(NUMBER_OFFSET), instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, !X32, 0, 0)];
        for number in requests {
            // Requests are counted for the whole host, as in the filter of native boxes.
            code.extend([jump(libc::BPF_JEQ, *number, 0, 1), answer(refuse(libc::ENOSYS))]);
        }
        code.push(jump(libc::BPF_JEQ, *old, 0, u8::try_from(old_code.len()).unwrap_or(0)));
        code.extend(old_code);
        let new_code = core_limit(Setting::New);
        code.push(jump(libc::BPF_JEQ, *new, 0, u8::try_from(new_code.len()).unwrap_or(0)));
        code.extend(new_code);
        code.push(answer(ALLOW));
        let skip = u8::try_from(code.len()).unwrap_or(0);
        let mut block = vec![jump(libc::BPF_JEQ, *architecture, 0, skip)];
        block.extend(code);
        block.extend(rest);
        rest = block;
    }
    program.extend(rest);
    program.push(answer(ALLOW));
    program
}

/// Loads the low half of an argument. The kernel itself reads no more of those that are checked
/// here.
fn load_argument(argument: u32) -> sock_filter {
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    load(ARGUMENTS_OFFSET + 8 * argument + low_half)
}

fn load_upper_half(argument: u32) -> sock_filter {
    let upper_half = if cfg!(target_endian = "big") { 0 } else { 4 };
    load(ARGUMENTS_OFFSET + 8 * argument + upper_half)
}

fn load(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(comparison: u32, value: u32, if_true: u8, if_false: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_K | comparison, value, if_true, if_false)
}

/// Jumps over more than fits the eight bits of a comparison.
fn far_jump(over: &[sock_filter]) -> Result<sock_filter, TooLong> {
    let skip = u32::try_from(over.len()).map_err(|_| TooLong)?;
    Ok(instruction(libc::BPF_JMP | libc::BPF_JA, skip, 0, 0))
}

fn answer(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt, jf, k }
}
