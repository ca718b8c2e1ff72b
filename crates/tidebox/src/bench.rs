//! `tidebox bench`: the speed of a server, beside what the kernel alone takes.
//!
//! Baseline and server are measured in turns, round by round, so that a noisy machine slows both;
//! only the ratios are comparable.

mod baseline;
mod boxes;
mod memory;
mod report;
mod samples;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use api::{ExecMode, ExecRequest};
use clap::Args;
use client::Spawned;

use self::baseline::Baseline;
use self::boxes::Boxes;
use self::memory::ServerMemory;
use self::report::{Burst, Latency, Phase, Report, Transfer};
use self::samples::{Percentiles, Samples};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::signals::Signals;

/// Measure a running server and, for comparison, the bare kernel
#[derive(Debug, Args)]
#[command(
    after_help = "Removes all its boxes, also after a failure or an interruption. Use an idle machine, a release\n\
    build, and a server without caps on sandboxes."
)]
pub struct BenchArgs {
    /// Measure less: takes seconds instead of a minute, and gives rougher figures
    #[arg(long)]
    quick: bool,
    /// Image to start from; the server's default if omitted
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Provider that runs the boxes; the server's default if omitted
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Directory for the bare kernel's boxes; for a fair ratio, use the file system of the server's data
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    baseline_dir: PathBuf,
}

/// Number of measurements of each kind.
#[derive(Debug, Clone, Copy)]
struct Plan {
    /// Turns of baseline and server.
    rounds: usize,
    /// Spawns and destroys in a round.
    spawns: usize,
    /// Commands of each kind, and reads of a sandbox, in a round.
    calls: usize,
    /// Snapshots in a round, each with a box of it and a fork.
    snapshots: usize,
    /// Boxes made at once, for each burst.
    bursts: &'static [usize],
    /// Bytes of a transfer, and the number of times each is made.
    transfer: (u64, usize),
}

const FULL: Plan = Plan { rounds: 5, spawns: 10, calls: 40, snapshots: 2, bursts: &[50, 200], transfer: (1 << 30, 2) };
const QUICK: Plan = Plan { rounds: 2, spawns: 5, calls: 20, snapshots: 1, bursts: &[20], transfer: (64 << 20, 1) };

/// Measurements of all rounds.
#[derive(Debug, Default)]
struct Measured {
    get: Samples,
    spawn: Samples,
    /// Spawns up to the answer to a first command.
    first_exec: Samples,
    /// Steps of spawns, by name, in the order in which they were seen.
    phases: Vec<(String, Samples)>,
    snapshot: Samples,
    of_snapshot: Samples,
    fork: Samples,
    exec: Samples,
    shell: Samples,
    destroy: Samples,
    bare_spawn: Vec<Percentiles>,
    bare_exec: Vec<Percentiles>,
}

impl Measured {
    /// Adds the steps of a spawn.
    fn add_phases(&mut self, phases: Vec<(String, Duration)>) {
        for (name, took) in phases {
            match self.phases.iter_mut().find(|(known, _)| *known == name) {
                Some((_, samples)) => samples.add(took),
                None => {
                    let mut samples = Samples::default();
                    samples.add(took);
                    self.phases.push((name, samples));
                }
            }
        }
    }
}

