//! What a provider and the agent agree on where the agent is the first process
//! of somebody else's container.
//!
//! The agent is started as `agent stdio <boot>`. Its descriptors 0 and 1 are the
//! first connection, and [`AGENT_SOCKET`] takes all later ones, which come from
//! outside: from the server itself, or through `agent relay`, started in the
//! container from there.

/// Where the agent's program is mounted, for reading only.
pub const AGENT_DIR: &str = "/.tidebox";
/// The agent's program.
pub const AGENT_PROGRAM: &str = "/.tidebox/agent";
/// A small tmpfs that the agent can write to, whatever the root allows.
pub const AGENT_RUN_DIR: &str = "/.tidebox/run";
/// Where the agent listens. Nobody but a process that is outside of the
/// container, or was started from there, is answered.
pub const AGENT_SOCKET: &str = "/.tidebox/run/agent.sock";
