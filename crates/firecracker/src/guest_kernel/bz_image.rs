//! Header of a bzImage, the form in which kernels for x86 are installed.
//!
//! The offsets are those of `Documentation/arch/x86/boot.rst` of Linux.

use super::packed::Packed;
use super::release;

/// Bytes at the beginning that are enough for [`is_one`].
pub(super) const HEADER_LEN: u64 = 1024;

const SECTOR: usize = 512;
const SETUP_SECTORS: usize = 0x1f1;
/// Number of sectors that 0 in the field means.
const SETUP_SECTORS_DEFAULT: usize = 4;
const SIGNATURE: usize = 0x202;
const VERSION: usize = 0x206;
const RELEASE: usize = 0x20e;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;
/// First version of the header that says where the payload is (Linux 2.6.26).
const VERSION_MIN: usize = 0x208;

/// Parts of a bzImage.
#[derive(Debug)]
pub(super) struct BzImage<'a> {
    pub(super) release: Option<&'a str>,
    pub(super) packed: Packed<'a>,
}

/// Returns whether the file is a bzImage, by its first bytes.
pub(super) fn is_one(bytes: &[u8]) -> bool {
    bytes.get(SIGNATURE..SIGNATURE + 4) == Some(b"HdrS".as_slice())
}

/// Finds the parts of a bzImage.
///
/// # Errors
/// The violation of the format.
pub(super) fn parse(bytes: &[u8]) -> Result<BzImage<'_>, String> {
    let version = number(bytes, VERSION, 2)?;
    if version < VERSION_MIN {
        return Err(format!("its header has version {}.{:02}, from before Linux 2.6.26", version >> 8, version & 0xff));
    }
    let setup = match number(bytes, SETUP_SECTORS, 1)? {
        0 => SETUP_SECTORS_DEFAULT,
        sectors => sectors,
    };
    let offset = number(bytes, PAYLOAD_OFFSET, 4)?;
    let len = number(bytes, PAYLOAD_LENGTH, 4)?;
    let start = (1 + setup) * SECTOR + offset;
    let payload = bytes.get(start..start + len).ok_or_else(|| {
        format!("its header places the kernel at bytes {start} to {}, of {}", start + len, bytes.len())
    })?;
    // Not needed to boot, so that one that leads elsewhere only leaves it unknown.
    let release = number(bytes, RELEASE, 2)?;
    let release = bytes.get(SECTOR + release..).filter(|_| release > 0).and_then(release::leading);
    Ok(BzImage { release, packed: Packed::new(payload)? })
}

/// Reads a little-endian number of `len` bytes from the header.
fn number(bytes: &[u8], at: usize, len: usize) -> Result<usize, String> {
    let field = bytes.get(at..at + len).ok_or_else(|| format!("its header ends before byte {}", at + len))?;
    Ok(field.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::guest_kernel::test::{bz_image, unpacked_kernel};

    #[test]
    fn its_parts_are_found() {
        let image = bz_image("6.1.0-56-amd64 (x@y) #1 SMP", &stored());
        assert!(is_one(&image));
        let parts = parse(&image).unwrap();
        assert_eq!(parts.release, Some("6.1.0-56-amd64"));
        assert_eq!(parts.packed.unpacked_len(), unpacked_kernel().len() as u64);
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let image = bz_image("6.1.0 x", &stored());
        let with = |at: usize, field: &[u8]| {
            let mut image = image.clone();
            image[at..at + field.len()].copy_from_slice(field);
            image
        };
        let image_len = image.len();
        for (lie, reason) in [
            (with(VERSION, &[7, 2]), "its header has version 2.07, from before Linux 2.6.26".to_owned()),
            (
                with(PAYLOAD_OFFSET, &[0xff; 4]),
                format!("its header places the kernel at bytes {} to", 0xffff_ffff_usize + 4 * 512),
            ),
            (with(PAYLOAD_LENGTH, &[0xff; 4]), format!("of {image_len}")),
            (with(SETUP_SECTORS, &[255]), format!("of {image_len}")),
            (with(PAYLOAD_LENGTH, &[3, 0, 0, 0]), "its kernel is truncated".to_owned()),
            (with(PAYLOAD_LENGTH, &[0; 4]), "its kernel is truncated".to_owned()),
            (image[..0x24d].to_vec(), "its header ends before byte 592".to_owned()),
            (image[..image_len - 101].to_vec(), format!("of {}", image_len - 101)),
        ] {
            let found = parse(&lie).unwrap_err();
            assert!(found.contains(&reason), "{found}, not {reason}");
        }
    }

    #[test]
    fn a_release_that_leads_elsewhere_is_unknown() {
        for field in [[0, 0], [0xff, 0xff], [0x60, 0]] {
            let mut image = bz_image("6.1.0 x", &stored());
            image[RELEASE..RELEASE + 2].copy_from_slice(&field);
            assert_eq!(parse(&image).unwrap().release, None);
        }
        assert_eq!(parse(&bz_image("../../../etc x", &stored())).unwrap().release, None);
    }

    /// Returns a payload that is not compressed.
    fn stored() -> Vec<u8> {
        let mut payload = unpacked_kernel();
        payload.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        payload
    }
}
