//! Configuration: the operator's settings, the source of each value, and the faults found.
//!
//! A key is declared once, in `settings`, with its type, default, reader and description
//! (`declare`). From there come the structure that the server reads, the environment variables, the
//! suggestions for misspelt keys, `config/example.yaml`, `config/schema.json` and the table of
//! docs/operate/configuration.md. Layers, weakest first: built-in defaults,
//! `/etc/tidebox/config.yaml`, `~/.tidebox/config.yaml`, `./tidebox.yaml`, variables `TIDEBOX_*`. A
//! file named on the command line replaces these files.
//!
//! All faults are collected, so that an operator corrects a file in one go. A key that the
//! specification has and this version does not support is a fault too: an operator who writes
//! `auth.enabled: true` must not get an open server.

mod check;
mod declare;
mod draft;
mod environment;
mod fault;
mod file;
mod inputs;
mod keys;
pub mod lint;
mod load;
mod nearest;
mod read;
mod schema;
mod secret;
mod secret_file;
mod settings;
mod show;
mod text;
mod tree;
mod unsupported;

pub use fault::{Fault, Source};
pub use inputs::Inputs;
pub use load::{Loaded, load};
pub use schema::schema;
pub use secret::Secret;
pub use settings::*;
pub use show::{Setting, nested};

#[cfg(test)]
mod test;
