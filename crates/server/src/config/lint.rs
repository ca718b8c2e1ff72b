//! Findings of `tidebox config lint` on a configuration without faults.
//!
//! A rule depends only on the configuration and on the modes of the files that it names, so that
//! a table of cases can test it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::format_duration;

use super::fault::Source;
use super::keys;
use super::load::Loaded;
use super::secret::Secret;
use super::settings::{Config, Level, RateKey, RouteGroup};

mod report;
mod runtimes;
mod strength;

use report::Report;
pub use report::{Finding, Verdict};

/// Modes of files, by path: the lower twelve bits, or the error on reading them.
pub type Modes = BTreeMap<PathBuf, Result<u32, String>>;

/// Reads the modes of the files that the configuration names.
#[must_use]
pub fn modes(loaded: &Loaded) -> Modes {
    let paths = private_files(loaded).into_iter().map(|(_, path)| path).chain(private_places(&loaded.config));
    paths
        .map(|path| {
            let mode = std::fs::metadata(&path).map(|file| file.permissions().mode() & 0o7777);
            (path, mode.map_err(|error| error.to_string()))
        })
        .collect()
}

/// Returns every finding, in the order of the rules. A failure in production is a warning
/// elsewhere.
#[must_use]
pub fn lint(loaded: &Loaded, modes: &Modes, production: bool) -> Vec<Finding> {
    let mut report = Report { findings: Vec::new(), worst: if production { Verdict::Fail } else { Verdict::Warn } };
    for warning in &loaded.warnings {
        report.warn("configuration", warning, "change the setting that it names");
    }
    let config = &loaded.config;
    for rule in RULES {
        rule(config, &mut report);
    }
    files(loaded, modes, &mut report);
    places(config, modes, &mut report);
    report.findings
}

/// Rules that need only the values, not the modes of files.
const RULES: &[fn(&Config, &mut Report)] = &[
    authentication,
    admin,
    keys,
    distinct_keys,
    address,
    tls,
    origins,
    proxies,
    caps,
    shared,
    lifetimes,
    mock,
    runtimes::proot,
    runtimes::docker,
    rate_limit,
    audit,
    traces,
    disk,
    runtimes::peers,
    runtimes::registries,
];

fn authentication(config: &Config, report: &mut Report) {
    const KEY: &str = "auth.enabled";
    if config.auth.enabled {
        report.pass(KEY, "a key is required");
    } else {
        report.fail(
            KEY,
            "is false: any client that reaches the port can run commands",
            "set it to true, and set auth.api_key_file",
        );
    }
}

fn admin(config: &Config, report: &mut Report) {
    const KEY: &str = "auth.admin_api_key";
    if config.auth.admin_api_key.is_some() {
        report.pass(KEY, "the admin routes have their own key");
    } else if config.auth.admin_fallback_enabled {
        report.warn(KEY, "is not set: the API key gives access to the admin routes", "set auth.admin_api_key_file");
    } else {
        report.pass(KEY, "is not set, so the admin routes are closed");
    }
}

/// Returns every key and token that opens this server, by its dotted key.
fn own_secrets(config: &Config) -> Vec<(String, &Secret)> {
    let auth = &config.auth;
    let single = [
        ("auth.api_key", &auth.api_key),
        ("auth.admin_api_key", &auth.admin_api_key),
        ("auth.worker_token", &auth.worker_token),
        ("auth.worker_signing_key", &auth.worker_signing_key),
    ];
    let single = single.into_iter().filter_map(|(key, secret)| Some((key.to_owned(), secret.as_ref()?)));
    let earlier = auth.worker_signing_keys.iter().enumerate();
    let earlier = earlier.map(|(at, secret)| (format!("auth.worker_signing_keys[{at}]"), secret));
    let tokens = auth.worker_tokens.iter().map(|(id, secret)| (format!("auth.worker_tokens.{id}"), secret));
    single.chain(earlier).chain(tokens).collect()
}

fn keys(config: &Config, report: &mut Report) {
    for (key, secret) in own_secrets(config) {
        match strength::weakness(secret.expose()) {
            None => report.pass(key, "looks random"),
            Some(why) => report.fail(key, why, "make a new one with `openssl rand -hex 32`"),
        }
    }
}

fn distinct_keys(config: &Config, report: &mut Report) {
    let secrets = own_secrets(config);
    let mut are_distinct = true;
    for (at, (key, secret)) in secrets.iter().enumerate() {
        if let Some((other, _)) = secrets[..at].iter().find(|(_, earlier)| earlier == secret) {
            are_distinct = false;
            report.fail(key, format!("is the same as {other}"), "use a different key for each purpose");
        }
    }
    if are_distinct && secrets.len() > 1 {
        report.pass("auth", "no two keys are the same");
    }
}

