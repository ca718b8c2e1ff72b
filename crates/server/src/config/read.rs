//! Readers: from a value of the tree to a typed one.
//!
//! An error states what would be right and what was found.

#![expect(clippy::wildcard_enum_match_arm, reason = "a kind of value that a reader does not name is a wrong type")]

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::parse_duration;
use ipnet::IpNet;

use super::tree::{Value, clip};
use super::{DefaultProvider, Enabled, Secret};

pub(super) type Read<T> = Result<T, String>;

fn must<T>(be: &str, value: &Value) -> Read<T> {
    Err(format!("must be {be}, not {}", value.describe()))
}

/// Returns the text itself, which is never empty.
fn text_of<'a>(value: &'a Value, be: &str) -> Read<&'a str> {
    match value {
        Value::Text(text) | Value::Bare(text) if !text.is_empty() => Ok(text),
        Value::Text(_) | Value::Bare(_) => Err(format!("must be {be}, not empty")),
        _ => must(be, value),
    }
}

/// Reads the value of a key that is unset by default: `null` or an empty variable is `None`.
pub(super) fn optional<T>(value: &Value, read: impl Fn(&Value) -> Read<T>) -> Read<Option<T>> {
    match value {
        Value::Null => Ok(None),
        Value::Bare(text) if text.is_empty() => Ok(None),
        _ => read(value).map(Some),
    }
}

/// Reads a whole number within `range`.
pub(super) fn integer<T>(value: &Value, range: RangeInclusive<T>) -> Read<T>
where
    T: Copy + PartialOrd + TryFrom<i128> + std::fmt::Display,
{
    let (min, max) = (*range.start(), *range.end());
    let number = match value {
        Value::Integer(number) => Some(*number),
        Value::Bare(text) => decimal(text),
        _ => None,
    };
    match number.and_then(|number| T::try_from(number).ok()) {
        Some(number) if range.contains(&number) => Ok(number),
        _ => must(&format!("a whole number from {min} to {max}"), value),
    }
}

/// Reads a whole number within `range`, or `auto`, which is `None`.
pub(super) fn or_auto<T>(value: &Value, range: RangeInclusive<T>) -> Read<Option<T>>
where
    T: Copy + PartialOrd + TryFrom<i128> + std::fmt::Display,
{
    if let Value::Bare(text) | Value::Text(text) = value
        && text == "auto"
    {
        return Ok(None);
    }
    let (min, max) = (*range.start(), *range.end());
    match integer(value, range) {
        Ok(number) => Ok(Some(number)),
        Err(_) => must(&format!("auto or a whole number from {min} to {max}"), value),
    }
}

/// Parses digits and nothing else; `None` for more than fits.
fn decimal(text: &str) -> Option<i128> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Reads a size in bytes, as a number or as a text such as `8MiB`.
pub(super) fn size(value: &Value, max: u64) -> Read<u64> {
    let bytes = match value {
        Value::Integer(number) => u64::try_from(*number).ok(),
        Value::Text(text) | Value::Bare(text) => size_of_text(text),
        _ => None,
    };
    match bytes {
        Some(bytes) if (1..=max).contains(&bytes) => Ok(bytes),
        _ => must(&format!("a size from 1 to {}, such as 8MiB or 8388608", size_text(max)), value),
    }
}

fn size_of_text(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    u64::try_from(decimal(number)?).ok()?.checked_mul(unit)
}

fn size_text(bytes: u64) -> String {
    match (bytes % (1 << 40), bytes % (1 << 30)) {
        (0, _) => format!("{}TiB", bytes >> 40),
        (_, 0) => format!("{}GiB", bytes >> 30),
        _ => bytes.to_string(),
    }
}

/// Reads a duration that is not zero.
pub(super) fn positive_duration(value: &Value) -> Read<Duration> {
    match duration(value)? {
        Duration::ZERO => must("longer than zero, such as 30s", value),
        duration => Ok(duration),
    }
}

/// Reads a duration, zero included.
pub(super) fn duration(value: &Value) -> Read<Duration> {
    let text = text_of(value, "a duration, such as 30s or 1h30m")?;
    parse_duration(text).map_err(|error| format!("{} {error}", clip(text)))
}

/// Reads an IP address.
pub(super) fn address(value: &Value) -> Read<IpAddr> {
    const BE: &str = "an IP address, such as 127.0.0.1";
    text_of(value, BE)?.parse().or_else(|_| must(BE, value))
}

