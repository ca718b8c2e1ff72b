//! Diagnostics and metrics: every figure of the specification, and its value.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Answer, MOCK, TestServer};

/// Keys of an object with the kinds of their values: `s`tring, `n`atural number, `b`oolean,
/// `a`rray, `o`bject. From section 4.9 of the specification.
type Keys = &'static [(&'static str, char)];

const SCHEDULER: Keys = &[
    ("spawn_overflow", 's'),
    ("spawn_queue_depth", 'n'),
    ("max_spawn_queue", 'n'),
    ("spawn_queue_timeout", 's'),
    ("admission_control", 's'),
    ("spawn_queued_total", 'n'),
    ("spawn_dequeued_total", 'n'),
    ("spawn_queue_timeouts", 'n'),
    ("spawn_queue_wait_count", 'n'),
    ("spawn_queue_wait_total", 's'),
    ("spawn_queue_wait_max", 's'),
    ("spawn_queue_wait_avg", 's'),
    ("spawn_queue_wait_total_ms", 'n'),
    ("spawn_queue_wait_max_ms", 'n'),
    ("spawn_queue_wait_avg_ms", 'n'),
    ("worker_id", 's'),
    ("selected_worker_id", 's'),
    ("eligible_workers", 'n'),
];
const RATE_LIMIT: Keys = &[
    ("enabled", 'b'),
    ("requests_per_minute", 'n'),
    ("burst", 'n'),
    ("key_by", 's'),
    ("active_buckets", 'n'),
    ("allowed_total", 'n'),
    ("limited_total", 'n'),
    ("evicted_total", 'n'),
    ("bucket_ttl", 's'),
    ("cleanup_interval", 's'),
];
const QUOTAS: Keys =
    &[("total", 'n'), ("with_max_sandboxes", 'n'), ("with_max_ttl", 'n'), ("with_max_exec_timeout", 'n')];
const WORKERS: Keys = &[("total", 'n'), ("online", 'n'), ("stale", 'n'), ("unhealthy", 'n'), ("items", 'a')];
const LEASES: Keys = &[("total", 'n'), ("active", 'n'), ("expired", 'n'), ("by_holder", 'o')];
const SANDBOXES: Keys = &[("total", 'n'), ("active", 'n'), ("by_state", 'o'), ("by_provider", 'o'), ("by_worker", 'o')];
const EVENTS: Keys = &[("subscribers", 'n'), ("history_size", 'n'), ("events_total", 'n')];
const OPERATION: Keys = &[
    ("operation", 's'),
    ("provider", 's'),
    ("success_total", 'n'),
    ("failure_total", 'n'),
    ("latency_count", 'n'),
    ("latency_total_ms", 'n'),
    ("latency_min_ms", 'n'),
    ("latency_max_ms", 'n'),
    ("latency_avg_ms", 'n'),
];
const DIAGNOSTICS: &[(&str, Keys)] = &[
    (
        "",
        &[
            ("generated_at", 's'),
            ("build", 'o'),
            ("process", 'o'),
            ("store", 'o'),
            ("limits", 'o'),
            ("scheduler", 'o'),
            ("quotas", 'o'),
            ("rate_limit", 'o'),
            // Beside the specified ones.
            ("warm_pool", 'a'),
            ("request_memory", 'o'),
            ("providers", 'a'),
            ("workers", 'o'),
            ("leases", 'o'),
            ("sandboxes", 'o'),
            ("events", 'o'),
            ("operations", 'a'),
            ("remediation", 'o'),
            ("redactions", 'a'),
        ],
    ),
    ("/build", &[("version", 's'), ("goos", 's'), ("goarch", 's')]),
    ("/process", &[("uptime", 's'), ("goroutines", 'n'), ("memory", 'o'), ("log_lines_dropped", 'n')]),
    ("/process/memory", &[("alloc", 'n'), ("sys", 'n'), ("heap_alloc", 'n'), ("gc_cycles", 'n')]),
    ("/store", &[("healthy", 'b'), ("latency_ms", 'n')]),
    (
        "/limits",
        &[
            ("max_sandboxes", 'n'),
            ("max_sandboxes_per_owner", 'n'),
            ("default_exec_timeout", 's'),
            ("max_exec_timeout", 's'),
            ("max_ttl", 's'),
            ("max_memory_mb", 'n'),
            ("max_vcpus", 'n'),
            ("max_disk_mb", 'n'),
            ("spawn_overflow", 's'),
            ("spawn_queue_timeout", 's'),
            ("max_spawn_queue", 'n'),
        ],
    ),
    ("/scheduler", SCHEDULER),
    ("/quotas", QUOTAS),
    ("/rate_limit", RATE_LIMIT),
    (
        "/request_memory",
        &[
            ("budget_bytes", 'n'),
            ("used_bytes", 'n'),
            ("peak_bytes", 'n'),
            ("refused_total", 'n'),
            ("truncated_total", 'n'),
        ],
    ),
    ("/workers", WORKERS),
    ("/leases", LEASES),
    ("/sandboxes", SANDBOXES),
    ("/events", EVENTS),
    ("/operations/0", OPERATION),
];
const METRICS: &[(&str, Keys)] = &[
    (
        "",
        &[
            ("uptime", 's'),
            ("goroutines", 'n'),
            ("memory_alloc", 'n'),
            ("memory_sys", 'n'),
            ("memory_heap_alloc", 'n'),
            ("gc_cycles", 'n'),
            ("sandboxes", 'o'),
            ("providers", 'o'),
            ("workers", 'o'),
            ("leases", 'o'),
            ("events", 'o'),
            ("scheduler", 'o'),
            ("quotas", 'o'),
            ("rate_limit", 'o'),
            ("operations", 'a'),
        ],
    ),
    ("/sandboxes", SANDBOXES),
    ("/providers", &[("total", 'n'), ("healthy", 'n'), ("items", 'a')]),
    ("/providers/items/0", &[("name", 's'), ("healthy", 'b'), ("default", 'b')]),
    ("/workers", WORKERS),
    ("/leases", LEASES),
    ("/events", EVENTS),
    ("/scheduler", SCHEDULER),
    ("/quotas", QUOTAS),
    ("/rate_limit", RATE_LIMIT),
    ("/operations/0", OPERATION),
];

