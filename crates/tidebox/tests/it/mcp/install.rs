//! `tidebox mcp install`, as a person would use it.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

fn install(home: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidebox"));
    command.args(["mcp", "install"]).args(words).stdin(Stdio::null());
    command.env_clear().env("HOME", home).env("TIDEBOX_API_KEY", "hunter2").env("TIDEBOX_URL", "http://127.0.0.1:1");
    command.output().unwrap()
}

#[test]
fn each_client_gets_an_entry_that_it_can_start() {
    let home = tempfile::tempdir().unwrap();
    for (client, file, servers) in [
        ("claude-code", ".claude.json", "mcpServers"),
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers"),
        ("cursor", ".cursor/mcp.json", "mcpServers"),
        ("gemini", ".gemini/settings.json", "mcpServers"),
        ("vscode", ".config/Code/User/mcp.json", "servers"),
        ("windsurf", ".codeium/windsurf/mcp_config.json", "mcpServers"),
        ("zed", ".config/zed/settings.json", "context_servers"),
    ] {
        let output = install(home.path(), &["--client", client, "--yes", "--", "--image", "host"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{client}: {said}");
        assert!(said.contains(file) && said.contains("--image") && !said.contains("hunter2"), "{said}");
        let written: Value = serde_json::from_slice(&std::fs::read(home.path().join(file)).unwrap()).unwrap();
        let entry = &written[servers]["tidebox"];
        assert_eq!(entry["args"], json!(["mcp", "--image", "host"]), "{client}");
        assert_eq!(entry["env"], json!({"TIDEBOX_API_KEY": "hunter2", "TIDEBOX_URL": "http://127.0.0.1:1"}));
        let program = entry["command"].as_str().unwrap();
        assert!(Command::new(program).arg("version").output().unwrap().status.success());
    }
    install(home.path(), &["--client", "codex", "--yes"]);
    let toml = std::fs::read_to_string(home.path().join(".codex/config.toml")).unwrap();
    assert!(toml.starts_with("[mcp_servers.tidebox]\ncommand = \"/"), "{toml}");
}

#[test]
fn nothing_is_written_unasked() {
    let home = tempfile::tempdir().unwrap();
    let output = install(home.path(), &["--client", "cursor"]);
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("--yes") && said.contains("\"mcpServers\""), "{said}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
}
