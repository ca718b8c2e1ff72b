//! Routing of requests to the parts of the agent.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use guest_protocol::frame::PAYLOAD_BYTES_MAX;
use guest_protocol::{
    AccountOf, Amend, Archive, COMMAND_HEADER, Console, Deadline, FILE_HEADER, Failure, Hello, Manifest, Pack,
    PathOnly, Pid, ReadFile, Replace, Search, Trust, VERSION, VERSION_HEADER, WatchFiles, WriteFile,
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::spawn_local;

use super::body::Answer;
use super::headers::{from_header, to_header, user};
use super::rows::{self, Rows};
use crate::agent::{Agent, FILE_OPERATIONS_MAX};
use crate::exec::background;
use crate::failure::{Result, exhausted, internal, invalid, not_found, not_supported};
use crate::files::as_user::Actor;
use crate::files::long_work::{self, Output};
use crate::memory::Active;
use crate::{exec, files, freezer, ports, restored, users};

/// Maximum size of a JSON request: a pattern, its replacement and as many globs as there may be, each
/// byte written as an escape of JSON.
const REQUEST_BYTES_MAX: usize = 512 * 1024;
/// Path of the first request of a connection, which needs nothing of the box.
const HELLO: &str = "/hello";
/// Number of frames queued between a command's task and its connection.
const QUEUE_FRAMES: usize = 2;

pub(super) async fn answer(agent: &Rc<Agent>, request: Request<Incoming>) -> Response<Answer> {
    let ours = VERSION.to_string();
    if request.headers().get(VERSION_HEADER).is_none_or(|theirs| theirs.as_bytes() != ours.as_bytes()) {
        return other_version(&ours);
    }
    route(agent, request).await.unwrap_or_else(|failure| failed(&failure))
}

async fn route(agent: &Rc<Agent>, request: Request<Incoming>) -> Result<Response<Answer>> {
    let path = request.uri().path().to_owned();
    if path != HELLO {
        agent.settle();
    }
    let user = user(request.headers())?;
    let user = user.as_deref();
    match (request.method(), path.as_str()) {
        (&Method::POST, "/exec") => return run(agent, request).await,
        (&Method::POST, "/exec/control") => {
            let control = body(request).await?;
            agent.commands.control(control)?;
            agent.background.note(control);
            return done();
        }
        (&Method::POST, "/processes") => return json(&agent.background.list()),
        (&Method::POST, "/processes/of-pid") => {
            let Pid { pid } = body(request).await?;
            return json(&agent.background.of_pid(pid));
        }
        (&Method::POST, "/processes/start") => return start_process(agent, request).await,
        (&Method::POST, "/processes/attach") => {
            let attach = from_header(request.headers())?;
            let frames = background::attach(agent, attach, request.into_body())?;
            return Ok(Response::new(Answer::Frames(frames, agent.activity.begin())));
        }
        (&Method::POST, "/processes/input") => {
            let input = from_header(request.headers())?;
            background::input(agent, input, request.into_body()).await?;
            return done();
        }
        (&Method::POST, "/processes/remove") => {
            background::remove(agent, body(request).await?).await?;
            return done();
        }
        (&Method::GET, HELLO) => {
            spawn_local(Rc::clone(agent).settle_next());
            return json(&Hello { protocol: VERSION, version: env!("CARGO_PKG_VERSION").to_owned() });
        }
        (&Method::POST, "/deadline") => {
            let deadline: Deadline = body(request).await?;
            agent.deadline.set(deadline.in_ms).map_err(|error| internal(error.to_string()))?;
            return done();
        }
        (&Method::POST, "/console") => {
            let console: Console = body(request).await?;
            let lines = agent.console.newest(console.lines, agent.budget.share()).await?;
            return rows(lines, agent.activity.begin());
        }
        (&Method::POST, "/ports") => {
            return rows(ports::ports(agent, agent.budget.share()).await?, agent.activity.begin());
        }
        (&Method::POST, "/ports/watch") => {
            let changes = ports::watch(agent, body(request).await?);
            return Ok(Response::new(Answer::Changes(changes)));
        }
        (&Method::POST, "/connect") => {
            let wanted = from_header(request.headers())?;
            let output = ports::connect(agent, wanted, request.into_body()).await?;
            return Ok(Response::new(Answer::Port(output, agent.activity.begin())));
        }
        (&Method::POST, "/listen") => {
            let wanted = body(request).await?;
            let rows = agent.listeners.listen(wanted, agent.boot.network, |ip, port| agent.egress.is_own(ip, port))?;
            return Ok(Response::new(Answer::Incoming(rows)));
        }
        (&Method::POST, "/listen/accept") => {
            let accept = from_header(request.headers())?;
            let output = agent.listeners.accept(accept, request.into_body())?;
            return Ok(Response::new(Answer::Port(output, agent.activity.begin())));
        }
        (&Method::POST, "/listen/refuse") => {
            agent.listeners.refuse(body(request).await?)?;
            return done();
        }
        (&Method::POST, "/egress") => return Ok(Response::new(Answer::Asked(agent.egress.receive()?))),
        (&Method::POST, "/egress/accept") => {
            let accept = from_header(request.headers())?;
            let output = agent.egress.accept(accept, request.into_body()).await?;
            return Ok(Response::new(Answer::Egress(output, agent.activity.begin())));
        }
        (&Method::POST, "/egress/refuse") => {
            agent.egress.refuse(body(request).await?)?;
            return done();
        }
        (&Method::POST, "/trust") => {
            let trust: Trust = body(request).await?;
            agent.trust(&trust.certificate)?;
            return done();
        }
        (&Method::POST, "/freeze") => {
            freezer::freeze(agent).await?;
            return done();
        }
        (&Method::POST, "/thaw") => {
            freezer::thaw(agent)?;
            return done();
        }
        (&Method::POST, "/restored") => {
            restored::renew(agent, &body(request).await?)?;
            return done();
        }
        (&Method::POST, "/files/search") => {
            let wanted: Search = body(request).await?;
            let bytes_max = agent.budget.whole_bytes();
            let work = move |output: &mut Output| files::search::search(&wanted, bytes_max, output);
            return long_work(user, agent, &agent.long_work, work).await;
        }
        (&Method::GET, "/archive") => {
            let wanted: Archive = from_header(request.headers())?;
            let actor = if wanted.is_whole { Actor::own() } else { Actor::of(user, &agent.boot)? };
            return long_work_as(actor, agent, &agent.long_work, move |output| files::pack::pack(&wanted, output))
                .await;
        }
        (&Method::POST, "/files/manifest") => {
            let wanted: Manifest = body(request).await?;
            let work = move |output: &mut Output| files::manifest::manifest(&wanted, output);
            return long_work(user, agent, &agent.long_work, work).await;
        }
        (&Method::POST, "/files/pack") => {
            let wanted: Pack = body(request).await?;
            return long_work(user, agent, &agent.long_work, move |output| files::pack::chosen(&wanted, output)).await;
        }
        (&Method::POST, "/files/amend") => {
            let wanted: Amend = body(request).await?;
            return long_work(user, agent, &agent.long_work, move |output| files::amend::amend(&wanted, output)).await;
        }
        (&Method::PUT, "/archive") => return unpack(user, agent, request).await,
        (&Method::POST, "/files/watch") => {
            let wanted: WatchFiles = body(request).await?;
            let permit = Arc::clone(&agent.watches).try_acquire_owned();
            let permit = permit.map_err(|_| exhausted("the sandbox has the maximum number of file watches"))?;
            let actor = Actor::of(user, &agent.boot)?;
            let pieces = long_work::begin(actor, permit, move |output| files::watch::watch(&wanted, output)).await?;
            return Ok(Response::new(Answer::Watch(pieces)));
        }
        (&Method::POST, "/files/watchers/add") => {
            let actor = Actor::of(user, &agent.boot)?;
            return json(&agent.watchers.add(actor, body(request).await?).await?);
        }
        (&Method::POST, "/files/watchers/take") => {
            return json(&agent.watchers.take(body(request).await?).await?);
        }
        (&Method::POST, "/files/watchers/remove") => {
            agent.watchers.remove(body(request).await?)?;
            return done();
        }
        (&Method::POST, "/account") => {
            let asked: AccountOf = body(request).await?;
            return json(&users::account(asked.user.as_deref(), &agent.boot)?);
        }
        (&Method::POST, "/files/replace") => {
            let wanted: Replace = body(request).await?;
            let bytes_max = agent.budget.whole_bytes();
            return long_work(user, agent, &agent.whole_files, move |output| {
                files::replace::replace(&wanted, bytes_max, output)
            })
            .await;
        }
        _ => {}
    }
    // Most operations are short, so those beyond the limit wait instead of failing.
    let permit = Arc::clone(&agent.file_operations).acquire_owned().await;
    let permit = permit.map_err(|error| internal(error.to_string()))?;
    let actor = Actor::of(user, &agent.boot)?;
    let active = agent.activity.begin();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/file") => {
            let wanted: ReadFile = from_header(request.headers())?;
            let piece_bytes = agent.budget.piece_bytes(FILE_OPERATIONS_MAX, files::read::PIECE_BYTES);
            let (info, content) = actor.at_once(|| files::read::open(&wanted, piece_bytes, permit))?;
            let mut response = Response::new(Answer::File(content, active));
            response.headers_mut().insert(FILE_HEADER, to_header(&info)?);
            Ok(response)
        }
        (&Method::PUT, "/file") => {
            let wanted: WriteFile = from_header(request.headers())?;
            match wanted.in_place {
                true => actor.run(files::in_place::write(&wanted, request.into_body())).await?,
                false => actor.run(files::write::write(&wanted, request.into_body())).await?,
            }
            done()
        }
        (&Method::POST, "/files/delete") => {
            let wanted = body(request).await?;
            actor.run(files::remove::delete(&wanted)).await?;
            done()
        }
        (&Method::POST, "/files/move") => {
            let wanted = body(request).await?;
            actor.run(files::rename::rename(&wanted)).await?;
            done()
        }
        (&Method::POST, "/files/chmod") => {
            let wanted = body(request).await?;
            actor.at_once(|| files::chmod(&wanted))?;
            done()
        }
        (&Method::POST, "/files/make-dir") => {
            let wanted = body(request).await?;
            actor.at_once(|| files::make_dir(&wanted))?;
            done()
        }
        (&Method::POST, "/files/resolve") => {
            let wanted = body(request).await?;
            json(&actor.at_once(|| files::resolve(&wanted))?)
        }
        (&Method::POST, "/files/stat") => {
            let wanted = body(request).await?;
            json(&actor.at_once(|| files::stat(&wanted))?)
        }
        (&Method::POST, "/files/xattrs") => {
            let wanted = body(request).await?;
            json(&actor.at_once(|| files::xattrs::read(&wanted))?)
        }
        (&Method::POST, "/files/list") => {
            let wanted = body(request).await?;
            rows(actor.run(files::list::list(&wanted, agent.budget.share())).await?, active)
        }
        (&Method::POST, "/files/glob") => {
            let wanted = body(request).await?;
            rows(actor.run(files::glob::glob(&wanted, agent.budget.share())).await?, active)
        }
        (method, path) => Err(not_found(format!("the agent has no route {method} {path}"))),
    }
}