/// Series with the labels that they have, in the order of their names.
const SERIES: &[(&str, &[&str])] = &[
    ("tidebox_uptime_seconds", &[]),
    ("tidebox_provider_healthy", &["default", "provider"]),
    ("tidebox_log_lines_dropped_total", &[]),
    ("tidebox_spawn_queue_depth", &[]),
    ("tidebox_spawn_queue_wait_milliseconds_count", &[]),
    ("tidebox_owner_quotas_total", &[]),
    ("tidebox_rate_limit_blocked_total", &[]),
    ("tidebox_memory_budget_bytes", &[]),
    ("tidebox_memory_budget_used_bytes", &[]),
    ("tidebox_memory_budget_refused_total", &[]),
    ("tidebox_workers_total", &["status"]),
    ("tidebox_leases_total", &["status"]),
    ("tidebox_sandboxes_total", &["state"]),
    ("tidebox_sandboxes_by_provider_total", &["provider"]),
    ("tidebox_sandboxes_by_worker_total", &["worker"]),
    ("tidebox_operation_duration_seconds_count", &["operation", "provider"]),
    ("tidebox_operation_duration_seconds_bucket", &["le", "operation", "provider"]),
    ("tidebox_spawn_phase_duration_seconds_count", &["phase", "provider"]),
];

fn holds(value: &Value, kind: char) -> bool {
    match kind {
        's' => value.is_string(),
        'n' => value.is_u64(),
        'b' => value.is_boolean(),
        'a' => value.is_array(),
        'o' => value.is_object(),
        other => panic!("`{other}` is no kind"),
    }
}

/// Checks that an object has exactly these keys, each with a value of its kind.
#[track_caller]
fn has_keys(body: &Value, table: &[(&str, Keys)]) {
    for (place, keys) in table {
        let object = body.pointer(place).unwrap_or_else(|| panic!("{place} is not there: {body}"));
        let found: BTreeSet<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, keys.iter().map(|(key, _)| *key).collect(), "{place}");
        for (key, kind) in *keys {
            assert!(holds(&object[*key], *kind), "{place}/{key}: {}", object[*key]);
        }
    }
}

