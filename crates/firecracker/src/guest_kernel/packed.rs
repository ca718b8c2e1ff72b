//! Compressed files: the kernel in a bzImage, and modules.

use std::io::{self, Read, Write};

use super::elf;

/// Maximum size of a kernel, unpacked: the kernel's own addresses end there (`KERNEL_IMAGE_SIZE`).
/// Those of distributions have less than 100 MB.
pub(super) const KERNEL_LEN_MAX: u64 = 1 << 30;
/// Maximum memory of a decoder for xz. The kernel's own build uses dictionaries of up to 128 MiB.
const XZ_MEMORY_KB_MAX: u32 = 256 << 10;
/// Maximum window of a decoder for zstd, as a power of two: that of the kernel's own build.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
/// Bytes that are unpacked at a time.
const CHUNK: usize = 1 << 18;
/// Bytes of the size at the end of a kernel.
const SIZE_LEN: usize = 4;

const GZIP: &[u8] = &[0x1f, 0x8b];
const XZ: &[u8] = b"\xfd7zXZ\0";
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const LZ4_LEGACY: &[u8] = &[0x02, 0x21, 0x4c, 0x18];
/// Formats of kernels that are read by nothing here, by their first bytes. No distribution uses them
/// for x86-64 any more.
const OTHERS: &[(&[u8], &str)] = &[(b"BZh", "bzip2"), (&[0x5d, 0, 0], "lzma"), (&[0x89, b'L', b'Z', b'O'], "lzo")];

/// Forms of a file, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Stored,
    Gzip,
    Xz,
    Zstd,
    Lz4,
}

impl Format {
    fn of(bytes: &[u8]) -> Option<Format> {
        let formats = [
            (elf::MAGIC, Format::Stored),
            (GZIP, Format::Gzip),
            (XZ, Format::Xz),
            (ZSTD, Format::Zstd),
            (LZ4_LEGACY, Format::Lz4),
        ];
        formats.into_iter().find(|(magic, _)| bytes.starts_with(magic)).map(|(_, format)| format)
    }

    /// Returns a reader of what `bytes` unpacks to.
    fn reader(self, bytes: &[u8]) -> io::Result<Box<dyn Read + '_>> {
        Ok(match self {
            Format::Stored => Box::new(bytes),
            Format::Gzip => Box::new(flate2::bufread::GzDecoder::new(bytes)),
            Format::Xz => Box::new(lzma_rust2::XzReader::new_mem_limit(bytes, false, XZ_MEMORY_KB_MAX)),
            Format::Zstd => {
                let mut reader = zstd::Decoder::with_buffer(bytes)?.single_frame();
                reader.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Box::new(reader)
            }
            Format::Lz4 => Box::new(LegacyLz4::new(bytes)),
        })
    }
}

/// Failure to unpack.
#[derive(Debug)]
pub(super) enum Failure {
    /// Violation of the format.
    Damaged(String),
    /// The unpacked bytes cannot be written.
    Write(io::Error),
}

/// Kernel in a bzImage.
#[derive(Debug)]
pub(super) struct Packed<'a> {
    bytes: &'a [u8],
    format: Format,
    unpacked_len: u64,
}

