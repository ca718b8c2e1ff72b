//! Sandboxes: making, listing and removing them.

use std::time::Duration;

use api::{Egress, EgressPolicy, ExtendRequest, PauseRequest, Pruned, Sandbox, SandboxStats, SpawnRequest, Status};
use reqwest::Method;

use crate::connection::{Patience, Size};
use crate::path::{query, segment};
use crate::{Client, Result};

/// A selection of sandboxes to list. A sandbox has to match every field; an absent field matches
/// all.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter<'a> {
    /// Owner that the sandboxes are charged to.
    pub owner_id: Option<&'a str>,
    /// State that the sandboxes are in: `creating`, `running`, `paused`, `destroying` or `failed`.
    pub state: Option<&'a str>,
    /// Provider that runs the sandboxes.
    pub provider: Option<&'a str>,
    /// Labels that the sandboxes have, as pairs of key and value; all have to match.
    pub metadata: &'a [(&'a str, &'a str)],
    /// Maximum number of sandboxes in the page, 1 to 1,000; one page has them all if absent.
    pub limit: Option<u32>,
    /// Cursor of the page before, from [`Page::next`].
    pub cursor: Option<&'a str>,
}

impl Filter<'_> {
    fn query(&self) -> String {
        let names: Vec<String> = self.metadata.iter().map(|(key, _)| format!("metadata.{key}")).collect();
        let limit = self.limit.map(|limit| limit.to_string());
        let mut pairs: Vec<(&str, &str)> =
            names.iter().map(String::as_str).zip(self.metadata.iter().map(|(_, value)| *value)).collect();
        for (name, value) in [
            ("owner_id", self.owner_id),
            ("state", self.state),
            ("provider", self.provider),
            ("limit", limit.as_deref()),
            ("cursor", self.cursor),
        ] {
            pairs.extend(value.map(|value| (name, value)));
        }
        query(&pairs)
    }
}

/// A page of a list of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Sandboxes of the page, newest first.
    pub sandboxes: Vec<Sandbox>,
    /// Cursor of the next page; `None` at the end.
    pub next: Option<String>,
}

/// A new sandbox, and where the time for it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spawned {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Steps of the server with the time that each took, in their order, of the header
    /// `Server-Timing`; empty if there is none.
    pub phases: Vec<(String, Duration)>,
}

