//! Rules about providers, registries and other servers.

use std::net::IpAddr;

use super::super::settings::{Config, Docker, Enabled};
use super::report::Report;

/// Capabilities with which a process can leave its container or act on the host.
const DANGEROUS: [&str; 13] = [
    "BPF",
    "DAC_READ_SEARCH",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "NET_ADMIN",
    "PERFMON",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_TIME",
    "SYSLOG",
];

pub(super) fn proot(config: &Config, report: &mut Report) {
    const KEY: &str = "providers.proot.enabled";
    match config.providers.proot.enabled {
        Enabled::True if !config.auth.enabled => {
            let message = "is true, and no key is required: code in its boxes can reach this API and every other box";
            report.fail(KEY, message, "set it to false, or set auth.enabled to true");
        }
        Enabled::True => {
            let message = "is true: its boxes are processes of the server's own user, on the host's network";
            report.fail(KEY, message, "set it to false, and use native or docker");
        }
        Enabled::Auto if !config.auth.enabled => report.pass(KEY, "is auto: not offered while no key is required"),
        Enabled::Auto => {
            let message = "is auto: if a proot program is installed, boxes that isolate little are offered";
            report.warn(KEY, message, "set it to false");
        }
        Enabled::False => report.pass(KEY, "is false"),
    }
}

pub(super) fn docker(config: &Config, report: &mut Report) {
    let docker = &config.providers.docker;
    if docker.enabled == Enabled::False {
        report.pass("providers.docker.enabled", "is false");
        return;
    }
    engine(docker, report);
    network(docker, report);
    let key = "providers.docker.added_caps";
    let dangerous: Vec<_> = docker.added_caps.iter().filter(|cap| DANGEROUS.contains(&cap.as_str())).cloned().collect();
    if dangerous.is_empty() {
        report.pass(key, "has no capability that gives a box access to the host");
    } else {
        let message = format!("contains {}, which gives a box access to the host", dangerous.join(", "));
        report.fail(key, message, "remove it");
    }
}

/// Checks that the Engine is not reached in the clear: a client of an Engine is root on its
/// host.
fn engine(docker: &Docker, report: &mut Report) {
    const KEY: &str = "providers.docker.socket";
    let in_the_clear = docker.socket.as_deref().and_then(|socket| socket.strip_prefix("tcp://"));
    let in_the_clear = in_the_clear.is_some_and(|it| is_in_the_clear(&format!("http://{it}")));
    let tls = &docker.tls;
    if in_the_clear && tls.ca_file.is_none() {
        let message = "is tcp:// without TLS: an attacker on the network gets root on the Engine's host";
        report.fail(KEY, message, "set providers.docker.tls.ca_file, cert_file and key_file");
    } else {
        report.pass(KEY, "is not sent unencrypted over the network");
    }
}

fn network(docker: &Docker, report: &mut Report) {
    const KEY: &str = "providers.docker.network_mode";
    let mode = docker.network_mode.as_str();
    if mode == "none" {
        report.pass(KEY, "is none");
    } else {
        let message = format!("is {mode}: boxes can reach everything that the Engine's host can reach");
        report.warn(KEY, message, "set it to none, or restrict what they can reach with a firewall");
    }
}

pub(super) fn registries(config: &Config, report: &mut Report) {
    for (host, registry) in &config.images.registries {
        let key = format!("images.registries.{host}.plain_http");
        if registry.plain_http && is_in_the_clear(&format!("http://{host}")) {
            let what = if registry.password.is_some() { "its password and its images" } else { "its images" };
            report.warn(key, format!("is true: {what} are sent unencrypted"), "set it to false");
        } else {
            report.pass(key, "is https, or does not leave this host");
        }
    }
}

/// Checks that the keys which this server sends to others do not cross the network in the clear.
pub(super) fn peers(config: &Config, report: &mut Report) {
    let custom = &config.providers.custom;
    let custom = custom.enabled.then_some(("providers.custom.base_url".to_owned(), &custom.base_url));
    let e2b = &config.providers.e2b;
    let e2b = [("base_url", &e2b.base_url), ("sandbox_url", &e2b.sandbox_url)]
        .into_iter()
        .filter_map(|(key, url)| Some((format!("providers.e2b.{key}"), url.as_ref().filter(|_| e2b.enabled)?)));
    let workers = config.workers.iter().map(|(id, worker)| (format!("workers.{id}.url"), &worker.url));
    let plane = &config.worker.control_plane;
    let plane = (!plane.is_empty()).then_some(("worker.control_plane".to_owned(), plane));
    for (key, url) in custom.into_iter().chain(e2b).chain(workers).chain(plane) {
        if is_in_the_clear(url) {
            report.warn(key, "uses http: its key and all data are sent unencrypted", "use https");
        } else {
            report.pass(key, "is https, or does not leave this host");
        }
    }
}

fn is_in_the_clear(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let authority = rest.split('/').next().unwrap_or(rest);
    let host = match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => authority.split(':').next().unwrap_or(authority),
    };
    host != "localhost" && !host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
