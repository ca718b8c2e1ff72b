//! Search and replacement in the content of a sandbox's files.

use std::sync::Arc;

use providers::{Guest, Replace, ReplaceResult, Search, SearchResult};
use serde_json::json;

use crate::control::error::Result;
use crate::control::service::Control;
use crate::events::EventType;
use crate::operation_metrics::Operation;

impl Control {
    /// Searches in the content of files; see [`Guest::search`].
    ///
    /// # Errors
    /// As [`Guest::search`].
    pub async fn search_files(&self, id: &str, request: &Search) -> Result<SearchResult> {
        let search = |guest: Arc<dyn Guest>| async move { guest.search(request).await };
        self.inside(Operation::FileSearch, id, search).await.map(|(_, found)| found)
    }

    /// Replaces in the content of files; see [`Guest::replace`].
    ///
    /// # Errors
    /// As [`Guest::replace`].
    pub async fn replace_in_files(&self, id: &str, request: &Replace) -> Result<ReplaceResult> {
        let replace = |guest: Arc<dyn Guest>| async move { guest.replace(request).await };
        let (sandbox, replaced) = self.inside(Operation::FileReplace, id, replace).await?;
        if !request.dry_run && !replaced.files.is_empty() {
            // One event for all, since there may be thousands of files.
            let data = json!({"path": request.scope.path, "files": replaced.files.len()});
            self.publish(EventType::FileWritten, Some(&sandbox.id), data);
        }
        Ok(replaced)
    }
}
