//! Set-up of the image store and the providers from the configuration.

use std::collections::BTreeMap;
use std::sync::Arc;

use domain::Resources;
use images::{Images, ImagesConfig, RegistryConfig, Reserve};
use providers::custom::{Custom, CustomConfig};
use providers::docker::{Docker, DockerConfig, DockerTls};
use providers::e2b::{E2b, E2bConfig, Template};
use providers::firecracker::{DriveRate, Firecracker, FirecrackerConfig};
use providers::mock::Mock;
use providers::native::{Native, NativeConfig};
use providers::proot::{Proot, ProotConfig};
use providers::{Chain, Provider};

use super::failure::Failure;
use crate::config::{self, Config, DefaultProvider, Enabled};
use crate::control::{ORPHAN_GRACE, SharedBoxes};
use crate::provider_registry::{Offer, Registry};
use store::Store;
use store::clock::Clock;

/// Opens the image store in the data folder.
pub(super) async fn images(config: &Config) -> Result<Images, Failure> {
    let set = images_config(config);
    let path = set.dir.display().to_string();
    let opened = tokio::task::spawn_blocking(move || Images::open(set)).await;
    let opened = opened.map_err(|error| Failure::System(std::io::Error::other(error)))?;
    opened.map_err(|source| Failure::Images { path, source })
}

fn images_config(config: &Config) -> ImagesConfig {
    let images = &config.images;
    ImagesConfig {
        pull: images.pull,
        pull_timeout: images.pull_timeout,
        bytes_max: images.max_mb << 20,
        image_bytes_max: images.max_image_mb << 20,
        reserve: images_reserve(&config.limits),
        registries: registries(config),
        allowed_registries: images.allowed_registries.clone(),
        docker_config: images.docker_config.clone(),
        ..ImagesConfig::new(config.data_dir.join("images"))
    }
}

/// Multiple of the boxes' reserve that images leave free. So images never cause a box to be
/// ended, and boxes have as much again to write.
const IMAGES_RESERVE: u64 = 2;

fn images_reserve(limits: &config::Limits) -> Reserve {
    Reserve {
        bytes: (limits.reserve_disk_mb << 20).saturating_mul(IMAGES_RESERVE),
        inodes: limits.reserve_inodes.saturating_mul(IMAGES_RESERVE),
    }
}

fn registries(config: &Config) -> BTreeMap<String, RegistryConfig> {
    config.images.registries.iter().map(|(host, it)| (host.clone(), registry_config(it))).collect()
}

fn registry_config(registry: &config::Registry) -> RegistryConfig {
    RegistryConfig {
        mirrors: registry.mirrors.clone(),
        plain_http: registry.plain_http,
        username: registry.username.clone(),
        password: registry.password.as_ref().map(|password| password.expose().into()),
        ca_file: registry.ca_file.clone(),
    }
}

/// A provider, with the condition under which it is offered.
type Offered = (Arc<dyn Provider>, Offer);

/// Sets up the enabled providers, and logs which is the default and why others do not work.
pub(super) async fn registry(
    config: &Config,
    images: &Images,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
) -> Result<Registry, Failure> {
    let (native, docker, firecracker, proot) = tokio::try_join!(
        native(config, images, store.as_ref()),
        docker(config, store.as_ref()),
        firecracker(config, images, store.as_ref()),
        proot(config, images, store.as_ref())
    )?;
    let mut providers: Vec<Offered> = [native, docker, firecracker, proot].into_iter().flatten().collect();
    if config.providers.mock.enabled {
        let clock = Arc::clone(clock);
        providers.push((Arc::new(Mock::new(move || clock.now())), Offer::Always));
    }
    providers.extend(custom(config, store.as_ref())?);
    providers.extend(e2b(config, store.as_ref(), clock)?);
    let named = match &config.providers.default {
        DefaultProvider::Auto => None,
        DefaultProvider::Named(name) => Some(name.as_str()),
    };
    if config.pool.enabled {
        for (provider, _) in &mut providers {
            *provider = Arc::new(SharedBoxes::new(Arc::clone(provider), Arc::clone(store), Arc::clone(clock)));
        }
    }
    let registry = Registry::assemble(providers, named, clock.as_ref()).await;
    for entry in registry.entries() {
        let provider = entry.provider.name();
        for missing in entry.provider.facts().missing {
            tracing::info!(provider, "{missing}");
        }
        match entry.checked().health.error {
            Some(error) => tracing::warn!(provider, default = entry.is_default, error, "a provider is not healthy"),
            None => tracing::info!(provider, default = entry.is_default, "provider ready"),
        }
    }
    Ok(registry)
}

