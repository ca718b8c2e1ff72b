//! Names of the images of an archive.

use crate::error::{Error, Result};
use crate::name::Name;

/// Most images in one archive.
const IMAGES_MAX: usize = 256;
/// Most names of all images in one archive.
const NAMES_MAX: usize = 1024;

/// Returns the names of each image of an archive: the caller's `name` for the only image, or the
/// names that the archive states.
pub(super) fn names_of<T>(
    name: Option<Name>,
    images: &[T],
    says: impl Fn(&T) -> Vec<String>,
) -> Result<Vec<Vec<Name>>> {
    if images.len() > IMAGES_MAX {
        return Err(Error::Invalid(format!("the archive contains {} images, more than {IMAGES_MAX}", images.len())));
    }
    let mut count = 0;
    match (name, images) {
        (_, []) => Err(Error::Invalid("the archive contains no image".to_owned())),
        (Some(name), [_]) => Ok(vec![vec![name]]),
        (Some(_), _) => Err(Error::Invalid(format!(
            "the archive contains {} images, which cannot share one name; leave the name out",
            images.len()
        ))),
        (None, images) => images
            .iter()
            .map(|image| {
                let names = says(image);
                count += names.len();
                if names.is_empty() {
                    return Err(Error::Invalid(
                        "the archive does not name its image; give it a name such as `my-image:1`".to_owned(),
                    ));
                }
                if count > NAMES_MAX {
                    return Err(Error::Invalid(format!("the archive has more than {NAMES_MAX} names for its images")));
                }
                names.iter().map(|name| Name::parse(name)).collect()
            })
            .collect(),
    }
}