fn address(config: &Config, report: &mut Report) {
    const KEY: &str = "server.host";
    let host = config.server.host;
    if config.auth.enabled || host.is_loopback() {
        report.pass(KEY, format!("is {host}"));
    } else if host.is_unspecified() {
        let remedy = "set auth.enabled, or listen on 127.0.0.1";
        report.fail(KEY, format!("is {host}, every address of this host, and no key is required"), remedy);
    } else {
        report.fail(KEY, format!("is {host}, and no key is required"), "set auth.enabled, or listen on 127.0.0.1");
    }
}

fn tls(config: &Config, report: &mut Report) {
    const KEY: &str = "server.tls.cert_file";
    if config.server.tls.cert_file.is_some() {
        report.pass(KEY, "HTTPS is served");
    } else if config.server.host.is_loopback() {
        report.pass(KEY, "is not set; the server listens on loopback");
    } else {
        let remedy = "set server.tls.cert_file and server.tls.key_file, or put a proxy that serves HTTPS in front";
        report.warn(KEY, "is not set: keys and data are sent unencrypted", remedy);
    }
}

fn origins(config: &Config, report: &mut Report) {
    const KEY: &str = "server.cors_allowed_origins";
    let origins = &config.server.cors_allowed_origins;
    if origins.is_empty() {
        report.fail(KEY, "is empty", "list the origins whose pages use the API, such as https://app.example.com");
    } else if origins.iter().any(|origin| origin == "*") {
        report.fail(KEY, "lets pages of every site use the API", "list the origins that need it instead of *");
    } else if let Some(origin) = origins.iter().find(|origin| origin.starts_with("http://")) {
        report.warn(
            KEY,
            format!("contains {origin}, whose pages an attacker on the network can change"),
            "serve the pages over HTTPS",
        );
    } else {
        report.pass(KEY, "lists origins");
    }
}

fn proxies(config: &Config, report: &mut Report) {
    const KEY: &str = "server.trusted_proxies";
    let proxies = &config.server.trusted_proxies;

    if let Some(all) = proxies.iter().find(|network| network.prefix_len() == 0) {
        let message = format!("contains {all}: any client can claim any address and bypass limits and the audit");
        report.fail(KEY, message, "name the addresses of your proxies");
    } else if let Some(wide) = proxies.iter().find(|network| is_wide(network)) {
        report.warn(KEY, format!("contains {wide}, which is very wide"), "name the addresses of your proxies");
    } else {
        report.pass(KEY, if proxies.is_empty() { "no forwarded address is trusted" } else { "names proxies" });
    }
}

fn is_wide(network: &ipnet::IpNet) -> bool {
    match network.addr() {
        IpAddr::V4(_) => network.prefix_len() < 8,
        IpAddr::V6(_) => network.prefix_len() < 32,
    }
}

fn caps(config: &Config, report: &mut Report) {
    let defaults = &config.defaults;
    for (key, cap, whose) in [
        ("defaults.max_sandboxes", defaults.max_sandboxes, "the whole server"),
        ("defaults.max_sandboxes_per_owner", defaults.max_sandboxes_per_owner, "one owner"),
    ] {
        if cap == 0 {
            report.fail(key, format!("is 0: no limit for {whose}"), "set it to what this host can hold");
        } else {
            report.pass(key, format!("is {cap}"));
        }
    }
}

/// Checks that in pool mode templates and quotas are closed to users: users are kept apart, but
/// one key opens both to all of them.
fn shared(config: &Config, report: &mut Report) {
    const KEY: &str = "auth.admin_only";
    if !config.pool.enabled {
        return;
    }
    let groups = [RouteGroup::Templates, RouteGroup::Quotas];
    let open = groups.into_iter().filter(|group| !config.auth.admin_only.contains(group));
    let open: Vec<_> = open.map(RouteGroup::as_str).collect();
    if open.is_empty() {
        report.pass(KEY, "contains templates and quotas");
    } else {
        let message = format!(
            "lacks {} while users share boxes: any user can change what others spawn, or their own limits",
            open.join(" and ")
        );
        report.fail(KEY, message, "set it to [templates, quotas], and set auth.admin_api_key_file");
    }
}

fn lifetimes(config: &Config, report: &mut Report) {
    const KEY: &str = "defaults.max_ttl";
    const LONG: Duration = Duration::from_secs(7 * 24 * 3600);
    let ttl = config.defaults.max_ttl;
    if ttl > LONG {
        let message = format!("is {}: a forgotten sandbox keeps its memory that long", format_duration(ttl));
        report.warn(KEY, message, "set it to 168h or less");
    } else {
        report.pass(KEY, format!("is {}", format_duration(ttl)));
    }
}

fn mock(config: &Config, report: &mut Report) {
    const KEY: &str = "providers.mock.enabled";
    if config.providers.mock.enabled {
        report.fail(KEY, "is true: the test double isolates nothing", "set it to false");
    } else {
        report.pass(KEY, "is false");
    }
}

