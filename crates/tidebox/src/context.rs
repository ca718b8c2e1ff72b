//! Surroundings of a subcommand that speaks to a server.

use client::Client;

use crate::output::Output;

/// Client and output of a subcommand.
#[derive(Debug)]
pub struct Context {
    pub client: Client,
    pub output: Output,
}
