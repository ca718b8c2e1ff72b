//! The agent as the server uses it: the real program, as an ordinary process, over a unix socket.
#![expect(clippy::unwrap_used, reason = "these are tests; the helpers are too")]

mod background;
mod egress;
mod exec;
mod files;
mod harness;
mod image;
mod life;
mod listeners;
mod ports;
mod search;
mod streams;
mod trees;
mod users;