/// Measures, removes the boxes, and prints the report.
pub async fn run(context: &Context, args: &BenchArgs) -> Result {
    let mut signals = Signals::listen()?;
    let boxes = Boxes::new(&context.client, args.image.clone(), args.provider.clone());
    let outcome = tokio::select! {
        exit = signals.next() => Err(Failure::silent(exit)),
        report = measure(context, args, &boxes) => report,
    };
    // The boxes are removed after a failure and after a signal too; a second signal ends this.
    tokio::select! {
        exit = signals.next() => return Err(Failure::silent(exit)),
        cleaned = boxes.remove_all() => if let Err(error) = cleaned {
            context.output.remark(&format!("bench: some boxes may remain; they expire within minutes ({error})"));
        },
    }
    context.output.print(&outcome?, Report::shown)?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(context: &Context, args: &BenchArgs, boxes: &Boxes<'_>) -> Result<Report> {
    let plan = if args.quick { QUICK } else { FULL };
    let version = context.client.health().await?.version;
    let mut notes = Vec::new();
    let mut memory = ServerMemory::find(&context.client).unwrap_or_else(|reason| {
        notes.push(format!("no memory figures for the server: {reason}"));
        ServerMemory::unknown()
    });
    let mut baseline =
        Baseline::new(&args.baseline_dir).map_err(|error| Failure::io("the baseline cannot run", &error))?;

    // Kept for all commands; spawning it also warms up what is slow only once.
    let sandbox = boxes.spawn().await?;
    memory.sample("idle, one box");
    let snapshots = if boxes.have_snapshots(&sandbox.provider).await? { plan.snapshots } else { 0 };
    let mut measured = Measured::default();
    for round in 1..=plan.rounds {
        context.output.remark(&format!("bench: round {round} of {}", plan.rounds));
        measured.bare_spawn.extend(baseline.spawn(plan.spawns).await);
        measure_boxes(context, boxes, plan.spawns, &mut measured).await?;
        measure_snapshots(boxes, &sandbox.id, snapshots, &mut measured).await?;
        measured.bare_exec.extend(baseline.exec(plan.calls).await);
        measure_calls(context, &sandbox.id, plan.calls, &mut measured).await?;
    }
    memory.sample("after single calls");
    let mut bursts = Vec::new();
    for &count in plan.bursts {
        context.output.remark(&format!("bench: {count} spawns at once"));
        bursts.push(burst(boxes, count).await?);
    }
    memory.sample("after bursts");
    context.output.remark("bench: transfers");
    let transfers = measure_transfers(context, &sandbox.id, plan.transfer).await?;
    memory.sample("after transfers");
    notes.extend(baseline.failure().map(|reason| format!("no figures for the bare kernel: {reason}")));
    Ok(Report {
        url: context.client.base_url().to_owned(),
        version,
        provider: sandbox.provider,
        image: sandbox.image,
        latencies: latencies(&measured),
        phases: measured.phases.iter().filter_map(|(name, samples)| Phase::new(name, samples)).collect(),
        bursts,
        transfers,
        memory: memory.into_samples(),
        notes,
    })
}

async fn measure_boxes(context: &Context, boxes: &Boxes<'_>, count: usize, measured: &mut Measured) -> Result<()> {
    let mut made = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let Spawned { sandbox, phases } = boxes.spawn_timed().await?;
        measured.spawn.add(start.elapsed());
        must_succeed(context, &sandbox.id, ExecMode::Argv).await?;
        measured.first_exec.add(start.elapsed());
        measured.add_phases(phases);
        made.push(sandbox);
    }
    for sandbox in made {
        let start = Instant::now();
        boxes.destroy(&sandbox.id).await?;
        measured.destroy.add(start.elapsed());
    }
    Ok(())
}

async fn measure_snapshots(boxes: &Boxes<'_>, id: &str, count: usize, measured: &mut Measured) -> Result<()> {
    for _ in 0..count {
        let start = Instant::now();
        let snapshot = boxes.take_snapshot(id).await?;
        measured.snapshot.add(start.elapsed());
        let start = Instant::now();
        let made = boxes.spawn_of(&snapshot).await?;
        measured.of_snapshot.add(start.elapsed());
        let start = Instant::now();
        let copies = boxes.fork(id).await?;
        measured.fork.add(start.elapsed());
        for sandbox in copies.iter().chain([&made]) {
            boxes.destroy(&sandbox.id).await?;
        }
        boxes.delete_snapshot(&snapshot).await?;
    }
    Ok(())
}

async fn measure_calls(context: &Context, id: &str, count: usize, measured: &mut Measured) -> Result<()> {
    for _ in 0..count {
        let start = Instant::now();
        context.client.sandbox(id).await?;
        measured.get.add(start.elapsed());
        let start = Instant::now();
        must_succeed(context, id, ExecMode::Argv).await?;
        measured.exec.add(start.elapsed());
        let start = Instant::now();
        must_succeed(context, id, ExecMode::Shell).await?;
        measured.shell.add(start.elapsed());
    }
    Ok(())
}

