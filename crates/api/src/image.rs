//! Images of the image store.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ImageName, StringMap};

/// An image that is on this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Image {
    /// Its names in full, such as `docker.io/library/python:3.12`. Empty for one
    /// that has lost them and is still in use.
    pub names: Vec<String>,
    /// The digest of its manifest, `sha256:…`.
    pub digest: String,
    /// What has to be downloaded for it, in bytes.
    pub size_bytes: u64,
    /// What its files take, in bytes; files that images share count in each.
    pub unpacked_bytes: u64,
    /// When it was made (RFC 3339), if it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<String>,
    /// When a sandbox was last made of it, or it was pulled or imported (RFC 3339, UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<String>,
    /// How many boxes use it.
    pub in_use: u64,
    /// What it is made for, such as `linux/amd64`.
    pub platform: String,
}

/// All about an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageDetail {
    /// What the list has of it.
    #[serde(flatten)]
    pub image: Image,
    /// The digest of its configuration, which Docker calls its id.
    pub config_digest: String,
    /// Its environment.
    pub env: StringMap,
    /// Who its commands run as; absent for root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where its commands start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Its entry point with its command; empty without either.
    pub entrypoint: Vec<String>,
    /// Its labels.
    pub labels: StringMap,
    /// Its layers, the lowest first.
    pub layers: Vec<ImageLayer>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ImageLayer {
    /// The digest of what is downloaded.
    pub digest: String,
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// How it is packed.
    pub media_type: String,
}

/// An image to fetch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullRequest {
    /// Its name, such as `python:3.12` or `registry.example.com/app@sha256:…`.
    #[schema(value_type = ImageName)]
    pub name: String,
    /// Whether the answer tells how it goes, as NDJSON.
    #[serde(default)]
    pub stream: bool,
}

/// How far a pull is: a line of its stream. One that comes again means that
/// nothing is new.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum PullProgress {
    /// The registry is asked what the image is.
    Resolving,
    /// Layers are coming in.
    Downloading {
        /// Bytes that are here.
        bytes: u64,
        /// Bytes that the image has.
        bytes_total: u64,
    },
    /// Layers are being unpacked.
    Unpacking {
        /// Bytes that were written so far.
        bytes: u64,
    },
    /// It is here. The last line.
    Done {
        /// The image.
        image: Image,
    },
    /// It did not come. The last line.
    Error {
        /// As in an error's body.
        code: String,
        /// What to change.
        message: String,
    },
}

/// Which images to remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneImagesRequest {
    /// Those too that have a name. Without, only those that have lost theirs.
    #[serde(default)]
    pub all: bool,
}

/// Which images were removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedImages {
    /// Their digests.
    pub removed: Vec<String>,
    /// Bytes that are free again.
    pub freed_bytes: u64,
}
