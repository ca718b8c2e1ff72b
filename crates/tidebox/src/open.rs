//! `tidebox open`: a port of a sandbox in the browser.

use std::io::IsTerminal as _;
use std::process::{Command, ExitCode, Stdio};

use api::PreviewRequest;
use clap::Args;

use crate::context::Context;
use crate::failure::Result;
use crate::output::{harmless, note};

/// Programs that open a URL, by system.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

/// Print the URL of a port and open it in a browser
#[derive(Debug, Args)]
#[command(
    after_help = "The URL contains a token: until it expires, everyone who has the URL can open this port of this\n\
    sandbox. A browser is opened only if the output is a terminal.\n\n\
    tidebox open sb-… 3000\n\
    tidebox open sb-… 3000 --print --ttl 8h"
)]
pub struct OpenArgs {
    /// Sandbox ID
    id: String,
    /// Port in the sandbox
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// Print the URL without opening a browser
    #[arg(long)]
    print: bool,
    /// Lifetime of the URL, such as 8h; 1h if omitted
    #[arg(long)]
    ttl: Option<String>,
    /// Make a URL that needs no cookie, for example for webhooks
    #[arg(long)]
    public: bool,
}

pub async fn run(context: &Context, args: OpenArgs) -> Result {
    let OpenArgs { id, port, print, ttl, public } = args;
    let preview = context.client.preview(&id, &PreviewRequest { port, ttl, public }).await?;
    context.output.print(&preview, |preview| harmless(&preview.url))?;
    if !print && std::io::stdout().is_terminal() && !OPENERS.iter().any(|opener| opens(opener, &preview.url)) {
        note("no browser could be opened; open the URL yourself");
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a program with the URL. The browser outlives this command.
fn opens(opener: &str, url: &str) -> bool {
    let mut command = Command::new(opener);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}