/// Values of a Prometheus text, by series name and labels.
#[derive(Debug)]
struct Series(BTreeMap<String, f64>);

impl Series {
    async fn scrape(server: &TestServer) -> Series {
        let answer = server.get("/metrics/prometheus").await;
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.bytes).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Series(lines.map(|line| line.rsplit_once(' ').unwrap()).map(|(k, v)| (k.into(), v.parse().unwrap())).collect())
    }

    #[track_caller]
    fn at(&self, series: &str) -> f64 {
        *self.0.get(series).unwrap_or_else(|| panic!("{series} is not in {self:#?}"))
    }

    /// Returns the sum over all series of a name.
    fn sum(&self, name: &str) -> f64 {
        self.0.iter().filter(|(series, _)| series.split('{').next() == Some(name)).map(|(_, value)| value).sum()
    }
}

/// Returns the operation of this name, or null.
fn operation<'a>(body: &'a Value, name: &str) -> &'a Value {
    body["operations"].as_array().unwrap().iter().find(|item| item["operation"] == name).unwrap_or(&Value::Null)
}

#[track_caller]
fn counted(body: &Value, name: &str, success: u64, failure: u64) {
    let found = operation(body, name);
    assert_eq!(
        (&found["success_total"], &found["failure_total"]),
        (&json!(success), &json!(failure)),
        "{name}: {body}"
    );
    assert_eq!(found["latency_count"], success + failure, "{found}");
    let ms = |key: &str| found[key].as_u64().unwrap();
    assert!(ms("latency_min_ms") <= ms("latency_avg_ms") && ms("latency_avg_ms") <= ms("latency_max_ms"), "{found}");
    assert!(ms("latency_max_ms") <= ms("latency_total_ms"), "{found}");
}

#[tokio::test]
async fn diagnostics_and_metrics_have_the_keys_of_the_specification() {
    let server = TestServer::start(MOCK).await;
    let id = server.spawn().await;
    server.exec(&id, "true").await;
    has_keys(&server.get("/diagnostics").await.ok(), DIAGNOSTICS);
    has_keys(&server.get("/metrics").await.ok(), METRICS);
    let worker = &server.get("/diagnostics").await.ok()["workers"]["items"][0];
    for (key, kind) in [
        ("id", 's'),
        ("hostname", 's'),
        ("status", 's'),
        ("providers", 'a'),
        ("capabilities", 'a'),
        ("capacity", 'o'),
        ("last_heartbeat", 's'),
        ("created_at", 's'),
        ("updated_at", 's'),
        ("stale", 'b'),
    ] {
        assert!(holds(&worker[key], kind), "{key}: {worker}");
    }
}

#[tokio::test]
async fn the_admin_sees_the_same() {
    let server = TestServer::start(MOCK).await;
    has_keys(&server.get("/admin/metrics").await.ok(), &METRICS[..1]);
    has_keys(&server.get("/admin/diagnostics").await.ok(), &DIAGNOSTICS[..1]);
    let answer = server.get("/admin/metrics/prometheus").await;
    assert_eq!(answer.status, 200);
    assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
}

