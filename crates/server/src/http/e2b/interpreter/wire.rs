//! Bodies of the code interpreter.

use std::collections::BTreeMap;

use kernels::Language;
use serde::{Deserialize, Serialize};

use crate::control::{ContextId, Error, Resource};
use crate::http::error::{Result, malformed};

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

/// Parses the id of a context.
pub fn context_id(text: &str) -> Result<ContextId> {
    let missing = || Error::NotFound(Resource::Context, text.chars().take(40).collect()).into();
    ContextId::parse(text).ok_or_else(missing)
}

/// Checks the variables of a run.
pub fn env(env: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
    let is_variable =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if !env.iter().all(is_variable) {
        return Err(malformed("`env_vars`: a name must not be empty or contain `=`, and nothing may contain a NUL"));
    }
    Ok(env)
}
