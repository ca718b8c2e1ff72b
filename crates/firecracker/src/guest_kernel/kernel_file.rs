//! File of a kernel, in either of its forms.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::error::{Error, Result};
use super::packed::{Failure, KERNEL_LEN_MAX};
use super::{bz_image, elf, release};

/// Maximum size of a bzImage, which is read into memory. Those of distributions have less than 20 MB.
const BZ_IMAGE_LEN_MAX: u64 = 256 << 20;
/// Bytes of an ELF kernel that are read at a time.
const CHUNK: usize = 1 << 20;
/// Text before the release in a kernel.
const BANNER: &[u8] = b"Linux version ";
/// Bytes of a chunk that are looked at again with the next one: a banner and a release.
const OVERLAP: usize = 128;

const REMEDY: &str = "use a bzImage, such as /boot/vmlinuz-<release>, or an uncompressed ELF kernel (vmlinux)";

/// Kernel that was found to be one.
#[derive(Debug)]
pub(super) struct KernelFile {
    path: PathBuf,
    sha256: [u8; 32],
    release: Option<String>,
    unpacked_len: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    BzImage(Vec<u8>),
    Elf(File),
}

impl KernelFile {
    /// Reads a kernel's file, an ELF kernel of it only to know its content.
    ///
    /// # Errors
    /// If it cannot be read, is no kernel, or is damaged.
    pub(super) fn read(path: &Path) -> Result<KernelFile> {
        let found = std::fs::metadata(path).map_err(Error::reading(path))?;
        // Anything else could block for ever, or never end.
        if !found.is_file() {
            return Err(foreign(path, if found.is_dir() { "a folder" } else { "not a regular file" }));
        }
        let mut file = File::open(path).map_err(Error::reading(path))?;
        let mut first = Vec::new();
        (&mut file).take(bz_image::HEADER_LEN).read_to_end(&mut first).map_err(Error::reading(path))?;
        if bz_image::is_one(&first) {
            (&mut file).take(BZ_IMAGE_LEN_MAX).read_to_end(&mut first).map_err(Error::reading(path))?;
            if first.len() as u64 > BZ_IMAGE_LEN_MAX {
                return Err(foreign(path, format!("a bzImage of more than {BZ_IMAGE_LEN_MAX} bytes")));
            }
            return Self::of_bz_image(path, first);
        }
        if !first.starts_with(elf::MAGIC) {
            return Err(foreign(path, describe(&first)));
        }
        elf::check(&first).map_err(|what| foreign(path, what))?;
        if found.len() > KERNEL_LEN_MAX {
            return Err(foreign(path, format!("an ELF kernel of more than {KERNEL_LEN_MAX} bytes")));
        }
        file.rewind().map_err(Error::reading(path))?;
        let mut banner = Banner::default();
        let (sha256, unpacked_len) = read_through(&mut file, |chunk| {
            banner.look_at(chunk);
            Ok(())
        })
        .map_err(Error::reading(path))?;
        if banner.release.is_none() {
            return Err(foreign(path, "an ELF file, but not a Linux kernel"));
        }
        let content = Content::Elf(file);
        Ok(KernelFile { path: path.to_owned(), sha256, release: banner.release, unpacked_len, content })
    }

    fn of_bz_image(path: &Path, bytes: Vec<u8>) -> Result<KernelFile> {
        let parts = bz_image::parse(&bytes).map_err(|reason| Error::damaged(path, reason))?;
        let release = parts.release.map(str::to_owned);
        let unpacked_len = parts.packed.unpacked_len();
        let sha256 = Sha256::digest(&bytes).into();
        Ok(KernelFile { path: path.to_owned(), sha256, release, unpacked_len, content: Content::BzImage(bytes) })
    }

    pub(super) fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    pub(super) fn release(&self) -> Option<&str> {
        self.release.as_deref()
    }

    pub(super) fn is_bz_image(&self) -> bool {
        matches!(self.content, Content::BzImage(_))
    }

    /// Returns the size of the uncompressed kernel.
    pub(super) fn unpacked_len(&self) -> u64 {
        self.unpacked_len
    }