/// Returns the condition under which a provider of this setting is offered; `None` for never.
fn offer(enabled: Enabled) -> Option<Offer> {
    match enabled {
        Enabled::Auto => Some(Offer::IfHealthy),
        Enabled::True => Some(Offer::Always),
        Enabled::False => None,
    }
}

async fn native(config: &Config, images: &Images, store: &dyn Store) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.native;
    let Some(offer) = offer(set.enabled) else { return Ok(None) };
    let native = Native::open(NativeConfig {
        data_dir: config.data_dir.clone(),
        store_id: store.id().clone(),
        subids: set.subids,
        cgroup_parent: set.cgroup_parent.clone(),
        images: Some(images.clone()),
        transparent_egress: set.transparent_egress,
        fsync: set.fsync,
    });
    let native = native.await.map_err(|source| Failure::Provider { name: "native", source })?;
    Ok(Some((Arc::new(native), offer)))
}

async fn docker(config: &Config, store: &dyn Store) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.docker;
    let Some(offer) = offer(set.enabled) else { return Ok(None) };
    let tls = &set.tls;
    let tls = tls.ca_file.clone().map(|ca| DockerTls { ca, cert: tls.cert_file.clone(), key: tls.key_file.clone() });
    let docker = Docker::open(DockerConfig {
        store_id: store.id().clone(),
        socket: set.socket.clone().unwrap_or_default(),
        tls,
        runtime: set.runtime.clone().unwrap_or_default(),
        network_mode: set.network_mode.clone(),
        seccomp_profile: set.seccomp_profile.clone(),
        read_only_rootfs: set.read_only_rootfs,
        pids_limit: set.pids_limit,
        user: set.user.clone().unwrap_or_default(),
        dropped_caps: set.dropped_caps.clone(),
        added_caps: set.added_caps.clone(),
        tmpfs: set.tmpfs.iter().map(|mount| tmpfs(mount)).collect(),
        pull: set.pull,
        pull_timeout: config.images.pull_timeout,
        registries: registries(config),
        allowed_registries: config.images.allowed_registries.clone(),
        docker_config: config.images.docker_config.clone(),
    });
    opened("docker", docker.await, offer)
}

async fn firecracker(config: &Config, images: &Images, store: &dyn Store) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.firecracker;
    let Some(offer) = offer(set.enabled) else { return Ok(None) };
    // An operator who wants machines names the kernel of their guests.
    if offer == Offer::IfHealthy && set.kernel.is_none() {
        return Ok(None);
    }
    let firecracker = Firecracker::open(FirecrackerConfig {
        binary: set.binary.clone().unwrap_or_else(|| "firecracker".into()),
        kernel: set.kernel.clone(),
        modules: set.modules.clone(),
        jailed: set.jailer.enabled.forced(),
        jailer: set.jailer.binary.clone().unwrap_or_else(|| "jailer".into()),
        boot_timeout: set.boot_timeout,
        image_snapshots_mb: set.image_snapshots_mb,
        drive_rate: DriveRate { mb: set.drive.mb_per_second, operations: set.drive.operations_per_second },
        data_dir: config.data_dir.clone(),
        store_id: store.id().clone(),
        cgroup_parent: set.cgroup_parent.clone(),
        subids: set.subids,
        images: Some(images.clone()),
    });
    opened("firecracker", firecracker.await, offer)
}

