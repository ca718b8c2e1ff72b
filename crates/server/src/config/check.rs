//! Checks across keys: values that contradict each other, and files that cannot be read.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use domain::{EgressEntry, InvalidEgress, format_duration};

use super::draft::Draft;
use super::fault::Source;
use super::secret_file;
use super::settings::{Config, DefaultProvider, Enabled};
use super::tree::Value;

use Bounded::{Number, Span};

/// Derives the values that depend on other keys, then checks the whole configuration.
pub(super) fn finish(draft: &mut Draft) {
    place_data(draft);
    let defaults = draft.config.defaults.clone();
    below(draft, ("defaults.ttl", Span(defaults.ttl)), ("defaults.max_ttl", Span(defaults.max_ttl)));
    below(
        draft,
        ("defaults.default_exec_timeout", Span(defaults.default_exec_timeout)),
        ("defaults.max_exec_timeout", Span(defaults.max_exec_timeout)),
    );
    for (default, value, maximum, most) in [
        ("defaults.memory_mb", defaults.memory_mb, "defaults.max_memory_mb", defaults.max_memory_mb),
        ("defaults.vcpus", defaults.vcpus, "defaults.max_vcpus", defaults.max_vcpus),
    ] {
        // A maximum that is derived from the machine lowers the default instead.
        if let Some(most) = most {
            below(draft, (default, Number(value)), (maximum, Number(most)));
        }
    }
    leases(draft);
    egress(draft);
    worker_token(draft);
    custom_provider(draft);
    e2b_provider(draft);
    warm_pool(draft);
    default_provider(draft);
    docker(draft);
    files(draft);
    registries(draft);
    tls(draft);
    secret_file::resolve(draft);
    registry_logins(draft);
    keys(draft);
    workers(draft);
    warn_about_open_doors(draft);
}

fn place_data(draft: &mut Draft) {
    if draft.config.data_dir.as_os_str().is_empty() {
        // A value that is at fault has been reported already.
        if !draft.has_fault("data_dir") {
            draft.fault("data_dir", &Source::Default, "cannot be derived because HOME is not set; set it to a folder");
        }
    } else if draft.config.database.path.as_os_str().is_empty() {
        draft.config.database.path = draft.config.data_dir.join("tidebox.db");
    }
    let Config { data_dir, database, .. } = &draft.config;
    let url = format!("sqlite://{}", database.path.display());
    draft.values.insert("data_dir".to_owned(), Value::Text(data_dir.display().to_string()));
    draft.values.insert("database.url".to_owned(), Value::Text(url));
}

/// A value that has a maximum.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
enum Bounded {
    Span(Duration),
    Number(u32),
}

impl std::fmt::Display for Bounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Span(duration) => f.write_str(&format_duration(*duration)),
            Number(number) => number.fmt(f),
        }
    }
}

/// Reports a default that is above its maximum.
fn below(draft: &mut Draft, default: (&'static str, Bounded), maximum: (&'static str, Bounded)) {
    if default.1 <= maximum.1 || draft.has_fault(default.0) || draft.has_fault(maximum.0) {
        return;
    }
    let source = draft.source(default.0);
    let source_of_maximum = draft.source(maximum.0);
    let message = format!(
        "{} is above `{}`, which is {} ({source_of_maximum}); lower one or raise the other",
        default.1, maximum.0, maximum.1,
    );
    draft.fault(default.0, &source, message);
}

/// Checks that the heartbeat interval is at most half of `leases.ttl` and of
/// `leases.stale_after`: a lease that is not renewed well before it ends holds nothing.
fn leases(draft: &mut Draft) {
    const KEY: &str = "leases.heartbeat_interval";
    let leases = draft.config.leases;
    let interval = leases.heartbeat_interval;
    for (other, longer) in [("leases.ttl", leases.ttl), ("leases.stale_after", leases.stale_after)] {
        if longer < interval * 2 && !draft.has_fault(KEY) && !draft.has_fault(other) {
            let source = draft.source(KEY);
            let longer = format_duration(longer);
            let interval = format_duration(interval);
            let message = format!("{interval} exceeds half of `{other}`, which is {longer}; lower it");
            draft.fault(KEY, &source, message);
        }
    }
}

