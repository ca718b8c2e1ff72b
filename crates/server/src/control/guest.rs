//! The inside of a box: commands, files, processes and ports.

pub(super) mod access;
mod as_user;
pub(super) mod captured_output;
mod directories;
pub(super) mod exec;
mod listen;
pub(super) mod port_events;
mod ports;
pub(super) mod processes;
pub(super) mod reverse_ports;
mod search;
