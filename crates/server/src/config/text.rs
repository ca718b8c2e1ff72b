//! Texts with rules: names, addresses and URLs.

#![expect(clippy::wildcard_enum_match_arm, reason = "a kind of value that a reader does not name is a wrong type")]

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use domain::{EgressEntry, Host, OwnerId, Target};
use ipnet::IpNet;
use serde_json::{Value as Json, json};

use super::declare::EntryName;
use super::read::{self, Configurable, Kind, Marks, Read, Reader, decimal, must, text_of};
use super::tree::Value;

/// A text with a rule.
pub(super) struct Text<T: 'static> {
    /// Description of a right value.
    be: &'static str,
    /// Returns the typed value, `None` if the rule is broken.
    parse: fn(&str) -> Option<T>,
    /// True if a fault repeats a value that breaks the rule.
    repeats: bool,
    marks: Marks,
}

const fn text<T>(be: &'static str, parse: fn(&str) -> Option<T>) -> Text<T> {
    Text { be, parse, repeats: true, marks: Marks::OPEN }
}

impl<T> Kind for Text<T> {
    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1 })
    }

    fn marks(&self) -> Marks {
        self.marks
    }
}

impl<T> Reader for Text<T> {
    type Out = T;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<T> {
        let parsed = (self.parse)(text_of(value, self.be)?);
        parsed.map_or_else(|| if self.repeats { must(self.be, value) } else { Err(format!("must be {}", self.be)) }, Ok)
    }
}

/// Returns `text` if it follows the rule.
fn if_so(is_right: bool, text: &str) -> Option<String> {
    is_right.then(|| text.to_owned())
}

/// An IP address.
pub(super) const ADDRESS: Text<IpAddr> = text("an IP address, such as 127.0.0.1", |text| text.parse().ok());

impl Configurable for IpAddr {
    fn reader() -> impl Reader<Out = Self> {
        ADDRESS
    }
}

/// An address, or a network such as `10.0.0.0/8`.
pub(super) const NETWORK: Text<IpNet> = text("an IP address or a network, such as 10.0.0.0/8", |text| {
    text.parse::<IpAddr>().map(IpNet::from).or_else(|_| text.parse()).ok()
});

impl Configurable for IpNet {
    fn reader() -> impl Reader<Out = Self> {
        NETWORK
    }
}

/// A host's name or address, without a port; in lower case.
pub(super) const HOST_NAME: Text<String> =
    text("a host name without a scheme or port, such as boxes.example.com", |text| {
        let is_name = text.len() <= 253 && text.split('.').all(|label| is_host_label(label, b"-_"));
        (is_name || text.parse::<IpAddr>().is_ok()).then(|| text.to_ascii_lowercase())
    });

fn is_host_label(label: &str, besides: &[u8]) -> bool {
    (1..=63).contains(&label.len()) && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || besides.contains(&byte))
}

/// A web origin, or `*`.
pub(super) const ORIGIN: Text<String> =
    text("an origin without a path, such as https://app.example.com, or *", |text| {
        let authority = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let is_origin = authority.is_some_and(|it| !it.is_empty() && is_plain(it, b"/?#@*"));
        (text == "*" || is_origin).then(|| text.to_ascii_lowercase())
    });

/// A base URL, without a slash at its end. It may hold a password, so a fault does not repeat it.
pub(super) const URL: Text<String> = Text {
    repeats: false,
    ..text("an http or https URL without a user, query or fragment, such as https://boxes.example.com", |text| {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let rest = rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/') && is_plain(rest, b"?#@"));
        rest.map(|_| text.trim_end_matches('/').to_owned())
    })
};

/// Returns whether `text` is printable ASCII without spaces and without these characters.
fn is_plain(text: &str, without: &[u8]) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && !without.contains(&byte))
}

/// The address of a Docker Engine, as a URL.
pub(super) const ENGINE: Text<String> = text("an absolute path, unix:///path or tcp://host:port", |text| {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    match text.strip_prefix("tcp://") {
        _ if !is_plain(text, b"?#@") => None,
        _ if path.starts_with('/') => Some(format!("unix://{path}")),
        Some(authority) if !authority.is_empty() && !authority.contains('/') => Some(text.to_owned()),
        Some(_) | None => None,
    }
});

/// The name of an image, as a request would give it.
pub(super) const IMAGE: Text<String> =
    text("the name of an image, such as host", |text| if_so(text.len() <= 512 && is_plain(text, b""), text));

/// Rule for the names of entries that are images.
pub(super) const BY_IMAGE: EntryName = EntryName {
    check: |text| {
        const BE: &str = "does not name an image; write it as a spawn does, such as python:3.12";
        if_so((1..=512).contains(&text.len()) && is_plain(text, b""), text).ok_or_else(|| BE.to_owned())
    },
    is_host: true,
};

