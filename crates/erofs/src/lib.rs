//! Images of the read-only file system EROFS, written from the directories of boxes.
//!
//! An image is one file with all of a tree: names, modes, owners, times, extended attributes, links
//! and content. The kernel mounts it as it is, so a tree that was kept in one can be used at once,
//! by many, and cannot change.
//!
//! Nothing is compressed, and each inode is followed by its own attributes and, where they fit into
//! its block, by its content or the last part of it. The format is that of `fs/erofs/erofs_fs.h` of
//! Linux, described in <https://docs.kernel.org/filesystems/erofs.html>; every kernel from 5.4 on
//! reads such an image.
//!
//! The trees are hostile: no link of them is followed, and nothing that is no plain file is opened
//! for reading.

#![warn(missing_docs)]

mod ahead;
mod attributes;
mod directory;
mod format;
mod memory;
mod output;
mod tree;
mod walk;

pub use memory::{LargeTurn, SMALL_BYTES};
pub use tree::{Ids, Tree, Unfit, Written};
pub use walk::write;
