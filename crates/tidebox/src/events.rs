//! `tidebox events`: the events of a server, one line each.

use std::process::ExitCode;
use std::time::Duration;

use api::Event;
use clap::Args;
use client::{EventQuery, EventStream};

use crate::context::Context;
use crate::failure::Result;
use crate::output::{Format, harmless, stdout};

/// The pause before the client reconnects a stream that was cut; doubles up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(500);
/// The longest pause before a reconnection.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Print events, one per line
#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Show only events of this type, such as sandbox.running; separate several by commas or repeat the option
    #[arg(long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Show only events of this sandbox
    #[arg(long, value_name = "ID")]
    sandbox: Option<String>,
    /// Start after the event with this number; if omitted, print all events that the server keeps
    #[arg(long, value_name = "N")]
    after: Option<u64>,
    /// Follow new events; reconnect if the connection breaks or the server restarts
    #[arg(short, long)]
    follow: bool,
}

pub async fn run(context: &Context, args: EventsArgs) -> Result {
    let mut asked = EventQuery {
        types: args.types,
        sandbox_id: args.sandbox,
        after: Some(args.after.unwrap_or(0)),
        only_kept: !args.follow,
    };
    // Without --after all that is kept is asked for, so a gap before it is expected.
    let mut hides_gap = args.after.is_none();
    let mut pause = RETRY_MIN;
    let mut stream = context.client.events(&asked).await?;
    loop {
        let why = match print(context, &mut stream, &mut hides_gap, &mut pause).await? {
            None if !args.follow => return Ok(ExitCode::SUCCESS),
            None => "the server ended the stream".to_owned(),
            Some(error) if args.follow && is_passing(&error) => error.to_string(),
            Some(error) => return Err(error.into()),
        };
        context.output.remark(&format!("{why}; resuming after event {}", stream.last_id().unwrap_or(0)));
        asked.after = stream.last_id();
        stream = loop {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
            match context.client.events(&asked).await {
                Ok(stream) => break stream,
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error.into()),
            }
        };
    }
}

/// Prints events until the stream ends, and returns the error if it ended by one.
async fn print(
    context: &Context,
    stream: &mut EventStream,
    hides_gap: &mut bool,
    pause: &mut Duration,
) -> Result<Option<client::Error>> {
    loop {
        match stream.next().await {
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
            Ok(Some(event)) => {
                *pause = RETRY_MIN;
                if std::mem::take(hides_gap) && event.kind == Event::GAP {
                    continue;
                }
                stdout(line(context.output.format, &event).as_bytes())?;
            }
        }
    }
}

fn line(format: Format, event: &Event) -> String {
    let data = serde_json::Value::Object(event.data.clone());
    match format {
        Format::Json => {
            let event = serde_json::json!({"id": event.id, "type": event.kind, "sandbox_id": event.sandbox_id,
                "timestamp": event.timestamp, "data": data});
            format!("{event}\n")
        }
        Format::Table => {
            let sandbox = event.sandbox_id.as_deref().unwrap_or("-");
            let text = format!("{}  {:<19}  {sandbox:<19}  {data}", event.timestamp, event.kind);
            format!("{}\n", harmless(&text))
        }
    }
}

/// Returns whether the error may be gone after a retry.
fn is_passing(error: &client::Error) -> bool {
    match error {
        client::Error::Connect { .. } | client::Error::Timeout { .. } | client::Error::Cut { .. } => true,
        client::Error::Api { status, .. } => matches!(status, 429 | 502..=504),
        client::Error::Argument { .. }
        | client::Error::Protocol { .. }
        | client::Error::TooLarge { .. }
        | client::Error::Io(_) => false,
    }
}
