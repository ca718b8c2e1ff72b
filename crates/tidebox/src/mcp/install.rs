//! `tidebox mcp install`: the entry of this server in a client's file.

use std::fmt;
use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::clients::{Client, Format};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::note;

/// Variables that the server needs, and that clients do not pass on by themselves.
const VARIABLES: [&str; 4] = ["TIDEBOX_URL", "TIDEBOX_API_KEY", "TIDEBOX_CA_FILE", "TIDEBOX_USER_ID"];
/// Variable whose value is not shown.
const KEY: &str = "TIDEBOX_API_KEY";

/// Add this server to a client's configuration
#[derive(Debug, Args)]
#[command(
    after_help = "The entry is shown first, and written after a question, or with --yes. It contains the variables\n\
    TIDEBOX_URL, TIDEBOX_API_KEY, TIDEBOX_CA_FILE and TIDEBOX_USER_ID where they are set now. Options for\n\
    the server stand after --.\n\n\
    tidebox mcp install --client claude-code\n\
    tidebox mcp install --client cursor --yes -- --image host --allow pypi.org"
)]
pub struct InstallArgs {
    /// Client to configure
    #[arg(long, value_enum, value_name = "CLIENT")]
    client: Client,
    /// Name of the entry
    #[arg(long, default_value = "tidebox", value_name = "NAME")]
    name: String,
    /// File to write, instead of the client's usual one
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write without asking
    #[arg(long)]
    yes: bool,
    /// Options of `tidebox mcp`
    #[arg(last = true, value_name = "OPTIONS")]
    options: Vec<String>,
}

/// Entry of a server.
#[derive(Debug)]
struct Entry {
    name: String,
    command: String,
    args: Vec<String>,
    env: Map<String, Value>,
}

pub fn run(context: &Context, args: InstallArgs) -> Result {
    let InstallArgs { client, name, file, yes, options } = args;
    let file = match (file, std::env::var_os("HOME")) {
        (Some(file), _) => file,
        (None, Some(home)) => client.file(Path::new(&home)),
        (None, None) => return Err(Failure::usage("HOME is not set: pass --file")),
    };
    let entry = Entry::new(name, options)?;
    let before = match std::fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Failure::at(&file)(error)),
    };
    let after = entry.added(client.format(), before.as_deref().unwrap_or_default(), &file)?;
    context.output.remark(&format!("{}:\n\n{}", file.display(), entry.shown(client.format())));
    if before.as_deref() == Some(after.as_str()) {
        note("the file has this entry already");
        return Ok(ExitCode::SUCCESS);
    }
    if !yes && !is_confirmed()? {
        note("nothing was written");
        return Ok(ExitCode::FAILURE);
    }
    write(&file, &after)?;
    note(&format!("{} is written; restart the client", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn is_confirmed() -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("stdin is no terminal to ask on: pass --yes to write the file"));
    }
    note("\nWrite it? [y/N]");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(|error| Failure::io("cannot read the answer", &error))?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

impl Entry {
    fn new(name: String, options: Vec<String>) -> Result<Self> {
        if name.is_empty() || !name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_".contains(letter)) {
            return Err(Failure::usage("--name has letters, digits, - and _ only"));
        }
        let command = std::env::current_exe().map_err(|error| Failure::io("cannot find this program", &error))?;
        let command = command.into_os_string().into_string();
        let command = command.map_err(|_| Failure::usage("the path of this program is not UTF-8"))?;
        let set = VARIABLES.into_iter().filter_map(|name| Some((name, std::env::var(name).ok()?)));
        let env =
            set.filter(|(_, value)| !value.trim().is_empty()).map(|(name, value)| (name.to_owned(), value.into()));
        let args = std::iter::once("mcp".to_owned()).chain(options).collect();
        Ok(Self { name, command, args, env: env.collect() })
    }

    fn json(&self) -> Value {
        let mut entry = json!({"type": "stdio", "command": self.command, "args": self.args});
        if !self.env.is_empty() {
            entry["env"] = Value::Object(self.env.clone());
        }
        entry
    }

    fn toml(&self) -> String {
        // Strings of JSON are strings of TOML.
        let mut lines = vec![
            format!("[mcp_servers.{}]", self.name),
            format!("command = {}", json!(self.command)),
            format!("args = {}", json!(self.args)),
        ];
        if !self.env.is_empty() {
            lines.push(format!("[mcp_servers.{}.env]", self.name));
            lines.extend(self.env.iter().map(|(name, value)| format!("{name} = {value}")));
        }
        lines.join("\n") + "\n"
    }

    /// Returns the entry as a person may see it, without the key.
    fn shown(&self, format: Format) -> String {
        let mut env = self.env.clone();
        if let Some(key) = env.get_mut(KEY) {
            *key = "…".into();
        }
        let Self { name, command, args, .. } = self;
        let hidden = Self { name: name.clone(), command: command.clone(), args: args.clone(), env };
        match format {
            Format::Json(servers) => indented(&json!({servers: {name: hidden.json()}})),
            Format::Toml => hidden.toml(),
        }
    }

    /// Returns the content of a file with the entry in it.
    fn added(&self, format: Format, content: &str, file: &Path) -> Result<String> {
        match format {
            Format::Json(servers) => {
                let content = if content.trim().is_empty() { "{}" } else { content };
                let fault = |error| self.by_hand(format, file, error);
                let mut whole: Ordered = serde_json::from_str(content).map_err(fault)?;
                let mut place = match whole.get(servers) {
                    Some(place) => serde_json::from_str::<Ordered>(place.get()).map_err(fault)?,
                    None => Ordered::default(),
                };
                place.set(&self.name, &self.json()).and_then(|()| whole.set(servers, &place)).map_err(fault)?;
                serde_json::to_string_pretty(&whole).map(|text| text + "\n").map_err(fault)
            }
            Format::Toml => {
                let entry = self.toml();
                if content.contains(&entry) {
                    return Ok(content.to_owned());
                }
                if content.contains(&format!("[mcp_servers.{}", self.name)) {
                    return Err(self.by_hand(format, file, "it has another entry of this name"));
                }
                let gap = if content.is_empty() {
                    ""
                } else if content.ends_with('\n') {
                    "\n"
                } else {
                    "\n\n"
                };
                Ok(format!("{content}{gap}{entry}"))
            }
        }
    }

    fn by_hand(&self, format: Format, file: &Path, reason: impl fmt::Display) -> Failure {
        let entry = self.shown(format);
        Failure::usage(format!("{} cannot be changed: {reason}; add the entry by hand:\n{entry}", file.display()))
    }
}

