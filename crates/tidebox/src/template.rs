//! `tidebox template`: named spawn requests.

use std::process::ExitCode;

use api::{Template, TemplateRequest, TemplateSpawnRequest};
use clap::{Args, Subcommand};

use crate::context::Context;
use crate::egress;
use crate::failure::Result;
use crate::output::{harmless, pairs, table};
use crate::spawn;
use crate::values::{SpawnOptions, labels, or_dash};

/// Manage spawn templates
#[derive(Debug, Args)]
pub struct TemplateArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Show one template
    #[command(visible_alias = "inspect")]
    Get {
        /// Template name
        name: String,
    },
    /// Create a template
    Create(Named),
    /// Replace all values of a template; omitted values are cleared
    Update(Named),
    /// Remove a template; boxes made from it remain
    #[command(visible_alias = "rm")]
    Delete {
        /// Template name
        name: String,
    },
    /// Create a sandbox from a template and print its ID; values given here take precedence
    Spawn {
        #[command(flatten)]
        named: Named,
        /// Owner that the box is charged to; --user-id takes precedence
        #[arg(long, value_name = "ID")]
        owner: Option<String>,
    },
}

#[derive(Debug, Args)]
struct Named {
    /// Template name
    name: String,
    /// Image to start from
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    #[command(flatten)]
    options: SpawnOptions,
}

impl Named {
    /// Splits the arguments into the template's name and the options.
    fn split(self) -> Result<(String, api::SpawnOptions)> {
        Ok((self.name, self.options.with_image(self.image)?))
    }
}

pub async fn run(context: &Context, args: TemplateArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::List => output.print(&client.templates().await?, |templates| listed(templates))?,
        Command::Get { name } => output.print(&client.template(&name).await?, described)?,
        Command::Create(named) => {
            let (name, options) = named.split()?;
            let request = TemplateRequest { name, ..options.into() };
            output.print(&client.create_template(&request).await?, described)?;
        }
        Command::Update(named) => {
            let (name, options) = named.split()?;
            output.print(&client.update_template(&name, &options).await?, described)?;
        }
        Command::Delete { name } => {
            output.print(&client.delete_template(&name).await?, |_| harmless(&name))?;
        }
        Command::Spawn { named, owner: owner_id } => {
            let (name, options) = named.split()?;
            let request = TemplateSpawnRequest { owner_id, ..options.into() };
            spawn::report(context, &client.spawn_template(&name, &request).await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(templates: &[Template]) -> String {
    let header = ["NAME", "IMAGE", "PROVIDER", "MIB", "VCPUS", "TTL", "METADATA"];
    table(
        &header,
        templates.iter().map(|template| {
            [
                template.name.clone(),
                or_dash(template.image.as_ref()),
                or_dash(template.provider.as_ref()),
                or_dash(template.memory_mb.as_ref()),
                or_dash(template.vcpus.as_ref()),
                or_dash(template.ttl.as_ref()),
                labels(&template.metadata),
            ]
        }),
    )
}

fn described(template: &Template) -> String {
    pairs([
        ("name", template.name.clone()),
        ("image", or_dash(template.image.as_ref())),
        ("provider", or_dash(template.provider.as_ref())),
        ("memory", or_dash(template.memory_mb.map(|memory_mb| format!("{memory_mb} MiB")).as_ref())),
        ("vcpus", or_dash(template.vcpus.as_ref())),
        ("disk", or_dash(template.disk_mb.map(|disk_mb| format!("{disk_mb} MiB")).as_ref())),
        ("processes", or_dash(template.pids.as_ref())),
        ("entry point", or_dash(template.entrypoint.as_ref())),
        ("ttl", or_dash(template.ttl.as_ref())),
        ("metadata", labels(&template.metadata)),
        ("egress", or_dash(template.egress.as_ref().map(egress::in_words).as_ref())),
        ("created", template.created_at.clone()),
        ("updated", template.updated_at.clone()),
    ])
}
