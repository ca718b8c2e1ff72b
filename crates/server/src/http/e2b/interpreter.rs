//! The code interpreter of a sandbox, which E2B's packages find on port 49999: runs of code, on top of contexts.

mod lines;
mod wire;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use kernels::{Language, UnknownLanguage};
use providers::STREAM_BYTES_MAX;

use self::lines::Lines;
use self::wire::{Context, ContextRequest, Execute};
use super::in_box::InBox;
use super::user::actor;
use crate::control::{CodeRequest, ContextId, Deadline, Error, NewContext, Resource, Target};
use crate::http::error::{ApiError, Result, malformed};
use crate::http::request::{Json as Body, Name};
use crate::http::request_memory::{LIST_BYTES, Meter, WAIT_MAX};
use crate::http::state::Api;
use crate::http::stream::flow_control::{OUTFLOW_BYTES, Outflow};
use crate::http::stream::run_lines;

/// User of E2B's kernels.
const ROOT: &str = "root";
/// Languages whose default contexts are listed before they are made.
const LISTED: [Language; 2] = [Language::Python, Language::JavaScript];

/// Tells that the interpreter can be used.
pub async fn health(_: InBox) -> StatusCode {
    StatusCode::OK
}

/// Runs code. The answer has a line for each event.
pub async fn execute(
    State(api): State<Api>,
    InBox(id): InBox,
    meter: Meter,
    Body(body): Body<Execute>,
) -> Result<Response> {
    let Execute { code, context_id, language, env_vars } = body;
    let (context, language) = match (context_id, language) {
        (Some(_), Some(_)) => return Err(malformed("only one of `context_id` and `language` can be given")),
        (Some(context), None) => (ContextId::named(&context)?, None),
        (None, name) => {
            let language = parsed(name.as_deref())?;
            (ContextId::default_of(language), Some(language))
        }
    };
    // Clients hang up when their own time is over.
    let request = CodeRequest { code, env: env_vars.unwrap_or_default(), deadline: Deadline::Longest };
    let held = meter.account().reserve_within(STREAM_BYTES_MAX + OUTFLOW_BYTES, WAIT_MAX).await?;
    let run = async |target| api.control.run_code(&id, target, request.clone(), meter.account().clone()).await;
    let run = match (run(Target::Id { id: context, language: None }).await, language) {
        // The first run of the language. Who its user is has to be asked for, which later runs need not wait for.
        (Err(Error::NotFound(Resource::Context, _)), Some(language)) => {
            run(Target::Default(new_context(&api, &id, language, None).await?)).await?
        }
        (run, _) => run?,
    };
    Ok(run_lines::response(run, Lines::new(&api.control), Outflow::new(held, STREAM_BYTES_MAX)))
}

/// Makes a context.
pub async fn create(
    State(api): State<Api>,
    InBox(id): InBox,
    Body(body): Body<ContextRequest>,
) -> Result<Json<Context>> {
    let options = new_context(&api, &id, parsed(body.language.as_deref())?, body.cwd).await?;
    let cwd = options.workdir.clone();
    let context = api.control.create_context(&id, options).await?;
    Ok(Json(Context::new(&context.id, context.options.language, cwd)))
}

/// Lists the contexts, in the order of their making.
pub async fn list(State(api): State<Api>, InBox(id): InBox, meter: Meter) -> Result<Json<Vec<Context>>> {
    meter.hold(LIST_BYTES).await?;
    let found = api.control.contexts(&id).await?;
    let home = actor(&api.control, &id, None).await?.home;
    let is_made = |id: &ContextId| found.iter().any(|context| context.id == *id);
    let not_made = LISTED.into_iter().filter(|language| !is_made(&ContextId::default_of(*language)));
    let expected =
        not_made.map(|language| Context::new(&ContextId::default_of(language), language, Some(home.clone())));
    let made = found.iter().map(|context| {
        let cwd = context.options.workdir.clone().unwrap_or_else(|| home.clone());
        Context::new(&context.id, context.options.language, Some(cwd))
    });
    Ok(Json(expected.chain(made).collect()))
}

/// Ends and forgets a context.
pub async fn delete(State(api): State<Api>, InBox(id): InBox, Name(context): Name) -> Result<Json<()>> {
    api.control.delete_context(&id, &ContextId::named(&context)?).await?;
    Ok(Json(()))
}

/// Starts the interpreter of a context anew.
pub async fn restart(State(api): State<Api>, InBox(id): InBox, Name(context): Name) -> Result<Json<()>> {
    api.control.restart_context(&id, &ContextId::named(&context)?).await?;
    Ok(Json(()))
}

/// Parses the name of a language; without one it is Python.
fn parsed(name: Option<&str>) -> Result<Language> {
    let Some(name) = name else { return Ok(Language::Python) };
    name.parse().map_err(|error: UnknownLanguage| malformed(error.to_string()))
}

/// Returns the options of a context: as E2B's, it runs as root if the sandbox has one, in the home of its user.
async fn new_context(api: &Api, id: &str, language: Language, cwd: Option<String>) -> Result<NewContext> {
    let user = actor(&api.control, id, Some(ROOT)).await.ok().and_then(|root| root.user);
    let workdir = match cwd {
        Some(cwd) => Some(cwd),
        None => Some(actor(&api.control, id, None).await?.home),
    };
    Ok(NewContext { workdir, user, ..NewContext::of(language) })
}

/// Renders an error as text, which is what the packages read, but for the errors whose words they look for.
pub fn render(error: &ApiError, response: &mut Response) {
    if super::error::has_words(error) {
        return super::error::render(error, response);
    }
    *response.body_mut() = error.message().into();
}
