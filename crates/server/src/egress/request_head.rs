//! The hosts in the first request of a client that speaks HTTP/1 in plain text.

/// Longest head that is read, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Longest method, in bytes. Those in use have up to 16.
const METHOD_BYTES_MAX: usize = 32;

/// First bytes that a client sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Head {
    /// More are needed.
    Incomplete,
    /// They are not those of HTTP/1.
    NotHttp,
    /// Hosts that the head names, without their ports.
    Hosts(Vec<String>),
    /// They begin like HTTP/1, and the head has no end.
    Long,
}

/// Reads the first bytes of a client.
pub(super) fn read(bytes: &[u8]) -> Head {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let is_method = (1..=METHOD_BYTES_MAX).contains(&method) && bytes.get(method).is_none_or(|byte| *byte == b' ');
    if !is_method {
        return Head::NotHttp;
    }
    let incomplete = if bytes.len() < HEAD_BYTES_MAX { Head::Incomplete } else { Head::Long };
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let Some(first) = lines.next().and_then(whole) else { return incomplete };
    let Some(target) = target(first) else { return Head::NotHttp };
    let mut hosts: Vec<String> = target.split_once("://").map(|(_, rest)| host(rest)).into_iter().collect();
    for line in lines {
        match whole(line) {
            None => return incomplete,
            Some([]) => return Head::Hosts(hosts),
            Some(line) => hosts.extend(value(line).as_deref().map(host)),
        }
    }
    incomplete
}

/// Returns a line without its end; `None` if the end has not come.
fn whole(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    Some(line.strip_suffix(b"\r").unwrap_or(line))
}

/// Returns the target of a request line; `None` for another line.
fn target(line: &[u8]) -> Option<&str> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    let _method = words.next()?;
    let target = words.next()?;
    let version = words.next()?;
    (version.starts_with("HTTP/1.") && words.next().is_none()).then_some(target)
}

/// Returns the value of the header `Host`; `None` for another.
fn value(line: &[u8]) -> Option<String> {
    let at = line.iter().position(|byte| *byte == b':')?;
    let is_host = line[..at].trim_ascii().eq_ignore_ascii_case(b"host");
    is_host.then(|| String::from_utf8_lossy(line[at + 1..].trim_ascii()).into_owned())
}

/// Returns the host at the beginning of an authority and a path, without user and port.
fn host(text: &str) -> String {
    let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let end = authority.find(']').map_or_else(|| authority.find(':'), |at| Some(at + 1));
    authority[..end.unwrap_or(authority.len())].to_owned()
}

#[cfg(test)]
mod test {
    use super::*;

    fn hosts(head: &str) -> Vec<String> {
        match read(head.as_bytes()) {
            Head::Hosts(hosts) => hosts,
            other @ (Head::Incomplete | Head::NotHttp | Head::Long) => panic!("{other:?}: {head}"),
        }
    }

    #[test]
    fn the_hosts_of_a_head_are_found_however_they_are_written() {
        assert_eq!(hosts("GET / HTTP/1.1\r\nhOsT:  a.example:8080 \r\nX: y\r\n\r\nbody"), ["a.example"]);
        assert_eq!(hosts("GET / HTTP/1.0\nHost : a.example\n\n"), ["a.example"]);
        assert_eq!(hosts("GET http://u@b.example:1/x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n"), ["b.example", "[::1]"]);
        assert_eq!(hosts("POST /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), ["a", "b"]);
        assert!(hosts("GET / HTTP/1.1\r\n\r\n").is_empty());
    }

    #[test]
    fn a_head_may_come_in_any_pieces_and_has_a_longest_length() {
        let head = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 1..head.len() {
            assert_eq!(read(&head.as_bytes()[..end]), Head::Incomplete, "{end}");
        }
        assert_eq!(read(format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES_MAX)).as_bytes()), Head::Long);
    }

    #[test]
    fn what_is_not_http_is_passed_on_at_its_first_line() {
        for bytes in ["", "\u{16}", "SSH-2.0-x\r\n", "EHLO me.example\r\n", "PING\r\n", "PRI * HTTP/2.0\r\n", "get / x"]
        {
            assert_eq!(read(bytes.as_bytes()), Head::NotHttp, "{bytes}");
        }
    }
}
