//! Agreement between a provider and the agent where the agent is the first process of a container
//! of another runtime.
//!
//! The agent is started as `agent stdio <boot>`. Its descriptors 0 and 1 are the first connection.
//! [`AGENT_SOCKET`] takes all later ones, which come from outside: from the server itself, or
//! through `agent relay`, which is started in the container from there.

/// Directory that the agent's program is mounted on, read-only.
pub const AGENT_DIR: &str = "/.tidebox";
/// Path of the agent's program.
pub const AGENT_PROGRAM: &str = "/.tidebox/agent";
/// Mount point of a small tmpfs that the agent can write to, even if the root is read-only.
pub const AGENT_RUN_DIR: &str = "/.tidebox/run";
/// Path of the socket that the agent listens on. It answers only processes outside the container,
/// or started from there.
pub const AGENT_SOCKET: &str = "/.tidebox/run/agent.sock";