/// A domain, maybe with a port.
pub(super) const DOMAIN: Text<String> =
    text("a domain, and a port if it needs one, such as boxes.example.com or boxes.example.com:8443", |text| {
        // As a registry, which has aliases.
        registry(text).map(|_| text.to_ascii_lowercase())
    });

/// A short name, such as that of a provider.
pub(super) const LABEL: Text<String> =
    text("1 to 128 letters, digits, `.`, `_` or `-`", |text| if_so(is_label(text), text));

/// The id of a signed token, in whose place a token may be written by mistake.
pub(super) const TOKEN_ID: Text<String> = Text { marks: Marks { is_beside_a_secret: true, ..Marks::OPEN }, ..LABEL };

/// Returns whether `text` is a short name.
pub(super) fn is_label(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// A range of ids, as `first:count`.
pub(super) const SUBIDS: Text<(u32, u32)> =
    text("first:count, such as 1000000:6553600, with first and count at least 65536 (a box takes 65536)", |text| {
        let (first, count) = text.split_once(':')?;
        let first = u32::try_from(decimal(first)?).ok()?;
        let count = u32::try_from(decimal(count)?).ok()?;
        // The last id, 2^32 - 1, means "none" to the kernel.
        let is_right = first >= 65_536 && count >= 65_536 && first.checked_add(count).is_some();
        is_right.then_some((first, count))
    });

/// A control group's path, from the root of the hierarchy.
pub(super) const CGROUP: Text<String> =
    text("the path of a control group without . or .., such as tidebox.slice", |text| {
        let path = text.strip_prefix('/').unwrap_or(text);
        let is_right = path.split('/').all(|part| !matches!(part, "" | "." | "..")) && !path.contains(char::is_control);
        if_so(is_right, text)
    });

/// The name of a network of a Docker Engine. That of the host, or of another container, is
/// refused: it would undo the isolation of a box.
pub(super) const NETWORK_MODE: Text<String> =
    text("none, bridge or the name of a network other than the host's or a container's", |text| {
        if_so(text != "host" && is_label(text), text)
    });

/// The name of a user at a registry.
pub(super) const USER_NAME: Text<String> = text("a user name without `:`, spaces or control characters", |text| {
    let is_right = text.chars().all(|c| c != ':' && !c.is_whitespace() && !c.is_control());
    if_so(text.len() <= 256 && is_right, text)
});

/// A capability of the kernel, without `CAP_`; or `ALL`.
pub(super) const CAPABILITY_OR_ALL: Text<String> = text("a capability such as NET_RAW, or ALL", capability);

/// A capability of the kernel, without `CAP_`. `ALL` is refused: it would leave no isolation.
pub(super) const CAPABILITY: Text<String> =
    text("a capability such as NET_RAW; ALL would remove all isolation", |text| {
        capability(text).filter(|name| name != "ALL")
    });

fn capability(text: &str) -> Option<String> {
    let text = text.to_ascii_uppercase();
    let name = text.strip_prefix("CAP_").unwrap_or(&text);
    let fits = (1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    if_so(fits, name)
}

/// A tmpfs mount: `path` or `path:options`.
pub(super) const TMPFS: Text<String> =
    text("an absolute path, optionally with mount options after a colon, such as /run:size=64m", |text| {
        let path = text.split_once(':').map_or(text, |(path, _)| path);
        let is_plain = path.len() > 1 && !path.split('/').any(|part| part == ".." || part == ".");
        if_so(path.starts_with('/') && is_plain && !text.contains(char::is_control), text)
    });

/// A registry by host and port.
pub(super) const REGISTRY: Text<String> =
    text("a host and its port without a scheme, such as mirror.example.com:5000", registry);

/// Rule for the names of entries that are registries.
pub(super) const BY_REGISTRY: EntryName = EntryName {
    check: |text| {
        const BE: &str = "does not name a registry; write its host, and its port if it has one, such as localhost:5000";
        registry(text).ok_or_else(|| BE.to_owned())
    },
    is_host: true,
};

fn registry(text: &str) -> Option<String> {
    let (host, port) = text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let has_valid_port = match port {
        Some(port) => decimal(port).is_some_and(|port| (1..=65_535).contains(&port)),
        None => true,
    };
    let is_host = text.len() <= 253 && host.split('.').all(|label| is_host_label(label, b"-"));
    if !is_host || !has_valid_port {
        return None;
    }
    let name = text.to_ascii_lowercase();
    // Docker's own registry has several names, of which image names use the first.
    let is_hub = matches!(name.as_str(), "index.docker.io" | "registry-1.docker.io");
    Some(if is_hub { "docker.io".to_owned() } else { name })
}

/// Rule for the names of entries that are workers.
pub(super) const BY_WORKER: EntryName = EntryName { check: worker_id, is_host: false };

fn worker_id(text: &str) -> Read<String> {
    if text == "local" {
        Err("is the id of this server itself; choose another id for the worker".to_owned())
    } else if is_label(text) && !matches!(text, "." | "..") {
        Ok(text.to_owned())
    } else {
        Err("has a worker id that is not 1 to 128 letters, digits, `.`, `_` or `-`".to_owned())
    }
}

/// The names of hosts, without ports.
pub(super) const BY_HOST: EntryName = EntryName {
    check: |text| match Host::parse(text) {
        Ok(Host::Name(name)) => Ok(name),
        Ok(Host::Address(_)) => Err("names an address; write the name of a host".to_owned()),
        Err(error) => Err(error.to_string()),
    },
    is_host: true,
};

/// The names of lists of egress targets.
pub(super) const BY_LIST: EntryName = EntryName {
    check: |text| match EgressEntry::parse(&format!("@{text}")) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("has a name that is not 1 to 64 letters, digits, `.`, `_` or `-`".to_owned()),
    },
    is_host: false,
};

/// The names of entries of the warm pool.
pub(super) const BY_POOL_ENTRY: EntryName = EntryName {
    check: |text| {
        const BE: &str = "has a name that is not 1 to 128 letters, digits, `.`, `_` or `-`";
        if_so(is_label(text), text).ok_or_else(|| BE.to_owned())
    },
    is_host: false,
};

/// The ids of owners.
pub(super) const BY_OWNER: EntryName = EntryName {
    check: |text| OwnerId::parse(text).map(|owner| owner.to_string()).map_err(|error| error.to_string()),
    is_host: false,
};

/// A note for operators.
pub(super) const NOTE: Text<String> =
    text("a string of 1 to 4096 characters", |text| if_so((1..=4096).contains(&text.chars().count()), text));

/// A target of a connection: a host, a wildcard or a network.
pub(super) const EGRESS_TARGET: Text<Target> =
    text("a target such as pypi.org:443, *.example.net or 10.0.0.0/8:5432", |text| Target::parse(text).ok());

/// An entry of an egress policy: a target, or `@` and the name of a list.
pub(super) const EGRESS_ENTRY: Text<EgressEntry> =
    text("a target such as pypi.org:443, *.example.net or 10.0.0.0/8:5432, or @ and the name of a list", |text| {
        EgressEntry::parse(text).ok()
    });

/// A value whose faults need words of their own.
pub(super) struct Special<T> {
    pub(super) read: fn(&Value, Option<&Path>) -> Read<T>,
}

impl<T: 'static> Kind for Special<T> {
    fn schema(&self) -> Json {
        json!({ "type": "string", "minLength": 1 })
    }
}

