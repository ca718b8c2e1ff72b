//! Conversion of the resources that sandboxes use, and the query of their list.

use domain::State;

use super::list::list_filter;
use super::scalars::{ms, time};
use crate::control::ListFilter;
use crate::control::SandboxStats;
use crate::http::error::{ApiError, malformed};

/// Digits of a share after the point.
const SHARE_UNIT: f64 = 10_000.0;

/// Converts the resources that a sandbox uses to the API.
pub fn sandbox_stats(stats: &SandboxStats) -> api::SandboxStats {
    let SandboxStats { id, provider, at, uptime, used, load, limits } = stats;

    api::SandboxStats {
        sandbox_id: id.to_string(),
        provider: provider.clone(),
        timestamp: time(*at),
        uptime_ms: ms(*uptime),
        cpu: api::CpuStats {
            used_ms: used.cpu.map(ms),
            share: load.map(|load| rounded(load.processors)),
            share_of_limit: load.zip(limits.vcpus).map(|(load, vcpus)| rounded(load.processors / f64::from(vcpus))),
            window_ms: load.map(|load| ms(load.window)),
            limit: limits.vcpus,
        },
        memory: api::MemoryStats {
            used_bytes: used.memory_bytes,
            peak_bytes: used.memory_peak_bytes,
            limit_bytes: limits.memory_mb.map(bytes),
        },
        processes: api::ProcessStats { count: used.processes, limit: limits.pids.map(u64::from) },
        disk: api::DiskStats { used_bytes: used.disk_bytes, limit_bytes: limits.disk_mb.map(bytes) },
        egress: used.egress.map(|bytes| api::TransferStats { sent_bytes: bytes.sent, received_bytes: bytes.received }),
    }
}

fn bytes(mb: u32) -> u64 {
    u64::from(mb) * 1024 * 1024
}

fn rounded(share: f64) -> f64 {
    (share * SHARE_UNIT).round() / SHARE_UNIT
}

/// Parses the query of the list: that of sandboxes, without what it does not have.
pub fn stats_filter(query: Vec<(String, String)>) -> Result<ListFilter, ApiError> {
    let absent = ["state", "limit", "cursor"];
    if let Some((name, _)) = query.iter().find(|(name, _)| absent.contains(&name.as_str())) {
        return Err(malformed(format!(
            "the query: unknown parameter `{name}`, because the response has all running sandboxes; the parameters are \
             owner_id, provider and metadata.<key>"
        )));
    }
    Ok(ListFilter { state: Some(State::Running), ..list_filter(query)? })
}
