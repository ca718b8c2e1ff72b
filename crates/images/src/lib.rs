//! Image store: images from registries and archives, unpacked and shared by every provider that
//! needs a root file system on disk.

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
