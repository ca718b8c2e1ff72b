//! What boxes are made with and of, as the configuration says.

use std::sync::Arc;

use providers::Provider;
use providers::custom::{Custom, CustomConfig};
use providers::images::{Images, ImagesConfig, RegistryConfig};
use providers::mock::Mock;
use providers::native::{Native, NativeConfig};

use super::Failure;
use crate::clock::Clock;
use crate::config::{self, Config, DefaultProvider, Enabled};
use crate::control::SharedBoxes;
use crate::registry::{Offer, Registry};
use crate::store::Store;

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
        dir: config.data_dir.join("images"),
        pull: images.pull,
        pull_timeout: images.pull_timeout,
        bytes_max: images.max_mb << 20,
        image_bytes_max: images.max_image_mb << 20,
        registries: images.registries.iter().map(|(host, it)| (host.clone(), registry_config(it))).collect(),
        allowed_registries: images.allowed_registries.clone(),
        docker_config: images.docker_config.clone(),
    }
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

/// Sets up the enabled providers and says which is the default, and why not the others.
pub(super) async fn registry(
    config: &Config,
    _images: &Images,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
) -> Result<Registry, Failure> {
    let mut providers: Vec<(Arc<dyn Provider>, Offer)> = Vec::new();
    if config.providers.native.enabled != Enabled::False {
        let native = Native::open(NativeConfig {
            data_dir: config.data_dir.clone(),
            store_id: store.id().clone(),
            subids: config.providers.native.subids,
            cgroup_parent: config.providers.native.cgroup_parent.clone(),
        })
        .await
        .map_err(|source| Failure::Provider { name: "native", source })?;
        let offer = match config.providers.native.enabled {
            Enabled::Auto => Offer::IfHealthy,
            Enabled::True | Enabled::False => Offer::Always,
        };
        providers.push((Arc::new(native), offer));
    }
    if config.providers.mock.enabled {
        let clock = Arc::clone(clock);
        providers.push((Arc::new(Mock::new(move || clock.now())), Offer::Always));
    }
    let custom = &config.providers.custom;
    if custom.enabled {
        let custom = Custom::open(CustomConfig {
            name: custom.name.clone(),
            base_url: custom.base_url.clone(),
            api_key: custom.api_key.as_ref().map(|key| key.expose().into()),
            ca_file: custom.ca_file.clone(),
            timeout: custom.timeout,
            remote_provider: custom.remote_provider.clone(),
            label: store.id().as_str().to_owned(),
        })
        .map_err(|source| Failure::Provider { name: "custom", source })?;
        providers.push((Arc::new(custom), Offer::Always));
    }
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
            None => tracing::info!(provider, default = entry.is_default, "a provider is ready"),
        }
    }
    Ok(registry)
}
