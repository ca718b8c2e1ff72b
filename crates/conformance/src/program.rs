//! A program that makes one system call, for boxes whose image has none that makes it.

/// Address of the program's only segment.
const BASE: u64 = 0x40_0000;
const HEADERS_BYTES: u64 = 64 + 56;
/// Number of the system call `exit`.
const EXIT: u32 = 60;

/// An argument of the system call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Argument {
    Number(u32),
    /// Address of this text.
    Text(&'static str),
}

/// Builds an executable file for `x86_64` that makes one system call of four arguments. Its exit
/// code is 0 if the call succeeds, and otherwise the error number.
pub(super) fn calling(number: u32, arguments: [Argument; 4]) -> Vec<u8> {
    // mov $n,%edi; mov $n,%esi; mov $n,%edx; mov $n,%r10d.
    const REGISTERS: [&[u8]; 4] = [&[0xbf], &[0xbe], &[0xba], &[0x41, 0xba]];
    // xor %edi,%edi; test %rax,%rax; jns +4; neg %eax; mov %eax,%edi; mov $60,%eax; syscall.
    const AFTER: [u8; 18] =
        [0x0f, 0x05, 0x31, 0xff, 0x48, 0x85, 0xc0, 0x79, 0x04, 0xf7, 0xd8, 0x89, 0xc7, 0xb8, EXIT as u8, 0, 0, 0];
    let code_bytes = 4 * 5 + 1 + 5 + AFTER.len() as u64 + 2;
    let mut texts = Vec::new();
    let mut code = Vec::new();
    for (argument, register) in arguments.into_iter().zip(REGISTERS) {
        let value = match argument {
            Argument::Number(value) => value,
            Argument::Text(text) => {
                let address = BASE + HEADERS_BYTES + code_bytes + texts.len() as u64;
                texts.extend_from_slice(text.as_bytes());
                texts.push(0);
                u32::try_from(address).expect("the program is small")
            }
        };
        code.extend_from_slice(register);
        code.extend_from_slice(&value.to_le_bytes());
    }
    code.push(0xb8);
    code.extend_from_slice(&number.to_le_bytes());
    code.extend_from_slice(&AFTER);
    code.extend_from_slice(&[0x0f, 0x05]);
    assert_eq!(code.len() as u64, code_bytes);
    code.extend(texts);
    [headers(code.len() as u64), code].concat()
}

/// Builds the headers of a program that is loaded whole and starts after them.
fn headers(code_bytes: u64) -> Vec<u8> {
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // An executable file (2) for x86_64 (62).
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for long in [BASE + HEADERS_BYTES, 64, 0] {
        file.extend(long.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    // Sizes of the headers, one segment, no section.
    for half in [64u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    // A segment to load (1), readable and executable (5).
    for word in [1u32, 5] {
        file.extend(word.to_le_bytes());
    }
    let size = HEADERS_BYTES + code_bytes;
    for long in [0, BASE, BASE, size, size, 0x1000] {
        file.extend(long.to_le_bytes());
    }
    file
}
