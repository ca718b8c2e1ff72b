//! A port here and its port in the sandbox.

/// A pair of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Port of this machine; 0 for a free one.
    pub local: u16,
    /// Port in the sandbox.
    pub remote: u16,
}

/// Parses `LOCAL` or `LOCAL:REMOTE`.
pub fn parse(text: &str) -> Result<Mapping, String> {
    let (local, remote) = text.split_once(':').unwrap_or((text, text));
    let (local, remote) = (number(local)?, number(remote)?);
    if remote == 0 {
        return Err("0 takes a free port here, and needs the port of the sandbox behind it, such as 0:3000".to_owned());
    }
    Ok(Mapping { local, remote })
}

fn number(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("`{text}` is no port; ports are numbers from 1 to 65535"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_port_alone_stands_for_both() {
        for (text, local, remote) in [("3000", 3000, 3000), ("8080:80", 8080, 80), ("0:65535", 0, 65535)] {
            assert_eq!(parse(text), Ok(Mapping { local, remote }));
        }
    }

    #[test]
    fn what_names_no_port_is_refused() {
        for text in ["", "0", ":", "80:", ":80", "80:0", "65536", "http", "1:2:3", "-1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
