//! Builds of templates, their files, and tags.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use domain::{OwnerId, SizeOptions};
use futures_util::StreamExt;
use providers::ByteStream;
use serde::Deserialize;
use serde_json::{Value, json};

use super::network::Network;
use super::query::Query;
use super::{templates, upload_link, wire};
use crate::control::{
    Build, BuildState, Error, LogEntry, LogLevel, NewBuild, Recipe, Step, Template, TemplateRef, tag_of,
};
use crate::http::caller::{Caller, Owner};
use crate::http::e2b::in_box::USER;
use crate::http::error::{Result, malformed};
use crate::http::middleware::audit::Subject;
use crate::http::middleware::users::Viewer;
use crate::http::peer::Peer;
use crate::http::request::{Json as Body, Name, Names};
use crate::http::request_memory::Meter;
use crate::http::state::Api;
use crate::http::stream::codec::{self, Bound, CODEC_BYTES, Encoding};

/// Log entries of one answer, and the most.
const ENTRIES: u64 = 100;
/// First bytes of a gzip stream. <https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1>
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// A request for a build.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTemplate {
    /// Name, which earlier SDKs call the alias.
    #[serde(alias = "alias")]
    name: String,
    tags: Option<Vec<String>>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory_mb: Option<u32>,
}

/// Steps of a build.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Start {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Value>,
    #[serde(default)]
    steps: Vec<Instruction>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Instruction {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    files_hash: Option<String>,
}

/// Tags for a template.
#[derive(Debug, Deserialize)]
pub struct Tagging {
    target: String,
    tags: Vec<String>,
}

/// Tags to take from a template.
#[derive(Debug, Deserialize)]
pub struct Untagging {
    name: String,
    tags: Vec<String>,
}

/// Registers a build.
pub async fn request(
    State(api): State<Api>,
    Owner(owner): Owner,
    Body(body): Body<NewTemplate>,
) -> Result<(Extension<Subject>, (StatusCode, Json<Value>))> {
    let template = TemplateRef::parse(&body.name)?;
    let size = SizeOptions { vcpus: body.cpu_count, memory_mb: body.memory_mb, ..SizeOptions::default() };
    let tags = body.tags.unwrap_or_default();
    let build = api.control.new_build(NewBuild { template, tags, owner, size })?;
    let NewBuild { template, tags, .. } = &build.new;
    let answer = json!({
        "templateID": template.name,
        "buildID": build.id.as_str(),
        "public": false,
        "names": [template.name],
        "aliases": [template.name],
        "tags": tags,
    });
    Ok((Extension(Subject(template.name.clone())), (StatusCode::ACCEPTED, Json(answer))))
}

/// Tells whether files were uploaded, and how to.
pub async fn files(
    State(api): State<Api>,
    Owner(owner): Owner,
    Extension(peer): Extension<Peer>,
    Names((template, digest)): Names<(String, String)>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Value>)> {
    TemplateRef::parse(&template)?;
    if digest.len() != 64 || !digest.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed("the hash of files must be 64 hexadecimal digits"));
    }
    let is_present = api.control.archives().get(owner.as_ref(), &digest).is_some();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.ok_or_else(|| malformed("the request has no `Host`"))?;
    let scheme = if peer.is_secure { "https" } else { "http" };
    let query = upload_link::sign(&api, &digest, owner.as_ref());
    let url = format!("{scheme}://{host}/templates/{template}/files/{digest}?{query}");
    Ok((StatusCode::CREATED, Json(json!({"present": is_present, "url": url}))))
}

/// Stores files for a build, which come as a tar, also compressed by gzip.
pub async fn upload(
    State(api): State<Api>,
    Owner(owner): Owner,
    Names((_, digest)): Names<(String, String)>,
    meter: Meter,
    request: Request,
) -> Result<StatusCode> {
    let max = api.settings.file_bytes_max;
    meter.hold(CODEC_BYTES).await?;
    let upload = crate::http::body::Upload::begin(request.into_body(), max, &meter).await?;
    upload.check_announced().await?;
    let bound = Bound::new(max);
    let (encoding, bytes) = sniffed(upload.bytes(providers::Error::Invalid)).await;
    let tar = codec::decoded(bytes, encoding, &bound);
    match api.control.archives().put(owner.as_ref(), &digest, tar).await {
        Ok(()) => Ok(StatusCode::OK),
        Err(_) if bound.is_exceeded() => {
            let text = "the unpacked files are larger than `limits.max_file_bytes`; copy them in several steps";
            Err(Error::TooLarge(text.to_owned()).into())
        }
        Err(error) => Err(upload.refuse(Some(error.into())).await),
    }
}

/// Returns the encoding of a stream by its first bytes: SDKs do not say it.
async fn sniffed(mut bytes: ByteStream) -> (Encoding, ByteStream) {
    let first = bytes.next().await;
    let is_gzip = matches!(&first, Some(Ok(piece)) if piece.starts_with(&GZIP));
    let encoding = if is_gzip { Encoding::Gzip } else { Encoding::Identity };
    (encoding, futures_util::stream::iter(first).chain(bytes).boxed())
}

