//! Conversions of workers and leases.

use std::time::Duration;

use domain::{Capacity, Lease, WorkerId, WorkerStatus};

use super::scalars::{duration, shortened, span, time};
use crate::control::Heartbeat;
use crate::control::LEASE_TTL_MAX;
use crate::control::Seen;
use crate::http::error::{ApiError, malformed};

/// Longest host name, in bytes. <https://www.rfc-editor.org/rfc/rfc1035#section-2.3.4>
const HOSTNAME_BYTES_MAX: usize = 253;
/// Most providers, and most capabilities, that a worker may list.
const WORDS_MAX: usize = 64;
/// Longest name of a provider or capability, in bytes.
const WORD_BYTES_MAX: usize = 64;
/// Largest capacity of a worker: far above what one machine can hold.
const CAPACITY_MAX: u64 = 1_000_000_000;

/// Parses a worker's id.
pub fn worker_id(field: &str, text: &str) -> Result<WorkerId, ApiError> {
    WorkerId::parse(text).map_err(|error| malformed(format!("`{field}`: {error}")))
}

/// Converts a heartbeat from the API, with its bounds checked.
pub fn heartbeat(id: &WorkerId, body: api::Heartbeat) -> Result<Heartbeat, ApiError> {
    let status = match body.status.as_deref() {
        None => WorkerStatus::Online,
        Some(text) => WorkerStatus::parse(text).ok_or_else(|| {
            malformed(format!("`status`: `{}` is not online, draining or unhealthy", shortened(text)))
        })?,
    };
    let capacity = body.capacity;
    for (field, number) in
        [("max_sandboxes", capacity.max_sandboxes), ("max_sandboxes_per_owner", capacity.max_sandboxes_per_owner)]
    {
        if number > CAPACITY_MAX {
            return Err(malformed(format!("`capacity.{field}` must be at most {CAPACITY_MAX}; 0 means no limit")));
        }
    }
    Ok(Heartbeat {
        hostname: match body.hostname {
            Some(name) => hostname(name)?,
            None => id.to_string(),
        },
        status: Some(status),
        providers: words("providers", body.providers)?,
        capabilities: words("capabilities", body.capabilities)?,
        capacity: Capacity {
            max_sandboxes: capacity.max_sandboxes,
            max_sandboxes_per_owner: capacity.max_sandboxes_per_owner,
        },
    })
}

fn hostname(name: String) -> Result<String, ApiError> {
    let fits = (1..=HOSTNAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':'));
    if fits {
        Ok(name)
    } else {
        Err(malformed(format!("`hostname` must be 1 to {HOSTNAME_BYTES_MAX} letters, digits, `.`, `_`, `-` or `:`")))
    }
}

/// Checks a list of names and removes duplicates.
fn words(field: &str, words: Vec<String>) -> Result<Vec<String>, ApiError> {
    if words.len() > WORDS_MAX {
        return Err(malformed(format!("`{field}` may have at most {WORDS_MAX} entries")));
    }
    let mut kept: Vec<String> = Vec::with_capacity(words.len());
    for word in words {
        let fits = (1..=WORD_BYTES_MAX).contains(&word.len())
            && word.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if !fits {
            let rule = format!("must be 1 to {WORD_BYTES_MAX} letters, digits, `.`, `_` or `-`");
            return Err(malformed(format!("`{field}`: `{}` {rule}", shortened(&word))));
        }
        if !kept.contains(&word) {
            kept.push(word);
        }
    }
    Ok(kept)
}

/// Parses the lifetime that a lease renewal asks for.
pub fn lease_ttl(body: &api::RenewRequest) -> Result<Duration, ApiError> {
    let ttl = span("ttl", &body.ttl)?;
    if ttl > LEASE_TTL_MAX {
        return Err(malformed(format!("`ttl` must be at most {}; renew more often", duration(LEASE_TTL_MAX))));
    }
    Ok(ttl)
}

/// Converts a worker to the API.
pub fn worker(seen: &Seen) -> api::Worker {
    let worker = &seen.worker;
    api::Worker {
        id: worker.id.to_string(),
        hostname: worker.hostname.clone(),
        status: worker.status.as_str().to_owned(),
        providers: worker.providers.clone(),
        capabilities: worker.capabilities.clone(),
        capacity: api::Capacity {
            max_sandboxes: worker.capacity.max_sandboxes,
            max_sandboxes_per_owner: worker.capacity.max_sandboxes_per_owner,
        },
        last_heartbeat: time(worker.last_heartbeat),
        created_at: time(worker.created_at),
        updated_at: time(worker.updated_at),
        stale: seen.stale,
    }
}

/// Converts a renewed lease to the API.
pub fn renewed(lease: &Lease) -> api::Renewed {
    api::Renewed {
        lease: api::Lease {
            resource_id: lease.resource.clone(),
            holder_id: lease.holder.to_string(),
            generation: lease.generation,
            expires_at: time(lease.expires_at),
        },
    }
}
