use std::io::Write as _;

use proptest::prelude::*;

use super::*;
use crate::guest_kernel::test::unpacked_kernel;

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut packed = LZ4_LEGACY.to_vec();
    // Smaller than the format's, so that there are several.
    for block in bytes.chunks(30_000) {
        let block = lz4_flex::block::compress(block);
        packed.extend_from_slice(&(block.len() as u32).to_le_bytes());
        packed.extend_from_slice(&block);
    }
    packed
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Packs as the kernel's build does: with the filter for x86, and a sum of 32 bits.
fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut options = lzma_rust2::XzOptions::with_preset(1);
    options.set_check_sum_type(lzma_rust2::CheckType::Crc32);
    options.prepend_pre_filter(lzma_rust2::FilterType::BcjX86, 0);
    let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zst(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

fn with_size(mut packed: Vec<u8>, size: usize) -> Vec<u8> {
    packed.extend_from_slice(&(size as u32).to_le_bytes());
    packed
}

/// Returns the payloads with `kernel` in each format, as the kernel's build makes them.
fn payloads(kernel: &[u8]) -> Vec<(Format, Vec<u8>)> {
    let len = kernel.len();
    vec![
        (Format::Stored, with_size(kernel.to_vec(), len)),
        // Its own end is the size.
        (Format::Gzip, gzip(kernel)),
        (Format::Xz, with_size(xz(kernel), len)),
        (Format::Zstd, with_size(zst(kernel), len)),
        (Format::Lz4, with_size(lz4(kernel), len)),
    ]
}

fn unpack(payload: &[u8]) -> Result<Vec<u8>, String> {
    let mut kernel = Vec::new();
    match Packed::new(payload)?.unpack(&mut kernel) {
        Ok(()) => Ok(kernel),
        Err(Failure::Damaged(reason)) => Err(reason),
        Err(Failure::Write(error)) => panic!("memory can be written to: {error}"),
    }
}

#[test]
fn a_kernel_is_unpacked_from_each_format() {
    let mut kernel = unpacked_kernel();
    // More than a chunk, and calls that the filter for x86 changes.
    kernel.extend(std::iter::repeat_n([0xe8, 1, 2, 3, 0, 0x90, 0x90], 100_000).flatten());
    for (format, payload) in payloads(&kernel) {
        assert_eq!(Format::of(&payload), Some(format));
        assert_eq!(Packed::new(&payload).unwrap().unpacked_len(), kernel.len() as u64);
        assert!(unpack(&payload).unwrap() == kernel, "{format:?}");
    }
}

#[test]
fn a_size_that_lies_is_refused() {
    let kernel = unpacked_kernel();
    for (format, payload) in payloads(&kernel) {
        for (lie, word) in [(kernel.len() - 1, "more"), (kernel.len() + 1, "fewer"), (64, "more")] {
            let (packed, _) = payload.split_last_chunk::<4>().unwrap();
            let refusal = unpack(&with_size(packed.to_vec(), lie)).unwrap_err();
            // Of gzip it is the format's own size.
            let expected = format!("its kernel has {word} bytes than the {lie} that it declares");
            assert!(refusal == expected || format == Format::Gzip, "{format:?} {lie}: {refusal}");
        }
        let refusal = unpack(&with_size(payload.clone(), 0xffff_ffff)).unwrap_err();
        assert_eq!(refusal, "its kernel declares 4294967295 bytes; the maximum is 1073741824");
    }
}

#[test]
fn what_unpacks_to_something_else_is_refused() {
    for (format, payload) in payloads(&[b'x'; 1000]) {
        let expected = match format {
            Format::Stored => "its kernel has an unknown format",
            Format::Gzip | Format::Xz | Format::Zstd | Format::Lz4 => "its kernel is not an ELF file",
        };
        assert_eq!(unpack(&payload).unwrap_err(), expected, "{format:?}");
    }
    for (_, payload) in payloads(&[]).into_iter().skip(1) {
        assert_eq!(unpack(&payload).unwrap_err(), "its kernel is not an ELF file");
    }
}

#[test]
fn formats_that_no_distribution_uses_are_named() {
    for (magic, name) in OTHERS {
        let refusal = unpack(&with_size(magic.to_vec(), 1000)).unwrap_err();
        assert_eq!(refusal, format!("its kernel is compressed with {name}; supported are gzip, xz, zstd and lz4"));
    }
}

#[test]
fn a_block_of_lz4_that_leads_elsewhere_is_refused() {
    let block = |size: u32, block: &[u8]| [LZ4_LEGACY, &size.to_le_bytes(), block].concat();
    for packed in [block(100, b"short"), block(u32::MAX, b""), LZ4_LEGACY.to_vec(), block(3, b"\xff\xff\xff")] {
        assert!(unpack(&with_size(packed, 1000)).is_err());
    }
    // Blocks without content, and files in a row, end.
    let empty = [LZ4_LEGACY, &[1, 0, 0, 0, 0], LZ4_LEGACY, &[1, 0, 0, 0, 0]].concat();
    assert_eq!(unpack(&with_size(empty, 1000)).unwrap_err(), "its kernel is not an ELF file");
    // One that unpacks to more than a block may have: 8 MiB and some.
    let bomb = lz4_flex::block::compress(&vec![0; LegacyLz4::BLOCK_LEN_MAX + 1]);
    assert!(unpack(&with_size(block(bomb.len() as u32, &bomb), 1 << 24)).is_err());
}

#[test]
fn a_dictionary_of_xz_that_no_kernel_has_is_refused() {
    let kernel = unpacked_kernel();
    let mut options = lzma_rust2::XzOptions::with_preset(0);
    options.lzma_options.dict_size = 512 << 20;
    options.lzma_options.mf = lzma_rust2::MfType::Hc4;
    let header = {
        // Only the header tells the size, so that a small dictionary's is changed.
        options.lzma_options.dict_size = 1 << 20;
        let mut encoder = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        encoder.write_all(&kernel).unwrap();
        encoder.finish().unwrap()
    };
    let mut packed = header;
    // The block's header: its size, flags, the filter's id, the size of its properties, the dictionary.
    let start = 12;
    assert_eq!(packed[start + 2..start + 4], [0x21, 1]);
    packed[start + 4] = 40;
    let len = (usize::from(packed[start]) + 1) * 4;
    let sum = crc32(&packed[start..start + len - 4]).to_le_bytes();
    packed[start + len - 4..start + len].copy_from_slice(&sum);
    let refusal = unpack(&with_size(packed, kernel.len())).unwrap_err();
    assert!(refusal.contains("mem_limit"), "{refusal}");
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[test]
fn modules_are_unpacked_from_each_form_of_kmod() {
    let module = [elf::MAGIC, &[7; 5000]].concat();
    for packed in [module.clone(), gzip(&module), xz(&module), zst(&module)] {
        assert_eq!(unpack_module(packed, 5004).unwrap(), module);
    }
    for packed in [gzip(&module), xz(&module), zst(&module)] {
        assert_eq!(unpack_module(packed.clone(), 5003).unwrap_err(), "it decompresses to more than 5003 bytes");
        assert!(
            unpack_module(packed[..packed.len() / 2].to_vec(), 5004)
                .unwrap_err()
                .starts_with("it cannot be decompressed")
        );
    }
    assert_eq!(unpack_module(zst(b"text"), 5004).unwrap_err(), "its decompressed content is not a module");
    for other in [b"text".to_vec(), lz4(&module), Vec::new()] {
        assert_eq!(unpack_module(other, 5004).unwrap_err(), "it is not a module");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// A kernel is either whole, in size and form, or refused: what checks sums, whole in content.
    #[test]
    fn a_damaged_payload_is_refused_or_whole(
        which in 0..5_usize,
        at in any::<prop::sample::Index>(),
        bit in 0..8_u32,
        cut in any::<bool>(),
    ) {
        let kernel = unpacked_kernel();
        let (format, mut payload) = payloads(&kernel).swap_remove(which);
        let at = at.index(payload.len());
        if cut {
            payload.truncate(at);
        } else {
            payload[at] ^= 1_u8 << bit;
        }
        if let Ok(unpacked) = unpack(&payload) {
            prop_assert!(elf::check(&unpacked).is_ok());
            prop_assert!([Format::Stored, Format::Lz4, Format::Zstd].contains(&format) || unpacked == kernel);
        }
    }

    #[test]
    fn any_bytes_behind_a_beginning_end(
        which in 0..5_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        size in 0..1_000_000_usize,
    ) {
        let magic = [elf::MAGIC, GZIP, XZ, ZSTD, LZ4_LEGACY][which];
        let payload = with_size([magic, &bytes].concat(), size);
        if let Ok(unpacked) = unpack(&payload) {
            prop_assert_eq!(unpacked.len(), size);
        }
        let _ = unpack_module(payload, 1 << 20);
    }
}