fn rate_limit(config: &Config, report: &mut Report) {
    let limit = &config.rate_limit;
    if !limit.enabled {
        report.warn("rate_limit.enabled", "is false: one caller can keep the server busy", "set it to true");
    } else if limit.key_by == RateKey::Owner {
        let message = "is owner: a caller with the key gets a separate limit for each X-User-ID it makes up";
        report.warn("rate_limit.key_by", message, "set it to api_key or ip, unless a proxy sets X-User-ID");
    } else {
        report.pass("rate_limit.enabled", format!("is true, keyed by {}", limit.key_by.as_str()));
    }
}

fn audit(config: &Config, report: &mut Report) {
    const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
    const FEW: u64 = 10_000;
    let kept = config.auth.admin_audit_retention;
    let key = "auth.admin_audit_retention";
    if kept < WEEK {
        report.warn(key, format!("is {}: less than a week", format_duration(kept)), "set it to 168h or more");
    } else {
        report.pass(key, format!("is {}", format_duration(kept)));
    }
    let entries = config.auth.admin_audit_max_entries;
    let key = "auth.admin_audit_max_entries";
    if entries < FEW {
        report.warn(
            key,
            format!("is {entries}: entries for refused keys soon push out the rest"),
            "set it to 10000 or more",
        );
    } else {
        report.pass(key, format!("is {entries}"));
    }
}

fn traces(config: &Config, report: &mut Report) {
    if config.retention.destroyed.is_zero() {
        let message = "is 0: a repeated DELETE is answered as if the sandbox had never existed";
        report.warn("retention.destroyed", message, "set it to 1h or more");
    } else {
        report.pass("retention.destroyed", format!("is {}", format_duration(config.retention.destroyed)));
    }
    if config.logging.level >= Level::Debug {
        let level = config.logging.level.as_str();
        report.warn("logging.level", format!("is {level}: the log grows fast"), "set it to info");
    } else {
        report.pass("logging.level", format!("is {}", config.logging.level.as_str()));
    }
}

fn disk(config: &Config, report: &mut Report) {
    let limits = &config.limits;
    let reserves = [
        ("limits.reserve_disk_mb", limits.reserve_disk_mb, "fill the disk that the server writes to", "set it to 1024"),
        ("limits.reserve_inodes", limits.reserve_inodes, "use every inode of the server's disk", "set it to 10000"),
    ];
    for (key, reserve, what, remedy) in reserves {
        match reserve {
            0 => report.warn(key, format!("is 0: sandboxes can {what}"), remedy),
            reserve => report.pass(key, format!("is {reserve}")),
        }
    }
}

/// Returns the files that hold a secret, by the key that names them or is written in them.
fn private_files(loaded: &Loaded) -> Vec<(String, PathBuf)> {
    let mut files = keys::files(&loaded.values, loaded.home.as_deref(), |key| key.kind.marks().is_private);
    files.extend(loaded.secrets_in_files().map(|(key, path)| (key.to_owned(), path.to_owned())));
    files
}

/// Returns the paths that only the server's user may read.
fn private_places(config: &Config) -> [PathBuf; 2] {
    [config.data_dir.clone(), config.database.path.clone()]
}

fn files(loaded: &Loaded, modes: &Modes, report: &mut Report) {
    for (key, path) in private_files(loaded) {
        let shown = path.display();
        match modes.get(&path) {
            Some(Ok(mode)) if mode & 0o077 == 0 => report.pass(key, format!("{shown} has mode {mode:04o}")),
            Some(Ok(mode)) => report.fail(
                key,
                format!("{shown} has mode {mode:04o}: other users of this host can use it"),
                format!("chmod 600 {shown}"),
            ),
            Some(Err(why)) => report.fail(key, format!("{shown}: {why}"), "create the file, or name another"),
            None => report.fail(key, format!("{shown} was not checked"), "run this again"),
        }
    }
}

fn places(config: &Config, modes: &Modes, report: &mut Report) {
    let [data, database] = private_places(config);
    let is_inside = database.starts_with(&data);
    place("data_dir", &data, 0o700, modes, report);
    if !is_inside {
        place("database.url", &database, 0o600, modes, report);
    }
}

fn place(key: &str, path: &Path, right: u32, modes: &Modes, report: &mut Report) {
    let shown = path.display();
    match modes.get(path) {
        Some(Ok(mode)) if mode & 0o077 == 0 => report.pass(key, format!("{shown} has mode {mode:04o}")),
        Some(Ok(mode)) => report.fail(
            key,
            format!("{shown} has mode {mode:04o}: other users of this host can read it"),
            format!("chmod {right:o} {shown}"),
        ),
        // The server creates it, for its user alone.
        Some(Err(_)) | None => report.pass(key, format!("{shown} cannot be checked, or does not exist yet")),
    }
}

impl Loaded {
    /// Returns the secrets that are written in a configuration file itself, with that file.
    fn secrets_in_files(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.sources.iter().filter_map(|(key, source)| match source {
            Source::File(path) if self.holds_secret(key) => Some((key.as_str(), path.as_path())),
            Source::File(_) | Source::Default | Source::Variable(_) => None,
        })
    }
}

#[cfg(test)]
mod test;
