//! A call of a tool, while it is carried out.

use std::sync::Arc;
use std::time::Duration;

use client::Client;
use parking_lot::Mutex;
use rmcp::model::{ContentBlock, ErrorData, ProgressNotificationParam, ProgressToken};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::caller::Caller;
use crate::failure::{Failure, Result};
use crate::home::Home;

/// Time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// State that calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Client and sandbox of calls over stdio; over HTTP each call brings its own.
    pub(crate) session: Option<(Client, Home)>,
    pub(crate) access: Access,
}

/// A request that is carried out.
pub(crate) struct Call {
    shared: Arc<Shared>,
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
    /// Makes the call of a request.
    ///
    /// # Errors
    /// If a request over HTTP came without its caller.
    pub(crate) fn new(
        shared: &Arc<Shared>,
        context: &RequestContext<RoleServer>,
    ) -> std::result::Result<Self, ErrorData> {
        let client = match &shared.session {
            Some((client, _)) => client.clone(),
            None => Caller::of(&context.extensions)
                .ok_or_else(|| ErrorData::internal_error("the request has no caller", None))?,
        };
        Ok(Self {
            shared: Arc::clone(shared),
            client,
            cancelled: context.ct.clone(),
            progress: context.meta.get_progress_token().map(|token| Progress::new(token, context.peer.clone())),
        })
    }

    /// Returns the sandboxes that it may work in.
    pub(crate) fn access(&self) -> &Access {
        &self.shared.access
    }

    /// Returns the sandbox that a call names, or the one of its session.
    pub(crate) async fn target(&self, sandbox: Option<String>) -> Result<Target> {
        match (sandbox, &self.shared.session) {
            (Some(id), _) => {
                self.access().check(&self.client, &id).await?;
                Ok(Target { id, is_replacement: false })
            }
            (None, Some((client, home))) => {
                let found = home.sandbox(client).await?;
                self.access().remember(&found.id);
                Ok(Target { id: found.id, is_replacement: found.is_replacement })
            }
            (None, None) => Err(Failure::new("pass `sandbox`: the id that create_sandbox or list_sandboxes returns")),
        }
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
