//! Parameters of the agent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::size_view::SizeFiles;

/// Parameters of the agent's start, as JSON in its second argument: `agent <boot>`.
///
/// The guest can read it in `/proc/1/cmdline`, so it holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Boot {
    /// Descriptor of the listening unix socket to serve.
    pub listener_fd: i32,
    /// Descriptor of an open file whose `oom_kill` line counts kills by the memory limit
    /// (`memory.oom_control` or `memory.events`), if there is one.
    #[serde(default)]
    pub oom_events_fd: Option<i32>,
    /// Descriptor of the listener of the box's system call filter, on which calls wait for their
    /// turn that take a lock of the whole host in the kernel.
    #[serde(default)]
    pub turns_fd: Option<i32>,
    /// Descriptor of a socket of netlink's `sock_diag`, by which the kernel lists the sockets of the
    /// box's network; without it the agent reads `/proc/net`, which costs a hundred times as much.
    #[serde(default)]
    pub sockets_fd: Option<i32>,
    /// Milliseconds until the box ends by itself unless extended.
    pub deadline_ms: u64,
    /// Mebibytes of all processes of the box together above which the agent kills the largest one;
    /// 0 if a control group holds the limit.
    #[serde(default)]
    pub soft_memory_mb: u32,
    /// Memory of the box in mebibytes, by any kind of limit. The agent's answers use a small share
    /// of it. 0 if unknown.
    #[serde(default)]
    pub memory_mb: u32,
    /// Value of `oom_score_adj` that commands start with, above that of the agent; the highest unless
    /// set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_oom_score: Option<i32>,
    /// True if commands can run as the user of the agent only.
    #[serde(default)]
    pub single_user: bool,
    /// Network that the box sees.
    #[serde(default)]
    pub network: Network,
    /// True if the box only holds slots: it runs no command, and children that its agent did not
    /// start are the first processes of slots.
    #[serde(default)]
    pub holds_slots: bool,
    /// Sockets that the box's connections to addresses outside of it are led to, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diverted: Option<Diverted>,
    /// Values of commands whose request names none.
    #[serde(default)]
    pub defaults: Defaults,
    /// True if the root is that of an image, which may be almost empty: the agent makes the missing
    /// ones of the directories and files that every box has, and gives `/workspace` to the user of
    /// the image.
    #[serde(default)]
    pub furnish: bool,
    /// Program and its arguments that the agent starts once, with [`Boot::defaults`], and whose
    /// output is the console. The box goes on when it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Certificate of an authority, as PEM, that programs of the box trust from the start; see
    /// [`Trust`](crate::Trust).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust: Option<String>,
    /// Files that show the size of the box, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_files: Option<SizeFiles>,
    /// Connection to the tracer, if the root of the box is made by one, which must be able to
    /// inspect the agent.
    #[serde(default)]
    pub traced: Option<Traced>,
}

/// Network that a box sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// A loopback of its own and nothing else: the agent's proxy is the only way out, and every
    /// process gets its variables.
    #[default]
    Loopback,
    /// A network of its own, with a way out. Processes get the variables of the agent's proxy once a
    /// server receives connections from it.
    Own,
    /// The host's network: the box sees the ports of others. Only those of its own processes are
    /// listed and connected to, and the agent's proxy asks for a password. Processes get its
    /// variables as with [`Network::Own`].
    Shared,
}

/// Descriptors of an agent that the network of its box leads to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Diverted {
    /// Descriptor of the rule in the kernel, which holds as long as it is open.
    pub rule_fd: i32,
    /// Descriptors of listening sockets on the loopback, one for each version of IP. They are those of
    /// the agent's proxy too, and also accept connections to any other address.
    pub tcp_fds: Vec<i32>,
    /// Descriptors of sockets of UDP, one for each version of IP, that receive the questions to name
    /// servers at any address.
    pub udp_fds: Vec<i32>,
    /// True if the agent writes `/etc/resolv.conf`; else it is written already.
    pub writes_resolv_conf: bool,
}

/// Defaults of the image for its commands, for values that a request leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Defaults {
    /// Environment; variables of the request override it. `PATH`, `HOME`, `LANG` and `TERM` are
    /// added where neither has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Directory that commands start in, absolute; `None`, empty and `/` stand for `/workspace`. A
    /// missing one is made if the agent furnishes the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// User of commands: `name`, `uid`, `name:group` or `uid:gid`, as [`crate::Exec::user`]; `None`
    /// for the user of the agent. `/workspace` belongs to this user, and files are written and read
    /// as this user. Ignored where there is a single user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Connection of an agent to the tracer that makes its root file system.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Traced {
    /// Descriptor of a pipe that carries lines of [`crate::Note`].
    pub notes_fd: i32,
    /// Path of the FIFO that the agent holds open while it lives, and writes lines of [`crate::EndTree`]
    /// into.
    pub life: String,
}
