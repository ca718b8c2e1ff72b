//! Sandboxes.

use api::{ExtendRequest, Pruned, Sandbox, SpawnRequest, Status};
use reqwest::Method;

use crate::connection::Patience;
use crate::path::{query, segment};
use crate::{Client, Result};

impl Client {
    /// Makes a sandbox; returns when it runs. Dropping the future lets the
    /// server remove what it was making.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn spawn(&self, request: &SpawnRequest) -> Result<Sandbox> {
        self.send_json(Method::POST, "/sandboxes", request, Patience::Long).await
    }

    /// Every sandbox, newest first.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn list(&self) -> Result<Vec<Sandbox>> {
        self.get("/sandboxes").await
    }

    /// One sandbox.
    ///
    /// # Errors
    /// `not_found` if there is none of that id; or that the server cannot be spoken to.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.get(&sandbox_path(id, "")?).await
    }

    /// Removes a sandbox; again for one that is already gone.
    ///
    /// # Errors
    /// `not_found` if there never was one of that id; or that the server cannot be spoken to.
    pub async fn destroy(&self, id: &str) -> Result<Status> {
        self.delete(&sandbox_path(id, "")?, Patience::Long).await
    }

    /// Removes every sandbox whose time is over.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn prune(&self) -> Result<Pruned> {
        self.delete("/sandboxes", Patience::Long).await
    }

    /// Gives a sandbox a new lifetime, such as `30m`, counted from now.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn extend(&self, id: &str, ttl: &str) -> Result<Sandbox> {
        let request = ExtendRequest { ttl: ttl.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/extend")?, &request, Patience::Short).await
    }

    /// Waits until a sandbox is in `state`, at most `timeout` (such as `30s`; the
    /// server's default if absent).
    ///
    /// # Errors
    /// `timeout` if it is not by then; `not_found`; or that the server cannot be spoken to.
    pub async fn wait(&self, id: &str, state: &str, timeout: Option<&str>) -> Result<Sandbox> {
        let mut pairs = vec![("state", state)];
        pairs.extend(timeout.map(|timeout| ("timeout", timeout)));
        let path = format!("{}{}", sandbox_path(id, "/wait")?, query(&pairs));
        self.call(self.request(Method::GET, &path, Patience::Long)).await
    }

    /// The newest `lines` lines of a sandbox's console, oldest first; the
    /// server's default if absent.
    ///
    /// # Errors
    /// The server's refusal, or that it cannot be spoken to.
    pub async fn logs(&self, id: &str, lines: Option<u32>) -> Result<Vec<String>> {
        let lines = lines.map(|lines| lines.to_string());
        let pairs: Vec<_> = lines.iter().map(|lines| ("lines", lines.as_str())).collect();
        self.get(&format!("{}{}", sandbox_path(id, "/logs")?, query(&pairs))).await
    }
}

/// `/sandboxes/{id}` and what follows, which is already encoded.
pub(crate) fn sandbox_path(id: &str, rest: &str) -> Result<String> {
    Ok(format!("/sandboxes/{}{rest}", segment("the sandbox id", id)?))
}