/// Sandboxes.
impl Client {
    /// Makes a sandbox and waits until it runs. Dropping the future makes the server remove it.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn spawn(&self, request: &SpawnRequest) -> Result<Sandbox> {
        self.send_json(Method::POST, "/sandboxes", request, Patience::Long).await
    }

    /// Makes a sandbox like [`Client::spawn`], and returns where the time went too.
    ///
    /// # Errors
    /// Those of [`Client::spawn`].
    pub async fn spawn_timed(&self, request: &SpawnRequest) -> Result<Spawned> {
        let call = self.with_json(self.request(Method::POST, "/sandboxes", Patience::Long), request)?;
        let response = self.send(call).await?;
        let timing = response.headers().get("server-timing").and_then(|timing| timing.to_str().ok());
        let phases = timing.map(phases).unwrap_or_default();
        Ok(Spawned { sandbox: self.json(response, Size::Small).await?, phases })
    }

    /// Returns every sandbox that is neither destroyed nor expired, newest first. A list of more
    /// than 32 MiB is an error; [`Client::list_page`] reads it in parts.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn list(&self) -> Result<Vec<Sandbox>> {
        self.get_list("/sandboxes").await
    }

    /// Returns a page of the sandboxes that match, newest first.
    ///
    /// A server of another make that does not know the filters may refuse them with `bad_request`,
    /// or ignore them and answer with every sandbox; a caller of such a server has to check the
    /// result.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn list_page(&self, filter: &Filter<'_>) -> Result<Page> {
        let request = self.request(Method::GET, &format!("/sandboxes{}", filter.query()), Patience::Short);
        let response = self.send(request).await?;
        let next = response.headers().get("x-next-cursor").and_then(|cursor| cursor.to_str().ok()).map(str::to_owned);
        Ok(Page { sandboxes: self.json(response, Size::List).await?, next })
    }

    /// Returns one sandbox.
    ///
    /// # Errors
    /// `not_found` if there is none of that id, or if it is destroyed or expired; another
    /// [`crate::Error`] if no answer comes.
    pub async fn sandbox(&self, id: &str) -> Result<Sandbox> {
        self.get(&sandbox_path(id, "")?).await
    }

    /// Removes a sandbox and waits until nothing of it is left. A repeat succeeds too, while the
    /// server keeps the row of the sandbox.
    ///
    /// # Errors
    /// `not_found` if the server knows none of that id, `provider_error` if the removal failed (the
    /// server retries it); another [`crate::Error`] if no answer comes.
    pub async fn destroy(&self, id: &str) -> Result<Status> {
        self.delete(&sandbox_path(id, "")?, Patience::Long).await
    }

    /// Removes every sandbox whose lifetime is over.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn prune(&self) -> Result<Pruned> {
        self.delete("/sandboxes", Patience::Long).await
    }

    /// Sets a new lifetime of a sandbox, such as `30m`, counted from now; it may be shorter than
    /// the rest of the old one.
    ///
    /// # Errors
    /// `not_found` if there is none of that id, `resource_limit` if `ttl` is above the longest
    /// lifetime; another [`crate::Error`] if no answer comes.
    pub async fn extend(&self, id: &str, ttl: &str) -> Result<Sandbox> {
        let request = ExtendRequest { ttl: ttl.to_owned() };
        self.send_json(Method::POST, &sandbox_path(id, "/extend")?, &request, Patience::Short).await
    }

    /// Pauses a sandbox: its processes stop where they are, until it is resumed or a request needs it.
    /// With `force` also while requests use it; with `reclaim` its memory is handed back to the system,
    /// and the answer has the figures; with `to_disk` it is written to disk.
    ///
    /// # Errors
    /// `conflict` if requests use it, `not_supported` if its provider cannot pause it, hand back its
    /// memory, or write it to disk, `not_found` if there is none of that id; another [`crate::Error`] if no answer comes.
    pub async fn pause(&self, id: &str, request: &PauseRequest) -> Result<Sandbox> {
        let patience = if request.reclaim || request.to_disk { Patience::Long } else { Patience::Short };
        self.send_json(Method::POST, &sandbox_path(id, "/pause")?, request, patience).await
    }

    /// Lets a paused sandbox go on.
    ///
    /// # Errors
    /// As [`Client::pause`].
    pub async fn resume(&self, id: &str) -> Result<Sandbox> {
        let path = sandbox_path(id, "/resume")?;
        self.call(self.request(Method::POST, &path, Patience::Short), Size::Small).await
    }

    /// Returns the resources that a sandbox uses, with its disk.
    ///
    /// # Errors
    /// `not_found` if there is none of that id, `conflict` if it does not run; another
    /// [`crate::Error`] if no answer comes.
    pub async fn stats(&self, id: &str) -> Result<SandboxStats> {
        self.get(&sandbox_path(id, "/stats")?).await
    }

    /// Returns the resources that the running sandboxes use which match, newest first, without their
    /// disks. The filter's `state`, `limit` and `cursor` have to be absent.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn stats_of_all(&self, filter: &Filter<'_>) -> Result<Vec<SandboxStats>> {
        self.get_list(&format!("/sandboxes/stats{}", filter.query())).await
    }

    /// Returns the policy on connections out of a sandbox, and their account.
    ///
    /// # Errors
    /// `not_found` if there is none of that id, `not_supported` if another server makes its
    /// connections; another [`crate::Error`] if no answer comes.
    pub async fn egress(&self, id: &str) -> Result<Egress> {
        self.get_list(&sandbox_path(id, "/egress")?).await
    }

    /// Replaces the policy on connections out of a sandbox, for open connections too.
    ///
    /// # Errors
    /// `bad_request` for a policy that makes no sense; else as [`Client::egress`].
    pub async fn set_egress(&self, id: &str, policy: &EgressPolicy) -> Result<Egress> {
        self.send_json(Method::PUT, &sandbox_path(id, "/egress")?, policy, Patience::Short).await
    }

    /// Waits until a sandbox is in `state`, which is `running`, `destroyed` or `failed`. `timeout`
    /// is the longest wait, such as `30s` (the default if absent), at most `10m`.
    ///
    /// # Errors
    /// `timeout` if the state is not reached by then, `conflict` if it never can be, `not_found` if
    /// there is none of that id; another [`crate::Error`] if no answer comes.
    pub async fn wait(&self, id: &str, state: &str, timeout: Option<&str>) -> Result<Sandbox> {
        let mut pairs = vec![("state", state)];
        pairs.extend(timeout.map(|timeout| ("timeout", timeout)));
        let path = format!("{}{}", sandbox_path(id, "/wait")?, query(&pairs));
        self.call(self.request(Method::GET, &path, Patience::Long), Size::Small).await
    }

    /// Returns the newest `lines` lines of a sandbox's console (the output of its background
    /// processes), oldest first: 100 if absent, at most 10,000.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn logs(&self, id: &str, lines: Option<u32>) -> Result<Vec<String>> {
        let lines = lines.map(|lines| lines.to_string());
        let pairs: Vec<_> = lines.iter().map(|lines| ("lines", lines.as_str())).collect();
        self.get_list(&format!("{}{}", sandbox_path(id, "/logs")?, query(&pairs))).await
    }
}

/// Returns `/sandboxes/{id}` followed by `rest`, which must already be encoded.
pub(crate) fn sandbox_path(id: &str, rest: &str) -> Result<String> {
    Ok(format!("/sandboxes/{}{rest}", segment("the sandbox id", id)?))
}

/// Reads `Server-Timing`: `name;dur=MILLISECONDS` for each step, with commas between them. A step without a
/// duration is left out.
fn phases(timing: &str) -> Vec<(String, Duration)> {
    timing.split(',').filter_map(phase).collect()
}

/// Reads one step of `Server-Timing`; `None` if it has no name or no valid duration.
fn phase(step: &str) -> Option<(String, Duration)> {
    let mut parts = step.split(';').map(str::trim);
    let name = parts.next().filter(|name| !name.is_empty())?;
    let ms: f64 = parts.find_map(|part| part.strip_prefix("dur="))?.parse().ok()?;
    Some((name.to_owned(), Duration::try_from_secs_f64(ms / 1e3).ok()?))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn steps_of_a_spawn_are_read_and_nonsense_is_left_out() {
        let read = phases("image;dur=0.5, box;desc=\"a box\";dur=12, agent;dur=-1, x, ;dur=3,y;dur=z");
        let expected = [("image", 500), ("box", 12_000)];
        assert_eq!(read, expected.map(|(name, us)| (name.to_owned(), Duration::from_micros(us))));
        assert_eq!(phases(""), []);
    }
}
