//! Conversions of contexts and of runs of code.

use kernels::Language;

use super::scalars::{duration, given, span, time};
use crate::control::{
    CodeRequest, Completions, Context, ContextId, ContextState, Deadline, NewContext, Outcome, RunEnd, Stream, Target,
};
use crate::http::error::{ApiError, malformed};
use crate::http::stream::run_lines::Line;

/// Longest directory and user of a context, in characters: its process has to keep them.
const WORKDIR_CHARS_MAX: usize = 512;
const USER_CHARS_MAX: usize = 64;

pub fn language(language: api::CodeLanguage) -> Language {
    match language {
        api::CodeLanguage::Python => Language::Python,
        api::CodeLanguage::JavaScript => Language::JavaScript,
        api::CodeLanguage::TypeScript => Language::TypeScript,
        api::CodeLanguage::Bash => Language::Bash,
        api::CodeLanguage::R => Language::R,
        api::CodeLanguage::Java => Language::Java,
    }
}

pub fn code_language(language: Language) -> api::CodeLanguage {
    match language {
        Language::Python => api::CodeLanguage::Python,
        Language::JavaScript => api::CodeLanguage::JavaScript,
        Language::TypeScript => api::CodeLanguage::TypeScript,
        Language::Bash => api::CodeLanguage::Bash,
        Language::R => api::CodeLanguage::R,
        Language::Java => api::CodeLanguage::Java,
    }
}

/// Converts the options of a context.
pub fn new_context(body: api::ContextRequest) -> Result<NewContext, ApiError> {
    let api::ContextRequest { language: name, workdir, user, env } = body;
    for (field, text, chars_max) in [("workdir", &workdir, WORKDIR_CHARS_MAX), ("user", &user, USER_CHARS_MAX)] {
        if text.as_ref().is_some_and(|text| text.chars().count() > chars_max) {
            return Err(malformed(format!("`{field}` of a context has at most {chars_max} characters")));
        }
    }
    Ok(NewContext { language: language(name), workdir, user: given("user", user)?, env: env.0 })
}

/// Converts a context to the API.
pub fn context(context: Context) -> api::Context {
    let Context { id, options, state, process: process_id, started } = context;
    api::Context {
        id: id.to_string(),
        language: code_language(options.language),
        state: match state {
            ContextState::Idle => api::ContextState::Idle,
            ContextState::Busy => api::ContextState::Busy,
            ContextState::Ended => api::ContextState::Ended,
        },
        workdir: options.workdir,
        user: options.user,
        process_id,
        started_at: time(started),
    }
}

/// Returns the context of a run that names one.
pub fn named_context(context: &str, body: &api::RunRequest) -> Result<Target, ApiError> {
    Ok(Target::Id { id: ContextId::named(context)?, language: body.language.map(language) })
}

/// Returns the context of a run that names none.
pub fn default_context(body: &api::RunRequest) -> Target {
    Target::Default(NewContext::of(language(body.language.unwrap_or_default())))
}

/// Converts a run.
pub fn code(body: api::RunRequest) -> Result<CodeRequest, ApiError> {
    let api::RunRequest { code, language: _, timeout, env } = body;
    let deadline = match timeout {
        Some(text) => Deadline::After(span("timeout", &text)?),
        None => Deadline::Default,
    };
    Ok(CodeRequest { code, env: env.0, deadline })
}

/// Converts code to complete. Returns it with the number of characters before the cursor.
pub fn code_to_complete(body: api::CompleteRequest) -> (String, usize) {
    let api::CompleteRequest { code, cursor } = body;
    let chars = code.chars().count();
    (code, cursor.map_or(chars, |cursor| cursor.min(chars)))
}

/// Converts completions to the API.
pub fn completions(completions: Completions) -> api::Completions {
    let Completions { start, matches } = completions;
    api::Completions { start, matches }
}

/// Converts an event of a run to the API.
pub fn run_line(line: Line) -> api::RunLine {
    match line {
        Line::Started { context, count, is_new } => {
            api::RunLine::Started { context_id: context.to_string(), execution_count: count, state_lost: is_new }
        }
        Line::Output(Stream::Stdout, text) => api::RunLine::Stdout { text },
        Line::Output(Stream::Stderr, text) => api::RunLine::Stderr { text },
        Line::Result { is_main, data } => api::RunLine::Result { main: is_main, data },
        Line::Error { name, value, traceback } => api::RunLine::Error { name, value, traceback },
        Line::Dropped => api::RunLine::Dropped,
        Line::KeepAlive => api::RunLine::KeepAlive,
        Line::End(RunEnd { outcome, restarted, duration: took }) => {
            api::RunLine::End { outcome: run_outcome(outcome), restarted, duration: duration(took) }
        }
    }
}

fn run_outcome(outcome: Outcome) -> api::RunOutcome {
    match outcome {
        Outcome::Done => api::RunOutcome::Ok,
        Outcome::Failed => api::RunOutcome::Error,
        Outcome::Interrupted => api::RunOutcome::Interrupted,
        Outcome::TimedOut => api::RunOutcome::TimedOut,
        Outcome::Died => api::RunOutcome::Died,
    }
}
