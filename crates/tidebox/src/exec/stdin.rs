//! The stdin of `exec -i` and `run -i` where the answer is one JSON.

use api::TextEncoding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use crate::failure::{Failure, Result};
use crate::output::Output;

/// Upper bound of what fits into the API's JSON request of 1 MiB.
const BYTES_MAX: u64 = 1024 * 1024;
/// Exit code of a command that its deadline ended.
const TIMED_OUT: u8 = 124;

/// Reads stdin to its end, for as long as the command may take.
pub async fn read(output: Output, deadline: Option<&str>) -> Result<(String, TextEncoding)> {
    let deadline = deadline
        .map(|text| domain::parse_duration(text).map_err(|error| Failure::usage(format!("--timeout: {error}"))));
    let mut bytes = Vec::new();
    // One byte more than the limit, to tell an end from a cut.
    let mut stdin = tokio::io::stdin().take(BYTES_MAX + 1);
    let reading = stdin.read_to_end(&mut bytes);
    let result = match deadline.transpose()? {
        Some(deadline) => timeout(deadline, reading).await,
        None => Ok(reading.await),
    };
    let Ok(result) = result else {
        let late = "stdin did not end before the command's deadline, so the command was not started";
        output.complain(&Failure::new("timeout", late));
        return Err(Failure::silent(TIMED_OUT));
    };
    result.map_err(|error| Failure::io("stdin cannot be read", &error))?;
    encode(bytes)
}

/// Returns a failure that says what to do with more than the API takes.
pub fn too_large() -> Failure {
    Failure::new(
        "payload_too_large",
        "the command and its stdin are larger than the 1 MiB that a request may have; omit `--output json`, so that \
         `-i` streams stdin, or copy the input first with `tidebox cp - ID:/workspace/input`",
    )
}

/// Encodes as text if the bytes are text, which needs a quarter less of the limit.
fn encode(bytes: Vec<u8>) -> Result<(String, TextEncoding)> {
    if bytes.len() as u64 > BYTES_MAX {
        return Err(too_large());
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => (text, TextEncoding::Utf8),
        Err(error) => (STANDARD.encode(error.as_bytes()), TextEncoding::Base64),
    })
}

#[cfg(test)]
mod test {
    use api::TextEncoding;

    use super::{BYTES_MAX, encode};

    #[test]
    fn text_is_sent_as_it_is_and_other_bytes_exactly() {
        assert_eq!(encode(b"na\xc3\xafve\n\0".to_vec()).unwrap(), ("naïve\n\0".to_owned(), TextEncoding::Utf8));
        assert_eq!(encode(b"\0\xff".to_vec()).unwrap(), ("AP8=".to_owned(), TextEncoding::Base64));
        assert_eq!(encode(Vec::new()).unwrap(), (String::new(), TextEncoding::Utf8));
    }

    #[test]
    fn more_than_the_api_takes_says_what_to_do_instead() {
        let failure = encode(vec![b'x'; BYTES_MAX as usize + 1]).unwrap_err();
        assert!(failure.said().unwrap().1.contains("-i"), "{failure:?}");
    }
}
