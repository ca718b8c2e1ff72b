//! Images of the image store: descriptions, pulls and removal.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ImageName, StringMap};

/// An image in the store of this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Full names of the image, such as `docker.io/library/python:3.12`. Empty if the image has lost its names but is
    /// still in use.
    pub names: Vec<String>,
    /// Digest of the manifest, `sha256:…`.
    pub digest: String,
    /// Size of the download, in bytes.
    pub size_bytes: u64,
    /// Size of the unpacked files, in bytes; shared files count in each image.
    pub unpacked_bytes: u64,
    /// Time at which the image was built (RFC 3339), if it records one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub created_at: Option<String>,
    /// Time of its last use for a sandbox, pull or import (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    pub last_used_at: Option<String>,
    /// Number of boxes that use the image.
    pub in_use: u64,
    /// Platform of the image, such as `linux/amd64`.
    pub platform: String,
}

/// An image with its configuration and layers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageDetail {
    /// The fields that a list of images also has.
    #[serde(flatten)]
    pub image: Image,
    /// Digest of the configuration, which Docker calls the image's id.
    pub config_digest: String,
    /// Environment variables of its commands.
    pub env: StringMap,
    /// User that its commands run as; absent for root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Directory that its commands start in; absent if the image names none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Entry point followed by the command's words; empty if the image has neither.
    pub entrypoint: Vec<String>,
    /// Labels of the image.
    pub labels: StringMap,
    /// Layers, lowest first.
    pub layers: Vec<ImageLayer>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageLayer {
    /// Digest of the download.
    pub digest: String,
    /// Size of the download, in bytes.
    pub size_bytes: u64,
    /// Media type of the download, which includes its compression.
    pub media_type: String,
}

/// An image to pull.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Name of the image, such as `python:3.12` or `registry.example.com/app@sha256:…`.
    #[schema(value_type = ImageName)]
    pub name: String,
    /// True to answer with the progress of the pull, as NDJSON.
    #[serde(default)]
    pub stream: bool,
}

/// Progress of a pull: a line of its stream. A repeated line means that nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PullProgress {
    /// The name is being resolved at the registry.
    Resolving,
    /// Layers are being downloaded.
    Downloading {
        /// Bytes downloaded so far.
        bytes: u64,
        /// Bytes of all layers to download.
        bytes_total: u64,
    },
    /// Layers are being unpacked.
    Unpacking {
        /// Bytes written so far.
        bytes: u64,
    },
    /// Last line: the image is in the store.
    Done {
        /// Description of the pulled image.
        image: Image,
    },
    /// Last line: the pull failed.
    Error {
        /// Error code, as in the body of an error.
        code: String,
        /// Explanation of the error and of its remedy, in English.
        message: String,
    },
}

/// A selection of images to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneImagesRequest {
    /// True to remove every unused image; false to remove unused images that have lost their name.
    #[serde(default)]
    pub all: bool,
}

/// Images that were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedImages {
    /// Digests of the removed images.
    pub removed: Vec<String>,
    /// Bytes of disk space that were freed.
    pub freed_bytes: u64,
}
