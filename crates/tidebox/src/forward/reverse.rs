//! `tidebox forward --reverse`: ports of this machine, or of others that it reaches, as ports of a
//! sandbox.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Error, PortListener};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::mapping::Reverse;
use super::relay;
use super::sandbox_end::{ended, gone};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Format, harmless, note, stdout};
use crate::signals::Signals;

/// Pause before the port is listened on again.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait for a connection here: a connection in the sandbox waits fifteen seconds to be taken.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Connections that may be refused at once: as many as the sandbox has.
const REFUSED_MAX: usize = 128;

/// Listens in the sandbox until a signal comes or the sandbox has ended.
pub async fn run(context: &Context, id: &str, mappings: Vec<Reverse>) -> Result {
    let mut signals = Signals::listen()?;
    let id: Arc<str> = id.into();
    let mut serving = JoinSet::new();
    for mapping in mappings {
        let listener = tokio::select! {
            listener = context.client.listen_port(&id, mapping.remote) => listener?,
            exit = signals.next() => return Err(Failure::silent(exit)),
        };
        stdout(line(context.output.format, &mapping, &id).as_bytes())?;
        serving.spawn(serve(context.client.clone(), Arc::clone(&id), mapping, listener));
    }
    tokio::select! {
        exit = signals.next() => Err(Failure::silent(exit)),
        failure = ended(&context.client, &id) => Err(failure),
        Some(Ok(failure)) = serving.join_next() => Err(failure),
    }
}

fn line(format: Format, mapping: &Reverse, id: &str) -> String {
    let Reverse { remote, host, local } = mapping;
    match format {
        Format::Table => {
            let target = if host.contains(':') { format!("[{host}]:{local}") } else { format!("{host}:{local}") };
            format!("port {remote} of {} -> {}\n", harmless(id), harmless(&target))
        }
        Format::Json => {
            let mapping = serde_json::json!({"port": remote, "sandbox_id": id, "host": host, "target_port": local});
            format!("{mapping}\n")
        }
    }
}

/// Passes every connection on, also after the server was restarted. Returns the failure that ends it.
async fn serve(client: Client, id: Arc<str>, mapping: Reverse, mut listener: PortListener) -> Failure {
    loop {
        let error = pass_on(&client, &id, &mapping, &mut listener).await;
        if is_final(&error) {
            return failure(&id, error);
        }
        drop(listener);
        listener = loop {
            sleep(RETRY).await;
            match client.listen_port(&id, mapping.remote).await {
                Ok(listener) => break listener,
                Err(error) if is_final(&error) => return failure(&id, error),
                Err(_) => {}
            }
        };
    }
}

/// Returns whether listening again cannot help: the server is there, and refuses.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Api { .. }) && !error.is_code("unavailable")
}

fn failure(id: &str, error: Error) -> Failure {
    if error.is_code("not_found") { gone(id) } else { error.into() }
}

/// Passes connections on until the listener ends.
async fn pass_on(client: &Client, id: &Arc<str>, mapping: &Reverse, listener: &mut PortListener) -> Error {
    let (refused, mut to_refuse) = mpsc::channel(REFUSED_MAX);
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        tokio::select! {
            number = listener.next() => match number {
                Ok(number) => {
                    let (client, id, mapping, refused) =
                        (client.clone(), Arc::clone(id), mapping.clone(), refused.clone());
                    connections.spawn(async move {
                        if let Err(reason) = connect(&client, &id, &mapping, number).await {
                            note(&harmless(&format!("port {} of {id}: {reason}", mapping.remote)));
                            // The listener has ended otherwise, and has reset it.
                            let _ = refused.send(number).await;
                        }
                    });
                }
                Err(error) => return error,
            },
            Some(number) = to_refuse.recv() => {
                if let Err(error) = listener.refuse(number).await {
                    return error;
                }
            }
        }
    }
}

/// Connects here, and passes the connection on to its end.
async fn connect(client: &Client, id: &str, mapping: &Reverse, number: u64) -> std::result::Result<(), String> {
    let Reverse { remote, host, local } = mapping;
    let stream = match timeout(CONNECT_MAX, TcpStream::connect((host.as_str(), *local))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(format!("{host}:{local} cannot be reached: {error}")),
        Err(_) => return Err(format!("{host}:{local} does not answer")),
    };
    relay::take(client, id, *remote, number, stream).await;
    Ok(())
}