#[tokio::test]
async fn an_idle_server_says_what_is_true_of_it() {
    let server = TestServer::start(&format!(
        "{MOCK} defaults.max_sandboxes=7 defaults.max_sandboxes_per_owner=5 defaults.max_ttl=2h \
         defaults.default_exec_timeout=20s defaults.max_exec_timeout=3m defaults.spawn_queue_timeout=45s \
         rate_limit.burst=9"
    ))
    .await;
    let body = server.get("/diagnostics").await.ok();
    let arch = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    assert_eq!(body["build"], json!({"version": env!("CARGO_PKG_VERSION"), "goos": "linux", "goarch": arch}));
    assert_eq!(body["store"]["healthy"], true);
    for (limit, value) in [
        ("max_sandboxes", json!(7)),
        ("max_sandboxes_per_owner", json!(5)),
        ("max_ttl", json!("2h0m0s")),
        ("default_exec_timeout", json!("20s")),
        ("max_exec_timeout", json!("3m0s")),
    ] {
        assert_eq!(body["limits"][limit], value, "{limit}");
    }
    assert_eq!(body["limits"]["spawn_queue_timeout"], "45s");
    assert_eq!(body["limits"]["spawn_overflow"], "reject");
    assert_eq!((&body["rate_limit"]["enabled"], &body["rate_limit"]["burst"]), (&json!(false), &json!(9)));
    assert_eq!((&body["rate_limit"]["key_by"], &body["rate_limit"]["bucket_ttl"]), (&json!("owner"), &json!("15m0s")));
    let scheduler = &body["scheduler"];
    assert_eq!((&scheduler["admission_control"], &scheduler["worker_id"]), (&json!("serialized"), &json!("local")));
    assert_eq!((&scheduler["selected_worker_id"], &scheduler["eligible_workers"]), (&json!("local"), &json!(1)));
    assert_eq!(scheduler["spawn_queue_wait_avg"], "0s");
    let workers = &body["workers"];
    assert_eq!((&workers["total"], &workers["online"], &workers["stale"]), (&json!(1), &json!(1), &json!(0)));
    assert_eq!((&workers["items"][0]["id"], &workers["items"][0]["status"]), (&json!("local"), &json!("online")));
    assert_eq!(workers["items"][0]["capacity"]["max_sandboxes"], 7);
    assert_eq!((&body["sandboxes"]["total"], &body["leases"]["total"]), (&json!(0), &json!(0)));
    assert_eq!(body["operations"], json!([]));
    assert_eq!(body["providers"][0]["name"], "mock");
    let memory = &body["process"]["memory"];
    let bytes = |key: &str| memory[key].as_u64().unwrap();
    assert!(bytes("alloc") > 100_000 && bytes("alloc") <= bytes("heap_alloc"), "{memory}");
    assert!(bytes("heap_alloc") <= bytes("sys") && bytes("gc_cycles") == 0, "{memory}");
    assert!(body["process"]["goroutines"].as_u64().unwrap() >= 2, "the listener and the reconciler at least");
    for named in ["provider secrets", "registry credentials", "environment secrets", "API keys"] {
        assert!(body["redactions"].as_array().unwrap().contains(&json!(named)), "{body}");
    }
}

#[tokio::test]
async fn a_server_without_a_healthy_provider_has_no_eligible_worker() {
    let server = TestServer::start("providers.native.enabled=false").await;
    let body = server.get("/metrics").await.ok();
    assert_eq!(body["providers"], json!({"total": 0, "healthy": 0, "items": []}));
    assert_eq!(
        (&body["scheduler"]["eligible_workers"], &body["scheduler"]["selected_worker_id"]),
        (&json!(0), &json!(""))
    );
}

