//! What a client of the protocol asks for.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use client::Client;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation,
    ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::failure::{Failure, Result};
use crate::home::Home;
use crate::http::Caller;
use crate::tools::{label, run, tools};
use crate::{LABEL, Options, resources};

/// Time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);
/// Sandboxes that are known to be made here; then they are asked for again.
const KNOWN_MAX: usize = 10_000;
/// Oldest version of the protocol that is served.
const OLDEST: ProtocolVersion = ProtocolVersion::V_2024_11_05;
const INSTRUCTIONS: &str = "\
Tools to run code, commands and web servers in isolated Linux sandboxes, away from the user's machine. Files belong \
below /workspace. A sandbox reaches no hosts unless it was created with `allow_hosts`.";

/// Server for one client over stdio, or for all over HTTP. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Client and sandbox of calls over stdio; over HTTP each call brings its own.
    session: Option<(Client, Home)>,
    all_sandboxes: bool,
    tools: Vec<Tool>,
    /// Sandboxes that were made here.
    known: Mutex<HashSet<String>>,
}

impl Server {
    /// Returns the server of a session: all its calls act with one key.
    #[must_use]
    pub fn of_session(client: Client, options: Options) -> Self {
        let Options { mut sandbox, all_sandboxes } = options;
        label(&mut sandbox);
        Self::new(Some((client, Home::new(sandbox))), all_sandboxes)
    }

    pub(crate) fn of_callers(all_sandboxes: bool) -> Self {
        Self::new(None, all_sandboxes)
    }

    fn new(session: Option<(Client, Home)>, all_sandboxes: bool) -> Self {
        let tools = tools(session.is_some());
        Self { inner: Arc::new(Inner { session, all_sandboxes, tools, known: Mutex::default() }) }
    }

    /// Serves stdin and stdout until stdin ends or `stop` is done, then removes the session's sandbox.
    ///
    /// # Errors
    /// If the client does not speak the protocol, or the sandbox cannot be removed.
    pub async fn serve_stdio(self, stop: impl Future<Output = ()>) -> std::io::Result<()> {
        let served = self.clone().serve_until(stop).await;
        if let Some((client, home)) = &self.inner.session {
            home.end(client).await.map_err(std::io::Error::other)?;
        }
        served
    }

    async fn serve_until(self, stop: impl Future<Output = ()>) -> std::io::Result<()> {
        tokio::pin!(stop);
        let running = tokio::select! {
            running = self.serve(rmcp::transport::stdio()) => running.map_err(std::io::Error::other)?,
            () = &mut stop => return Ok(()),
        };
        let cancel = running.cancellation_token();
        let waiting = running.waiting();
        tokio::pin!(waiting);
        tokio::select! {
            ended = &mut waiting => drop(ended.map_err(std::io::Error::other)?),
            () = &mut stop => {
                // Cancels the calls that run, which ends what they started.
                cancel.cancel();
                drop(waiting.await);
            }
        }
        Ok(())
    }

    fn call(&self, context: &RequestContext<RoleServer>) -> std::result::Result<Call, ErrorData> {
        let client = match &self.inner.session {
            Some((client, _)) => client.clone(),
            None => Caller::of(&context.extensions)
                .ok_or_else(|| ErrorData::internal_error("the request has no caller", None))?,
        };
        Ok(Call {
            server: self.clone(),
            client,
            cancelled: context.ct.clone(),
            progress: context.meta.get_progress_token().map(|token| Progress::new(token, context.peer.clone())),
        })
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("tidebox", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        let versions = ProtocolVersion::KNOWN_VERSIONS.iter();
        versions.filter(|version| version.as_str() >= OLDEST.as_str()).cloned().collect()
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.inner.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.inner.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let call = self.call(&context)?;
        let result = run(&call, &request.name, request.arguments).await.ok_or_else(|| {
            let names: Vec<_> = self.inner.tools.iter().map(|tool| tool.name.as_ref()).collect();
            ErrorData::invalid_params(
                format!("there is no tool \"{}\"; the tools are {}", request.name, names.join(", ")),
                None,
            )
        })?;
        Ok(match result {
            Ok(content) => CallToolResult::success(content),
            Err(failure) => CallToolResult::error(failure.into_content()),
        }
        .into())
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        let call = self.call(&context)?;
        resources::read(&call, &request.uri)
            .await
            .map(Into::into)
            .map_err(|failure| ErrorData::invalid_params(failure.to_string(), None))
    }
}

/// A request that is carried out.
pub(crate) struct Call {
    server: Server,
    pub(crate) client: Client,
    cancelled: CancellationToken,
    progress: Option<Progress>,
}

/// Sandbox in which a call works.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) id: String,
    /// True if the session's sandbox had ended, and this one is new.
    is_replacement: bool,
}

