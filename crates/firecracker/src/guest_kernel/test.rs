//! Made up kernels and modules.

use std::fs;
use std::path::Path;

use super::elf;

/// Header of an ELF program for x86-64.
pub(super) fn elf_header() -> Vec<u8> {
    let mut header = vec![0; elf::HEADER_LEN];
    header[..4].copy_from_slice(elf::MAGIC);
    (header[4], header[5]) = (2, 1);
    (header[16], header[18], header[56]) = (2, 62, 5);
    header
}

/// Bytes that begin as a kernel does, and pack to less.
pub(super) fn unpacked_kernel() -> Vec<u8> {
    let mut kernel = elf_header();
    (0..20_000_u32).for_each(|number| kernel.extend_from_slice(&(number * number / 64).to_le_bytes()));
    kernel
}

/// Packs a kernel with zstd, as Debian does, with its size behind.
pub(super) fn payload() -> Vec<u8> {
    let kernel = unpacked_kernel();
    let mut payload = zstd::encode_all(kernel.as_slice(), 3).unwrap();
    payload.extend_from_slice(&(kernel.len() as u32).to_le_bytes());
    payload
}

/// Puts a payload behind a header of version 2.15 with this release.
pub(super) fn bz_image(release: &str, payload: &[u8]) -> Vec<u8> {
    const SETUP_SECTORS: u8 = 3;
    const OFFSET: u32 = 16;
    let mut image = vec![0; 512 * (1 + usize::from(SETUP_SECTORS)) + OFFSET as usize];
    image[0x1f1] = SETUP_SECTORS;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x206..0x208].copy_from_slice(&[0x0f, 0x02]);
    image[0x20e..0x210].copy_from_slice(&0x0100_u16.to_le_bytes());
    image[0x300..0x300 + release.len()].copy_from_slice(release.as_bytes());
    image[0x248..0x24c].copy_from_slice(&OFFSET.to_le_bytes());
    image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    image.extend_from_slice(payload);
    // What follows is not the kernel's.
    image.extend_from_slice(&[0xcc; 100]);
    image
}

/// `modules.dep` of a kernel that has all that a guest needs as modules, some packed.
pub(super) const DEP: &str = "\
kernel/virtio.ko:
kernel/virtio_ring.ko:
kernel/virtio_mmio.ko: kernel/virtio.ko kernel/virtio_ring.ko
kernel/virtio_blk.ko: kernel/virtio.ko kernel/virtio_ring.ko
kernel/net/vsock.ko.zst:
kernel/net/vmw_vsock_virtio_transport_common.ko.gz: kernel/net/vsock.ko.zst
kernel/net/vmw_vsock_virtio_transport.ko: kernel/net/vmw_vsock_virtio_transport_common.ko.gz kernel/net/vsock.ko.zst kernel/virtio.ko kernel/virtio_ring.ko
kernel/hw/virtio-rng.ko: kernel/virtio.ko kernel/virtio_ring.ko
kernel/lib/crc16.ko:
kernel/crypto/crc32c-intel.ko:
kernel/crypto/crc32c_generic.ko:
kernel/fs/jbd2.ko:
kernel/fs/ext4.ko: kernel/lib/crc16.ko kernel/fs/jbd2.ko
kernel/fs/overlay.ko:
kernel/fs/unwanted.ko: kernel/fs/ext4.ko
";

const SOFTDEP: &str = "\
# Soft dependencies extracted from modules themselves.
softdep ext4 pre: crypto-crc32c absent post: unwanted
softdep jbd2 pre: crypto-crc32c
softdep vsock unwanted
softdep crc32c_generic pre: ext4
";

const ALIAS: &str = "\
# Aliases extracted from modules themselves.
alias crypto-crc32c crc32c_intel
alias crypto-crc32c crc32c_generic
alias pci:v00001AF4d*sv*sd*bc*sc*i* unwanted
";

/// Returns a module for the kernel of this release.
pub(super) fn module(name: &str, release: &str) -> Vec<u8> {
    [elf::MAGIC, name.as_bytes(), format!("\0vermagic={release} SMP mod_unload \0").as_bytes()].concat()
}

/// Writes the files of `DEP` into a folder.
pub(super) fn install_modules(folder: &Path, release: &str) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in [("dep", DEP), ("softdep", SOFTDEP), ("alias", ALIAS)] {
        fs::write(folder.join(format!("modules.{name}")), text).unwrap();
    }
    for path in DEP.lines().map(|line| line.split_once(':').unwrap().0) {
        let file = folder.join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let module = module(path, release);
        let content = match file.extension().unwrap().to_str().unwrap() {
            "zst" => zstd::encode_all(module.as_slice(), 1).unwrap(),
            "gz" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                std::io::Write::write_all(&mut encoder, &module).unwrap();
                encoder.finish().unwrap()
            }
            _ => module,
        };
        fs::write(file, content).unwrap();
    }
}
