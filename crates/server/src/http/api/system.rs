//! `/health`, `/live`, `/ready`.

use axum::Json;
use axum::extract::State;

use crate::VERSION;
use crate::control::{Diagnosis, Error, Unavailable};
use crate::http::api::providers;
use crate::http::api::wire;
use crate::http::caller::Caller;
use crate::http::error::Result;
use crate::http::state::Api;

fn uptime(api: &Api) -> String {
    wire::duration(std::time::Duration::from_secs(api.settings.started.elapsed().as_secs()))
}

fn answer(api: &Api, status: &str) -> Json<api::Health> {
    Json(api::Health { status: status.to_owned(), version: VERSION.to_owned(), uptime: uptime(api) })
}

/// Check that the service is up
#[utoipa::path(get, path = "/api/v1/health",
    operation_id = "get_health", tag = "system",
    responses((status = 200, body = api::Health, description = "The process is running")))]
pub async fn health(State(api): State<Api>) -> Json<api::Health> {
    answer(&api, "ok")
}

/// Check that the process responds
#[utoipa::path(get, path = "/api/v1/live",
    operation_id = "get_liveness", tag = "system",
    responses((status = 200, body = api::Health, description = "The process responds")))]
pub async fn live(State(api): State<Api>) -> Json<api::Health> {
    answer(&api, "alive")
}

/// Check whether sandboxes can be made
#[utoipa::path(get, path = "/api/v1/ready",
    operation_id = "get_readiness", tag = "system",
    responses(
        (status = 200, body = api::Readiness, description = "At least one provider is healthy"),
        (status = 503, body = api::ErrorBody, description = "No provider is healthy")))]
pub async fn ready(State(api): State<Api>, caller: Caller) -> Result<Json<api::Readiness>> {
    let providers = providers::healths(&api);
    let tells_all = api.settings.access.tells_all(&caller.principal);
    let (ready_elsewhere, all_elsewhere) = api.control.offered_elsewhere().await?;
    let ready = providers.iter().filter(|provider| provider.healthy).count() as u64 + ready_elsewhere;
    if ready == 0 && !tells_all {
        return Err(Error::from(Unavailable::NoHealthyProvider(Diagnosis::WithKey)).into());
    }
    if ready == 0 {
        let mut why: Vec<String> = providers
            .iter()
            .filter_map(|provider| Some(format!("{}: {}", provider.name, provider.error.as_ref()?)))
            .collect();
        if providers.is_empty() {
            why.push("this server has no provider; enable one under `providers`".to_owned());
        }
        if !api.control.other_workers().is_empty() {
            why.push("no other worker with a provider is online and reachable; see GET /api/v1/workers".to_owned());
        }
        return Err(Error::from(Unavailable::NoHealthyProvider(Diagnosis::Reasons(why))).into());
    }
    Ok(Json(api::Readiness {
        status: "ready".to_owned(),
        version: VERSION.to_owned(),
        uptime: uptime(&api),
        ready_providers: ready,
        total_providers: providers.len() as u64 + all_elsewhere,
        providers: if tells_all { providers } else { Vec::new() },
    }))
}
