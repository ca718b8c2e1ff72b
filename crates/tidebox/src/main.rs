//! The binary: the server and its command line, a file per subcommand.

use std::process::ExitCode;

mod attach;
mod audit;
mod bench;
mod code;
mod command_line;
mod completion;
mod config;
mod context;
mod contexts;
mod cp;
mod destroy;
mod doctor;
mod egress;
mod events;
mod exec;
mod extend;
mod failure;
mod firecracker;
mod forward;
mod get;
mod grep;
mod image;
mod key;
mod kill;
mod list;
mod log;
mod logs;
mod mcp;
mod memory;
mod open;
mod output;
mod pause;
mod ports;
mod provider;
mod prune;
mod ps;
mod repl;
mod run;
mod secret;
mod serve;
mod shell;
mod signals;
mod snapshot;
mod spawn;
mod stats;
mod sync;
mod template;
mod top;
mod values;
mod version;
mod worker;

fn main() -> ExitCode {
    memory::limit_arenas();
    command_line::main()
}
