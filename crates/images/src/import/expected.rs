//! Content that a caller expects in an archive.

use crate::image::Run;
use crate::name::Name;

/// Content that an archive is expected to have.
#[derive(Debug)]
pub(crate) enum Expected {
    /// Images as their writer has put them, or a root directory. The name is for the only image.
    Any(Option<Name>),
    /// A root directory, whatever files are in it, which becomes an image of this name and these settings.
    Root(Name, Run),
}