/// Checks that each policy names lists that exist, and allows nothing that its mode has no use for.
fn egress(draft: &mut Draft) {
    let egress = &draft.config.egress;
    let lists = egress.targets_of_lists();
    let owners = egress.owner_policies().into_iter().map(|(owner, policy)| (format!("egress.owners.{owner}"), policy));
    let policies = [("egress".to_owned(), egress.site()), ("egress.default".to_owned(), egress.default_policy())];
    let faults = policies.into_iter().chain(owners).filter_map(|(section, policy)| {
        let fault = policy.check(&lists).err()?;
        let in_deny = policy.deny.iter().any(|entry| match (entry, &fault) {
            (EgressEntry::List(name), InvalidEgress::UnknownList(unknown)) => name == unknown,
            _ => false,
        });
        let message = match fault {
            InvalidEgress::Long(entries) => {
                format!("the policy has too many entries ({entries}); use a list (`@name`)")
            }
            InvalidEgress::Large => "the policy's entries are too long in total; use a list (`@name`)".to_owned(),
            InvalidEgress::UnknownList(name) => format!("names `@{name}`, which is not in `egress.lists`"),
            // The configuration names no secrets.
            InvalidEgress::ManySecrets(_) | InvalidEgress::UselessSecrets => return None,
            InvalidEgress::UselessAllow(mode) => {
                format!("has no effect with the mode `{mode}`; set `{section}.mode` to allow-list")
            }
        };
        Some((format!("{section}.{}", if in_deny { "deny" } else { "allow" }), message))
    });
    for (key, message) in faults.collect::<Vec<_>>() {
        let source = draft.source(&key);
        draft.fault(key, &source, message);
    }
}

/// Checks that only one of `worker.token` and `worker.token_file` is set.
fn worker_token(draft: &mut Draft) {
    if draft.config.worker.token.is_some() && draft.config.worker.token_file.is_some() {
        let source = draft.source("worker.token_file");
        draft.fault("worker.token_file", &source, "is set together with `worker.token`; keep one");
    }
}

fn default_provider(draft: &mut Draft) {
    let providers = &draft.config.providers;
    let native = providers.native.enabled != Enabled::False;
    let docker = providers.docker.enabled != Enabled::False;
    let proot = providers.proot.is_offered(&draft.config.auth);
    let firecracker = match providers.firecracker.enabled {
        Enabled::Auto => providers.firecracker.kernel.is_some(),
        Enabled::True => true,
        Enabled::False => false,
    };
    let enabled = match &providers.default {
        DefaultProvider::Auto => {
            if !native && !docker && !proot {
                draft.warnings.push(
                    "`providers.default` is auto, and native, docker and proot are not enabled: \
                     a spawn must name its provider"
                        .to_owned(),
                );
            }
            return;
        }
        DefaultProvider::Named(name) => match name.as_str() {
            "native" => Some(("native", native)),
            "docker" => Some(("docker", docker)),
            "firecracker" => Some(("firecracker", firecracker)),
            "proot" => Some(("proot", proot)),
            "mock" => Some(("mock", providers.mock.enabled)),
            "e2b" => Some(("e2b", providers.e2b.enabled)),
            _ if *name == providers.custom.name => Some(("custom", providers.custom.enabled)),
            _ => None,
        },
    };
    let message = match enabled {
        Some((_, true)) => return,
        Some(("proot", false)) if providers.proot.enabled == Enabled::Auto => {
            "names proot, which `providers.proot.enabled: auto` does not offer while no key is required; set \
             `auth.enabled` to true, or `providers.proot.enabled` if you trust the code in its boxes with this server"
                .to_owned()
        }
        Some(("firecracker", false)) if providers.firecracker.enabled == Enabled::Auto => {
            "names firecracker, which `providers.firecracker.enabled: auto` does not offer without a guest kernel; set \
             `providers.firecracker.kernel`"
                .to_owned()
        }
        Some((name, false)) => {
            format!("names a provider that is not enabled; set `providers.{name}.enabled` to true")
        }
        None => {
            format!(
                "must be auto, native, docker, firecracker, proot, mock, e2b or {} (`providers.custom.name`)",
                providers.custom.name
            )
        }
    };
    let source = draft.source("providers.default");
    draft.fault("providers.default", &source, message);
}

/// Names of other providers.
const NAMES: [&str; 6] = ["native", "docker", "firecracker", "proot", "mock", "e2b"];

