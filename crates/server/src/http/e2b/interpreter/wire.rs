//! Bodies of the code interpreter.

use std::collections::BTreeMap;

use kernels::Language;
use serde::{Deserialize, Serialize};

use crate::control::ContextId;

/// Code to run.
#[derive(Debug, Deserialize)]
pub struct Execute {
    pub code: String,
    pub context_id: Option<String>,
    pub language: Option<String>,
    pub env_vars: Option<BTreeMap<String, String>>,
}

/// A context to make.
#[derive(Debug, Deserialize)]
pub struct ContextRequest {
    pub language: Option<String>,
    pub cwd: Option<String>,
}

/// A context.
#[derive(Debug, Serialize)]
pub struct Context {
    id: String,
    language: &'static str,
    cwd: Option<String>,
}

impl Context {
    pub fn new(id: &ContextId, language: Language, cwd: Option<String>) -> Self {
        Self { id: id.to_string(), language: language.name(), cwd }
    }
}
