//! Program that chooses the socket for each new connection and each packet of UDP in the network of a
//! box.
//!
//! It runs before the kernel looks for a socket that listens. What the processes of the box have among
//! themselves, on the loopback and on the box's own address, it leaves alone. All other connections of
//! TCP are the agent's, and so are the questions to name servers. What is left is refused at once.
//!
//! Source: <https://docs.kernel.org/bpf/prog_sk_lookup.html>

use std::os::fd::{AsRawFd, OwnedFd};

use crate::diverted::{BOX_ADDRESS, BOX_ADDRESS_V6, DNS_PORT};

/// Number of places in the map of sockets.
pub(super) const SOCKETS: u32 = 4;
/// Places of the sockets in the map: bit 0 is set for IPv6, bit 1 for UDP.
pub(super) const TCP4: u32 = 0;
pub(super) const TCP6: u32 = 1;
pub(super) const UDP4: u32 = 2;
pub(super) const UDP6: u32 = 3;

/// Instruction, `struct bpf_insn` of the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// Offsets in the program's input, `struct bpf_sk_lookup` of the kernel.
const FAMILY: i16 = 8;
const PROTOCOL: i16 = 12;
const LOCAL_IP4: i16 = 40;
const LOCAL_IP6: i16 = 44;
const LOCAL_PORT: i16 = 60;
/// Functions of the kernel.
const MAP_LOOKUP: i32 = 1;
const RELEASE: i32 = 86;
const ASSIGN: i32 = 124;
/// Answers of the program.
const DROP: i32 = 0;
const PASS: i32 = 1;

/// Registers: 0 is the result, 1 to 3 are arguments and spoiled by a call, 6 to 9 are kept, 10 is the
/// end of the stack.
const RESULT: u8 = 0;
const ARG1: u8 = 1;
const ARG2: u8 = 2;
const ARG3: u8 = 3;
const INPUT: u8 = 6;
const PLACE: u8 = 7;
const SOCKET: u8 = 8;
const OUTCOME: u8 = 9;
const STACK: u8 = 10;
/// Offset of the map's key on the stack.
const KEY: i16 = -4;

/// An instruction, or a mark that jumps lead to.
#[derive(Clone, Copy)]
enum Line {
    Do(Instruction),
    /// A jump to the mark if the comparison holds.
    Jump(Instruction, Mark),
    Mark(Mark),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    Version6,
    Rest6,
    Choose,
    Find,
    Pass,
    Drop,
}

/// Returns the program for sockets in this map.
pub(super) fn program(map: &OwnedFd) -> Vec<Instruction> {
    let [map_low, map_high] = load_map(ARG1, map.as_raw_fd());
    assemble(&[
        copy(INPUT, ARG1),
        load(ARG2, INPUT, FAMILY),
        jump_if_equal(ARG2, libc::AF_INET6, Mark::Version6),
        // IPv4: 127.0.0.0/8 and the box's own address stay in the box.
        set(PLACE, TCP4 as i32),
        load(ARG2, INPUT, LOCAL_IP4),
        from_network_order(ARG2),
        jump_if_equal(ARG2, i32::from_be_bytes(BOX_ADDRESS.octets()), Mark::Pass),
        shift_right(ARG2, 24),
        jump_if_equal(ARG2, 127, Mark::Pass),
        jump(Mark::Choose),
        // IPv6: ::1 and the box's own address stay in the box, which differ in their first 32 bits.
        // Addresses of IPv4 in those of IPv6 never come here.
        Line::Mark(Mark::Version6),
        set(PLACE, TCP6 as i32),
        load(ARG2, INPUT, LOCAL_IP6),
        from_network_order(ARG2),
        jump_if_equal(ARG2, 0, Mark::Rest6),
        jump_if_not(ARG2, (BOX_ADDRESS_V6.to_bits() >> 96) as i32, Mark::Choose),
        Line::Mark(Mark::Rest6),
        load(ARG2, INPUT, LOCAL_IP6 + 4),
        jump_if_not(ARG2, 0, Mark::Choose),
        load(ARG2, INPUT, LOCAL_IP6 + 8),
        jump_if_not(ARG2, 0, Mark::Choose),
        load(ARG2, INPUT, LOCAL_IP6 + 12),
        from_network_order(ARG2),
        jump_if_equal(ARG2, 1, Mark::Pass),
        // Everything of TCP, and of UDP what goes to a name server.
        Line::Mark(Mark::Choose),
        load(ARG2, INPUT, PROTOCOL),
        jump_if_equal(ARG2, libc::IPPROTO_TCP, Mark::Find),
        jump_if_not(ARG2, libc::IPPROTO_UDP, Mark::Drop),
        load(ARG2, INPUT, LOCAL_PORT),
        jump_if_not(ARG2, DNS_PORT as i32, Mark::Drop),
        add(PLACE, UDP4 as i32),
        // The socket in this place.
        Line::Mark(Mark::Find),
        store(STACK, KEY, PLACE),
        map_low,
        map_high,
        copy(ARG2, STACK),
        add(ARG2, KEY as i32),
        call(MAP_LOOKUP),
        jump_if_equal(RESULT, 0, Mark::Drop),
        copy(SOCKET, RESULT),
        copy(ARG1, INPUT),
        copy(ARG2, SOCKET),
        set(ARG3, 0),
        call(ASSIGN),
        copy(OUTCOME, RESULT),
        copy(ARG1, SOCKET),
        call(RELEASE),
        // A connection that cannot be given to the agent is no one's.
        jump_if_not(OUTCOME, 0, Mark::Drop),
        Line::Mark(Mark::Pass),
        set(RESULT, PASS),
        exit(),
        Line::Mark(Mark::Drop),
        set(RESULT, DROP),
        exit(),
    ])
}

