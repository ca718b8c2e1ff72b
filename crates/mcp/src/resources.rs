//! Files as resources: `tidebox://SANDBOX/PATH`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::BytesMut;
use percent_encoding::percent_decode_str;
use rmcp::model::{CacheScope, ReadResourceResult, ResourceContents, ResourceTemplate};

use crate::bounds::BASE64_CHARS_MAX;
use crate::call::Call;
use crate::failure::{Failure, Result};

const SCHEME: &str = "tidebox://";
/// Largest file, in bytes.
const BYTES_MAX: usize = BASE64_CHARS_MAX / 4 * 3;

pub(crate) fn template() -> ResourceTemplate {
    ResourceTemplate::new("tidebox://{sandbox}{+path}", "file")
        .with_description("File of a sandbox, by its absolute path.")
}

/// Reads a file.
pub(crate) async fn read(call: &Call, uri: &str) -> Result<ReadResourceResult> {
    let (sandbox, path) = parse(uri)?;
    let target = call.target(Some(sandbox)).await?;
    let mut file = call.client.read_file(&target.id, &path, None).await?;
    let mut content = BytesMut::new();
    while let Some(piece) = call.unless_cancelled(file.next()).await?? {
        if content.len() + piece.len() > BYTES_MAX {
            return Err(Failure::new(format!("{path} has more than {BYTES_MAX} bytes: read a part with read_file")));
        }
        content.extend_from_slice(&piece);
    }
    let content = match String::from_utf8(content.into()) {
        Ok(text) => ResourceContents::text(text, uri),
        Err(error) => ResourceContents::blob(STANDARD.encode(error.as_bytes()), uri),
    };
    // A file changes at any time, and belongs to its owner.
    Ok(ReadResourceResult::new(vec![content]).with_ttl_ms(0).with_cache_scope(CacheScope::Private))
}

/// Splits a URI into the sandbox and the path.
fn parse(uri: &str) -> Result<(String, String)> {
    let (sandbox, path) = uri
        .strip_prefix(SCHEME)
        .and_then(|rest| rest.find('/').map(|at| rest.split_at(at)))
        .filter(|(sandbox, path)| !sandbox.is_empty() && path.len() > 1)
        .ok_or_else(|| Failure::new(format!("{uri} is no file of a sandbox: use tidebox://SANDBOX/PATH")))?;
    let path = percent_decode_str(path).decode_utf8().map_err(|_| Failure::new(format!("{uri} is not UTF-8")))?;
    Ok((sandbox.to_owned(), path.into_owned()))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_uri_names_a_sandbox_and_a_path() {
        let parsed = parse("tidebox://sb-1/workspace/a%20b%23.txt").unwrap();
        assert_eq!(parsed, ("sb-1".to_owned(), "/workspace/a b#.txt".to_owned()));
        for wrong in ["file:///etc/passwd", "tidebox://sb-1", "tidebox://sb-1/", "tidebox:///a", "tidebox://sb/%ff"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
