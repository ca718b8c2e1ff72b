//! The stdin that is piped into `exec` and `run`.

use std::io::IsTerminal as _;
use std::time::Duration;

use api::TextEncoding;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::fs::FileType;
use tokio::io::AsyncReadExt as _;

use crate::failure::{Failure, Result};
use crate::output::Output;

/// Upper bound of what fits into the API's JSON request of 1 MiB.
const BYTES_MAX: u64 = 1024 * 1024;
/// Time that stdin may stay open before a remark says what is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// Reads all of stdin; `None` if it is a terminal or `/dev/null`, whose content is known.
pub async fn read(output: Output) -> Result<Option<(String, TextEncoding)>> {
    if std::io::stdin().is_terminal() || is_null() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    // One byte more than the limit, to tell an end from a cut.
    let mut stdin = tokio::io::stdin().take(BYTES_MAX + 1);
    let mut reading = std::pin::pin!(stdin.read_to_end(&mut bytes));
    let result = match tokio::time::timeout(PATIENCE, &mut reading).await {
        Ok(result) => result,
        Err(_) => {
            output.remark("tidebox: waiting for the end of stdin; pass -n to run the command without one");
            reading.await
        }
    };
    result.map_err(|error| Failure::io("stdin cannot be read", &error))?;
    encode(bytes).map(Some)
}

/// Returns a failure that says what to do with more than the API takes.
pub fn too_large() -> Failure {
    Failure::new(
        "payload_too_large",
        "the command with its stdin is larger than the 1 MiB that one request takes; copy the input first with \
         `tidebox cp - ID:/workspace/input` and read it there: `tidebox exec ID -n -c 'COMMAND < /workspace/input'`",
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

fn is_null() -> bool {
    rustix::fs::fstat(std::io::stdin()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == rustix::fs::makedev(1, 3)
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
        assert!(failure.said().unwrap().1.contains("tidebox cp -"), "{failure:?}");
    }
}
