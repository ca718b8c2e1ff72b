//! Kinds of objects that requests name.

use std::fmt;

/// Kinds of objects that a request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Sandbox,
    Template,
    Provider,
    Worker,
    Lease,
    Quota,
    Image,
    EgressList,
    Secret,
    Snapshot,
    Key,
    Build,
    Context,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Sandbox => "sandbox",
            Resource::Template => "template",
            Resource::Provider => "provider",
            Resource::Worker => "worker",
            Resource::Lease => "lease on",
            Resource::Quota => "quota of the owner",
            Resource::Image => "image",
            Resource::EgressList => "egress list",
            Resource::Secret => "secret",
            Resource::Snapshot => "snapshot",
            Resource::Key => "key",
            Resource::Build => "build",
            Resource::Context => "context",
        })
    }
}