/// Begins a build.
pub async fn start(
    State(api): State<Api>,
    caller: Caller,
    Viewer(Owner(viewer)): Viewer,
    Names((_, id)): Names<(String, String)>,
    meter: Meter,
    Body(body): Body<Start>,
) -> Result<StatusCode> {
    let owner = caller.owner()?.cloned();
    let build = api.control.build(&id, owner.as_ref())?;
    if body.from_image_registry.as_ref().is_some_and(|registry| !registry.is_null()) {
        return Err(malformed(
            "`fromImageRegistry` is not supported: the operator sets the logins of registries in `images.registries`; \
             leave it out",
        ));
    }
    let mut base = match (body.from_image, body.from_template) {
        (Some(image), None) => templates::spawn_of_image(&api, &image, owner.as_ref(), viewer.as_ref()).await?,
        (None, Some(template)) => templates::spawn_of(&api, &template, owner.as_ref(), viewer.as_ref()).await?,
        _ => return Err(malformed("name either `fromImage` or `fromTemplate`")),
    };
    base.options.egress = Some(Network::default().policy(None)?);
    base.owner = owner;
    base.only_own = caller.restricted_to().is_some();
    base.asker = Some(meter.account().asker());
    let recipe = Recipe {
        base,
        user: USER.to_owned(),
        steps: body.steps.into_iter().map(step).collect::<Result<_>>()?,
        start: body.start_cmd.filter(|line| !line.is_empty()),
        ready: body.ready_cmd.filter(|line| !line.is_empty()),
    };
    api.control.begin_build(&build, recipe)?;
    Ok(StatusCode::ACCEPTED)
}

fn step(Instruction { kind, args, files_hash }: Instruction) -> Result<Step> {
    let mut args = args.into_iter();
    let mut next = || args.next().filter(|arg| !arg.is_empty());
    let lacks = |what: &str| malformed(format!("the step `{kind}` lacks its {what}"));
    Ok(match kind.as_str() {
        "RUN" => Step::Run { line: next().ok_or_else(|| lacks("command"))?, user: next() },
        "COPY" => {
            let source = next().ok_or_else(|| lacks("source"))?;
            let target = next().ok_or_else(|| lacks("target"))?;
            let archive = files_hash.ok_or_else(|| lacks("`filesHash`"))?;
            Step::Copy { archive, source, target, owner: next_or_none(&mut args), mode: next_or_none(&mut args) }
        }
        "ENV" => {
            let words: Vec<String> = args.collect();
            let pairs = words.chunks(2).map(|pair| match pair {
                [name, value] if is_variable(name) => Ok((name.clone(), value.clone())),
                [name, _] => Err(malformed(format!("`{name}` cannot be the name of an environment variable"))),
                _ => Err(malformed("the step `ENV` needs a value for each name")),
            });
            Step::Env(pairs.collect::<Result<_>>()?)
        }
        "WORKDIR" => Step::Workdir(next().ok_or_else(|| lacks("path"))?),
        "USER" => {
            let name = next().ok_or_else(|| lacks("name"))?;
            if !is_user(&name) {
                return Err(malformed(format!("`{name}` cannot be the name of a user")));
            }
            Step::User(name)
        }
        _ => {
            let known = "`RUN`, `COPY`, `ENV`, `WORKDIR` or `USER`";
            return Err(malformed(format!("the type of a step must be {known}, and not `{kind}`")));
        }
    })
}