async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    Arc::clone(turns).acquire_owned().await.map_err(|error| internal(error.to_string()))
}

/// Begins file work on a thread of its own, after its turn.
async fn long_work(
    user: Option<&str>,
    agent: &Rc<Agent>,
    turns: &Arc<Semaphore>,
    work: impl FnOnce(&mut Output) -> Result<()> + Send + 'static,
) -> Result<Response<Answer>> {
    long_work_as(Actor::of(user, &agent.boot)?, agent, turns, work).await
}

async fn long_work_as(
    actor: Actor,
    agent: &Rc<Agent>,
    turns: &Arc<Semaphore>,
    work: impl FnOnce(&mut Output) -> Result<()> + Send + 'static,
) -> Result<Response<Answer>> {
    let permit = turn(turns).await?;
    let active = agent.activity.begin();
    let pieces = long_work::begin(actor, permit, work).await?;
    Ok(Response::new(Answer::Work(pieces, active)))
}

/// Unpacks the archive in the request's body.
async fn unpack(user: Option<&str>, agent: &Rc<Agent>, request: Request<Incoming>) -> Result<Response<Answer>> {
    let wanted: PathOnly = from_header(request.headers())?;
    let permit = turn(&agent.long_work).await?;
    let actor = Actor::of(user, &agent.boot)?;
    let _active = agent.activity.begin();
    let content = request.into_body();
    let unpacked = long_work::feed(actor, permit, content, move |input| files::unpack::unpack(&wanted, input));
    json(&unpacked.await?)
}

