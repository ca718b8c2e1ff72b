//! Values that several subcommands take.

use api::{EgressMode, EgressPolicy, PrepareCommand, StringMap};
use clap::Args;

use crate::failure::{Failure, Result};

/// Options of a box other than its image.
#[derive(Debug, Clone, Args)]
pub struct SpawnOptions {
    /// Provider that runs the box; the server's default if omitted
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Memory limit in MiB
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    memory_mb: Option<u32>,
    /// Number of virtual CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vcpus: Option<u32>,
    /// Size limit of the box's file system in MiB; 0 for no limit
    #[arg(long, value_name = "N")]
    disk_mb: Option<u32>,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Option<u32>,
    /// Start the image's entry point in addition to the box's init; `logs` shows its output
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    entrypoint: Option<bool>,
    /// Lifetime, such as 30m or 1h30m
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Label to set; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    #[command(flatten)]
    egress: EgressOptions,
    /// Pause the box after this time without use, such as 10m
    #[arg(long, value_name = "DURATION")]
    auto_pause: Option<String>,
    /// Shell line to run before the box counts as running; may be repeated
    #[arg(long, value_name = "LINE")]
    prepare: Vec<String>,
    /// Deadline of each --prepare line, such as 5m; the deadline of any command if omitted
    #[arg(long, value_name = "DURATION", requires = "prepare")]
    prepare_timeout: Option<String>,
}

/// Policy on connections out of a box.
#[derive(Debug, Clone, Args)]
pub struct EgressOptions {
    /// Mode for outgoing connections; the server's default if omitted
    #[arg(long, value_name = "MODE", value_parser = ["none", "allow-list", "open"])]
    egress: Option<String>,
    /// Host, network or @LIST that the box may connect to, such as pypi.org:443; may be repeated, and sets the mode to
    /// allow-list
    #[arg(long, value_name = "TARGET")]
    allow: Vec<String>,
    /// Host, network or @LIST that the box may not connect to; may be repeated, and sets the mode to open
    #[arg(long, value_name = "TARGET")]
    deny: Vec<String>,
    /// Secret of the operator that the server sends to its hosts, as NAME or NAME@HOST; may be repeated
    #[arg(long, value_name = "SECRET")]
    secret: Vec<String>,
}

impl EgressOptions {
    /// Returns the policy; `None` if no option was given.
    pub fn policy(self) -> Option<EgressPolicy> {
        let Self { egress, allow, deny, secret } = self;
        let mode = match egress.as_deref() {
            Some("none") => EgressMode::None,
            Some("open") => EgressMode::Open,
            Some(_) => EgressMode::AllowList,
            None if !allow.is_empty() => EgressMode::AllowList,
            None if !deny.is_empty() => EgressMode::Open,
            // A secret without a host lets nothing through, and says so at the first request.
            None if !secret.is_empty() => EgressMode::AllowList,
            None => return None,
        };
        Some(EgressPolicy { mode, allow, deny, secrets: secret })
    }
}

impl SpawnOptions {
    /// Returns the options of a box of `image`.
    ///
    /// # Errors
    /// If a label is given twice.
    pub fn with_image(self, image: Option<String>) -> Result<api::SpawnOptions> {
        let Self {
            provider,
            memory_mb,
            vcpus,
            disk_mb,
            pids,
            entrypoint,
            ttl,
            metadata,
            egress,
            auto_pause,
            prepare,
            prepare_timeout,
        } = self;
        let metadata = string_map("--metadata", &metadata)?;
        let metadata = (!metadata.is_empty()).then_some(metadata);
        let egress = egress.policy();
        let commands: Vec<PrepareCommand> = prepare
            .into_iter()
            .map(|command| PrepareCommand { command, timeout: prepare_timeout.clone(), ..PrepareCommand::default() })
            .collect();
        Ok(api::SpawnOptions {
            image,
            provider,
            memory_mb,
            vcpus,
            disk_mb,
            pids,
            entrypoint,
            ttl,
            metadata,
            egress,
            auto_pause,
            prepare: (!commands.is_empty()).then_some(commands),
        })
    }
}

/// Parses `KEY=VALUE`; the value may be empty and have further equals signs.
pub fn pair(text: &str) -> std::result::Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("the key before `=` is empty".to_owned()),
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("it has no `=`; write {text}=VALUE")),
    }
}

/// Returns the pairs as a map; a key given twice is refused, since one would be lost.
pub fn string_map(flag: &str, pairs: &[(String, String)]) -> Result<StringMap> {
    let mut map = StringMap::default();
    for (key, value) in pairs {
        if map.0.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::usage(format!("{flag} sets `{key}` twice; set it once")));
        }
    }
    Ok(map)
}

/// Formats labels for one cell.
pub fn labels(map: &StringMap) -> String {
    map.0.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Formats an optional value for a cell.
pub fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), T::to_string)
}

#[cfg(test)]
mod test {
    use super::{pair, string_map};

    #[test]
    fn pairs_are_cut_at_their_first_equals_sign() {
        for (text, key, value) in [("a=b", "a", "b"), ("a=", "a", ""), ("a=b=c", "a", "b=c"), ("a b= c", "a b", " c")] {
            assert_eq!(pair(text), Ok((key.to_owned(), value.to_owned())));
        }
        for text in ["", "a", "=", "=b"] {
            assert!(pair(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_key_given_twice_is_refused() {
        let pairs = [pair("a=1").unwrap(), pair("a=2").unwrap()];
        let failure = string_map("-e", &pairs).unwrap_err();
        assert_eq!(failure.said(), Some(("usage", "-e sets `a` twice; set it once")));
    }
}
