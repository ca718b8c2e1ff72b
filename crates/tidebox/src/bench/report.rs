//! The report of a measurement, for people and for programs.

use std::time::Duration;

use serde::Serialize;

use super::samples::{Percentiles, Samples};
use crate::output::{harmless, table};

/// All measurements of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    pub url: String,
    pub version: String,
    pub provider: String,
    pub image: String,
    /// Latencies of single calls.
    pub latencies: Vec<Latency>,
    /// Steps of the spawns among them, as the server has measured them.
    pub phases: Vec<Phase>,
    /// Bursts of concurrent spawns.
    pub bursts: Vec<Burst>,
    /// Throughput of large transfers.
    pub transfers: Vec<Transfer>,
    /// The server's memory; empty if its process is not visible.
    pub memory: Vec<Memory>,
    /// Missing measurements with their reasons.
    pub notes: Vec<String>,
}

/// Latency of one kind of call.
#[derive(Debug, Serialize)]
pub struct Latency {
    pub name: &'static str,
    pub count: usize,
    /// Percentiles of the duration of a call.
    pub took: Percentiles,
    /// The same work done by the kernel alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Bare>,
}

/// Work done by the kernel alone.
#[derive(Debug, Serialize)]
pub struct Bare {
    pub name: &'static str,
    pub took: Percentiles,
    /// The server's median divided by this median.
    pub ratio: f64,
}

/// A step of spawns.
#[derive(Debug, Serialize)]
pub struct Phase {
    pub name: String,
    pub count: usize,
    /// Percentiles of its duration.
    pub took: Percentiles,
}

/// A burst of concurrent spawns.
#[derive(Debug, Serialize)]
pub struct Burst {
    /// Number of spawns requested at once.
    pub boxes: usize,
    /// Number of boxes made.
    pub made: usize,
    /// Time from the first request to the last answer, in milliseconds.
    pub wall_ms: f64,
    /// `wall_ms` divided by the boxes made.
    pub per_box_ms: f64,
    /// Percentiles of the duration of a spawn; absent if none succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took: Option<Percentiles>,
    /// Reason why spawns failed; the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// A large transfer through one connection.
#[derive(Debug, Serialize)]
pub struct Transfer {
    pub name: &'static str,
    /// Bytes of each transfer.
    pub bytes: u64,
    /// Megabytes per second, the best of all transfers.
    pub mb_per_s: f64,
    /// `mb_per_s` divided by that of a plain pipe.
    pub ratio_to_pipe: f64,
}

/// The server's memory at one time.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Stage of the run.
    pub when: &'static str,
    /// Resident memory, in kilobytes.
    pub resident_kb: u64,
}

impl Latency {
    /// Returns `None` without samples.
    pub fn new(
        name: &'static str,
        samples: &Samples,
        baseline: Option<(&'static str, Percentiles)>,
    ) -> Option<Latency> {
        let took = samples.percentiles()?;
        let baseline = baseline.map(|(name, bare)| Bare {
            name,
            took: bare,
            ratio: took.p50_us as f64 / bare.p50_us.max(1) as f64,
        });
        Some(Latency { name, count: samples.count(), took, baseline })
    }
}

impl Phase {
    /// Returns `None` without samples.
    pub fn new(name: &str, samples: &Samples) -> Option<Phase> {
        Some(Phase { name: name.to_owned(), count: samples.count(), took: samples.percentiles()? })
    }
}

impl Burst {
    /// Makes the figures of a burst in which `made` of `boxes` spawns succeeded.
    pub fn new(boxes: usize, made: usize, wall: Duration, took: Option<Percentiles>, failure: Option<String>) -> Burst {
        let wall_ms = wall.as_secs_f64() * 1e3;
        Burst { boxes, made, wall_ms, per_box_ms: wall_ms / made.max(1) as f64, took, failure }
    }
}

impl Transfer {
    /// Makes the figures of a transfer at `mb_per_s`; a plain pipe has `pipe_mb_per_s`.
    pub fn new(name: &'static str, bytes: u64, mb_per_s: f64, pipe_mb_per_s: f64) -> Transfer {
        Transfer { name, bytes, mb_per_s, ratio_to_pipe: mb_per_s / pipe_mb_per_s }
    }
}

impl Report {
    /// Formats the report as tables.
    pub fn shown(&self) -> String {
        let Report { url, version, provider, image, .. } = self;
        let mut text = harmless(&format!("tidebox {version} at {url}, image {image} on {provider}"));
        text.push_str("\n\n");
        let header = ["CALL", "N", "P50 ms", "P95 ms", "P99 ms", "BASELINE", "P50 ms", "P95 ms", "RATIO"];
        text += &table(&header, self.latencies.iter().map(latency_row));
        text += "\n\n";
        if !self.phases.is_empty() {
            let header = ["OF A SPAWN", "N", "P50 ms", "P95 ms", "P99 ms"];
            text += &table(&header, self.phases.iter().map(phase_row));
            text += "\n\n";
        }
        let header = ["AT ONCE", "MADE", "WALL ms", "PER BOX ms", "P50 ms", "P95 ms", "NOTE"];
        text += &table(&header, self.bursts.iter().map(burst_row));
        text += "\n\n";
        let header = ["TRANSFER", "MiB", "MB/s", "OF A PIPE"];
        text += &table(
            &header,
            self.transfers.iter().map(|Transfer { name, bytes, mb_per_s, ratio_to_pipe }| {
                [
                    (*name).to_owned(),
                    (bytes >> 20).to_string(),
                    format!("{mb_per_s:.0}"),
                    format!("{:.0}%", ratio_to_pipe * 100.0),
                ]
            }),
        );
        if !self.memory.is_empty() {
            text += "\n\n";
            text += &table(
                &["SERVER", "RESIDENT MB"],
                self.memory.iter().map(|Memory { when, resident_kb }| {
                    [(*when).to_owned(), format!("{:.1}", *resident_kb as f64 / 1024.0)]
                }),
            );
        }
        for note in &self.notes {
            text += &format!("\n\nnote: {}", harmless(note));
        }
        text
    }
}

fn latency_row(latency: &Latency) -> [String; 9] {
    let Latency { name, count, took, baseline } = latency;
    let [p50, p95, p99] = ms(Some(*took));
    let [bare_p50, bare_p95, _] = ms(baseline.as_ref().map(|bare| bare.took));
    let (bare, ratio) = baseline
        .as_ref()
        .map_or_else(|| ("-".to_owned(), "-".to_owned()), |bare| (bare.name.to_owned(), format!("{:.2}", bare.ratio)));
    [(*name).to_owned(), count.to_string(), p50, p95, p99, bare, bare_p50, bare_p95, ratio]
}

fn phase_row(Phase { name, count, took }: &Phase) -> [String; 5] {
    let [p50, p95, p99] = ms(Some(*took));
    [harmless(name), count.to_string(), p50, p95, p99]
}

fn burst_row(burst: &Burst) -> [String; 7] {
    let [p50, p95, _] = ms(burst.took);
    [
        burst.boxes.to_string(),
        burst.made.to_string(),
        format!("{:.1}", burst.wall_ms),
        format!("{:.2}", burst.per_box_ms),
        p50,
        p95,
        burst.failure.clone().unwrap_or_default(),
    ]
}

fn ms(took: Option<Percentiles>) -> [String; 3] {
    match took {
        Some(Percentiles { p50_us, p95_us, p99_us }) => {
            [p50_us, p95_us, p99_us].map(|us| format!("{:.2}", us as f64 / 1e3))
        }
        None => ["-", "-", "-"].map(str::to_owned),
    }
}