#[tokio::test]
async fn figures_move_when_things_happen_and_their_sums_add_up() {
    let server = TestServer::builder(MOCK).expecting("failed to start a box").start().await;
    let events = server.get("/metrics").await.ok()["events"]["events_total"].as_u64().unwrap();
    let (kept, gone) = (server.spawn().await, server.spawn().await);
    let refused = server.post("/sandboxes", json!({"metadata": {"mock.start_fail": "1"}})).await;
    assert_eq!(refused.status, 500);
    server.delete(&format!("/sandboxes/{gone}")).await.ok();
    server.exec(&kept, "true").await;
    assert_eq!(server.exec(&kept, "exit 3").await["exit_code"], 3);
    let exec = format!("/sandboxes/{kept}/exec");
    let late = server.post(&exec, json!({"command": "sleep 60", "timeout": "100ms"})).await.ok();
    assert_eq!(late["timed_out"], true);
    server.post(&exec, json!({"command": "echo a", "stream": true})).await;
    server.write(&kept, "/workspace/f", "x").await;
    assert_eq!(server.get(&format!("/sandboxes/{kept}/files?path=/workspace/f")).await.status, 200);
    assert_eq!(server.get(&format!("/sandboxes/{kept}/files?path=/workspace/none")).await.status, 404);
    server.get(&format!("/sandboxes/{kept}/files/list?path=/workspace")).await.ok();
    server.get(&format!("/sandboxes/{kept}/logs")).await.ok();
    server.post(&format!("/sandboxes/{kept}/extend"), json!({"ttl": "10m"})).await.ok();

    let body = server.get("/metrics").await.ok();
    // A command that fails is the caller's; one that ran out of time is a failure.
    for (name, success, failure) in [
        ("spawn", 2, 1),
        ("exec", 2, 1),
        ("exec_stream", 1, 0),
        ("destroy", 1, 0),
        ("file_write", 1, 0),
        ("file_read", 1, 1),
        ("file_list", 1, 0),
        ("logs", 1, 0),
        ("extend", 1, 0),
    ] {
        counted(&body, name, success, failure);
    }
    assert!(operation(&body, "exec")["latency_max_ms"].as_u64().unwrap() >= 100, "{body}");
    let sandboxes = &body["sandboxes"];
    let states = json!({"creating": 0, "running": 1, "paused": 0, "destroying": 0, "destroyed": 1, "failed": 1});
    assert_eq!(sandboxes["by_state"], states);
    assert_eq!((&sandboxes["total"], &sandboxes["active"]), (&json!(3), &json!(1)));
    assert_eq!((&sandboxes["by_provider"], &sandboxes["by_worker"]), (&json!({"mock": 1}), &json!({"local": 1})));
    assert!(body["events"]["events_total"].as_u64().unwrap() >= events + 10, "{body}");

    let series = Series::scrape(&server).await;
    assert_eq!(series.sum("tidebox_sandboxes_total"), 3.0);
    assert_eq!(series.at("tidebox_sandboxes_total{state=\"running\"}"), 1.0);
    assert_eq!(series.at("tidebox_sandboxes_by_provider_total{provider=\"mock\"}"), 1.0);
    assert_eq!(series.at("tidebox_sandboxes_by_worker_total{worker=\"local\"}"), 1.0);
    assert_eq!(series.at("tidebox_provider_healthy{provider=\"mock\",default=\"true\"}"), 1.0);
    assert_eq!(series.at("tidebox_workers_total{status=\"online\"}"), 1.0);
    for item in body["operations"].as_array().unwrap() {
        let labels = format!("operation={},provider={}", item["operation"], item["provider"]);
        let count = item["latency_count"].as_f64().unwrap();
        assert_eq!(series.at(&format!("tidebox_operation_duration_seconds_count{{{labels}}}")), count);
        assert_eq!(series.at(&format!("tidebox_operation_duration_seconds_bucket{{{labels},le=\"+Inf\"}}")), count);
        let outcome = |outcome| series.at(&format!("tidebox_operations_total{{{labels},outcome=\"{outcome}\"}}"));
        assert_eq!(outcome("success") + outcome("failure"), count);
    }
    let slow = "{operation=\"exec\",provider=\"mock\",le=\"0.05\"}";
    assert!(series.at(&format!("tidebox_operation_duration_seconds_bucket{slow}")) <= 2.0);
    // The two successful spawns, each with the phases that `Server-Timing` has.
    for phase in ["admission", "store"] {
        let name = format!("tidebox_spawn_phase_duration_seconds_count{{phase=\"{phase}\",provider=\"mock\"}}");
        assert_eq!(series.at(&name), 2.0);
    }
}

#[tokio::test]
async fn every_part_of_a_spawn_is_a_series() {
    let server = TestServer::start(crate::server::NATIVE).await;
    let made = server.post("/sandboxes", json!({})).await;
    let timing = made.headers["server-timing"].to_str().unwrap().to_owned();
    let phases: Vec<&str> = timing.split(',').map(|part| part.split(';').next().unwrap().trim()).collect();
    assert!(phases.contains(&"admission") && phases.contains(&"box") && phases.contains(&"agent"), "{timing}");
    let series = Series::scrape(&server).await;
    for phase in phases {
        let name = format!("tidebox_spawn_phase_duration_seconds_count{{phase=\"{phase}\",provider=\"native\"}}");
        assert_eq!(series.at(&name), 1.0);
    }
}