/// Reads a host's name or address, without a port; in lower case.
pub(super) fn host_name(value: &Value) -> Read<String> {
    const BE: &str = "a host name without scheme and port, such as boxes.example.com";
    let text = text_of(value, BE)?;
    let label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inside)
    };
    if text.parse::<IpAddr>().is_ok() || text.len() <= 253 && text.split('.').all(label) {
        Ok(text.to_ascii_lowercase())
    } else {
        must(BE, value)
    }
}

/// Reads a list; a variable's text is split at commas.
pub(super) fn list<T>(value: &Value, item: impl Fn(&Value) -> Read<T>) -> Read<Vec<T>> {
    match value {
        Value::List(items) => items.iter().map(item).collect(),
        Value::Bare(text) if text.trim().is_empty() => Ok(Vec::new()),
        Value::Bare(text) => text.split(',').map(|part| item(&Value::Bare(part.trim().to_owned()))).collect(),
        _ => must("a list", value),
    }
}

/// Reads an absolute path; `~/` stands for the home directory.
pub(super) fn path(value: &Value, home: Option<&Path>) -> Read<PathBuf> {
    const BE: &str = "an absolute path";
    let text = text_of(value, BE)?;
    let path = match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(text),
    };
    if path.is_absolute() && !text.contains('\0') { Ok(path) } else { must(BE, value) }
}

/// Reads the path of a file that may be left out.
pub(super) fn file(value: &Value, home: Option<&Path>) -> Read<Option<PathBuf>> {
    optional(value, |value| path(value, home))
}

/// Reads the path in `sqlite://<path>`.
pub(super) fn database(value: &Value, home: Option<&Path>) -> Read<PathBuf> {
    const BE: &str = "sqlite:// and an absolute path, such as sqlite:///var/lib/tidebox/tidebox.db";
    let text = text_of(value, BE)?;
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        // The URL may hold a password, so it is not repeated.
        return Err(format!("PostgreSQL is not supported by this version of Tidebox; use {BE}"));
    }
    match text.strip_prefix("sqlite://") {
        Some(file) if !file.contains(['?', '#']) && !file.ends_with('/') => {
            path(&Value::Text(file.to_owned()), home).or_else(|_| must(BE, value))
        }
        Some(_) => must(BE, value),
        None => Err(format!("must be {BE}")),
    }
}

/// Reads one of `words`.
pub(super) fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Read<T> {
    let found = match value {
        Value::Text(text) | Value::Bare(text) => words.iter().find(|(word, _)| word == text),
        _ => None,
    };
    found.map(|(_, meaning)| *meaning).map_or_else(|| must(&one_of(words.iter().map(|(word, _)| *word)), value), Ok)
}

fn one_of<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<_> = words.collect();
    match words.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Reads `auto`, `true` or `false`.
pub(super) fn enabled(value: &Value) -> Read<Enabled> {
    let words = [("auto", Enabled::Auto), ("true", Enabled::True), ("false", Enabled::False)];
    match value {
        Value::Bool(true) => Ok(Enabled::True),
        Value::Bool(false) => Ok(Enabled::False),
        _ => word(value, &words),
    }
}

/// Reads whether a provider is offered that this version does not have.
pub(super) fn not_offered(value: &Value) -> Read<()> {
    match enabled(value)? {
        Enabled::True => Err("this version of Tidebox does not have this provider; write false".to_owned()),
        Enabled::Auto | Enabled::False => Ok(()),
    }
}

/// Reads a provider's name, or `auto`. The check of the whole configuration finds out whether
/// there is a provider of that name.
pub(super) fn default_provider(value: &Value) -> Read<DefaultProvider> {
    const BE: &str = "auto, native, docker, proot, mock or the name of custom";
    match text_of(value, BE)? {
        "auto" => Ok(DefaultProvider::Auto),
        name @ ("firecracker" | "e2b") => {
            Err(format!("{name} is not supported by this version of Tidebox; write {BE}"))
        }
        name if is_label(name) => Ok(DefaultProvider::Named(name.to_owned())),
        _ => must(BE, value),
    }
}

/// Reads the name of an image, as a request would give it.
pub(super) fn image(value: &Value) -> Read<String> {
    const BE: &str = "the name of an image, such as host";
    let text = text_of(value, BE)?;
    if text.len() <= 512 && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(text.to_owned())
    } else {
        must(BE, value)
    }
}