impl<T: 'static> Reader for Special<T> {
    type Out = T;

    fn read(&self, value: &Value, home: Option<&Path>) -> Read<T> {
        (self.read)(value, home)
    }
}

/// The id of this worker.
pub(super) const WORKER_ID: Special<String> =
    Special { read: |value, home| LABEL.read(value, home).and_then(|id| worker_id(&id)) };

/// The path in `sqlite://<path>`.
pub(super) const DATABASE: Special<PathBuf> = Special {
    read: |value, home| {
        const BE: &str = "sqlite:// and an absolute path, such as sqlite:///var/lib/tidebox/tidebox.db";
        let text = text_of(value, BE)?;
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            // The URL may hold a password, so it is not repeated.
            return Err(format!("PostgreSQL is not supported by this version of Tidebox; use {BE}"));
        }
        match text.strip_prefix("sqlite://") {
            Some(file) if !file.contains(['?', '#']) && !file.ends_with('/') => {
                read::PATH.read(&Value::Text(file.to_owned()), home).or_else(|_| must(BE, value))
            }
            Some(_) => must(BE, value),
            None => Err(format!("must be {BE}")),
        }
    },
};

/// A user of a box: `name`, `uid`, `name:group` or `uid:gid`.
pub(super) struct User;

impl Kind for User {
    fn schema(&self) -> Json {
        json!({ "type": ["string", "integer"], "minLength": 1 })
    }

    fn plain(&self, text: &str, _: Option<&Path>) -> Value {
        let number = decimal(text).filter(|number| number.to_string() == text);
        number.map_or_else(|| Value::Text(text.to_owned()), Value::Integer)
    }
}

impl Reader for User {
    type Out = String;

    fn read(&self, value: &Value, _: Option<&Path>) -> Read<String> {
        const BE: &str = "a user as name, uid, name:group or uid:gid";
        let text = match value {
            Value::Integer(uid) => &uid.to_string(),
            _ => text_of(value, BE)?,
        };
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        if is_label(user) && group.is_none_or(is_label) { Ok(text.to_owned()) } else { must(BE, value) }
    }
}
