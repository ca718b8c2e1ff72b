//! Policies of routes: what a route demands of a request before its handler runs.

use std::collections::HashMap;

use axum::http::Method;
use domain::KeyScope;

use super::site::Site;
use crate::auth::token::Scope;
use crate::auth::{Demand, OwnerAccess};

/// Demands of a route on a request before its handler, and its treatment by the middleware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Credential that opens the route.
    pub gate: Gate,
    /// Rule for keys of owners.
    pub owners: OwnerAccess,
    /// Sandboxes that the request is about. Those of other owners are hidden from a key of an owner, and in pool
    /// mode from each user.
    pub about: About,
    /// True where `X-Lease-Generation` fences off an earlier holder of the sandbox in the path.
    pub is_fenced: bool,
    /// Trace that the request leaves in the audit history.
    pub audit: Audit,
    /// True where the answer reports the state of the server, which is wanted most when the
    /// memory of requests is spent.
    pub is_vital: bool,
    /// True where the key may come as a WebSocket subprotocol, since a page in a browser cannot
    /// send headers of its own with a WebSocket.
    pub takes_key_as_protocol: bool,
}

/// Credential that a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// An API key, an admin key, or none.
    Key(Demand),
    /// The credential of the worker in the path, with this scope.
    Worker(Scope),
    /// A permit for the port that the request is to, or an API key.
    Preview,
    /// A link that this server signed, for files of a build.
    UploadLink,
    /// The token of the sandbox that the request is to, or a signature made with it.
    Sandbox(Proof),
}

/// Proof that a route of a sandbox asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// None. Anyone who knows the id of a sandbox may ask whether it runs.
    Nothing,
    /// The token of the sandbox.
    Token,
    /// The token, or a signature of what is asked for.
    TokenOrSignature,
    /// The token, or what the ports of the sandbox ask for.
    TokenOrPort,
}

/// Sandboxes, or another thing with an owner, that a request is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// None.
    Nothing,
    /// Those of the user who asks.
    OwnSandboxes,
    /// One to be made for the user who asks.
    NewSandbox,
    /// The one that the request names.
    OneSandbox(NamedIn),
    /// Those that the query names, whose events are asked for.
    Events,
    /// None, but something else that an owner may have: a snapshot, a template, a secret, an image, a quota.
    OwnedResource,
}

/// Part of a request that names its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedIn {
    /// The path: the parameter `id`.
    Path,
    /// The host name, or what stands for it: a path, or headers.
    Host,
}

/// Trace in the audit history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audit {
    /// None, unless the credential is refused.
    Nothing,
    /// A row with this action.
    Always(&'static str),
    /// A row with this action unless the request succeeds: monitors read such a route every few
    /// seconds.
    Failures(&'static str),
    /// A row whose action follows from the method and the path, which no route has.
    Unknown,
}

/// Open to reading without a key.
pub(super) const OPEN: Policy = Policy { is_vital: true, ..Policy::of(Gate::Key(Demand::Nothing)) };
/// Asks for the API key.
pub(super) const KEY: Policy = Policy::of(Gate::Key(Demand::Key));
/// Asks for the token of the sandbox, as what has no route of a sandbox does.
pub(super) const SANDBOX: Policy = Policy::of(Gate::Sandbox(Proof::Token)).about(About::OneSandbox(NamedIn::Host));
/// Asks for the admin key.
pub(super) const ADMIN: Policy = Policy::of(Gate::Key(Demand::AdminKey));
/// Answers with any key that there is no such route.
const NO_ROUTE: Policy = KEY.for_any_owner();

impl Policy {
    pub(super) const fn of(gate: Gate) -> Self {
        Self {
            gate,
            owners: OwnerAccess::Closed,
            about: About::Nothing,
            is_fenced: false,
            audit: Audit::Nothing,
            is_vital: false,
            takes_key_as_protocol: false,
        }
    }

    pub(super) const fn about(self, about: About) -> Self {
        Self { about, ..self }
    }

    /// Opens the route to keys of owners with this scope.
    pub(super) const fn for_owners(self, scope: KeyScope) -> Self {
        Self { owners: OwnerAccess::Scope(scope), ..self }
    }

    /// Opens the route to every key of an owner.
    pub(super) const fn for_any_owner(self) -> Self {
        Self { owners: OwnerAccess::Any, ..self }
    }

    pub(super) const fn fenced(self) -> Self {
        Self { is_fenced: true, ..self }
    }

    pub(super) const fn audited(self, action: &'static str) -> Self {
        Self { audit: Audit::Always(action), ..self }
    }

    pub(super) const fn audited_failures(self, action: &'static str) -> Self {
        Self { audit: Audit::Failures(action), ..self }
    }

    pub(super) const fn vital(self) -> Self {
        Self { is_vital: true, ..self }
    }

    /// Returns the policy of the methods that the path of this row does not have.
    fn without_route(self) -> Self {
        let gate = if self.gate == OPEN.gate { KEY.gate } else { self.gate };
        let audit = if self.audit == Audit::Nothing { Audit::Nothing } else { Audit::Unknown };
        Self { gate, audit, is_vital: false, ..self }
    }
}

/// Policies of every site.
#[derive(Debug)]
pub struct Policies {
    pub(super) api: RoutePolicies,
    /// The paths are those of programs in sandboxes, so all have the same.
    pub(super) preview: Policy,
    /// The two planes for E2B's SDKs.
    pub(super) e2b_control: RoutePolicies,
    pub(super) e2b_data: RoutePolicies,
    pub(super) e2b_interpreter: RoutePolicies,
}

impl Policies {
    /// Returns the policy for a request to `site`, by the path that its router matched.
    pub fn of(&self, site: Site, matched: Option<&str>, method: &Method) -> Policy {
        match site {
            Site::Api => self.api.of(matched, method),
            Site::Preview => self.preview,
            Site::E2bControl => self.e2b_control.of(matched, method),
            Site::E2bData | Site::E2bInterpreter if matched.is_none() => SANDBOX,
            Site::E2bData => self.e2b_data.of(matched, method),
            Site::E2bInterpreter => self.e2b_interpreter.of(matched, method),
        }
    }
}

/// The policy of each route of a site. What has no route is closed.
#[derive(Debug, Default)]
pub struct RoutePolicies(pub(super) HashMap<String, Vec<(Method, Policy)>>);

impl RoutePolicies {
    /// Returns the policy for a request by the path that the router matched. Reading the head
    /// is reading; a method without a row gets what its path demands.
    pub fn of(&self, matched: Option<&str>, method: &Method) -> Policy {
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let Some(path) = matched else { return NO_ROUTE };
        let Some(rows) = self.0.get(path) else { return KEY };
        let row = rows.iter().find(|(of, _)| of == method);
        row.or(rows.first()).map_or(KEY, |(of, policy)| if of == method { *policy } else { policy.without_route() })
    }

    /// Adds a row.
    pub(super) fn add(&mut self, path: &str, method: &Method, policy: Policy) {
        self.0.entry(path.to_owned()).or_default().push((method.clone(), policy));
    }
}
