//! Clients of the protocol, and where each keeps its servers.

use std::path::{Path, PathBuf};

use clap::ValueEnum;

/// Client of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    ClaudeCode,
    ClaudeDesktop,
    Codex,
    Cursor,
    Gemini,
    Vscode,
    Windsurf,
    Zed,
}

/// Format of a client's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// JSON, with the servers in an object of this name.
    Json(&'static str),
    /// TOML, with a table for each server.
    Toml,
}

impl Client {
    /// Returns the file of the user's servers.
    pub fn file(self, home: &Path) -> PathBuf {
        let applications =
            if cfg!(target_os = "macos") { home.join("Library/Application Support") } else { home.join(".config") };
        match self {
            Self::ClaudeCode => home.join(".claude.json"),
            Self::ClaudeDesktop => applications.join("Claude/claude_desktop_config.json"),
            Self::Codex => home.join(".codex/config.toml"),
            Self::Cursor => home.join(".cursor/mcp.json"),
            Self::Gemini => home.join(".gemini/settings.json"),
            Self::Vscode => applications.join("Code/User/mcp.json"),
            Self::Windsurf => home.join(".codeium/windsurf/mcp_config.json"),
            Self::Zed => home.join(".config/zed/settings.json"),
        }
    }

    pub const fn format(self) -> Format {
        match self {
            Self::ClaudeCode | Self::ClaudeDesktop | Self::Cursor | Self::Gemini | Self::Windsurf => {
                Format::Json("mcpServers")
            }
            Self::Vscode => Format::Json("servers"),
            Self::Zed => Format::Json("context_servers"),
            Self::Codex => Format::Toml,
        }
    }
}
