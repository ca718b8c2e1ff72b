//! Image files that bound the disk of a box.

use std::path::PathBuf;

use crate::local::folder::BoxFolder;

/// Returns the image file of a box, which is there if its disk is bounded.
pub(super) fn image_file(folder: &BoxFolder) -> PathBuf {
    folder.path().join("disk.img")
}
