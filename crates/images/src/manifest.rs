//! Parsing of manifests and configurations of images, which are untrusted.

use std::collections::BTreeMap;

use guest_protocol::Defaults;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::digest::is_digest;
use crate::error::{Error, Result};
use crate::image::Run;
use crate::name::shown;
use crate::rootfs::layer::Compression;

/// Largest manifest, index or configuration, in bytes.
pub(super) const DOCUMENT_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Most layers of one image.
pub(super) const LAYERS_MAX: usize = 1024;

/// Largest environment and entry point together, in bytes of JSON. A box's agent gets them in one
/// argument, which the kernel limits to 128 KiB with all else that is in it.
const RUN_BYTES_MAX: usize = 96 * 1024;

/// Media types accepted for a manifest or an index.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, \
    application/vnd.docker.distribution.manifest.v2+json";

const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Media types of the configuration of a file system image.
const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// Document that the name of an image leads to.
#[derive(Debug)]
pub(super) enum Document {
    Manifest(Box<ImageManifest>),
    Index(Box<ImageIndex>),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kind {
    #[serde(default)]
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

/// Most indexes that lead to a manifest, one to the other.
pub(super) const INDEXES_MAX: usize = 4;

impl Document {
    /// Parses a manifest or an index, whichever its fields show. A document with the fields of
    /// both is refused.
    pub(super) fn parse(bytes: &[u8], image: &str) -> Result<Document> {
        let document = Document::of(bytes)
            .map_err(|why| Error::Invalid(format!("the manifest of {image} cannot be used: {why}")))?;
        if let Document::Manifest(manifest) = &document {
            check(manifest).map_err(|why| Error::Invalid(format!("{image} cannot be used: {why}")))?;
        }
        Ok(document)
    }

    /// Parses a document; the error is what is wrong with it.
    fn of(bytes: &[u8]) -> Result<Document, String> {
        let kind: Kind = serde_json::from_slice(bytes).map_err(|_| "it is not a JSON object")?;
        if kind.schema_version == Some(1) {
            return Err("it uses the old schema 1; push the image again with a newer Docker".to_owned());
        }
        match (kind.manifests.is_some(), kind.layers.is_some()) {
            (true, true) => return Err("it is both an index and an image".to_owned()),
            (false, false) => return Err("it has neither layers nor manifests".to_owned()),
            (true, false) | (false, true) => {}
        }
        let index = kind.manifests.is_some();
        let says = kind.media_type.as_deref().map(MediaType::from);
        let fits = match &says {
            None => true,
            Some(MediaType::ImageIndex) => index,
            Some(MediaType::ImageManifest) => !index,
            Some(MediaType::Other(other)) if other == DOCKER_LIST => index,
            Some(MediaType::Other(other)) if other == DOCKER_MANIFEST => !index,
            Some(_) => false,
        };
        if !fits {
            let says = says.map(|says| shown(says.as_ref())).unwrap_or_default();
            return Err(format!("its media type {says} does not match its content"));
        }
        let document = if index {
            serde_json::from_slice(bytes).map(Document::Index)
        } else {
            serde_json::from_slice(bytes).map(Document::Manifest)
        };
        document.map_err(|_| "a field is missing or of the wrong kind".to_owned())
    }
}

/// Returns the media type of a manifest, OCI's if it states none.
pub(super) fn media_type(manifest: &ImageManifest) -> MediaType {
    manifest.media_type().clone().unwrap_or(MediaType::ImageManifest)
}

/// Refuses a manifest that is not of a file system image, before any of its blobs is downloaded;
/// the error is the reason.
fn check(manifest: &ImageManifest) -> Result<(), String> {
    let config = manifest.config();
    let media_type = config.media_type().as_ref();
    if !CONFIGS.contains(&media_type) {
        return Err(format!("it is not a file system image but {}", shown(media_type)));
    }
    if manifest.layers().len() > LAYERS_MAX {
        return Err(format!("it has {} layers, more than {LAYERS_MAX}", manifest.layers().len()));
    }
    if !is_digest(config.digest().as_ref()) {
        return Err("the digest of its configuration is not sha256".to_owned());
    }
    if config.size() > DOCUMENT_BYTES_MAX {
        return Err(format!("its configuration has {} bytes, more than {DOCUMENT_BYTES_MAX}", config.size()));
    }
    for layer in manifest.layers() {
        compression(layer)?;
        if !is_digest(layer.digest().as_ref()) {
            return Err("the digest of a layer is not sha256".to_owned());
        }
    }
    Ok(())
}

/// Returns the compression of a layer, or the reason why the layer is not accepted.
pub(super) fn compression(layer: &Descriptor) -> Result<Compression, String> {
    match layer.media_type().as_ref() {
        "application/vnd.oci.image.layer.v1.tar" | "application/vnd.docker.image.rootfs.diff.tar" => {
            Ok(Compression::None)
        }
        "application/vnd.oci.image.layer.v1.tar+gzip" | "application/vnd.docker.image.rootfs.diff.tar.gzip" => {
            Ok(Compression::Gzip)
        }
        "application/vnd.oci.image.layer.v1.tar+zstd" | "application/vnd.docker.image.rootfs.diff.tar.zstd" => {
            Ok(Compression::Zstd)
        }
        "application/vnd.oci.image.layer.nondistributable.v1.tar"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip"
        | "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => Err(FOREIGN.to_owned()),
        other => Err(format!("a layer has the type {}, which is not a file system layer", shown(other))),
    }
}

const FOREIGN: &str = "a layer may not be distributed, and its registry does not have it; push the image with such \
    layers included, or use another image";

/// Parses the configuration that belongs to a manifest.
pub(super) fn configuration(bytes: &[u8], manifest: &ImageManifest, image: &str) -> Result<ImageConfiguration> {
    parse_configuration(bytes, manifest)
        .map_err(|why| Error::Invalid(format!("the configuration of {image} cannot be used: {why}")))
}

fn parse_configuration(bytes: &[u8], manifest: &ImageManifest) -> Result<ImageConfiguration, String> {
    let config: ImageConfiguration =
        serde_json::from_slice(bytes).map_err(|_| "a field is missing or of the wrong kind")?;
    let diff_ids = config.rootfs().diff_ids();
    if diff_ids.len() != manifest.layers().len() {
        return Err(format!("it lists {} layers, but the manifest lists {}", diff_ids.len(), manifest.layers().len()));
    }
    if !diff_ids.iter().all(|diff_id| is_digest(diff_id)) {
        return Err("the digest of a layer is not sha256".to_owned());
    }
    Ok(config)
}

impl Run {
    /// Reads the settings for running the image from its configuration.
    pub(super) fn of(config: &ImageConfiguration, image: &str) -> Result<Run> {
        let Some(says) = config.config() else { return Ok(Run::default()) };
        let env: BTreeMap<String, String> = says
            .env()
            .iter()
            .flatten()
            .filter_map(|variable| variable.split_once('='))
            .filter(|(key, _)| !key.is_empty())
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let workdir = says.working_dir().as_deref().unwrap_or_default();
        let workdir = match workdir.trim_end_matches('/') {
            "" => None,
            absolute if absolute.starts_with('/') => Some(absolute.to_owned()),
            relative => Some(format!("/{relative}")),
        };
        let user = says.user().clone().filter(|user| !user.is_empty());
        let entrypoint: Vec<String> =
            [says.entrypoint(), says.cmd()].into_iter().flatten().flatten().cloned().collect();
        if env
            .iter()
            .flat_map(|(key, value)| [key, value])
            .chain(&entrypoint)
            .chain(&workdir)
            .chain(&user)
            .any(|word| word.contains('\0'))
        {
            return Err(Error::Invalid(format!("{image} cannot be used: its configuration contains a NUL")));
        }
        let run = Run { defaults: Defaults { env, workdir, user }, entrypoint };
        let said = serde_json::to_vec(&(&run.defaults, &run.entrypoint))
            .map_err(|error| Error::failed("read the run settings of an image", error))?;
        if said.len() > RUN_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "{image} cannot be used: its environment and entry point have {} bytes, more than {RUN_BYTES_MAX}",
                said.len()
            )));
        }
        Ok(run)
    }

    /// Returns the settings as the `config` of an image's configuration has them.
    pub(super) fn config(&self) -> Value {
        let Run { defaults: Defaults { env, workdir, user }, entrypoint } = self;
        let env: Vec<String> = env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        json!({"Env": env, "WorkingDir": workdir, "User": user, "Entrypoint": entrypoint})
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn digest(byte: &str) -> String {
        format!("sha256:{}", byte.repeat(32))
    }

    fn manifest(layers: Value) -> Value {
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest("ab"), "size": 7},
            "layers": layers,
        })
    }

    fn layer(media_type: &str) -> Value {
        json!([{"mediaType": media_type, "digest": digest("cd"), "size": 9}])
    }

    fn refused(document: &Value) -> String {
        match Document::parse(document.to_string().as_bytes(), "`x`") {
            Err(Error::Invalid(why)) => why,
            other => panic!("{document} gives {other:?}"),
        }
    }

    #[test]
    fn layers_of_docker_and_of_oci_are_known() {
        for (media_type, packed) in [
            ("application/vnd.oci.image.layer.v1.tar", Compression::None),
            ("application/vnd.oci.image.layer.v1.tar+gzip", Compression::Gzip),
            ("application/vnd.oci.image.layer.v1.tar+zstd", Compression::Zstd),
            ("application/vnd.docker.image.rootfs.diff.tar", Compression::None),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", Compression::Gzip),
        ] {
            let text = manifest(layer(media_type)).to_string();
            let Document::Manifest(read) = Document::parse(text.as_bytes(), "x").unwrap() else { panic!() };
            assert_eq!(compression(&read.layers()[0]), Ok(packed), "{media_type}");
        }
    }

    #[test]
    fn what_is_no_image_of_files_is_refused() {
        for foreign in [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        ] {
            assert!(refused(&manifest(layer(foreign))).contains("may not be distributed"));
        }
        assert!(refused(&manifest(layer("application/vnd.wasm"))).contains("not a file system layer"));
        assert!(
            refused(&manifest(layer("application/vnd.oci.image.config.v1+json"))).contains("not a file system layer")
        );
        let mut chart = manifest(json!([]));
        chart["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json");
        assert!(refused(&chart).contains("not a file system image"));
    }

    #[test]
    fn a_manifest_that_lies_is_refused() {
        let mut both = manifest(json!([]));
        both["manifests"] = json!([]);
        assert!(refused(&both).contains("both an index and an image"));
        let mut other = manifest(json!([]));
        other["mediaType"] = json!("application/vnd.oci.image.index.v1+json");
        assert!(refused(&other).contains("does not match"));
        let mut old = manifest(json!([]));
        old["schemaVersion"] = json!(1);
        assert!(refused(&old).contains("schema 1"));
        assert!(refused(&json!([])).contains("JSON object"));
        assert!(refused(&json!({"schemaVersion": 2})).contains("neither"));
        for (place, bad) in
            [("digest", json!("sha256:../../../etc/passwd")), ("digest", json!("md5:1")), ("size", json!(-1))]
        {
            let mut lies = manifest(layer("application/vnd.oci.image.layer.v1.tar"));
            lies["layers"][0][place] = bad;
            refused(&lies);
        }
        let sha512 = format!("sha512:{}", "a".repeat(128));
        let mut long = manifest(layer("application/vnd.oci.image.layer.v1.tar"));
        long["layers"][0]["digest"] = json!(sha512);
        assert!(refused(&long).contains("not sha256"));
        let mut large = manifest(json!([]));
        large["config"]["size"] = json!(u64::MAX);
        assert!(refused(&large).contains("configuration has"));
        let layers: Vec<_> =
            (0..=LAYERS_MAX).map(|_| layer("application/vnd.oci.image.layer.v1.tar")[0].clone()).collect();
        assert!(refused(&manifest(json!(layers))).contains("layers, more than"));
    }

    fn run(config: Value) -> Result<Run> {
        let text = json!({
            "architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}, "config": config,
        });
        Run::of(&serde_json::from_value(text).unwrap(), "`x`")
    }

    #[test]
    fn what_an_image_says_of_running_it_is_read() {
        let read = run(json!({
            "User": "app:app", "WorkingDir": "/srv/", "Env": ["A=1", "B=x=y", "C=", "=no", "none"],
            "Entrypoint": ["/init"], "Cmd": ["-v", "x"], "Volumes": null, "Labels": null,
        }))
        .unwrap();
        let env = [("A", "1"), ("B", "x=y"), ("C", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(read.defaults.env, BTreeMap::from(env));
        assert_eq!(read.defaults.workdir.as_deref(), Some("/srv"));
        assert_eq!(read.defaults.user.as_deref(), Some("app:app"));
        assert_eq!(read.entrypoint, ["/init", "-v", "x"]);
        assert_eq!(run(read.config()).unwrap(), read);
        assert_eq!(run(Run::default().config()).unwrap(), Run::default());
        for nothing in [json!(null), json!({}), json!({"User": "", "WorkingDir": "/", "Env": null, "Cmd": null})] {
            assert_eq!(run(nothing).unwrap(), Run::default());
        }
        assert_eq!(run(json!({"WorkingDir": "srv"})).unwrap().defaults.workdir.as_deref(), Some("/srv"));
    }

    #[test]
    fn what_no_box_could_be_told_is_refused() {
        for bad in [
            json!({"Env": [format!("A={}", "x".repeat(RUN_BYTES_MAX))]}),
            json!({"Cmd": ["a\0b"]}),
            json!({"Env": ["A=\0"]}),
            json!({"User": "\0"}),
        ] {
            assert!(matches!(run(bad), Err(Error::Invalid(_))));
        }
    }
}
