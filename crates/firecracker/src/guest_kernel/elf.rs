//! ELF files: those that a machine of x86-64 can boot, and modules.

/// Bytes at the beginning that [`check`] looks at: those of the header.
pub(super) const HEADER_LEN: usize = 64;
/// First bytes of every ELF file.
pub(super) const MAGIC: &[u8] = b"\x7fELF";

const CLASS_64: u8 = 2;
const LITTLE_ENDIAN: u8 = 1;
const EXECUTABLE: u16 = 2;
const SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;

/// Explains why the file that begins with `header` is not a kernel for x86-64, if it is not.
pub(super) fn check(header: &[u8]) -> Result<(), String> {
    if !header.starts_with(MAGIC) {
        return Err("not an ELF file".to_owned());
    }
    if header.len() < HEADER_LEN {
        return Err("a truncated ELF file".to_owned());
    }
    if (header[4], header[5]) != (CLASS_64, LITTLE_ENDIAN) {
        return Err("an ELF file that is not 64-bit little-endian".to_owned());
    }
    let machine = number(header, 18);
    if machine != MACHINE_X86_64 {
        return Err(format!("an ELF file for a processor other than x86-64 (machine {machine})"));
    }
    if ![EXECUTABLE, SHARED].contains(&number(header, 16)) || number(header, 56) == 0 {
        return Err("an ELF file that cannot be booted, such as a module".to_owned());
    }
    Ok(())
}

fn number(header: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([header[at], header[at + 1]])
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::guest_kernel::test::elf_header;

    #[test]
    fn only_programs_of_x86_64_pass() {
        assert_eq!(check(&elf_header()), Ok(()));
        let with = |at: usize, value: u8| {
            let mut header = elf_header();
            header[at] = value;
            header
        };
        assert_eq!(check(&with(16, 3)), Ok(()));
        for (header, what) in [
            (with(0, 0), "not an ELF file"),
            (elf_header()[..63].to_vec(), "a truncated ELF file"),
            (with(4, 1), "an ELF file that is not 64-bit little-endian"),
            (with(5, 2), "an ELF file that is not 64-bit little-endian"),
            (with(18, 183), "an ELF file for a processor other than x86-64 (machine 183)"),
            (with(16, 1), "an ELF file that cannot be booted, such as a module"),
            (with(56, 0), "an ELF file that cannot be booted, such as a module"),
            (Vec::new(), "not an ELF file"),
        ] {
            assert_eq!(check(&header), Err(what.to_owned()));
        }
    }
}