#[tokio::test]
async fn every_promised_series_is_there_with_exactly_its_labels() {
    let server = TestServer::start(MOCK).await;
    server.spawn().await;
    let series = Series::scrape(&server).await;
    for (name, labels) in SERIES {
        let mut found = 0;
        for series in series.0.keys() {
            let (of, rest) = series.split_once('{').unwrap_or((series, "}"));
            if of == *name {
                let rest = rest.trim_end_matches('}');
                let names: BTreeSet<&str> =
                    rest.split(',').filter_map(|label| label.split_once('=')).map(|(name, _)| name).collect();
                assert_eq!(names, labels.iter().copied().collect(), "{series}");
                found += 1;
            }
        }
        assert!(found > 0, "{name} is not there");
    }
    for status in ["total", "online", "stale", "unhealthy"] {
        series.at(&format!("tidebox_workers_total{{status=\"{status}\"}}"));
    }
    for status in ["total", "active", "expired"] {
        series.at(&format!("tidebox_leases_total{{status=\"{status}\"}}"));
    }
    assert!(series.at("process_resident_memory_bytes") > 1e6);
    assert!(series.at("process_open_fds") > 3.0 && series.at("process_start_time_seconds") > 1.6e9);
}

#[tokio::test]
async fn the_format_is_the_one_that_accept_asks_for() {
    let server = TestServer::start(MOCK).await;
    for (accept, kind, ends) in [
        (None, "text/plain; version=0.0.4; charset=utf-8", "\n"),
        (Some("text/plain"), "text/plain; version=0.0.4; charset=utf-8", "\n"),
        (
            Some("application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"),
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "\n# EOF\n",
        ),
        (Some("application/openmetrics-text;q=0.4,text/plain;q=0.5"), "text/plain; version=0.0.4; charset=utf-8", "\n"),
    ] {
        let mut request = server.request(Method::GET, "/metrics/prometheus");
        if let Some(accept) = accept {
            request = request.header("accept", accept);
        }
        let answer = Answer::read(request.send().await.unwrap()).await;
        assert_eq!(answer.headers["content-type"], kind, "{accept:?}");
        let text = String::from_utf8(answer.bytes).unwrap();
        assert!(text.ends_with(ends) && text.contains("# TYPE tidebox_uptime_seconds gauge\n"), "{accept:?}: {text}");
        assert_eq!(text.contains("# EOF"), ends.contains("EOF"), "{accept:?}");
    }
}

#[tokio::test]
async fn no_secret_owner_or_address_is_in_any_of_it() {
    let key = |name: &str| format!("planted-{name}-0123456789abcdef0123456789abcdef");
    let admin = key("admin-key");
    let server = TestServer::start(&format!(
        "{MOCK} auth.api_key={} auth.admin_api_key={admin} auth.worker_token={} auth.worker_signing_key={}",
        key("api-key"),
        key("worker-token"),
        key("signing-key")
    ))
    .await;
    let made = json!({"owner_id": "planted-owner", "metadata": {"planted-label": "planted-value"}});
    let id = server.spawn_with(made).await;
    let command = json!({"command": "echo planted-output; exit 3", "env": {"PLANTED_NAME": "planted-env"}});
    server.post(&format!("/sandboxes/{id}/exec"), command).await.ok();
    server.write(&id, "/workspace/planted-file", "planted-content").await;
    for mut answer in [
        server.request(Method::GET, "/sandboxes").header("x-user-id", "planted-caller"),
        server.request(Method::GET, "/sandboxes").header("x-api-key", "planted-wrong-key"),
        server.request(Method::GET, "/sandboxes").header("x-forwarded-for", "203.0.113.77"),
    ] {
        answer = answer.header("user-agent", "planted-agent");
        answer.send().await.unwrap();
    }
    let mut read = 0;
    for path in ["/diagnostics", "/metrics", "/metrics/prometheus"] {
        for (path, accept) in [
            (path.to_owned(), "*/*"),
            (format!("/admin{path}"), "*/*"),
            (path.to_owned(), "application/openmetrics-text"),
        ] {
            let request = server.request(Method::GET, &path).header("x-admin-api-key", &admin).header("accept", accept);
            let answer = Answer::read(request.send().await.unwrap()).await;
            assert_eq!(answer.status, 200, "{path}");
            let text = String::from_utf8(answer.bytes).unwrap();
            let lower = text.to_lowercase();
            for planted in ["planted", "203.0.113.77", "127.0.0.1", &id] {
                assert!(!lower.contains(planted), "{path} tells `{planted}`: {text}");
            }
            read += text.len();
        }
    }
    assert!(read > 10_000, "there was something to look through");
}

