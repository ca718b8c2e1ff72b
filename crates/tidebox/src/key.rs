//! `tidebox key`: keys that open the server to one owner alone.

use std::process::ExitCode;

use api::{KeyFormat, KeyScope, OwnerKey, OwnerKeyRequest};
use clap::{Args, Subcommand, ValueEnum};

use crate::context::Context;
use crate::failure::Result;
use crate::output::{Format, harmless, note, table};
use crate::values::or_dash;

/// Manage keys that act as one owner; needs the admin key
#[derive(Debug, Args)]
pub struct KeyArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a key for an owner and print it; it is not shown again
    Create(CreateArgs),
    /// List keys, newest first, without their texts
    #[command(visible_alias = "ls")]
    List {
        /// Show only the keys of this owner
        #[arg(long, value_name = "ID")]
        owner: Option<String>,
    },
    /// Revoke keys; streams that were opened with them end
    #[command(visible_alias = "rm")]
    Revoke {
        /// Key IDs
        #[arg(required = true)]
        ids: Vec<String>,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Owner that requests with the key act as
    #[arg(long, value_name = "ID")]
    owner: String,
    /// Display name
    #[arg(long)]
    name: Option<String>,
    /// Part of the API that the key opens; may be repeated [default: sandboxes:write, snapshots, templates, events]
    #[arg(long, value_enum, value_name = "SCOPE")]
    scope: Vec<Scope>,
    /// Time after which the key expires, such as 30d or 12h; never if omitted
    #[arg(long, value_name = "DURATION")]
    expires: Option<String>,
    /// Form of the key
    #[arg(long, value_enum, default_value_t = Form::Tidebox)]
    format: Form,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    /// `tbx_` and 40 digits
    Tidebox,
    /// `e2b_` and 40 digits, which E2B's clients demand
    E2b,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Scope {
    #[value(name = "sandboxes:read")]
    SandboxesRead,
    #[value(name = "sandboxes:write")]
    SandboxesWrite,
    Snapshots,
    Templates,
    Images,
    Secrets,
    Events,
    Metrics,
}

impl From<Scope> for KeyScope {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::SandboxesRead => KeyScope::SandboxesRead,
            Scope::SandboxesWrite => KeyScope::SandboxesWrite,
            Scope::Snapshots => KeyScope::Snapshots,
            Scope::Templates => KeyScope::Templates,
            Scope::Images => KeyScope::Images,
            Scope::Secrets => KeyScope::Secrets,
            Scope::Events => KeyScope::Events,
            Scope::Metrics => KeyScope::Metrics,
        }
    }
}

pub async fn run(context: &Context, args: KeyArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::Create(args) => {
            let created = client.create_key(&request(args)).await?;
            output.print(&created, |created| harmless(&created.secret))?;
            if output.format == Format::Table {
                let OwnerKey { id, owner_id, .. } = &created.key;
                note(&format!("key {} of {}; it is not shown again", harmless(id), harmless(owner_id)));
            }
        }
        Command::List { owner } => {
            let mut keys = client.keys().await?;
            keys.retain(|key| owner.as_ref().is_none_or(|owner| key.owner_id == *owner));
            output.print(&keys, |keys| listed(keys))?;
        }
        Command::Revoke { ids } => {
            for id in ids {
                output.print(&client.revoke_key(&id).await?, |_| harmless(&id))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn request(args: CreateArgs) -> OwnerKeyRequest {
    let CreateArgs { owner, name, scope, expires, format } = args;
    let scopes: Vec<KeyScope> = scope.into_iter().map(KeyScope::from).collect();
    OwnerKeyRequest {
        owner_id: owner,
        name,
        scopes: (!scopes.is_empty()).then_some(scopes),
        ttl: expires.map(|text| in_hours(&text)),
        format: match format {
            Form::Tidebox => None,
            Form::E2b => Some(KeyFormat::E2b),
        },
    }
}

/// Returns a duration as the server reads it, which knows no days.
fn in_hours(text: &str) -> String {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u32>().ok());
    days.map_or_else(|| text.to_owned(), |days| format!("{}h", u64::from(days) * 24))
}

fn listed(keys: &[OwnerKey]) -> String {
    let rows = keys.iter().map(|key| {
        let state = match (&key.revoked_at, &key.expires_at) {
            (Some(at), _) => format!("revoked {at}"),
            (None, Some(at)) => format!("until {at}"),
            (None, None) => "valid".to_owned(),
        };
        [
            key.id.clone(),
            key.owner_id.clone(),
            or_dash(key.name.as_ref()),
            format!("{}…", key.prefix),
            key.scopes.join(","),
            state,
            or_dash(key.last_used_at.as_ref()),
        ]
    });
    table(&["ID", "OWNER", "NAME", "KEY", "SCOPES", "STATE", "LAST USED"], rows)
}

#[cfg(test)]
mod test {
    use super::in_hours;

    #[test]
    fn days_become_hours_and_the_rest_is_left_to_the_server() {
        for (text, expected) in [("30d", "720h"), ("0d", "0h"), ("12h", "12h"), ("1h30m", "1h30m"), ("xd", "xd")] {
            assert_eq!(in_hours(text), expected);
        }
    }
}
