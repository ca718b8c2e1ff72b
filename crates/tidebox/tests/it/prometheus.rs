//! Prometheus against the metrics: its checker, and a real server that scrapes.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::server::{Answer, MOCK, PATIENCE, TestServer};
use fixtures::found;

const KEY: &str = "a-key-that-only-this-test-knows-0123456789";

/// Complaints of the checker about names that the specification dictates. The checker must report
/// these and no others.
const DICTATED: [&str; 7] = [
    r#"tidebox_leases_total non-counter metrics should not have "_total" suffix"#,
    r#"tidebox_owner_quotas_total non-counter metrics should not have "_total" suffix"#,
    r#"tidebox_sandboxes_by_provider_total non-counter metrics should not have "_total" suffix"#,
    r#"tidebox_sandboxes_by_worker_total non-counter metrics should not have "_total" suffix"#,
    r#"tidebox_sandboxes_total non-counter metrics should not have "_total" suffix"#,
    r#"tidebox_spawn_queue_wait_milliseconds use base unit "seconds" instead of "milliseconds""#,
    r#"tidebox_workers_total non-counter metrics should not have "_total" suffix"#,
];

/// Finds a program of the package where `.ci/run` puts it, else in `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    found(name, &[target.join("ci/prometheus/usr/bin").join(name)])
}

/// Makes the requests that are counted.
async fn use_of_all(server: &TestServer) {
    let id = server.spawn_with(json!({"owner_id": "somebody"})).await;
    server.exec(&id, "echo hello").await;
    server.write(&id, "/tmp/a", "a").await;
    server.get(&format!("/sandboxes/{id}/files?path=/nowhere")).await.refused(404, "not_found", "");
    server.post(&format!("/sandboxes/{id}/extend"), json!({"ttl": "5m"})).await.ok();
    server.delete(&format!("/sandboxes/{id}")).await.ok();
    server.spawn().await;
}

#[tokio::test]
async fn the_checker_of_prometheus_complains_of_dictated_names_only() {
    let Some(promtool) = program("promtool") else { return };
    let server = TestServer::start(MOCK).await;
    use_of_all(&server).await;
    let answer = server.get("/metrics/prometheus").await;
    assert_eq!(answer.status, 200);
    let mut check = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    check.stdin.take().unwrap().write_all(&answer.bytes).unwrap();
    let output = check.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let said: BTreeSet<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let text = String::from_utf8_lossy(&answer.bytes);
    assert_eq!(said, BTreeSet::from(DICTATED), "{text}");
    // 3: it could read everything, and has complaints; 1: it could not.
    assert_eq!(output.status.code(), Some(3), "{text}");
}

/// A Prometheus with its own folder and port.
struct Prometheus {
    process: Child,
    url: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes `server` every second, with `key`.
    fn start(program: &Path, server: &TestServer, key: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("prometheus.yml");
        let target = server.url.strip_prefix("http://").unwrap();
        let settings = format!(
            "global: {{scrape_interval: 1s}}\n\
             scrape_configs:\n\
             - job_name: tidebox\n  metrics_path: /api/v1/metrics/prometheus\n  \
             authorization: {{credentials: {key}}}\n  \
             static_configs: [{{targets: [\"{target}\"]}}]\n"
        );
        std::fs::write(&config, settings).unwrap();
        let mut process = Command::new(program)
            .current_dir(folder.path())
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let mut prometheus = Self { process, url: String::new(), _folder: folder };
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                if let Some((_, address)) = line.split_once("msg=\"Listening on\" address=") {
                    let _ = send.send(address.trim().to_owned());
                }
            }
        });
        let address = receive.recv_timeout(PATIENCE).expect("Prometheus starts");
        prometheus.url = format!("http://{address}");
        prometheus
    }

    /// Returns the values of an expression, with their labels.
    async fn query(&self, expression: &str) -> Vec<Value> {
        let expression: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let url = format!("{}/api/v1/query?query={expression}", self.url);
        let Ok(answer) = reqwest::get(url).await else { return Vec::new() };
        // It answers 503 until it is ready.
        let answer = Answer::read(answer).await;
        if !answer.status.is_success() {
            return Vec::new();
        }
        answer.json()["data"]["result"].as_array().cloned().unwrap_or_default()
    }

    /// Returns the only value of an expression.
    async fn value(&self, expression: &str) -> Option<f64> {
        let result = self.query(expression).await;
        result.first()?["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_real_prometheus_scrapes_with_a_key() {
    let Some(program) = program("prometheus") else { return };
    let server = TestServer::builder(MOCK).key(KEY).start().await;
    use_of_all(&server).await;
    let prometheus = Prometheus::start(&program, &server, KEY);
    server.until("the scrape succeeds", async || prometheus.value("up").await == Some(1.0)).await;
    assert_eq!(prometheus.value("tidebox_sandboxes_total{state=\"running\"}").await, Some(1.0));
    assert_eq!(prometheus.value("tidebox_provider_healthy{provider=\"mock\",default=\"true\"}").await, Some(1.0));
    assert!(prometheus.value("tidebox_uptime_seconds").await > Some(0.0));
    // Prometheus accepts the buckets as a histogram.
    let quantile = "histogram_quantile(0.5, tidebox_operation_duration_seconds_bucket{operation=\"spawn\"})";
    assert!(prometheus.value(quantile).await > Some(0.0));
    // The next scrape shows a change.
    server.spawn().await;
    let running = "tidebox_sandboxes_total{state=\"running\"}";
    server.until("the next scrape comes", async || prometheus.value(running).await == Some(2.0)).await;

    let stranger = Prometheus::start(&program, &server, "not-the-key");
    server.until("the scrape is refused", async || stranger.value("up").await == Some(0.0)).await;
    assert_eq!(stranger.query("tidebox_uptime_seconds").await, [] as [Value; 0]);
}
