//! Code in an interpreter of a sandbox, for `run --code`, `exec --code` and `repl`.

mod display;
mod images;
mod report;
mod run_end;
mod sixel;

use std::path::PathBuf;

use api::{CodeLanguage, RunLine, RunRequest, StringMap};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use client::{Client, RunStream};
use tokio::io::AsyncReadExt as _;

pub use self::display::Display;
pub use self::images::Images;
use self::report::Report;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::Format;

/// Most bytes of code that fit into a request of 1 MiB.
const CODE_BYTES_MAX: u64 = 1024 * 1024;
/// Languages by their names.
const LANGUAGES: [(&str, CodeLanguage); 6] = [
    ("python", CodeLanguage::Python),
    ("javascript", CodeLanguage::JavaScript),
    ("typescript", CodeLanguage::TypeScript),
    ("bash", CodeLanguage::Bash),
    ("r", CodeLanguage::R),
    ("java", CodeLanguage::Java),
];

/// Options of code that runs in place of a command.
#[derive(Debug, Args)]
pub struct CodeArgs {
    /// Run this code in an interpreter, in place of a command; - reads the code from stdin
    #[arg(
        long,
        value_name = "CODE",
        allow_hyphen_values = true,
        conflicts_with_all = ["line", "words", "env_secret", "workdir", "user", "interactive", "tty"]
    )]
    code: Option<String>,
    /// Language of the code; python if omitted
    #[arg(long, value_name = "LANGUAGE", value_parser = language_parser())]
    language: Option<CodeLanguage>,
    #[command(flatten)]
    images: ImagesArgs,
}

/// Options for images that code displays.
#[derive(Debug, Args)]
pub struct ImagesArgs {
    /// Save images of the code in this directory, even if the terminal shows them
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
}

/// Code to run, and the directory for its images.
#[derive(Debug)]
pub struct Code {
    /// Id of the context; the default context of the language if absent.
    pub context_id: Option<String>,
    pub request: RunRequest,
    pub images: Images,
}

impl CodeArgs {
    /// Returns the code; `None` if a command is wanted.
    pub async fn code(self, env: StringMap, timeout: Option<String>) -> Result<Option<Code>> {
        let Some(code) = self.code else {
            if self.language.is_some() || self.images.images.is_some() {
                return Err(Failure::usage("--language and --images are for code; pass the code with --code"));
            }
            return Ok(None);
        };
        let code = if code == "-" { from_stdin().await? } else { code };
        let request = RunRequest { code, language: Some(self.language.unwrap_or_default()), timeout, env };
        Ok(Some(Code { context_id: None, request, images: self.images.images() }))
    }
}

impl ImagesArgs {
    /// Returns how images are shown and saved here.
    pub fn images(self) -> Images {
        Images::new(self.images)
    }
}

/// Returns the parser of the name of a language.
pub fn language_parser() -> impl TypedValueParser<Value = CodeLanguage> {
    PossibleValuesParser::new(LANGUAGES.map(|(name, _)| name)).map(|name| {
        let found = LANGUAGES.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, language)| language).unwrap_or_default()
    })
}

/// Returns the name of a language, which is the id of its default context too.
pub fn language_name(language: CodeLanguage) -> &'static str {
    LANGUAGES.into_iter().find(|(_, known)| *known == language).map_or("python", |(name, _)| name)
}

/// Reads stdin to its end.
pub async fn from_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    // One byte more than the limit tells an end from a cut.
    let mut stdin = tokio::io::stdin().take(CODE_BYTES_MAX + 1);
    stdin.read_to_end(&mut bytes).await.map_err(|error| Failure::io("stdin cannot be read", &error))?;
    if bytes.len() as u64 > CODE_BYTES_MAX {
        return Err(too_large());
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage("the code on stdin is not UTF-8; convert it"))
}

fn too_large() -> Failure {
    Failure::new(
        "payload_too_large",
        "the code is larger than the 1 MiB that a request may have; copy it into the sandbox with `tidebox cp`, and \
         run the file",
    )
}

/// Starts the code. Dropping the stream interrupts it.
pub async fn start(client: &Client, id: &str, context_id: Option<&str>, request: &RunRequest) -> Result<RunStream> {
    client.run_code(id, context_id, request).await.map_err(explained)
}

/// Explains the limit of a request, which the code has exceeded.
fn explained(error: client::Error) -> Failure {
    if matches!(error, client::Error::TooLarge { .. }) { too_large() } else { error.into() }
}

/// Runs the code, prints its output, and returns the exit code.
pub async fn perform(context: &Context, id: &str, code: Code) -> Result<u8> {
    let Code { context_id, request, images } = code;
    let mut lines = start(&context.client, id, context_id.as_deref(), &request).await?;
    let end = match context.output.format {
        Format::Table => {
            let mut display = Display::new(images);
            loop {
                if let Some(end) = display.show(next(&mut lines).await?).await? {
                    break end;
                }
            }
        }
        Format::Json => {
            let mut report = Report::default();
            let end = loop {
                if let Some(end) = report.add(next(&mut lines).await?) {
                    break end;
                }
            };
            context.output.print(&report, |_: &Report| String::new())?;
            end
        }
    };
    Ok(end.exit_code())
}

/// Returns the next event of a run that has not ended.
pub async fn next(lines: &mut RunStream) -> Result<RunLine> {
    let line = lines.next().await?;
    line.ok_or_else(|| Failure::new("connection_cut", "the connection ended without the end of the code"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_name_of_a_language_is_the_name_that_the_api_has() {
        for (name, language) in LANGUAGES {
            assert_eq!(serde_json::to_value(language).unwrap(), name);
            assert_eq!(language_name(language), name);
        }
    }
}