/// Replaces marks by the distances to them.
fn assemble(lines: &[Line]) -> Vec<Instruction> {
    let instructions = lines.iter().enumerate().filter_map(|(at, line)| match *line {
        Line::Do(instruction) => Some(instruction),
        Line::Jump(instruction, mark) => Some(Instruction { offset: distance(lines, at, mark), ..instruction }),
        Line::Mark(_) => None,
    });
    instructions.collect()
}

/// Returns the number of instructions between the jump at `at` and its mark. All jumps lead forward.
fn distance(lines: &[Line], at: usize, mark: Mark) -> i16 {
    let to = lines.iter().position(|line| matches!(line, Line::Mark(it) if *it == mark)).unwrap_or(at);
    let between = lines.get(at + 1..to).unwrap_or_default();
    between.iter().filter(|line| !matches!(line, Line::Mark(_))).count() as i16
}

fn instruction(code: u32, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code: code as u8, registers: to | from << 4, offset, value }
}

const ALU64: u32 = 0x07;
const MOV: u32 = 0xb0;
const EXIT: u32 = 0x90;
const CALL: u32 = 0x80;
const JNE: u32 = 0x50;
/// Comparison of the low 32 bits.
const JMP32: u32 = 0x06;
/// The operand of [`libc::BPF_X`] is a register, that of [`libc::BPF_K`] a value.
const REGISTER: u32 = libc::BPF_X;
const VALUE: u32 = libc::BPF_K;

fn copy(to: u8, from: u8) -> Line {
    Line::Do(instruction(ALU64 | MOV | REGISTER, to, from, 0, 0))
}

fn set(to: u8, value: i32) -> Line {
    Line::Do(instruction(ALU64 | MOV | VALUE, to, 0, 0, value))
}

fn add(to: u8, value: i32) -> Line {
    Line::Do(instruction(ALU64 | libc::BPF_ADD | VALUE, to, 0, 0, value))
}

fn shift_right(register: u8, bits: i32) -> Line {
    Line::Do(instruction(ALU64 | libc::BPF_RSH | VALUE, register, 0, 0, bits))
}

fn load(to: u8, from: u8, offset: i16) -> Line {
    Line::Do(instruction(libc::BPF_LDX | libc::BPF_MEM | libc::BPF_W, to, from, offset, 0))
}

fn store(to: u8, offset: i16, from: u8) -> Line {
    Line::Do(instruction(libc::BPF_STX | libc::BPF_MEM | libc::BPF_W, to, from, offset, 0))
}

/// Turns 32 bits of the network's order into this machine's.
fn from_network_order(register: u8) -> Line {
    const END: u32 = 0xd0;
    const BIG: u32 = 0x08;
    Line::Do(instruction(libc::BPF_ALU | END | BIG, register, 0, 0, 32))
}

/// Loads the address of a map, in an instruction of twice the length.
fn load_map(to: u8, fd: i32) -> [Line; 2] {
    const WIDE: u32 = 0x18;
    const MAP: u8 = 1;
    [Line::Do(instruction(WIDE, to, MAP, 0, fd)), Line::Do(instruction(0, 0, 0, 0, 0))]
}

fn jump(to: Mark) -> Line {
    Line::Jump(instruction(libc::BPF_JMP | libc::BPF_JA, 0, 0, 0, 0), to)
}

fn jump_if_equal(register: u8, value: i32, to: Mark) -> Line {
    // The result of a search in a map is an address, of 64 bits.
    let class = if register == RESULT { libc::BPF_JMP } else { JMP32 };
    Line::Jump(instruction(class | libc::BPF_JEQ | VALUE, register, 0, 0, value), to)
}

fn jump_if_not(register: u8, value: i32, to: Mark) -> Line {
    Line::Jump(instruction(JMP32 | JNE | VALUE, register, 0, 0, value), to)
}

fn call(function: i32) -> Line {
    Line::Do(instruction(libc::BPF_JMP | CALL, 0, 0, 0, function))
}

fn exit() -> Line {
    Line::Do(instruction(libc::BPF_JMP | EXIT, 0, 0, 0, 0))
}