impl<'a> Packed<'a> {
    /// Takes a bzImage's payload. Its last four bytes are the size of the kernel in it, which for
    /// gzip are those of the format itself.
    ///
    /// # Errors
    /// The violation of the format.
    pub(super) fn new(payload: &'a [u8]) -> Result<Packed<'a>, String> {
        let Some((bytes, size)) = payload.split_last_chunk::<SIZE_LEN>() else {
            return Err("its kernel is truncated".to_owned());
        };
        let Some(format) = Format::of(bytes) else {
            let other = OTHERS.iter().find(|(magic, _)| bytes.starts_with(magic));
            return Err(match other {
                Some((_, name)) => {
                    format!("its kernel is compressed with {name}; supported are gzip, xz, zstd and lz4")
                }
                None => "its kernel has an unknown format".to_owned(),
            });
        };
        let unpacked_len = u64::from(u32::from_le_bytes(*size));
        if unpacked_len > KERNEL_LEN_MAX {
            return Err(format!("its kernel declares {unpacked_len} bytes; the maximum is {KERNEL_LEN_MAX}"));
        }
        let bytes = if format == Format::Gzip { payload } else { bytes };
        Ok(Packed { bytes, format, unpacked_len })
    }

    /// Returns the size of the kernel, as the file claims it.
    pub(super) fn unpacked_len(&self) -> u64 {
        self.unpacked_len
    }

    /// Writes the kernel, an ELF file of the size that was claimed.
    ///
    /// # Errors
    /// If it is none, or cannot be written.
    pub(super) fn unpack(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let mut reader = self.format.reader(self.bytes).map_err(not_decompressed)?.take(self.unpacked_len + 1);
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut written = 0;
        loop {
            chunk.clear();
            (&mut reader).take(CHUNK as u64).read_to_end(&mut chunk).map_err(not_decompressed)?;
            if written == 0 {
                elf::check(&chunk).map_err(|what| Failure::Damaged(format!("its kernel is {what}")))?;
            }
            if chunk.is_empty() {
                break;
            }
            out.write_all(&chunk).map_err(Failure::Write)?;
            written += chunk.len() as u64;
        }
        if written == self.unpacked_len {
            return Ok(());
        }
        let size = if written < self.unpacked_len { "fewer" } else { "more" };
        Err(Failure::Damaged(format!("its kernel has {size} bytes than the {} that it declares", self.unpacked_len)))
    }
}

fn not_decompressed(error: io::Error) -> Failure {
    Failure::Damaged(format!("its kernel cannot be decompressed ({error})"))
}

/// Unpacks a module, in any of the forms that kmod knows, to at most `len_max` bytes.
///
/// # Errors
/// The violation of the format.
pub(super) fn unpack_module(bytes: Vec<u8>, len_max: u64) -> Result<Vec<u8>, String> {
    let format = Format::of(&bytes).filter(|format| *format != Format::Lz4).ok_or("it is not a module")?;
    if format == Format::Stored {
        return Ok(bytes);
    }
    let mut module = Vec::new();
    let reader = format.reader(&bytes);
    let unpacked = reader.and_then(|reader| reader.take(len_max + 1).read_to_end(&mut module));
    unpacked.map_err(|error| format!("it cannot be decompressed ({error})"))?;
    if module.len() as u64 > len_max {
        return Err(format!("it decompresses to more than {len_max} bytes"));
    }
    if !module.starts_with(elf::MAGIC) {
        return Err("its decompressed content is not a module".to_owned());
    }
    Ok(module)
}

/// Reader of lz4's first form, in which the kernel's own build packs: blocks that stand alone, each
/// behind its packed size. The library's own reader takes the size at the end of the payload for
/// one more.
struct LegacyLz4<'a> {
    packed: &'a [u8],
    block: Vec<u8>,
    /// Bytes in the block, and those of them that were read.
    len: usize,
    read: usize,
}

impl<'a> LegacyLz4<'a> {
    /// Maximum size of an unpacked block, set by the format.
    const BLOCK_LEN_MAX: usize = 8 << 20;

    fn new(packed: &'a [u8]) -> LegacyLz4<'a> {
        LegacyLz4 { packed, block: Vec::new(), len: 0, read: 0 }
    }

    fn next_block(&mut self) -> io::Result<()> {
        let (size, rest) = self.packed.split_first_chunk().ok_or_else(|| invalid("a block is truncated"))?;
        self.packed = rest;
        // Several files in a row are one.
        if size == LZ4_LEGACY {
            return Ok(());
        }
        let size = u32::from_le_bytes(*size) as usize;
        let (block, rest) = rest.split_at_checked(size).ok_or_else(|| invalid("a block is truncated"))?;
        self.packed = rest;
        self.block.resize(Self::BLOCK_LEN_MAX, 0);
        let unpacked = lz4_flex::block::decompress_into(block, &mut self.block);
        self.len = unpacked.map_err(|error| invalid(error.to_string()))?;
        self.read = 0;
        Ok(())
    }
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

impl Read for LegacyLz4<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // Each block takes bytes from the input, so that this ends.
        while self.read == self.len && !self.packed.is_empty() {
            self.next_block()?;
        }
        let len = out.len().min(self.len - self.read);
        out[..len].copy_from_slice(&self.block[self.read..self.read + len]);
        self.read += len;
        Ok(len)
    }
}

#[cfg(test)]
mod test;