/// Starts a command. The head of the answer is sent once the program is executed, or reports why it
/// is not. Its output and its end are in the frames.
async fn run(agent: &Rc<Agent>, request: Request<Incoming>) -> Result<Response<Answer>> {
    let permit = permit(agent)?;
    let (sender, receiver) = mpsc::channel(QUEUE_FRAMES);
    let (tell_begun, begun) = oneshot::channel();
    let active = agent.activity.begin();
    spawn_local(exec::run(Rc::clone(agent), request.into_body(), sender, tell_begun, permit));
    let number = begun.await.unwrap_or_else(|_| Err(internal("the command was cancelled")))?;
    let mut response = Response::new(Answer::Frames(receiver, active));
    response.headers_mut().insert(COMMAND_HEADER, HeaderValue::from(number));
    Ok(response)
}

/// Starts a background process. It is answered once the program is executed.
async fn start_process(agent: &Rc<Agent>, request: Request<Incoming>) -> Result<Response<Answer>> {
    let permit = permit(agent)?;
    let start = body_of(request, PAYLOAD_BYTES_MAX).await?;
    let (tell_begun, begun) = oneshot::channel();
    spawn_local(background::start(Rc::clone(agent), start, tell_begun, permit));
    json(&begun.await.unwrap_or_else(|_| Err(internal("the process was cancelled")))?)
}

