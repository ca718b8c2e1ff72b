//! `tidebox secret`: values that the server sends to hosts in the place of sandboxes.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use api::{Secret, SecretRequest};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{harmless, pairs, table};
use crate::values::or_dash;

/// Largest value that is read, in bytes; the server takes less.
const VALUE_BYTES_MAX: u64 = 64 * 1024;

/// Manage secrets that the server sends to hosts on behalf of boxes, or passes to commands
#[derive(Debug, Args)]
pub struct SecretArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List secrets, without their values
    #[command(visible_alias = "ls")]
    List,
    /// Show one secret, without its value
    #[command(visible_alias = "inspect")]
    Get {
        /// Secret name
        name: String,
    },
    /// Save a secret with a value read from stdin; replaces a secret with the same name
    Set(SetArgs),
    /// Delete a secret; later requests are sent without it
    #[command(visible_alias = "rm")]
    Delete {
        /// Secret name
        name: String,
    },
}

#[derive(Debug, Args)]
struct SetArgs {
    /// Secret name
    name: String,
    /// Host that receives the secret over HTTPS, such as api.example.com or *.example.net:8443; may be repeated.
    /// Without a host, the secret is for commands: exec --env-secret
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// Header that carries the secret [default: authorization]
    #[arg(long, value_name = "NAME", requires = "host")]
    header: Option<String>,
    /// Form of the header value: plain, bearer, or basic:USER [default: bearer for authorization, else plain]
    #[arg(long, value_name = "FORM", requires = "host")]
    form: Option<String>,
    /// Owner whose boxes may use the secret; may be repeated; all owners if omitted
    #[arg(long, value_name = "ID")]
    owner: Vec<String>,
    /// Read the value from this file instead of stdin
    #[arg(long, value_name = "FILE")]
    value_file: Option<PathBuf>,
}

pub async fn run(context: &Context, args: SecretArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::List => output.print(&client.secrets().await?, |secrets| listed(secrets))?,
        Command::Get { name } => output.print(&client.secret(&name).await?, described)?,
        Command::Set(SetArgs { name, host: hosts, header, form, owner: owners, value_file }) => {
            let value = value(value_file)?;
            let request = SecretRequest { value, hosts, header, form, owners };
            output.print(&client.save_secret(&name, &request).await?, described)?;
        }
        Command::Delete { name } => {
            output.print(&client.delete_secret(&name).await?, |_| harmless(&name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads the value, without the line break at its end.
fn value(file: Option<PathBuf>) -> Result<String> {
    let mut text = String::new();
    let read = match &file {
        Some(path) => File::open(path).and_then(|file| file.take(VALUE_BYTES_MAX).read_to_string(&mut text)),
        None if std::io::stdin().is_terminal() => {
            return Err(Failure::usage(
                "pass the value on stdin or in a file: tidebox secret set … < FILE, or --value-file FILE",
            ));
        }
        None => std::io::stdin().take(VALUE_BYTES_MAX).read_to_string(&mut text),
    };
    read.map_err(|error| Failure::io("the value cannot be read", &error))?;
    let end = text.trim_end_matches(['\r', '\n']).len();
    text.truncate(end);
    Ok(text)
}

fn listed(secrets: &[Secret]) -> String {
    let rows = secrets.iter().map(|secret| {
        let Secret { name, header, form, updated_at, .. } = secret;
        [
            name.clone(),
            hosts(secret),
            or_dash(header.as_ref()),
            or_dash(form.as_ref()),
            owners(secret),
            updated_at.clone(),
        ]
    });
    table(&["NAME", "HOSTS", "HEADER", "FORM", "OWNERS", "UPDATED"], rows)
}

fn described(secret: &Secret) -> String {
    pairs([
        ("name", secret.name.clone()),
        ("hosts", hosts(secret)),
        ("header", or_dash(secret.header.as_ref())),
        ("form", or_dash(secret.form.as_ref())),
        ("owners", owners(secret)),
        ("created", secret.created_at.clone()),
        ("updated", secret.updated_at.clone()),
    ])
}

fn hosts(secret: &Secret) -> String {
    if secret.hosts.is_empty() { "none: for commands".to_owned() } else { secret.hosts.join(", ") }
}

fn owners(secret: &Secret) -> String {
    if secret.owners.is_empty() { "all".to_owned() } else { secret.owners.join(", ") }
}
