//! Ways to a server that are open to more than its operator.

use client::{Client, Options};

use super::finding::{Finding, Level};

/// State of a listening socket in the kernel's tables.
const LISTENS: &str = "0A";

/// Returns a finding if the server is root's, on this machine, and asks for no key: every user of the machine
/// then has root's rights by way of it.
pub async fn open_to_others(client: &Client) -> Option<Finding> {
    let port = client.is_local().then(|| port(client.base_url())).flatten()?;
    let without_key = Client::open(client.base_url(), Options::default()).ok()?;
    if without_key.providers().await.is_err() || !is_roots(port) {
        return None;
    }
    let fact = "runs as root and requires no key: every user and program on this machine can use it to act as root";
    let remedy = "set auth.enabled and auth.api_key_file in /etc/tidebox/config.yaml; callers pass the key in \
                  TIDEBOX_API_KEY";
    Some(Finding::lacking("server", Level::Warn, fact, remedy))
}

/// Returns the port of an `http` URL; `None` for a Unix socket.
fn port(url: &str) -> Option<u16> {
    let address = url.strip_prefix("http://")?.split('/').next()?;
    address.rsplit(':').next()?.parse().ok()
}

/// Returns whether a socket of root listens on the port.
fn is_roots(port: u16) -> bool {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).any(|line| listener(line) == Some((port, 0)))
}

/// Returns the port and the user of a line of the kernel's table, if the socket listens.
fn listener(line: &str) -> Option<(u16, u32)> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, LISTENS, _, _, _, user, ..] = fields.as_slice() else { return None };
    let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
    Some((port, user.parse().ok()?))
}

#[cfg(test)]
mod test {
    use super::{listener, port};

    #[test]
    fn the_user_of_a_port_is_read_from_the_kernels_table() {
        let line = "   0: 0100007F:1CFF 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 7 1 0 100 0 0 10 0";
        assert_eq!(listener(line), Some((7423, 0)));
        assert_eq!(listener(&line.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn only_urls_of_tcp_have_a_port() {
        assert_eq!(port("http://127.0.0.1:7423"), Some(7423));
        assert_eq!(port("http://[::1]:80/prefix"), Some(80));
        assert_eq!(port("unix:///run/socket"), None);
    }
}