#[tokio::test]
async fn a_failing_provider_is_told_in_all_of_them() {
    let server = TestServer::start(MOCK).await;
    server.spawn_with(json!({"metadata": {"mock.health": "cannot reach 203.0.113.9:443"}})).await;
    server.request(Method::POST, "/providers/test").send().await.unwrap();
    let body = server.get("/diagnostics").await.ok();
    assert_eq!(
        (&body["providers"][0]["healthy"], body["scheduler"]["eligible_workers"].as_u64()),
        (&json!(false), Some(0))
    );
    assert_eq!(body["providers"][0]["error"], "cannot reach [address]", "{body}");
    assert_eq!(server.get("/metrics").await.ok()["providers"]["healthy"], 0);
    let series = Series::scrape(&server).await;
    assert_eq!(series.at("tidebox_provider_healthy{provider=\"mock\",default=\"true\"}"), 0.0);
    assert_eq!(series.at("tidebox_eligible_workers"), 0.0);
}

#[tokio::test]
async fn those_who_wait_for_room_and_quotas_are_counted() {
    let settings = "defaults.max_sandboxes=1 defaults.spawn_overflow=queue defaults.spawn_queue_timeout=300ms";
    let server = TestServer::start(&format!("{MOCK} {settings}")).await;
    let first = server.spawn().await;
    assert_eq!(server.post("/sandboxes", json!({})).await.status, 429);
    let full = server.get("/metrics").await.ok();
    let scheduler = &full["scheduler"];
    assert_eq!(
        (&scheduler["spawn_queued_total"], &scheduler["spawn_queue_timeouts"]),
        (&json!(1), &json!(1)),
        "{full}"
    );
    assert_eq!(
        (&scheduler["spawn_queue_wait_count"], &scheduler["eligible_workers"]),
        (&json!(0), &json!(0)),
        "{full}"
    );
    counted(&full, "spawn", 1, 1);

    // The waiting spawn may time out on a busy machine; then another is tried.
    let dequeued = async || server.get("/metrics").await.ok()["scheduler"]["spawn_dequeued_total"].as_u64().unwrap();
    let mut held = first;
    server
        .until("one that waits finds room", async || {
            let waiting = server.post("/sandboxes", json!({}));
            let freeing = async {
                let depth = async || server.get("/metrics").await.ok()["scheduler"]["spawn_queue_depth"] == 1;
                for _ in 0..100 {
                    if depth().await {
                        break;
                    }
                }
                server.delete(&format!("/sandboxes/{held}")).await.ok();
            };
            let (answer, ()) = futures_util::future::join(waiting, freeing).await;
            held = match answer.status.as_u16() {
                201 => answer.json()["id"].as_str().unwrap().to_owned(),
                _ => server.spawn().await,
            };
            dequeued().await > 0
        })
        .await;
    server.put("/quotas/somebody", json!({"max_sandboxes": 3, "max_ttl": "1h"})).await.ok();
    let body = server.get("/diagnostics").await.ok();
    let scheduler = &body["scheduler"];
    assert_eq!(scheduler["spawn_queue_wait_count"], scheduler["spawn_dequeued_total"]);
    let ms = |key: &str| scheduler[key].as_u64().unwrap();
    assert!(ms("spawn_queue_wait_avg_ms") <= ms("spawn_queue_wait_max_ms"), "{scheduler}");
    assert!(ms("spawn_queue_wait_max_ms") <= ms("spawn_queue_wait_total_ms"), "{scheduler}");
    assert_ne!(scheduler["spawn_queue_wait_total"], "0s");
    let quotas = json!({"total": 1, "with_max_sandboxes": 1, "with_max_ttl": 1, "with_max_exec_timeout": 0});
    assert_eq!(body["quotas"], quotas);
    let series = Series::scrape(&server).await;
    assert_eq!(series.at("tidebox_owner_quotas_total"), 1.0);
    let waits = series.at("tidebox_spawn_queue_wait_milliseconds_count");
    assert_eq!(waits, scheduler["spawn_queue_wait_count"].as_f64().unwrap());
    assert_eq!(series.at("tidebox_spawn_queue_timeouts_total"), scheduler["spawn_queue_timeouts"].as_f64().unwrap());
}