/// Reads a range of ids, as `first:count`.
pub(super) fn subids(value: &Value) -> Read<(u32, u32)> {
    const BE: &str = "first:count, such as 1000000:6553600, with first and count at least 65536 (a box takes 65536)";
    let text = text_of(value, BE)?;
    let parts = text.split_once(':').and_then(|(first, count)| Some((decimal(first)?, decimal(count)?)));
    match parts.and_then(|(first, count)| Some((u32::try_from(first).ok()?, u32::try_from(count).ok()?))) {
        // The last id, 2^32 - 1, means "none" to the kernel.
        Some((first, count)) if first >= 65_536 && count >= 65_536 && first.checked_add(count).is_some() => {
            Ok((first, count))
        }
        _ => must(BE, value),
    }
}

/// Reads a control group's path, from the root of the hierarchy.
pub(super) fn cgroup(value: &Value) -> Read<String> {
    const BE: &str = "the path of a control group without . and .., such as tidebox.slice";
    let text = text_of(value, BE)?;
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    let path = text.strip_prefix('/').unwrap_or(text);
    if path.split('/').all(plain) && !path.contains(|c: char| c.is_control()) {
        Ok(text.to_owned())
    } else {
        must(BE, value)
    }
}

/// Reads `true` or `false`.
pub(super) fn flag(value: &Value) -> Read<bool> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::Bare(text) if text == "true" => Ok(true),
        Value::Bare(text) if text == "false" => Ok(false),
        _ => must("true or false", value),
    }
}

/// Reads a key or token. An error never repeats what was found.
pub(super) fn secret(value: &Value) -> Read<Secret> {
    match value {
        Value::Text(text) | Value::Bare(text) if (1..=SECRET_BYTES_MAX).contains(&text.len()) => secret_text(text),
        Value::Integer(_) | Value::Float(_) | Value::Bool(_) => Err("must be a text; put it in quotes".to_owned()),
        _ => Err(format!("must be a text of 1 to {SECRET_BYTES_MAX} characters")),
    }
}

/// The longest key or token, in bytes: it has to fit a header.
pub(super) const SECRET_BYTES_MAX: usize = 1024;

/// Checks that a secret fits a header, where spaces around it would be lost.
pub(super) fn secret_text(text: &str) -> Read<Secret> {
    if text.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::new(text.to_owned()))
    } else {
        Err("must consist of printable ASCII characters without spaces".to_owned())
    }
}

/// Reads an address, or a network such as `10.0.0.0/8`.
pub(super) fn network(value: &Value) -> Read<IpNet> {
    const BE: &str = "an IP address or a network, such as 10.0.0.0/8";
    let text = text_of(value, BE)?;
    text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse()).or_else(|_| must(BE, value))
}

/// Reads a web origin, or `*`.
pub(super) fn origin(value: &Value) -> Read<String> {
    const BE: &str = "an origin without a path, such as https://app.example.com, or *";
    let text = text_of(value, BE)?;
    if text == "*" {
        return Ok(text.to_owned());
    }
    let authority = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match authority {
        Some(authority)
            if !authority.is_empty()
                && authority.bytes().all(|byte| byte.is_ascii_graphic() && !b"/?#@*".contains(&byte)) =>
        {
            Ok(text.to_ascii_lowercase())
        }
        _ => must(BE, value),
    }
}

/// Reads a base URL, and removes a slash at its end.
pub(super) fn url(value: &Value) -> Read<String> {
    const BE: &str = "an http or https URL without a user, query and fragment, such as https://boxes.example.com";
    let text = text_of(value, BE)?;
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    match rest {
        Some(rest)
            if !rest.is_empty()
                && !rest.starts_with('/')
                && rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@".contains(&byte)) =>
        {
            Ok(text.trim_end_matches('/').to_owned())
        }
        // It may hold a password, so it is not repeated.
        _ => Err(format!("must be {BE}")),
    }
}

/// Reads a short name, such as that of a provider or a token.
pub(super) fn label(value: &Value) -> Read<String> {
    const BE: &str = "1 to 128 letters, digits, `.`, `_` or `-`";
    let text = text_of(value, BE)?;
    if is_label(text) { Ok(text.to_owned()) } else { must(BE, value) }
}

