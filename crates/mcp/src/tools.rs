//! The tools: the description that a model reads of each, and its dispatch.

mod commands;
mod files;
mod packages;
mod sandboxes;
mod units;

use rmcp::model::{ContentBlock, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde_json::{Map, Value};

use crate::arguments::{
    CreateSandbox, DestroySandbox, EditFile, ExposePort, Install, ListFiles, ListSandboxes, ReadFile, RunCode,
    RunCommand, SearchFiles, Snapshot, WriteFile, parse, schema,
};
use crate::call::Call;
use crate::failure::Result;

/// Effects of a tool on its surroundings.
#[derive(Debug, Clone, Copy)]
struct Effects {
    /// True if it changes nothing.
    is_read_only: bool,
    /// True if it may overwrite or remove what is there.
    is_destructive: bool,
    /// True if a repeat changes nothing more.
    is_idempotent: bool,
    /// True if it may talk to hosts outside of the sandbox.
    is_open: bool,
}

const READS: Effects = Effects { is_read_only: true, is_destructive: false, is_idempotent: true, is_open: false };
const ADDS: Effects = Effects { is_read_only: false, is_destructive: false, is_idempotent: false, is_open: false };
const REPLACES: Effects = Effects { is_read_only: false, is_destructive: true, is_idempotent: true, is_open: false };
/// Programs in a sandbox may do everything there, and reach the hosts that its policy allows.
const RUNS: Effects = Effects { is_read_only: false, is_destructive: true, is_idempotent: false, is_open: true };

/// Returns the tools. With `has_home`, calls may name no sandbox.
pub(crate) fn tools(has_home: bool) -> Vec<Tool> {
    vec![
        tool::<RunCode>(
            has_home,
            "run_code",
            "Run code",
            "Runs code in an interpreter that keeps its state: variables, imports and functions of earlier calls are \
             there. Returns output, the value of the last expression, and figures as images. For programs that take \
             long or need the shell, use run_command.",
            RUNS,
        ),
        tool::<RunCommand>(
            has_home,
            "run_command",
            "Run a command",
            "Runs a command line in the shell of the sandbox and returns its output and exit code. After 45 seconds \
             it returns while the command runs on, with the process number and position to read on with. Start \
             servers so too, and then use expose_port.",
            RUNS,
        ),
        tool::<ReadFile>(
            has_home,
            "read_file",
            "Read a file",
            "Returns lines of a text file, or an image as an image.",
            READS,
        ),
        tool::<WriteFile>(
            has_home,
            "write_file",
            "Write a file",
            "Writes a text file. What was there is replaced.",
            REPLACES,
        ),
        tool::<EditFile>(
            has_home,
            "edit_file",
            "Edit a file",
            "Replaces text in a file. The text must occur exactly once, unless `replace_all` is set.",
            Effects { is_idempotent: false, ..REPLACES },
        ),
        tool::<ListFiles>(
            has_home,
            "list_files",
            "List files",
            "Lists a directory: type, size in bytes, and name.",
            READS,
        ),
        tool::<SearchFiles>(
            has_home,
            "search_files",
            "Search files",
            "Searches the content of files below a directory. Hidden files and files that .gitignore names are left \
             out.",
            READS,
        ),
        tool::<Install>(
            has_home,
            "install",
            "Install packages",
            "Installs packages with pip, npm or apt. The sandbox must be allowed to reach their hosts: see \
             `allow_hosts` of create_sandbox.",
            Effects { is_destructive: false, is_idempotent: true, ..RUNS },
        ),
        tool::<ExposePort>(
            has_home,
            "expose_port",
            "Expose a port",
            "Returns a URL at which a person can open a web server of the sandbox in a browser.",
            Effects { is_open: true, ..ADDS },
        ),
        tool::<Snapshot>(
            has_home,
            "snapshot",
            "Take a snapshot",
            "Keeps the files of a sandbox. create_sandbox can start any number of sandboxes from them.",
            ADDS,
        ),
        tool::<CreateSandbox>(
            has_home,
            "create_sandbox",
            "Create a sandbox",
            "Creates an isolated Linux sandbox and returns its id. Files belong below /workspace.",
            ADDS,
        ),
        tool::<ListSandboxes>(has_home, "list_sandboxes", "List sandboxes", "Lists the sandboxes that run.", READS),
        tool::<DestroySandbox>(
            has_home,
            "destroy_sandbox",
            "Destroy a sandbox",
            "Removes a sandbox with its files and processes, for good.",
            REPLACES,
        ),
    ]
}

fn tool<A: JsonSchema>(
    has_home: bool,
    name: &'static str,
    title: &'static str,
    description: &'static str,
    effects: Effects,
) -> Tool {
    let annotations = ToolAnnotations::new()
        .read_only(effects.is_read_only)
        .destructive(effects.is_destructive)
        .idempotent(effects.is_idempotent)
        .open_world(effects.is_open);
    Tool::new(name, description, schema::<A>(has_home)).with_title(title).with_annotations(annotations)
}

/// Runs a tool. Returns `None` for a name that no tool has.
pub(crate) async fn run(
    call: &Call,
    name: &str,
    arguments: Option<Map<String, Value>>,
) -> Option<Result<Vec<ContentBlock>>> {
    Some(match name {
        "run_code" => with(arguments, async |it| commands::run_code(call, it).await).await,
        "run_command" => with(arguments, async |it| commands::run_command(call, it).await).await,
        "read_file" => with(arguments, async |it| files::read(call, it).await).await,
        "write_file" => with(arguments, async |it| files::write(call, it).await).await,
        "edit_file" => with(arguments, async |it| files::edit(call, it).await).await,
        "list_files" => with(arguments, async |it| files::list(call, it).await).await,
        "search_files" => with(arguments, async |it| files::search(call, it).await).await,
        "install" => with(arguments, async |it| packages::install(call, it).await).await,
        "expose_port" => with(arguments, async |it| sandboxes::expose(call, it).await).await,
        "snapshot" => with(arguments, async |it| sandboxes::snapshot(call, it).await).await,
        "create_sandbox" => with(arguments, async |it| sandboxes::create(call, it).await).await,
        "list_sandboxes" => with(arguments, async |it| sandboxes::list(call, it).await).await,
        "destroy_sandbox" => with(arguments, async |it| sandboxes::destroy(call, it).await).await,
        _ => return None,
    })
}

async fn with<A: serde::de::DeserializeOwned>(
    arguments: Option<Map<String, Value>>,
    work: impl AsyncFnOnce(A) -> Result<Vec<ContentBlock>>,
) -> Result<Vec<ContentBlock>> {
    work(parse(arguments)?).await
}

#[cfg(test)]
mod test {
    use super::*;

    /// Characters of JSON that make one token of a model, roughly.
    const CHARS_OF_TOKEN: usize = 4;
    const TOKENS_MAX: usize = 3000;

    #[test]
    fn the_tools_leave_a_model_room_for_its_work() {
        for has_home in [true, false] {
            let json = serde_json::to_string(&tools(has_home)).unwrap();
            assert!(json.len() / CHARS_OF_TOKEN < TOKENS_MAX, "{} characters", json.len());
        }
    }

    #[test]
    fn annotations_do_not_contradict_each_other() {
        for tool in tools(true) {
            let annotations = tool.annotations.unwrap();
            assert!(!(annotations.read_only_hint == Some(true) && annotations.is_destructive()), "{}", tool.name);
            assert!(annotations.open_world_hint.is_some(), "{}", tool.name);
        }
    }
}
