//! The memory of the server's process, if the process is visible.

use std::path::{Path, PathBuf};

use client::Client;

use super::report::Memory;

/// State of a listening socket in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Resident memory of the server at some moments.
#[derive(Debug)]
pub struct ServerMemory {
    status: Option<PathBuf>,
    samples: Vec<Memory>,
}

impl ServerMemory {
    /// Makes one without a process; it takes no samples.
    pub fn unknown() -> ServerMemory {
        ServerMemory { status: None, samples: Vec::new() }
    }

    /// Finds the process that listens on the port of the server, if it runs on this host.
    pub fn find(client: &Client) -> Result<ServerMemory, String> {
        if !client.is_local() {
            return Err("it runs on another machine".to_owned());
        }
        if client.base_url().starts_with("unix://") {
            return Err("its process is found by its port; use an http:// URL".to_owned());
        }
        let port = port(client.base_url());
        let sockets: Vec<_> = ["/proc/net/tcp", "/proc/net/tcp6"]
            .into_iter()
            .filter_map(|table| std::fs::read_to_string(table).ok())
            .filter_map(|table| listening_inode(&table, port))
            .map(|inode| format!("socket:[{inode}]"))
            .collect();
        let process = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
            .map(|entry| entry.path())
            .find(|process| has_open(process, &sockets))
            .ok_or("its process is not visible to this user or from this namespace")?;
        Ok(ServerMemory { status: Some(process.join("status")), samples: Vec::new() })
    }

    /// Reads the resident memory now.
    pub fn sample(&mut self, when: &'static str) {
        let status = self.status.as_ref().and_then(|status| std::fs::read_to_string(status).ok());
        if let Some(resident_kb) = status.as_deref().and_then(resident_kb) {
            self.samples.push(Memory { when, resident_kb });
        }
    }

    /// Returns the samples taken.
    pub fn into_samples(self) -> Vec<Memory> {
        self.samples
    }
}

/// Returns whether a process has one of the sockets open. `process` is its folder in `/proc`.
fn has_open(process: &Path, sockets: &[String]) -> bool {
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors
        .filter_map(|descriptor| std::fs::read_link(descriptor.path()).ok())
        .any(|target| sockets.iter().any(|socket| target.as_os_str() == socket.as_str()))
}

fn port(base_url: &str) -> u16 {
    let authority = base_url.trim_start_matches("http://").split('/').next().unwrap_or_default();
    // The URL leaves out the default port, 80.
    authority.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(80)
}

/// Returns the inode of the socket that listens on `port`. The columns of `table` are slot, local
/// address, remote address, state, five more, inode.
fn listening_inode(table: &str, port: u16) -> Option<u64> {
    let local = format!(":{port:04X}");
    table.lines().skip(1).find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let ours = columns.get(1)?.ends_with(&local) && *columns.get(3)? == LISTENING;
        ours.then(|| columns.get(9)?.parse().ok()).flatten()
    })
}

fn resident_kb(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok())
}

#[cfg(test)]
mod test {
    use super::{ServerMemory, listening_inode, port, resident_kb};

    #[test]
    fn the_process_that_listens_is_found_and_looked_at() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let client = client::Client::new(&url, None, None).unwrap();
        let mut memory = ServerMemory::find(&client).unwrap();
        memory.sample("now");
        assert!(memory.into_samples()[0].resident_kb > 0);
    }

    #[test]
    fn the_port_is_taken_from_the_url() {
        for (url, expected) in [("http://127.0.0.1:7423", 7423), ("http://[::1]:1/x:y", 1), ("http://localhost", 80)] {
            assert_eq!(port(url), expected, "{url}");
        }
    }

    #[test]
    fn a_connection_on_the_port_is_no_listener() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1CFF 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 11 1\n\
             1: 0100007F:1CFF 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 22 1\n";
        assert_eq!(listening_inode(table, 7423), Some(22));
        assert_eq!(listening_inode(table, 80), None);
        assert_eq!(resident_kb("Name:\tx\nVmRSS:\t    1234 kB\n"), Some(1234));
    }
}