fn custom_provider(draft: &mut Draft) {
    let custom = &draft.config.providers.custom;
    if !custom.enabled {
        return;
    }
    let takes_a_name = NAMES.contains(&custom.name.as_str()) || custom.name == "auto";
    // A value that is at fault has been reported already.
    let has_no_url = custom.base_url.is_empty() && !draft.has_fault("providers.custom.base_url");
    if takes_a_name {
        let source = draft.source("providers.custom.name");
        let message = format!("is the name of another provider; choose a name other than {}", NAMES.join(", "));
        draft.fault("providers.custom.name", &source, message);
    }
    if has_no_url {
        let source = draft.source("providers.custom.enabled");
        draft.fault(
            "providers.custom.enabled",
            &source,
            "needs the URL of a service; set `providers.custom.base_url`, for example to https://boxes.example.com",
        );
    }
}

/// Checks that the account of the provider has a key.
fn e2b_provider(draft: &mut Draft) {
    const ENABLED: &str = "providers.e2b.enabled";
    let e2b = &draft.config.providers.e2b;
    // A value that is at fault has been reported already.
    if e2b.enabled && e2b.api_key.is_none() && !draft.has_fault_of_secret("providers.e2b.api_key") {
        let source = draft.source(ENABLED);
        let message = "needs the key of an account; set `providers.e2b.api_key` or `providers.e2b.api_key_file`";
        draft.fault(ENABLED, &source, message);
    }
}

/// Checks that the warm pool is not set together with pool mode, whose boxes users share.
fn warm_pool(draft: &mut Draft) {
    if draft.config.pool.enabled && !draft.config.warm_pool.is_empty() {
        let source = draft.source("pool.enabled");
        draft.fault(
            "pool.enabled",
            &source,
            "cannot be true together with `warm_pool`, because several users share each box of the pool; remove one of \
             the two",
        );
    }
}

/// Checks that a certificate and its key are set together; one alone would leave the port
/// without TLS.
fn tls(draft: &mut Draft) {
    const CERT: &str = "server.tls.cert_file";
    const KEY: &str = "server.tls.key_file";
    let files = &draft.config.server.tls;
    let (set, missing) = match (&files.cert_file, &files.key_file) {
        (Some(_), None) => (CERT, KEY),
        (None, Some(_)) => (KEY, CERT),
        (Some(_), Some(_)) | (None, None) => return,
    };
    // A value that is at fault has been reported already.
    if !draft.has_fault(missing) {
        let source = draft.source(set);
        draft.fault(set, &source, format!("needs `{missing}`; set both, or neither for HTTP without TLS"));
    }
}

/// Checks that the certificate for an Engine comes with its key and an authority; without them
/// it opens nothing.
fn docker(draft: &mut Draft) {
    const CERT: &str = "providers.docker.tls.cert_file";
    const KEY: &str = "providers.docker.tls.key_file";
    const CA: &str = "providers.docker.tls.ca_file";
    let tls = &draft.config.providers.docker.tls;
    let (set, missing) = match (&tls.cert_file, &tls.key_file) {
        (Some(_), None) => (CERT, KEY),
        (None, Some(_)) => (KEY, CERT),
        (Some(_), Some(_)) if tls.ca_file.is_none() => (CERT, CA),
        (Some(_), Some(_)) | (None, None) => return,
    };
    // A value that is at fault has been reported already.
    if !draft.has_fault(missing) {
        let source = draft.source(set);
        draft.fault(set, &source, format!("needs `{missing}`; set both, or neither"));
    }
}

/// Checks the files that are read only when they are needed, so that one that is missing is
/// found at the start and not by a caller. Also refuses TLS files for connections without TLS.
fn files(draft: &mut Draft) {
    let has_docker = draft.config.providers.docker.enabled != Enabled::False;
    let files = draft.files(|key| {
        let is_used = has_docker || !key.name.starts_with("providers.docker.");
        key.kind.marks().is_read_later && is_used
    });
    for (key, file) in files {
        if let Err(error) = readable(&file) {
            let source = draft.source(&key);
            draft.fault(key, &source, format!("names {}, which cannot be read: {error}", file.display()));
        }
    }
    let plain = draft.config.images.registries.iter().filter(|(_, it)| it.plain_http && it.ca_file.is_some());
    let plain: Vec<_> = plain.map(|(host, _)| format!("images.registries.{host}.ca_file")).collect();
    for key in plain {
        let source = draft.source(&key);
        draft.fault(key, &source, "is for TLS, but `plain_http` turns TLS off; remove one of the two");
    }
    let docker = &draft.config.providers.docker;
    if docker.tls.ca_file.is_some() && docker.socket.as_deref().is_some_and(|socket| socket.starts_with("unix:")) {
        const CA: &str = "providers.docker.tls.ca_file";
        let source = draft.source(CA);
        draft.fault(CA, &source, "is for an Engine at tcp://, but `providers.docker.socket` is a Unix socket");
    }
}