/// Object of JSON whose members stay in their order, and as they are written.
#[derive(Debug, Default)]
struct Ordered(Vec<(String, Box<RawValue>)>);

impl Ordered {
    fn get(&self, name: &str) -> Option<&RawValue> {
        self.0.iter().find(|(member, _)| member == name).map(|(_, value)| &**value)
    }

    fn set(&mut self, name: &str, value: &impl Serialize) -> serde_json::Result<()> {
        let value = RawValue::from_string(serde_json::to_string_pretty(value)?)?;
        match self.0.iter_mut().find(|(member, _)| member == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name.to_owned(), value)),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Ordered;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Ordered, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Ordered(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

fn indented(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Replaces a file at once, readable by its owner alone: it may contain a key.
fn write(file: &Path, content: &str) -> Result<()> {
    // A link stays what it is.
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().unwrap_or(Path::new("."));
    let fault = Failure::at(&file);
    std::fs::create_dir_all(folder).map_err(&fault)?;
    let mut new = tempfile::NamedTempFile::new_in(folder).map_err(&fault)?;
    new.write_all(content.as_bytes()).and_then(|()| new.as_file().sync_all()).map_err(&fault)?;
    if let Ok(metadata) = std::fs::metadata(&file) {
        let mode = metadata.permissions().mode() & 0o700;
        new.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).map_err(&fault)?;
    }
    new.persist(&file).map_err(|error| fault(error.error))?;
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    fn entry(key: Option<&str>) -> Entry {
        let env = key.into_iter().map(|key| (KEY.to_owned(), key.into())).collect();
        Entry { name: "tidebox".to_owned(), command: "/opt/\"t\"".to_owned(), args: vec!["mcp".to_owned()], env }
    }

    fn added(format: Format, content: &str) -> Result<String> {
        entry(Some("hunter2")).added(format, content, Path::new("f"))
    }

    #[test]
    fn an_entry_leaves_the_rest_of_a_file_as_it_is() {
        let format = Format::Json("mcpServers");
        let content = "{\"zeta\": 1, \"mcpServers\": {\"other\": {\"command\": \"x\"}}, \"alpha\": [1.0]}";
        let changed = added(format, content).unwrap();
        let expected = json!({"zeta": 1, "alpha": [1.0], "mcpServers": {"other": {"command": "x"}, "tidebox":
            {"type": "stdio", "command": "/opt/\"t\"", "args": ["mcp"], "env": {KEY: "hunter2"}}}});
        assert_eq!(serde_json::from_str::<Value>(&changed).unwrap(), expected);
        assert!(changed.find("zeta") < changed.find("alpha"), "the order stays");
        assert!(changed.contains("[1.0]"), "values stay as they are written");
        assert_eq!(added(format, &changed).unwrap(), changed);
        assert!(added(format, "").unwrap().starts_with("{\n"));
    }

    #[test]
    fn toml_gets_a_table_at_its_end() {
        let changed = added(Format::Toml, "model = \"m\"").unwrap();
        let expected = "model = \"m\"\n\n[mcp_servers.tidebox]\ncommand = \"/opt/\\\"t\\\"\"\nargs = [\"mcp\"]\n\
                        [mcp_servers.tidebox.env]\nTIDEBOX_API_KEY = \"hunter2\"\n";
        assert_eq!(changed, expected);
        assert_eq!(added(Format::Toml, &changed).unwrap(), changed);
    }

    #[test]
    fn what_cannot_be_changed_is_shown_to_be_added_by_hand() {
        let json = Format::Json("servers");
        let other = "[mcp_servers.tidebox]\ncommand = \"y\"\n";
        for (format, content) in [(json, "{} // mine"), (json, "[]"), (json, "{\"servers\": 1}"), (Format::Toml, other)]
        {
            let said = added(format, content).unwrap_err();
            let text = said.said().unwrap().1;
            assert!(text.contains("by hand") && text.contains("/opt/") && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn a_file_is_replaced_behind_its_link_and_kept_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real.json"), folder.path().join("a/link.json"));
        write(&folder.path().join("a/new.json"), "x").unwrap();
        std::fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&real).unwrap(), "new");
        assert!(link.is_symlink());
        for file in [&real, &folder.path().join("a/new.json")] {
            assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o77, 0);
        }
    }
}
