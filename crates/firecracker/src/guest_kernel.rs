//! Kernel and first files of guests, made from a kernel of the host.
//!
//! Firecracker boots an uncompressed ELF file. Distributions install a bzImage, an ELF file packed
//! behind a boot loader's header, and build what a guest needs as modules. [`prepare()`] unpacks the
//! one, and puts the others into an initrd with the program that loads them.
//!
//! Sources: `Documentation/arch/x86/boot.rst` and
//! `Documentation/driver-api/early-userspace/buffer-format.rst` of Linux, `modules.dep(5)` and
//! `depmod.d(5)` of kmod.

mod bz_image;
mod elf;
mod error;
mod initrd;
mod installed;
mod kernel_file;
mod modules;
mod packed;
mod prepare;
mod release;

pub use error::{Error, Result};
pub use installed::newest_installed;
pub use prepare::{GuestKernel, prepare, prune};

#[cfg(test)]
mod test;