impl Target {
    /// Returns a result of one text.
    pub(crate) fn text(&self, text: impl Into<String>) -> Vec<ContentBlock> {
        let mut text = text.into();
        if self.is_replacement {
            text.insert_str(0, "[the sandbox had ended: this is a new one, without its files and variables]\n");
        }
        vec![ContentBlock::text(text)]
    }
}

impl Call {
    /// Returns the sandbox that a call names, or the one of its session.
    pub(crate) async fn target(&self, sandbox: Option<String>) -> Result<Target> {
        match (sandbox, &self.server.inner.session) {
            (Some(id), _) => {
                self.check(&id).await?;
                Ok(Target { id, is_replacement: false })
            }
            (None, Some((client, home))) => {
                let found = home.sandbox(client).await?;
                self.remember(&found.id);
                Ok(Target { id: found.id, is_replacement: found.is_replacement })
            }
            (None, None) => Err(Failure::new("pass `sandbox`: the id that create_sandbox or list_sandboxes returns")),
        }
    }

    /// Checks that calls may work in a sandbox.
    pub(crate) async fn check(&self, id: &str) -> Result<()> {
        if self.sees_all() || self.server.inner.known.lock().contains(id) {
            return Ok(());
        }
        let sandbox = self.client.sandbox(id).await.map_err(|error| match error.is_code("not_found") {
            true => Failure::new(format!("there is no sandbox {id}: list_sandboxes shows those that run")),
            false => error.into(),
        })?;
        if !sandbox.metadata.0.contains_key(LABEL) {
            return Err(Failure::new(format!(
                "sandbox {id} was not made through this server, which works in no other unless it is started with \
                 `--all-sandboxes`: use create_sandbox"
            )));
        }
        self.remember(id);
        Ok(())
    }

    pub(crate) fn remember(&self, id: &str) {
        let mut known = self.server.inner.known.lock();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(id.to_owned());
    }

    pub(crate) fn sees_all(&self) -> bool {
        self.server.inner.all_sandboxes
    }

    /// Does work unless the caller leaves meanwhile, and reports progress to a caller that wants to know.
    pub(crate) async fn unless_cancelled<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let reports = async {
            match &self.progress {
                Some(progress) => progress.report().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Err(Failure::new("cancelled")),
            done = work => Ok(done),
            () = reports => unreachable!("it reports for as long as the work takes"),
        }
    }

    /// Sets what the next report of progress says.
    pub(crate) fn says(&self, message: impl FnOnce() -> String) {
        if let Some(progress) = &self.progress
            && progress.is_due()
        {
            *progress.message.lock() = message();
        }
    }
}

/// Reports of progress.
struct Progress {
    token: ProgressToken,
    peer: Peer<RoleServer>,
    begun: Instant,
    next: Mutex<Instant>,
    message: Mutex<String>,
}

impl Progress {
    fn new(token: ProgressToken, peer: Peer<RoleServer>) -> Self {
        let begun = Instant::now();
        Self { token, peer, begun, next: Mutex::new(begun + PROGRESS_EVERY), message: Mutex::default() }
    }

    /// Returns whether the next report is near.
    fn is_due(&self) -> bool {
        *self.next.lock() <= Instant::now() + PROGRESS_EVERY / 4
    }

    /// Reports now and then, for ever.
    async fn report(&self) {
        loop {
            let next = *self.next.lock();
            sleep_until(next).await;
            *self.next.lock() = Instant::now() + PROGRESS_EVERY;
            let seconds = self.begun.elapsed().as_secs_f64();
            let mut report = ProgressNotificationParam::new(self.token.clone(), seconds);
            report.message = Some(self.message.lock().clone()).filter(|message| !message.is_empty());
            // A caller that is gone is noticed by the call.
            let _ = self.peer.notify_progress(report).await;
        }
    }
}