/// Takes the place of a command.
fn permit(agent: &Agent) -> Result<OwnedSemaphorePermit> {
    if agent.boot.holds_slots {
        return Err(not_supported("this box only holds slots: run commands in one of them"));
    }
    let permit = Arc::clone(&agent.execs).try_acquire_owned();
    permit.map_err(|_| exhausted("the sandbox runs the maximum number of commands"))
}

async fn body<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T> {
    body_of(request, REQUEST_BYTES_MAX).await
}

async fn body_of<T: DeserializeOwned>(request: Request<Incoming>, bytes_max: usize) -> Result<T> {
    let body = Limited::new(request.into_body(), bytes_max).collect().await;
    let body = body.map_err(|error| {
        let too_long = error.is::<LengthLimitError>();
        invalid(if too_long {
            format!("the request is larger than {} KiB", bytes_max / 1024)
        } else {
            "the request was cut off".to_owned()
        })
    })?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| invalid(format!("the request is malformed: {error}")))
}

fn json(value: &impl Serialize) -> Result<Response<Answer>> {
    let text = serde_json::to_vec(value).map_err(|error| internal(error.to_string()))?;
    Ok(Response::new(Answer::Whole(Some(Bytes::from(text)))))
}

fn rows(rows: impl Rows, active: Active) -> Result<Response<Answer>> {
    Ok(Response::new(rows::json(rows, active)?.into()))
}

fn done() -> Result<Response<Answer>> {
    Ok(Response::new(Answer::Whole(Some(Bytes::from_static(b"{}")))))
}

fn failed(failure: &Failure) -> Response<Answer> {
    let text = serde_json::to_vec(failure).unwrap_or_default();
    let mut response = Response::new(Answer::Whole(Some(Bytes::from(text))));
    *response.status_mut() = StatusCode::from_u16(failure.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn other_version(ours: &str) -> Response<Answer> {
    let mut response = failed(&invalid(format!("this agent speaks version {ours} of the protocol")));
    *response.status_mut() = StatusCode::HTTP_VERSION_NOT_SUPPORTED;
    if let Ok(ours) = HeaderValue::try_from(ours) {
        response.headers_mut().insert(VERSION_HEADER, ours);
    }
    response
}