/// Returns an optional argument, which may be empty.
fn next_or_none(args: &mut impl Iterator<Item = String>) -> Option<String> {
    args.next().filter(|arg| !arg.is_empty())
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// Returns whether a text can be the name of a user, also in a line of `/etc/passwd`.
fn is_user(name: &str) -> bool {
    let mut bytes = name.bytes();
    let begins = bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    begins && name.len() <= 32 && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'))
}

/// Tells how a build goes on.
pub async fn status(
    State(api): State<Api>,
    Owner(owner): Owner,
    Names((template, id)): Names<(String, String)>,
    query: Query,
) -> Result<Json<Value>> {
    let build = api.control.build(&id, owner.as_ref())?;
    let offset = query.number("logsOffset", (0, u64::from(u32::MAX)))?.unwrap_or(0);
    let limit = query.number("limit", (0, ENTRIES))?.unwrap_or(ENTRIES);
    Ok(Json(described(&build, &template, offset as usize, limit as usize)))
}

fn described(build: &Build, template: &str, offset: usize, limit: usize) -> Value {
    let status = build.status(offset, limit);
    let mut answer = json!({
        "templateID": template,
        "buildID": build.id.as_str(),
        "status": match &status.state {
            BuildState::Waiting => "waiting",
            BuildState::Building => "building",
            BuildState::Ready => "ready",
            BuildState::Failed(_) => "error",
        },
        "logs": [],
        "logEntries": status.entries.iter().map(entry).collect::<Vec<_>>(),
    });
    if let BuildState::Failed(failure) = &status.state {
        answer["reason"] = json!({"message": failure.message, "step": failure.part.to_string(), "logEntries": []});
    }
    answer
}

fn entry(entry: &LogEntry) -> Value {
    let level = match entry.level {
        LogLevel::Debug => "debug",
        LogLevel::Info => "info",
        LogLevel::Error => "error",
    };
    json!({"timestamp": wire::time(entry.at), "message": entry.message, "level": level})
}

/// Gives tags to a template.
pub async fn tag(
    State(api): State<Api>,
    Owner(owner): Owner,
    Body(Tagging { target, tags }): Body<Tagging>,
) -> Result<(Extension<Subject>, (StatusCode, Json<Value>))> {
    let name = TemplateRef::parse(&target)?;
    let template = api.control.tag_template(owner.as_ref(), &name, &tags).await?;
    let answer = json!({"tags": tags, "buildID": build_id(&template)});
    Ok((Extension(Subject(target)), (StatusCode::CREATED, Json(answer))))
}

/// Takes tags from a template.
pub async fn untag(
    State(api): State<Api>,
    Owner(owner): Owner,
    Body(Untagging { name, tags }): Body<Untagging>,
) -> Result<(Extension<Subject>, StatusCode)> {
    let template = TemplateRef::parse(&name)?;
    api.control.untag_template(owner.as_ref(), &template, &tags).await?;
    Ok((Extension(Subject(name)), StatusCode::NO_CONTENT))
}

/// Lists the tags of a template.
pub async fn tags(State(api): State<Api>, Owner(owner): Owner, Name(name): Name) -> Result<Response> {
    let template = TemplateRef::parse(&name)?;
    let found = api.control.built_templates(owner.as_ref(), &template).await?;
    let tags = found.iter().map(|template| {
        let created_at = wire::time(template.created_at);
        json!({"tag": tag_of(template), "buildID": build_id(template), "createdAt": created_at})
    });
    Ok(Json(tags.collect::<Vec<_>>()).into_response())
}

fn build_id(template: &Template) -> Option<&str> {
    template.built.as_ref().map(|built| built.build.as_str())
}

/// Removes the template of a name that a build made; false if there is none.
///
/// # Errors
/// If the store fails.
pub async fn delete(api: &Api, name: &str, owner: Option<&OwnerId>) -> Result<bool> {
    let Ok(template) = TemplateRef::parse(name) else { return Ok(false) };
    match api.control.delete_built_template(owner, &template).await {
        Ok(()) => Ok(true),
        Err(Error::NotFound(..)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn read(kind: &str, args: &[&str], hash: Option<&str>) -> Result<Step, String> {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        step(Instruction { kind: kind.to_owned(), args, files_hash: hash.map(str::to_owned) })
            .map_err(|error| error.message())
    }

    #[test]
    fn steps_are_read_with_what_they_may_leave_out() {
        let text = str::to_owned;
        for (kind, args, expected) in [
            ("RUN", &["make", ""][..], Step::Run { line: text("make"), user: None }),
            ("RUN", &["make", "root"], Step::Run { line: text("make"), user: Some(text("root")) }),
            ("ENV", &["A", "b", "C", ""], Step::Env(vec![(text("A"), text("b")), (text("C"), String::new())])),
            ("WORKDIR", &["/app"], Step::Workdir(text("/app"))),
            ("USER", &["ann"], Step::User(text("ann"))),
        ] {
            assert_eq!(read(kind, args, None), Ok(expected), "{kind}");
        }
        let copy = |owner: Option<&str>, mode: Option<&str>| Step::Copy {
            archive: text("h"),
            source: text("a"),
            target: text("/b/"),
            owner: owner.map(str::to_owned),
            mode: mode.map(str::to_owned),
        };
        assert_eq!(read("COPY", &["a", "/b/"], Some("h")), Ok(copy(None, None)));
        assert_eq!(read("COPY", &["a", "/b/", "", "0644"], Some("h")), Ok(copy(None, Some("0644"))));
        assert_eq!(read("COPY", &["a", "/b/", "root", ""], Some("h")), Ok(copy(Some("root"), None)));
    }

    #[test]
    fn a_step_that_cannot_be_is_refused_by_what_it_lacks() {
        for (kind, args, word) in [
            ("RUN", &[][..], "command"),
            ("COPY", &["a"], "target"),
            ("COPY", &["a", "b"], "filesHash"),
            ("ENV", &["A"], "value"),
            ("ENV", &["A=", "b"], "A="),
            ("WORKDIR", &[""], "path"),
            ("USER", &["a:b"], "a:b"),
            ("USER", &["-rf"], "-rf"),
            ("EXPOSE", &["80"], "EXPOSE"),
        ] {
            assert!(read(kind, args, None).unwrap_err().contains(word), "{kind} {args:?}");
        }
    }
}