async fn proot(config: &Config, images: &Images, store: &dyn Store) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.proot;
    let Some(offer) = offer(set.enabled) else { return Ok(None) };
    if offer == Offer::IfHealthy && !set.is_offered(&config.auth) {
        tracing::info!(
            provider = "proot",
            "provider not offered: while `auth.enabled` is false, code in its boxes could control this server; set \
             `providers.proot.enabled: true` to offer it anyway"
        );
        return Ok(None);
    }
    let proot = Proot::open(ProotConfig {
        binary: set.binary.clone().unwrap_or_else(|| "proot".into()),
        data_dir: config.data_dir.clone(),
        store_id: store.id().clone(),
        images: Some(images.clone()),
        subids: None,
        api_is_open: !config.auth.enabled,
    });
    opened("proot", proot.await, offer)
}

/// Turns the failure to set up a provider into a warning, unless the provider was enabled by
/// name.
fn opened(
    name: &'static str,
    opened: providers::Result<impl Provider + 'static>,
    offer: Offer,
) -> Result<Option<Offered>, Failure> {
    match opened {
        Ok(provider) => Ok(Some((Arc::new(provider), offer))),
        Err(error) if offer == Offer::IfHealthy => {
            tracing::warn!(provider = name, error = %Chain(&error), "a provider cannot be set up and is not offered");
            Ok(None)
        }
        Err(source) => Err(Failure::Provider { name, source }),
    }
}

/// Splits `path:options`, or a path alone.
fn tmpfs(mount: &str) -> (String, String) {
    let (path, options) = mount.split_once(':').unwrap_or((mount, ""));
    (path.to_owned(), options.to_owned())
}

fn custom(config: &Config, store: &dyn Store) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.custom;
    if !set.enabled {
        return Ok(None);
    }
    let custom = Custom::open(CustomConfig {
        name: set.name.clone(),
        base_url: set.base_url.clone(),
        api_key: set.api_key.as_ref().map(|key| key.expose().into()),
        ca_file: set.ca_file.clone(),
        timeout: set.timeout,
        remote_provider: set.remote_provider.clone(),
        label: store.id().as_str().to_owned(),
    })
    .map_err(|source| Failure::Provider { name: "custom", source })?;
    Ok(Some((Arc::new(custom), Offer::Always)))
}

fn e2b(config: &Config, store: &dyn Store, clock: &Arc<dyn Clock>) -> Result<Option<Offered>, Failure> {
    let set = &config.providers.e2b;
    let Some(api_key) = set.api_key.as_ref().filter(|_| set.enabled) else { return Ok(None) };
    let template = |(image, template): (&String, &config::E2bTemplate)| {
        let config::E2bTemplate { template, memory_mb, vcpus, disk_mb } = template.clone();
        (image.clone(), Template { name: template.unwrap_or_else(|| image.clone()), memory_mb, vcpus, disk_mb })
    };
    let defaults = &config.defaults;
    let e2b = E2bConfig {
        api_key: api_key.expose().into(),
        domain: set.domain.clone(),
        base_url: set.base_url.clone(),
        sandbox_url: set.sandbox_url.clone(),
        ca_file: set.ca_file.clone(),
        timeout: set.timeout,
        user: set.user.clone(),
        templates: set.templates.iter().map(template).collect(),
        lifetime_max: set.max_lifetime,
        grace: ORPHAN_GRACE,
        usual: Resources { memory_mb: defaults.memory_mb, vcpus: defaults.vcpus, disk_mb: 0, pids: defaults.pids },
        label: store.id().as_str().to_owned(),
    };
    let clock = Arc::clone(clock);
    let e2b = E2b::open(e2b, move || clock.now()).map_err(|source| Failure::Provider { name: "e2b", source })?;
    Ok(Some((Arc::new(e2b), Offer::Always)))
}