    /// Writes the uncompressed kernel into a file in `folder`.
    ///
    /// # Errors
    /// If it does not unpack, was changed since it was read, or cannot be written.
    pub(super) fn unpack(&self, out: &mut File, folder: &Path) -> Result<()> {
        match &self.content {
            Content::BzImage(bytes) => {
                let parts = bz_image::parse(bytes).map_err(|reason| Error::damaged(&self.path, reason))?;
                parts.packed.unpack(out).map_err(|failure| match failure {
                    Failure::Damaged(reason) => Error::damaged(&self.path, reason),
                    Failure::Write(source) => Error::write(folder, source),
                })
            }
            Content::Elf(file) => {
                let mut file = file;
                file.rewind().map_err(Error::reading(&self.path))?;
                let (sha256, _) =
                    read_through(&mut file, |chunk| out.write_all(chunk)).map_err(Error::writing(folder))?;
                if sha256 != self.sha256 {
                    return Err(Error::damaged(&self.path, "it changed while it was being read"));
                }
                Ok(())
            }
        }
    }
}

/// Reads to the end, or to what a kernel may have at most; returns the SHA-256 and the size.
fn read_through(file: &mut dyn Read, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<([u8; 32], u64)> {
    let mut file = file.take(KERNEL_LEN_MAX);
    let mut digest = Sha256::new();
    let mut len = 0;
    let mut chunk = Vec::with_capacity(CHUNK);
    loop {
        chunk.clear();
        (&mut file).take(CHUNK as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            return Ok((digest.finalize().into(), len));
        }
        digest.update(&chunk);
        len += chunk.len() as u64;
        each(&chunk)?;
    }
}

/// Search for the release in an ELF kernel: in `Linux version 6.1.0 (…`.
#[derive(Debug, Default)]
struct Banner {
    release: Option<String>,
    window: Vec<u8>,
}

impl Banner {
    fn look_at(&mut self, chunk: &[u8]) {
        if self.release.is_some() {
            return;
        }
        self.window.drain(..self.window.len().saturating_sub(OVERLAP));
        self.window.extend_from_slice(chunk);
        let banners = self.window.windows(BANNER.len()).enumerate().filter(|(_, text)| *text == BANNER);
        let mut releases = banners.filter_map(|(at, _)| release::leading(&self.window[at + BANNER.len()..]));
        self.release = releases.next().map(str::to_owned);
    }
}

fn foreign(path: &Path, what: impl Into<String>) -> Error {
    Error::Foreign { path: path.to_owned(), what: what.into(), remedy: REMEDY }
}

fn has_at(bytes: &[u8], offset: usize, magic: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
}

/// Names what a file is that is no kernel for Firecracker, by its first bytes.
fn describe(first: &[u8]) -> String {
    let what = if first.is_empty() {
        "empty"
    } else if first.starts_with(b"MZ") && has_at(first, 4, b"zimg") {
        "a compressed EFI image, such as an arm64 kernel"
    } else if has_at(first, 0x38, b"ARM\x64") {
        "a kernel for arm64"
    } else if first.starts_with(b"MZ") {
        "an EFI program without the header of an x86 kernel, such as a unified kernel image"
    } else if first.starts_with(b"\x1f\x8b") || first.starts_with(b"\xfd7zXZ") || first.starts_with(b"\x28\xb5\x2f\xfd")
    {
        "a compressed file, such as an initrd"
    } else if first.starts_with(b"070701") || first.starts_with(b"070702") {
        "an archive, such as an initrd"
    } else if first.starts_with(b"!<arch>") {
        "a package or a library"
    } else {
        "not a kernel"
    };
    what.to_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_no_kernel_is_named() {
        let with = |at: usize, magic: &[u8]| {
            let mut bytes = vec![0; 0x40];
            bytes[at..at + magic.len()].copy_from_slice(magic);
            bytes
        };
        let mut compressed_efi = with(4, b"zimg");
        compressed_efi[..2].copy_from_slice(b"MZ");
        for (bytes, what) in [
            (Vec::new(), "empty"),
            (compressed_efi, "a compressed EFI image, such as an arm64 kernel"),
            (with(0x38, b"ARM\x64"), "a kernel for arm64"),
            (with(0, b"MZ"), "an EFI program without the header of an x86 kernel, such as a unified kernel image"),
            (with(0, &[0x1f, 0x8b]), "a compressed file, such as an initrd"),
            (with(0, b"070701"), "an archive, such as an initrd"),
            (with(0, b"!<arch>"), "a package or a library"),
            (b"text".to_vec(), "not a kernel"),
        ] {
            assert_eq!(describe(&bytes), what);
        }
    }

    #[test]
    fn the_banner_is_found_across_chunks_and_not_in_a_format() {
        let text = "x Linux version %s (%s) x Linux version 6.1.0-x (a@b) Linux version 7 ";
        for cut in 0..text.len() {
            let mut banner = Banner::default();
            banner.look_at(&text.as_bytes()[..cut]);
            banner.look_at(&text.as_bytes()[cut..]);
            assert_eq!(banner.release.as_deref(), Some("6.1.0-x"), "{cut}");
        }
    }
}
