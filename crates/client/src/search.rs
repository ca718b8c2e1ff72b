//! Search and replacement in the content of a sandbox's files.

use api::{ReplaceRequest, ReplaceResult, SearchRequest, SearchResult};
use reqwest::Method;

use crate::connection::{Patience, Size};
use crate::sandbox::sandbox_path;
use crate::{Client, Result};

/// Search in files.
impl Client {
    /// Searches in the content of files. [`SearchResult::truncated`] says whether a bound ended it.
    ///
    /// # Errors
    /// `bad_request` for an expression or a glob that cannot be used, `not_found` if nothing is at the
    /// path; another [`crate::Error`] if no answer comes.
    pub async fn search_files(&self, id: &str, request: &SearchRequest) -> Result<SearchResult> {
        let call = self.request(Method::POST, &sandbox_path(id, "/files/search")?, Patience::Long);
        self.call(self.with_json(call, request)?, Size::List).await
    }

    /// Replaces in the content of files, each of which changes whole or not at all.
    ///
    /// # Errors
    /// As [`Client::search_files`]; `no_space` if the sandbox is full.
    pub async fn replace_in_files(&self, id: &str, request: &ReplaceRequest) -> Result<ReplaceResult> {
        let call = self.request(Method::POST, &sandbox_path(id, "/files/replace")?, Patience::Long);
        self.call(self.with_json(call, request)?, Size::List).await
    }
}
