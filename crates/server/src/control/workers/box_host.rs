//! Host of a sandbox's box, on which depends what this server can do with it.

use domain::WorkerId;
use store::Sandbox;

use crate::control::policy::Policy;
use crate::control::service::Control;

/// Host of a sandbox's box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::control) enum BoxHost<'a> {
    /// This server, which makes the box's connections and has its files.
    ThisServer,
    /// A service that a provider of this server calls, and which makes the connections.
    Service,
    /// Another worker, which has the provider.
    Worker(&'a WorkerId),
}

impl Policy {
    /// Returns whether a service elsewhere runs the boxes of a provider.
    pub(in crate::control) fn is_service(&self, provider: &str) -> bool {
        self.services.iter().any(|service| service == provider)
    }
}

impl Control {
    /// Returns the host of a sandbox's box.
    pub(in crate::control) fn host_of<'a>(&self, sandbox: &'a Sandbox) -> BoxHost<'a> {
        if !sandbox.worker.is_local() {
            BoxHost::Worker(&sandbox.worker)
        } else if self.policy.is_service(&sandbox.provider) {
            BoxHost::Service
        } else {
            BoxHost::ThisServer
        }
    }
}
