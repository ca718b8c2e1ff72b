//! Conversions of ports.

use providers::ListeningPort;

use super::scalars::shortened;
use crate::http::error::{ApiError, malformed};

/// Converts a port that listens to the API.
pub fn listening_port(port: ListeningPort) -> api::ListeningPort {
    let ListeningPort { port, address, pid, process } = port;
    api::ListeningPort { port, address: address.to_string(), pid, process }
}

/// Parses the number of a port in a path.
pub fn port(text: &str) -> Result<u16, ApiError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| is_number && *port > 0);
    port.ok_or_else(|| malformed(format!("`{}` is not a port; ports are numbers from 1 to 65535", shortened(text))))
}

/// Parses the number of a connection in a path.
pub fn connection(text: &str) -> Result<u64, ApiError> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| malformed(format!("`{}` is not the number of a connection", shortened(text))))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_port_is_a_number_from_1_to_65535() {
        for (text, number) in [("1", 1), ("3000", 3000), ("65535", 65535)] {
            assert_eq!(port(text).unwrap(), number);
        }
        for text in ["", "0", "00", "65536", "99999999999", "+80", "-1", "8 0", "abc", "http", "\u{663}"] {
            assert!(port(text).is_err(), "{text}");
        }
    }
}