fn is_label(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Checks the id of another worker, which is part of a key's name.
pub(super) fn worker_id(text: &str) -> Read<String> {
    if text == "local" {
        Err("belongs to this server itself; name the worker otherwise".to_owned())
    } else if is_label(text) && !matches!(text, "." | "..") {
        Ok(text.to_owned())
    } else {
        Err("has a worker id that is not made of 1 to 128 letters, digits, `.`, `_` or `-`".to_owned())
    }
}

/// Parses a registry by host and port, which is part of a key's name or of a list.
pub(super) fn registry(text: &str) -> Read<String> {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let label = |label: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        (1..=63).contains(&label.len()) && label.bytes().all(inside)
    };
    let is_port = |port: &str| decimal(port).is_some_and(|port| (1..=65_535).contains(&port));
    if text.len() <= 253 && host.split('.').all(label) && port.is_none_or(is_port) {
        let name = text.to_ascii_lowercase();
        // Docker's own registry has several names, of which image names use the first.
        let is_hub = matches!(name.as_str(), "index.docker.io" | "registry-1.docker.io");
        Ok(if is_hub { "docker.io".to_owned() } else { name })
    } else {
        Err("names no registry; write its host, and its port if it has one, such as localhost:5000".to_owned())
    }
}

/// Reads a registry by host and port.
pub(super) fn registry_host(value: &Value) -> Read<String> {
    const BE: &str = "a host and its port without a scheme, such as mirror.example.com:5000";
    registry(text_of(value, BE)?).or_else(|_| must(BE, value))
}

/// Reads the address of a Docker Engine, as a URL.
pub(super) fn engine(value: &Value) -> Read<String> {
    const BE: &str = "an absolute path, unix:///path or tcp://host:port";
    let text = text_of(value, BE)?;
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@".contains(&byte));
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if is_plain && path.starts_with('/') {
        return Ok(format!("unix://{path}"));
    }
    match text.strip_prefix("tcp://") {
        Some(authority) if is_plain && !authority.is_empty() && !authority.contains('/') => Ok(text.to_owned()),
        Some(_) | None => must(BE, value),
    }
}

/// Reads the name of a network of a Docker Engine. That of the host, or of another container, is
/// refused: it would undo the isolation of a box.
pub(super) fn network_mode(value: &Value) -> Read<String> {
    const BE: &str = "none, bridge or the name of a network; boxes never share that of the host or of a container";
    match text_of(value, BE)? {
        "host" => must(BE, value),
        text if is_label(text) => Ok(text.to_owned()),
        _ => must(BE, value),
    }
}

/// Reads a user of a box: `name`, `uid`, `name:group` or `uid:gid`.
pub(super) fn user(value: &Value) -> Read<String> {
    const BE: &str = "a user as name, uid, name:group or uid:gid";
    let text = match value {
        Value::Integer(uid) => &uid.to_string(),
        _ => text_of(value, BE)?,
    };
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    if is_label(user) && group.is_none_or(is_label) { Ok(text.to_owned()) } else { must(BE, value) }
}

/// Reads the name of a user at a registry.
pub(super) fn user_name(value: &Value) -> Read<String> {
    const BE: &str = "a user name without `:`, spaces and control characters";
    let text = text_of(value, BE)?;
    let fits = text.len() <= 256 && !text.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control());
    if fits { Ok(text.to_owned()) } else { must(BE, value) }
}

/// Reads a capability of the kernel, without `CAP_`; or `ALL`.
pub(super) fn capability_or_all(value: &Value) -> Read<String> {
    const BE: &str = "a capability such as NET_RAW, or ALL";
    capability_name(value, BE)
}

/// Reads a capability of the kernel, without `CAP_`. `ALL` is refused: it would leave no
/// isolation.
pub(super) fn capability(value: &Value) -> Read<String> {
    const BE: &str = "a capability such as NET_RAW; ALL would leave no wall standing";
    let name = capability_name(value, BE)?;
    if name == "ALL" { must(BE, value) } else { Ok(name) }
}

fn capability_name(value: &Value, be: &str) -> Read<String> {
    let text = text_of(value, be)?.to_ascii_uppercase();
    let name = text.strip_prefix("CAP_").unwrap_or(&text);
    let fits = (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    if fits { Ok(name.to_owned()) } else { must(be, value) }
}

/// Reads a tmpfs mount: `path` or `path:options`.
pub(super) fn tmpfs(value: &Value) -> Read<String> {
    const BE: &str = "an absolute path, with mount options behind a colon if there are any, such as /run:size=64m";
    let text = text_of(value, BE)?;
    let path = text.split_once(':').map_or(text, |(path, _)| path);
    let is_plain = path.len() > 1 && !path.split('/').any(|part| part == ".." || part == ".");
    if path.starts_with('/') && is_plain && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        must(BE, value)
    }
}
