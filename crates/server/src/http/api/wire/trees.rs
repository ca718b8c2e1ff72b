//! Conversions of chosen files, and of changes of many.

use providers::{Amend, AmendFailure, Amended, Attributes, CHOSEN_BYTES_MAX, CHOSEN_PATHS_MAX, Pack};

use super::scalars::mode;
use crate::http::error::{ApiError, malformed};

/// Longest time of a change, in bytes.
const MTIME_BYTES_MAX: usize = 64;

/// Refuses more paths than a request may have.
fn check<'a>(fields: &str, paths: impl Iterator<Item = &'a String> + Clone) -> Result<(), ApiError> {
    if paths.clone().count() > CHOSEN_PATHS_MAX || paths.map(String::len).sum::<usize>() > CHOSEN_BYTES_MAX {
        return Err(malformed(format!(
            "{fields} may have at most {CHOSEN_PATHS_MAX} paths of {} KiB in total; send several requests",
            CHOSEN_BYTES_MAX / 1024
        )));
    }
    Ok(())
}

/// Converts the body of a request for chosen files.
pub fn pack(body: api::PackRequest) -> Result<Pack, ApiError> {
    check("`paths`", body.paths.iter())?;
    Ok(Pack { path: body.path, paths: body.paths })
}

/// Converts the body of a request to change many files.
pub fn amend(body: api::AmendRequest) -> Result<Amend, ApiError> {
    let attributed = body.attributes.iter().map(|attributes| &attributes.path);
    check("`remove` and `attributes` together", body.remove.iter().chain(attributed))?;
    let attributes = body.attributes.into_iter().map(|api::FileAttributes { path, mode: bits, mtime }| {
        if mtime.as_ref().is_some_and(|mtime| mtime.len() > MTIME_BYTES_MAX) {
            return Err(malformed("`mtime` is a number of seconds since 1970, such as 1700000000.25"));
        }
        Ok(Attributes { path, mode: bits.as_deref().map(mode).transpose()?, mtime })
    });
    Ok(Amend { path: body.path, remove: body.remove, attributes: attributes.collect::<Result<_, ApiError>>()? })
}

/// Converts the account of changes to the API.
pub fn amended(Amended { removed, changed, failed, failures }: Amended) -> api::Amended {
    let failures = failures.into_iter().map(|AmendFailure { path, message }| api::AmendFailure { path, message });
    api::Amended { removed, changed, failed, failures: failures.collect() }
}
