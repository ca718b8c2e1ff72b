//! Server of the protocol: what a client may ask for.

use std::sync::Arc;

use client::Client;
use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation,
    ListResourceTemplatesResult, ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams,
    ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::{ServerHandler, ServiceExt as _};

use crate::access::{Access, label};
use crate::call::{Call, Shared};
use crate::home::Home;
use crate::resources;
use crate::tools::{run, tools};

/// Time for which lists may be kept: they are the same for all, and change with a release only.
const LISTS_TTL_MS: u64 = 3_600_000;
const INSTRUCTIONS: &str = "\
Tools to run code, commands and web servers in isolated Linux sandboxes, away from the user's machine. Files belong \
below /workspace. A sandbox reaches no hosts unless it was created with `allow_hosts`.";

/// Choices of the person who starts the server.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Sandbox for calls that name none, over stdio.
    pub sandbox: api::SpawnRequest,
    /// True to work in sandboxes that were made elsewhere, too.
    pub all_sandboxes: bool,
}

/// Server for one client over stdio, or for all over HTTP. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Server {
    shared: Arc<Shared>,
    tools: Arc<[Tool]>,
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
        let tools = tools(session.is_some()).into();
        Self { shared: Arc::new(Shared { session, access: Access::new(all_sandboxes) }), tools }
    }

    /// Serves stdin and stdout until stdin ends or `stop` is done, then removes the session's sandbox.
    ///
    /// # Errors
    /// If the client does not speak the protocol, or the sandbox cannot be removed.
    pub async fn serve_stdio(self, stop: impl Future<Output = ()>) -> std::io::Result<()> {
        let served = self.clone().serve_until(stop).await;
        if let Some((client, home)) = &self.shared.session {
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
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("tidebox", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let tools = ListToolsResult::with_all_items(self.tools.to_vec());
        Ok(tools.with_ttl_ms(LISTS_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let call = Call::new(&self.shared, &context)?;
        let result = run(&call, &request.name, request.arguments).await.ok_or_else(|| {
            let names: Vec<_> = self.tools.iter().map(|tool| tool.name.as_ref()).collect();
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
        let templates = ListResourceTemplatesResult::with_all_items(vec![resources::template()]);
        Ok(templates.with_ttl_ms(LISTS_TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<ReadResourceResponse, ErrorData> {
        let call = Call::new(&self.shared, &context)?;
        resources::read(&call, &request.uri)
            .await
            .map(Into::into)
            .map_err(|failure| ErrorData::invalid_params(failure.to_string(), None))
    }
}
