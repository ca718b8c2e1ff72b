//! `tidebox forward`: ports of a sandbox as ports of this machine, and the other way round.

mod mapping;
mod relay;
mod reverse;
mod sandbox_end;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use client::Client;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::mapping::{Mapping, Reverse};
use self::sandbox_end::ended;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Format, harmless, stdout};
use crate::signals::Signals;

/// Most connections at once of one port; further ones wait.
const CONNECTIONS_MAX: usize = 256;
/// Pause before a connection is accepted again.
const RETRY: Duration = Duration::from_secs(1);

/// Forward local ports to a sandbox, or ports in the sandbox to this machine
#[derive(Debug, Args)]
#[command(
    after_help = "Forwards each connection to a local port to the port in the sandbox, at its loopback or another of\n\
    its addresses. Runs until Ctrl-C, or until the sandbox ends. Port 0 picks a free port and prints it.\n\n\
    With --reverse, as with ssh -R, programs in the sandbox connect to a port there and reach a port of\n\
    this machine, or of another host that this machine can reach.\n\n\
    tidebox forward sb-… 3000\n\
    tidebox forward sb-… 8080:80 0:5432\n\
    tidebox forward --reverse sb-… 5432 8080:3000 9000:db.internal:9000"
)]
pub struct ForwardArgs {
    /// Sandbox ID
    id: String,
    /// Local port, and the port in the sandbox if it differs. With --reverse, the port in the sandbox, and the
    /// target if it is not the same port of this machine: 8080:3000, 8080:HOST:3000
    #[arg(required = true, value_name = "LOCAL[:REMOTE]")]
    ports: Vec<String>,
    /// Local address to listen on; an address other than loopback lets other machines connect
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: IpAddr,
    /// Listen on the loopback of the sandbox, and connect from this machine
    #[arg(long, conflicts_with = "address")]
    reverse: bool,
}

/// Listens until a signal comes or the sandbox has ended.
pub async fn run(context: &Context, args: ForwardArgs) -> Result {
    let ForwardArgs { id, ports, address, reverse } = args;
    if reverse {
        return reverse::run(context, &id, parsed(&ports, Reverse::parse)?).await;
    }
    let ports = parsed(&ports, Mapping::parse)?;
    let mut signals = Signals::listen()?;
    // Refuses before anything listens if there is no such sandbox, or none with ports.
    context.client.ports(&id).await?;
    let id: Arc<str> = id.into();
    let mut listening = JoinSet::new();
    for Mapping { local, remote } in ports {
        let wanted = SocketAddr::new(address, local);
        let listener = async {
            let listener = TcpListener::bind(wanted).await?;
            let address = listener.local_addr()?;
            Ok((listener, address))
        };
        let (listener, bound) =
            listener.await.map_err(|error| Failure::io(format_args!("cannot listen on {wanted}"), &error))?;
        stdout(line(context.output.format, bound, remote, &id).as_bytes())?;
        listening.spawn(listen(context.client.clone(), Arc::clone(&id), remote, listener));
    }
    tokio::select! {
        exit = signals.next() => Err(Failure::silent(exit)),
        failure = ended(&context.client, &id) => Err(failure),
    }
}

/// Parses each mapping.
fn parsed<T>(texts: &[String], parse: impl Fn(&str) -> std::result::Result<T, String>) -> Result<Vec<T>> {
    texts
        .iter()
        .map(|text| parse(text).map_err(|fault| Failure::usage(format!("`{}`: {fault}", harmless(text)))))
        .collect()
}

fn line(format: Format, bound: SocketAddr, port: u16, id: &str) -> String {
    match format {
        Format::Table => format!("{bound} -> port {port} of {}\n", harmless(id)),
        Format::Json => {
            let mapping = serde_json::json!({"address": bound.to_string(), "port": port, "sandbox_id": id});
            format!("{mapping}\n")
        }
    }
}

/// Passes every connection on.
async fn listen(client: Client, id: Arc<str>, port: u16, listener: TcpListener) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let client = client.clone();
                let id = Arc::clone(&id);
                connections.spawn(async move {
                    relay::relay(&client, &id, port, stream).await;
                    drop(permit);
                });
            }
            // This process or machine is out of descriptors; connections that end give some back.
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
}
