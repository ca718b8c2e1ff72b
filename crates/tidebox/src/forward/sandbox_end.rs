//! End of the sandbox whose ports are forwarded.

use std::time::Duration;

use client::Client;

use crate::failure::Failure;

/// Longest single wait for the end of the sandbox: the longest that the server allows.
const WATCH: &str = "10m";
/// Pause before the sandbox is looked for again.
const RETRY: Duration = Duration::from_secs(1);

/// Waits for the end of the sandbox, and returns the failure that says so.
pub async fn ended(client: &Client, id: &str) -> Failure {
    loop {
        match client.wait(id, "destroyed", Some(WATCH)).await {
            Ok(_) => return gone(id),
            Err(error) if error.is_code("not_found") || error.is_code("conflict") => return gone(id),
            Err(error) if error.is_code("timeout") => {}
            // The server restarts, or has much to do.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}

/// Returns the failure of a sandbox that is not there.
pub fn gone(id: &str) -> Failure {
    Failure::new("not_found", format!("the sandbox {id} has ended"))
}