/// Runs `true`, in the shell as `sh -c true`, and fails unless it exits with 0.
async fn must_succeed(context: &Context, id: &str, mode: ExecMode) -> Result<()> {
    let request = ExecRequest { command: "true".to_owned(), mode, ..ExecRequest::default() };
    match context.client.exec(id, request).await?.exit_code {
        0 => Ok(()),
        code => {
            Err(Failure::new("bench_failed", format!("`true` exited with {code} in box {id}; nothing was measured")))
        }
    }
}

async fn burst(boxes: &Boxes<'_>, count: usize) -> Result<Burst> {
    let start = Instant::now();
    let results = futures_util::future::join_all((0..count).map(|_| async {
        let start = Instant::now();
        boxes.spawn().await.map(|sandbox| (sandbox.id, start.elapsed()))
    }))
    .await;
    let wall = start.elapsed();
    let mut each = Samples::default();
    let mut made = Vec::new();
    let mut failure = None;
    for result in results {
        match result {
            Ok((id, took)) => {
                each.add(took);
                made.push(id);
            }
            Err(error) => failure = Some(error.to_string()),
        }
    }
    for id in &made {
        boxes.destroy(id).await?;
    }
    Ok(Burst::new(count, made.len(), wall, each.percentiles(), failure))
}

async fn measure_transfers(context: &Context, id: &str, (bytes, times): (u64, usize)) -> Result<Vec<Transfer>> {
    let mut rates: [Vec<f64>; 4] = Default::default();
    transfer::make_file(&context.client, id, bytes).await?;
    for _ in 0..times {
        rates[0].push(baseline::pipe_rate(bytes).await.map_err(|error| Failure::io("the pipe baseline", &error))?);
        rates[1].push(baseline::socket_rate(bytes).await.map_err(|error| Failure::io("the socket baseline", &error))?);
        rates[2].push(transfer::exec_rate(&context.client, id, bytes).await?);
        rates[3].push(transfer::file_rate(&context.client, id, bytes).await?);
    }
    let best = rates.map(|rates| rates.into_iter().fold(0.0, f64::max));
    let names = ["bare pipe", "bare socket pair", "exec stream", "file read"];
    Ok(names.into_iter().zip(best).map(|(name, rate)| Transfer::new(name, bytes, rate, best[0])).collect())
}

fn latencies(measured: &Measured) -> Vec<Latency> {
    let bare_spawn = samples::typical(&measured.bare_spawn);
    let bare_exec = samples::typical(&measured.bare_exec);
    let get = measured.get.percentiles();
    // Of a virtual machine that is made from files: the work of its monitor and its kernel.
    let restore = measured.phases.iter().find(|(name, _)| name == "restore").and_then(|(_, it)| it.percentiles());
    // An exec cannot be cheaper than a process and a round trip.
    let exec_baseline = bare_exec.zip(get).map(|(exec, get)| exec.plus(get));
    [
        Latency::new("get", &measured.get, None),
        Latency::new("spawn", &measured.spawn, bare_spawn.map(|bare| ("bare spawn", bare))),
        Latency::new("spawn, exec true", &measured.first_exec, restore.map(|restore| ("restore", restore))),
        Latency::new("exec true", &measured.exec, exec_baseline.map(|bare| ("bare exec + get", bare))),
        Latency::new("exec sh -c true", &measured.shell, exec_baseline.map(|bare| ("bare exec + get", bare))),
        Latency::new("destroy", &measured.destroy, None),
        Latency::new("snapshot", &measured.snapshot, None),
        Latency::new("spawn of it", &measured.of_snapshot, measured.spawn.percentiles().map(|spawn| ("spawn", spawn))),
        Latency::new("fork", &measured.fork, None),
    ]
    .into_iter()
    .flatten()
    .collect()
}
