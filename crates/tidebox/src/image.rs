//! `tidebox image`: the images that boxes are made of.

pub mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use api::{Image, ImageDetail, PrunedImages, PullProgress};
use clap::{Args, Subcommand};
use client::Client;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Output, harmless, pairs, table};
use crate::values::{labels, or_dash};
use progress::{Shown, bytes};

/// Manage images
#[derive(Debug, Args)]
#[command(after_help = "Images are stored on the server, for the providers native and proot. Image commands\n\
    require the admin key.\n\n\
    tidebox image pull python:3.12\n\
    docker save myapp | tidebox image import -\n\
    tidebox image import rootfs.tar.gz --name mysystem:1")]
pub struct ImageArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Pull an image from its registry
    #[command(after_help = "A name without a registry refers to docker.io. Data that the server already has is not\n\
        downloaded again. If you interrupt this command, the server continues the pull.")]
    Pull {
        /// Image, such as python:3.12 or localhost:5000/app@sha256:…
        name: String,
    },
    /// Import images from an archive
    #[command(
        after_help = "The archive is the output of `docker save`, a tar of an OCI layout, or a tar of a root file\n\
        system; plain, or compressed with gzip or zstd."
    )]
    Import {
        /// Archive file, or - for stdin
        file: PathBuf,
        /// Name for the image; required if the archive contains no name
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
    },
    /// List the images on the server
    #[command(visible_alias = "ls")]
    List,
    /// Show one image
    #[command(visible_alias = "get")]
    Inspect {
        /// Image name or digest
        name: String,
    },
    /// Remove images; a digest removes an image with all its names
    #[command(visible_alias = "rm")]
    Remove {
        /// Image names or digests
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Remove images that no box uses and that no longer have a name
    Prune {
        /// Also remove unused images that have a name
        #[arg(long)]
        all: bool,
    },
}

pub async fn run(context: &Context, args: ImageArgs) -> Result {
    let Context { client, output } = context;
    match args.command {
        Command::Pull { name } => pull(client, *output, &name).await?,
        Command::Import { file, name } => {
            let images = import(client, *output, &file, name.as_deref()).await?;
            output.print(&images, |images| images.iter().flat_map(all_names).collect())?;
        }
        Command::List => output.print(&client.images().await?, |images| listed(images))?,
        Command::Inspect { name } => output.print(&client.image(&name).await?, described)?,
        Command::Remove { names } => {
            for name in names {
                output.print(&client.remove_image(&name).await?, |_| harmless(&name))?;
            }
        }
        Command::Prune { all } => output.print(&client.prune_images(all).await?, removed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Pulls an image and shows the progress on stderr.
async fn pull(client: &Client, output: Output, name: &str) -> Result<()> {
    let mut steps = client.pull_image(name).await?;
    let mut shown = Shown::new(output);
    let image = loop {
        match steps.next().await {
            Ok(Some(PullProgress::Done { image })) => break image,
            Ok(Some(step)) => shown.show(&step),
            Ok(None) => return Err(Failure::new("protocol_error", "the server did not report the result of the pull")),
            Err(error) => {
                shown.clear();
                return Err(error.into());
            }
        }
    };
    shown.clear();
    output.print(&image, |image| harmless(&image.digest))?;
    output.remark(&harmless(&format!(
        "{}: {} to download, {} unpacked",
        called(&image),
        bytes(image.size_bytes),
        bytes(image.unpacked_bytes)
    )));
    Ok(())
}

async fn import(client: &Client, output: Output, file: &std::path::Path, name: Option<&str>) -> Result<Vec<Image>> {
    if file.as_os_str() == "-" {
        if std::io::IsTerminal::is_terminal(&std::io::stdin()) {
            return Err(Failure::usage("stdin is a terminal; pipe the archive in, or name a file"));
        }
        return Ok(client.import_images(name, tokio::io::stdin(), None).await?);
    }
    let opened = tokio::fs::File::open(file).await.map_err(Failure::at(file))?;
    let facts = opened.metadata().await.map_err(Failure::at(file))?;
    if facts.is_dir() {
        let message =
            format!("`{}` is a folder; pack it with `tar c -C DIR . | tidebox image import -`", file.display());
        return Err(Failure::usage(message));
    }
    let size = facts.is_file().then_some(facts.len());
    if let Some(size) = size {
        output.remark(&format!("sending {}", bytes(size)));
    }
    Ok(client.import_images(name, opened, size).await?)
}

/// Returns the first name, or the digest of an image without a name.
fn called(image: &Image) -> String {
    harmless(image.names.first().unwrap_or(&image.digest))
}

/// Returns a line for each name that the image has now; it may have had others before.
fn all_names(image: &Image) -> Vec<String> {
    let names = if image.names.is_empty() { std::slice::from_ref(&image.digest) } else { &image.names };
    names.iter().map(|name| format!("{}\n", harmless(name))).collect()
}

/// Formats a table with a row for each name.
fn listed(images: &[Image]) -> String {
    let header = ["NAME", "DIGEST", "SIZE", "UNPACKED", "PLATFORM", "BOXES", "LAST USED"];
    let rows = images.iter().flat_map(|image| {
        let names = if image.names.is_empty() { vec!["-".to_owned()] } else { image.names.clone() };
        names.into_iter().map(|name| {
            [
                name,
                short(&image.digest),
                bytes(image.size_bytes),
                bytes(image.unpacked_bytes),
                image.platform.clone(),
                image.in_use.to_string(),
                or_dash(image.last_used_at.as_ref()),
            ]
        })
    });
    table(&header, rows)
}

/// Returns the first 12 hex digits of a digest, which tell images apart on one server.
fn short(digest: &str) -> String {
    digest.strip_prefix("sha256:").unwrap_or(digest).chars().take(12).collect()
}

fn described(detail: &ImageDetail) -> String {
    let image = &detail.image;
    let entrypoint: Vec<_> = detail.entrypoint.iter().map(|word| format!("{word:?}")).collect();
    let mut lines: Vec<_> = image.names.iter().map(|name| ("name", name.clone())).collect();
    lines.extend([
        ("digest", image.digest.clone()),
        ("config", detail.config_digest.clone()),
        ("platform", image.platform.clone()),
        ("size", bytes(image.size_bytes)),
        ("unpacked", bytes(image.unpacked_bytes)),
        ("boxes", image.in_use.to_string()),
        ("created", or_dash(image.created_at.as_ref())),
        ("last used", or_dash(image.last_used_at.as_ref())),
        ("user", or_dash(detail.user.as_ref())),
        ("workdir", or_dash(detail.workdir.as_ref())),
        ("entry point", if entrypoint.is_empty() { "-".to_owned() } else { entrypoint.join(" ") }),
    ]);
    lines.extend(detail.env.0.iter().map(|(name, value)| ("env", format!("{name}={value}"))));
    lines.push(("labels", labels(&detail.labels)));
    let layers = detail.layers.iter();
    lines.extend(layers.map(|layer| ("layer", format!("{} {}", layer.digest, bytes(layer.size_bytes)))));
    pairs(lines)
}

fn removed(pruned: &PrunedImages) -> String {
    let mut text: String = pruned.removed.iter().map(|digest| format!("{}\n", harmless(digest))).collect();
    text += &format!("{} freed", bytes(pruned.freed_bytes));
    text
}
