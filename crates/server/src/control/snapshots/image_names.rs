//! Names of the images that have the files of snapshots.

use domain::SnapshotId;
use images::Name;

use crate::control::error::{Error, Result};
use crate::control::resource::Resource;

/// Start of the names of these images. No registry can have them.
pub(super) const NAMES: &str = "tidebox.invalid/snapshots:";
/// Registry in these names.
const REGISTRY: &str = "tidebox.invalid";
/// Returns the name of a snapshot's image in the store.
pub(in crate::control) fn name_of(id: &SnapshotId) -> String {
    format!("{NAMES}{}", id.as_str())
}

/// Returns whether an image has the files of a snapshot, by its name.
pub(in crate::control) fn is_of_snapshot(name: &str) -> bool {
    Name::parse(name).is_ok_and(|name| name.registry().eq_ignore_ascii_case(REGISTRY))
}

/// Checks that an image which an owner names is not that of a snapshot, which may be another owner's.
pub(in crate::control) fn check_image_of_owner(image: Option<&str>) -> Result<()> {
    match image.filter(|name| is_of_snapshot(name)) {
        Some(name) => Err(Error::NotFound(Resource::Image, name.to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_owner_cannot_name_the_image_of_a_snapshot_in_any_spelling() {
        let own = name_of(&SnapshotId::from_entropy([1; 10]));
        let digest = format!("tidebox.invalid/snapshots@sha256:{}", "a".repeat(64));
        for name in [&*own, "tidebox.invalid/snapshots", "TIDEBOX.invalid/snapshots:x", &digest] {
            assert!(check_image_of_owner(Some(name)).is_err(), "{name}");
        }
        for name in [None, Some("host"), Some("python:3.12"), Some("tidebox/snapshots:x"), Some("")] {
            assert!(check_image_of_owner(name).is_ok(), "{name:?}");
        }
    }
}
