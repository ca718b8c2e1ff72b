//! Tools for sandboxes themselves.

use api::{EgressMode, EgressPolicy, PreviewRequest, Sandbox, SnapshotRequest, SpawnRequest};
use client::Filter;
use rmcp::model::ContentBlock;

use super::units::{minutes, text};
use crate::access::{LABEL, label};
use crate::arguments::{CreateSandbox, DestroySandbox, ExposePort, ListSandboxes, Snapshot};
use crate::call::Call;
use crate::failure::{Failure, Result};

/// Most sandboxes in a list.
const LISTED_MAX: u32 = 100;

pub(super) async fn create(call: &Call, new: CreateSandbox) -> Result<Vec<ContentBlock>> {
    let given = [new.image.is_some(), new.template.is_some(), new.snapshot.is_some()];
    if given.into_iter().filter(|is_given| *is_given).count() > 1 {
        return Err(Failure::new("pass one of `image`, `template` and `snapshot`"));
    }
    let egress = new.allow_hosts.map(|allow| EgressPolicy {
        mode: EgressMode::AllowList,
        allow,
        deny: Vec::new(),
        secrets: Vec::new(),
    });
    let mut request = SpawnRequest {
        image: new.image,
        template: new.template,
        snapshot: new.snapshot,
        ttl: new.ttl_minutes.map(minutes),
        memory_mb: new.memory_mb,
        egress,
        ..SpawnRequest::default()
    };
    label(&mut request);
    let sandbox = call.client.spawn(&request).await?;
    call.access().remember(&sandbox.id);
    Ok(text(format!("Sandbox {}: {}", sandbox.id, description(&sandbox))))
}

pub(super) async fn list(call: &Call, _: ListSandboxes) -> Result<Vec<ContentBlock>> {
    let labels = [LABEL];
    let metadata: &[_] = if call.access().is_to_all { &[] } else { &labels };
    let page = call.client.list_page(&Filter { metadata, limit: Some(LISTED_MAX), ..Filter::default() }).await?;
    let lines = page.sandboxes.iter().map(|sandbox| format!("{}: {}", sandbox.id, description(sandbox)));
    let mut lines: Vec<String> = lines.collect();
    if page.next.is_some() {
        lines.push(format!("[only the newest {LISTED_MAX} are shown]"));
    }
    Ok(text(if lines.is_empty() { "No sandbox runs. create_sandbox makes one.".to_owned() } else { lines.join("\n") }))
}

fn description(sandbox: &Sandbox) -> String {
    let Sandbox { state, image, memory_mb, vcpus, expires_at, .. } = sandbox;
    format!("{state}, image {image}, {memory_mb} MB of memory, {vcpus} CPUs, until {expires_at}")
}

pub(super) async fn destroy(call: &Call, DestroySandbox { sandbox }: DestroySandbox) -> Result<Vec<ContentBlock>> {
    call.access().check(&call.client, &sandbox).await?;
    call.client.destroy(&sandbox).await?;
    Ok(text(format!("Sandbox {sandbox} is removed.")))
}

pub(super) async fn expose(call: &Call, arguments: ExposePort) -> Result<Vec<ContentBlock>> {
    let target = call.target(arguments.sandbox).await?;
    let ttl = arguments.minutes.map(minutes);
    let request = PreviewRequest { port: arguments.port, ttl, public: false };
    let preview = call.client.preview(&target.id, &request).await?;
    let is_listening = call.client.ports(&target.id).await?.iter().any(|port| port.port == arguments.port);
    let warning = if is_listening {
        String::new()
    } else {
        format!("\nNothing listens on port {} yet: start the server with run_command.", arguments.port)
    };
    Ok(target.text(format!("{}\nThe URL works until {}.{warning}", preview.url, preview.expires_at)))
}

pub(super) async fn snapshot(call: &Call, Snapshot { name, sandbox }: Snapshot) -> Result<Vec<ContentBlock>> {
    let target = call.target(sandbox).await?;
    let taken = call.client.take_snapshot(&target.id, &SnapshotRequest { name, memory: None }).await?;
    Ok(target.text(format!("Snapshot {}. Start from it: create_sandbox with `snapshot`: \"{0}\".", taken.id)))
}
