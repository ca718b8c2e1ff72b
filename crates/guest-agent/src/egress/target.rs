//! Hosts and ports that processes ask for.

use guest_protocol::EGRESS_HOST_BYTES_MAX;

use super::refusal::Refusal;

/// A host and a port. The server decides whether there can be such a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Target {
    /// Checks what no connection can do without.
    pub(super) fn new(host: String, port: u16) -> Result<Target, Refusal> {
        if host.is_empty() {
            return Err(Refusal::malformed("the request has no host"));
        }
        if host.len() > EGRESS_HOST_BYTES_MAX {
            let message = format!("the host is longer than {EGRESS_HOST_BYTES_MAX} bytes, the limit for a name");
            return Err(Refusal::malformed(message));
        }
        if port == 0 {
            return Err(Refusal::malformed("port 0 does not exist; ports are numbered from 1"));
        }
        Ok(Target { host, port })
    }

    /// Parses `host`, `host:port` or `[address]:port`. A missing port is `default`.
    pub(super) fn parse(authority: &str, default: Option<u16>) -> Result<Target, Refusal> {
        if authority.contains('@') {
            return Err(Refusal::malformed(
                "the host has a user name or a password before an @; send them in a header instead",
            ));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let closed = rest.split_once(']');
                let (host, port) = closed.ok_or_else(|| Refusal::malformed("the address has a [ without a ]"))?;
                (host, port.strip_prefix(':').or(port.is_empty().then_some("")))
            }
            None => {
                let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
                if port.contains(':') {
                    return Err(Refusal::malformed("an IPv6 address needs brackets around it, such as [::1]:80"));
                }
                (host, Some(port))
            }
        };
        if host.contains('%') {
            return Err(Refusal::malformed(
                "an address with a zone (%) is local to a host, so it cannot be connected to",
            ));
        }
        let port = match (port, default) {
            (Some(""), Some(default)) => default,
            (Some(""), None) => return Err(Refusal::malformed("the request has no port; write host:port")),
            (Some(port), _) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().map_err(|_| Refusal::malformed("the port is larger than 65535"))?
            }
            (Some(_) | None, _) => return Err(Refusal::malformed("the port is not a number")),
        };
        Target::new(host.to_owned(), port)
    }

    /// Returns the value of a header `Host`.
    pub(super) fn authority(&self, default: u16) -> String {
        let Target { host, port } = self;
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        if *port == default { host } else { format!("{host}:{port}") }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn hosts_and_ports_are_taken_apart_and_put_together() {
        for (text, default, host, port, back) in [
            ("a.example:443", None, "a.example", 443, "a.example:443"),
            ("a.example", Some(80), "a.example", 80, "a.example"),
            ("a.example:", Some(80), "a.example", 80, "a.example"),
            ("A.Example.:8080", Some(80), "A.Example.", 8080, "A.Example.:8080"),
            ("[::1]:443", None, "::1", 443, "[::1]:443"),
            ("[2001:db8::1]", Some(80), "2001:db8::1", 80, "[2001:db8::1]"),
            ("0x7f.1:00080", None, "0x7f.1", 80, "0x7f.1"),
        ] {
            let target = Target::parse(text, default).unwrap();
            assert_eq!((target.host.as_str(), target.port), (host, port), "{text}");
            assert_eq!(target.authority(80), back, "{text}");
        }
    }

    #[test]
    fn what_names_no_host_or_no_port_is_malformed() {
        let long = format!("{}:1", "a".repeat(256));
        for text in [
            "",
            ":80",
            "a",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a:1:2",
            "a: 1",
            "::1",
            "[::1",
            "[::1]",
            "[::1]x:80",
            "[]:1",
            "[fe80::1%25eth0]:1",
            "u@a:1",
            "u:p@a:1",
            &long,
        ] {
            assert_eq!(Target::parse(text, None).unwrap_err().status(), 400, "{text}");
        }
    }
}
