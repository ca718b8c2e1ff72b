//! Image store: images from registries and archives, unpacked and shared by every provider that
//! needs a root file system on disk.
//!
//! [`Images`] is the handle of an open store (`store`). A pull (`pull`) downloads an image from its
//! registry (`fetch`, `registry`), and an import (`import`) reads one from an archive. Both put
//! blobs into the layout (`layout`), and unpack them to a tree that boxes share (`rootfs`). The
//! catalog (`catalog`) has the images that are there, with their holders; what no image needs is
//! removed (`garbage`).

#![warn(missing_docs)]

mod catalog;
mod config;
pub mod desk;
mod digest;
mod disk;
mod error;
mod fetch;
mod garbage;
mod image;
mod images;
mod import;
mod layout;
mod login;
mod manifest;
mod name;
mod platform;
mod processors;
mod progress;
mod pull;
mod registry;
pub mod rootfs;
mod store;

pub use config::{ImagesConfig, PullPolicy, RegistryConfig, Reserve};
pub use digest::is_digest;
pub use error::{Error, Result};
pub use garbage::Pruned;
pub use image::{Detail, Image, ImageGuard, LayerDetail, Run};
pub use images::Images;
pub use import::Archive;
pub use login::{Login, Logins};
pub use name::{Name, is_docker_hub};
pub use progress::Progress;
pub use pull::PULL_WAIT_MAX;