/// Checks that `file` is a regular file that can be opened.
fn readable(file: &Path) -> io::Result<()> {
    // Opening a pipe would block until there is a writer.
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    File::open(file).map(drop)
}

/// Sets `images.docker_config` to `~/.docker/config.json` if it is unset and that file exists.
fn registries(draft: &mut Draft) {
    if draft.config.images.docker_config.is_none()
        && let Some(home) = &draft.home
    {
        let usual = home.join(".docker/config.json");
        draft.config.images.docker_config = usual.is_file().then_some(usual);
    }
}

/// Checks that the user name and the password of a registry are set together.
fn registry_logins(draft: &mut Draft) {
    let in_files = draft.files(|key| key.kind.marks().is_file_of_secret);
    let halves = draft.config.images.registries.iter().filter_map(|(host, registry)| {
        let section = format!("images.registries.{host}");
        let username = format!("{section}.username");
        let password = format!("{section}.password");
        let password_file = format!("{section}.password_file");
        match (&registry.username, &registry.password) {
            (Some(_), None) => Some((username, password)),
            (None, Some(_)) => {
                let is_in_file = in_files.iter().any(|(key, _)| *key == password_file);
                Some((if is_in_file { password_file } else { password }, username))
            }
            (Some(_), Some(_)) | (None, None) => None,
        }
    });
    let halves: Vec<_> = halves.collect();
    for (set, missing) in halves {
        // A value that is at fault has been reported already.
        if !draft.has_fault_of_secret(&missing) {
            let source = draft.source(&set);
            draft.fault(set, &source, format!("needs `{missing}`; set both, or neither"));
        }
    }
}

/// Checks that the keys that routes ask for are set; without them no caller could get in.
fn keys(draft: &mut Draft) {
    let auth = &draft.config.auth;
    // A value that is at fault has been reported already.
    let no_api_key = auth.enabled && auth.api_key.is_none() && !draft.has_fault_of_secret("auth.api_key");
    let no_admin_key =
        !auth.admin_only.is_empty() && auth.admin_api_key.is_none() && !draft.has_fault_of_secret("auth.admin_api_key");
    if no_api_key {
        let source = draft.source("auth.enabled");
        draft.fault("auth.enabled", &source, "needs a key; set `auth.api_key` or `auth.api_key_file`");
    }
    if no_admin_key {
        let source = draft.source("auth.admin_only");
        let message = "restricts routes to the admin key; set `auth.admin_api_key` or `auth.admin_api_key_file`";
        draft.fault("auth.admin_only", &source, message);
    }
}

/// Checks that every worker has a URL, without which it would get no sandboxes.
fn workers(draft: &mut Draft) {
    let ids: Vec<_> =
        draft.config.workers.iter().filter(|(_, it)| it.url.is_empty()).map(|(id, _)| id.clone()).collect();
    for id in ids {
        let url = format!("workers.{id}.url");
        // A value that is at fault has been reported already.
        if !draft.has_fault(&url) {
            let set = draft.sources.iter().find(|(key, _)| key.starts_with(&format!("workers.{id}.")));
            let source = set.map_or(Source::Default, |(_, source)| source.clone());
            draft.fault(
                url,
                &source,
                "is not set; set it to the URL of the worker, such as https://w1.example.com:7423",
            );
        }
    }
}

fn warn_about_open_doors(draft: &mut Draft) {
    if draft.config.auth.enabled {
        return;
    }
    if draft.config.providers.proot.enabled == Enabled::True {
        draft.warnings.push(
            "`providers.proot.enabled` is true and `auth.enabled` is false: code in a PRoot box can reach the host's \
             network, this API and every other box; set auth.enabled and auth.api_key_file"
                .to_owned(),
        );
    }
    let host = draft.config.server.host;
    if !host.is_loopback() {
        draft.warnings.push(format!(
            "`server.host` is {host} and `auth.enabled` is false: any client that reaches the port can run commands"
        ));
    }
}
