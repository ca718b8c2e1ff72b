//! A port here and its port in the sandbox.

/// A pair of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Port of this machine; 0 for a free one.
    pub local: u16,
    /// Port in the sandbox.
    pub remote: u16,
}

impl Mapping {
    /// Parses `LOCAL` or `LOCAL:REMOTE`.
    pub fn parse(text: &str) -> Result<Mapping, String> {
        let (local, remote) = text.split_once(':').unwrap_or((text, text));
        let local = number(local)?;
        let remote = number(remote)?;
        if remote == 0 {
            return Err("0 picks a free local port and needs the sandbox's port after it, such as 0:3000".to_owned());
        }
        Ok(Mapping { local, remote })
    }
}

/// A port in the sandbox and what it leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reverse {
    /// Port in the sandbox.
    pub remote: u16,
    /// Host that is connected to from here, without the brackets of an IPv6 address.
    pub host: String,
    /// Port of the host.
    pub local: u16,
}

impl Reverse {
    /// Parses `REMOTE`, `REMOTE:LOCAL` or `REMOTE:HOST:LOCAL`.
    pub fn parse(text: &str) -> Result<Reverse, String> {
        let (remote, target) = text.split_once(':').unwrap_or((text, text));
        let (host, local) = target.rsplit_once(':').unwrap_or(("127.0.0.1", target));
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        if host.is_empty() || bare.is_none() && host.contains([':', '[', ']']) {
            return Err("write it as PORT, PORT:PORT or PORT:HOST:PORT, with an IPv6 address in brackets".to_owned());
        }
        let remote = number(remote)?;
        let local = number(local)?;
        if remote == 0 || local == 0 {
            return Err("0 is not a port; name the port in the sandbox, and the local port if it differs".to_owned());
        }
        Ok(Reverse { remote, host: bare.unwrap_or(host).to_owned(), local })
    }
}

fn number(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("`{text}` is not a port; ports are numbers from 1 to 65535"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_port_alone_stands_for_both() {
        for (text, local, remote) in [("3000", 3000, 3000), ("8080:80", 8080, 80), ("0:65535", 0, 65535)] {
            assert_eq!(Mapping::parse(text), Ok(Mapping { local, remote }));
        }
    }

    #[test]
    fn what_names_no_port_is_refused() {
        for text in ["", "0", ":", "80:", ":80", "80:0", "65536", "http", "1:2:3", "-1"] {
            assert!(Mapping::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_port_of_the_sandbox_comes_first_and_this_machine_is_the_target() {
        for (text, remote, host, local) in [
            ("3000", 3000, "127.0.0.1", 3000),
            ("8080:3000", 8080, "127.0.0.1", 3000),
            ("8080:db.internal:5432", 8080, "db.internal", 5432),
            ("8080:[::1]:3000", 8080, "::1", 3000),
        ] {
            assert_eq!(Reverse::parse(text), Ok(Reverse { remote, host: host.to_owned(), local }));
        }
    }

    #[test]
    fn what_names_no_target_is_refused() {
        for text in
            ["", "0", "0:80", "80:0", "80:", ":80", "80::80", "80:::1:80", "80:[::1:80", "80:h:", "http", "1:h:x"]
        {
            assert!(Reverse::parse(text).is_err(), "{text}");
        }
    }
}
