//! The first process of a box, and the launcher that makes native boxes.

mod agent;
mod bare;
mod budget;
mod console;
mod deadline;
mod descriptor;
mod diverted;
mod egress;
mod end_box;
mod exec;
mod failure;
mod files;
mod freezer;
mod known_ports;
mod launch;
mod link;
mod listeners;
mod memory;
mod oom;
mod pids;
mod ports;
mod prepare_rootfs;
mod ptrace;
mod reclaim;
mod relay;
mod restored;
mod serve;
mod settle;
mod size;
mod sockets;
mod stop_box;
mod syscall_queue;
mod tcp;
mod tracer_notes;
mod trust;
mod users;
mod vsock;
mod watchdog;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("agent") => serve::run(std::env::var(launch::ORDER).ok().as_deref()),
        Some("stdio") => serve::container::run(args.next().as_deref()),
        Some("relay") => relay::run(),
        Some("launch") => launch::run(),
        Some("trace") => launch::trace::run(),
        Some("vmm") => launch::vmm::run(),
        Some("machine") => serve::machine::run(),
        Some("sweep") => end_box::run(),
        Some("halt") => stop_box::run(),
        Some("reclaim") => reclaim::run(args),
        Some("bare") => bare::run(args),
        _ => ExitCode::FAILURE,
    }
}
