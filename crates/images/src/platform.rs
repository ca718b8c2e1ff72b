//! Platforms that images are made for.

use std::env::consts;
use std::fmt;

use oci_spec::image::{Descriptor, ImageConfiguration, PlatformBuilder};

use crate::name::shown;

/// Platform of an image, in Go's names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Platform {
    pub(super) os: String,
    pub(super) architecture: String,
    pub(super) variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine.
    pub(super) fn host() -> Platform {
        let (architecture, variant) = match consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", Some("v8")),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Platform {
            os: consts::OS.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Reads the platform from a configuration.
    pub(super) fn of(config: &ImageConfiguration) -> Platform {
        Platform {
            os: config.os().to_string(),
            architecture: config.architecture().to_string(),
            variant: config.variant().clone().filter(|variant| !variant.is_empty()),
        }
    }

    /// Converts it to the platform of an index entry.
    pub(super) fn for_index(&self) -> Option<oci_spec::image::Platform> {
        let platform = PlatformBuilder::default().os(self.os.as_str()).architecture(self.architecture.as_str());
        match &self.variant {
            Some(variant) => platform.variant(variant.as_str()).build().ok(),
            None => platform.build().ok(),
        }
    }

    /// Rates how well an image for the platform `image` runs on this one, higher is better;
    /// `None` if it does not run.
    fn suits(&self, image: &Platform) -> Option<u32> {
        if self.os != image.os || self.architecture != image.architecture {
            return None;
        }
        let Some(variant) = &image.variant else { return Some(50) };
        let level: u32 = variant.strip_prefix('v')?.parse().ok()?;
        match self.architecture.as_str() {
            "arm64" => (level == 8).then_some(60),
            "arm" => (level <= 7).then_some(60 + level),
            // An image for every such machine goes before one for newer machines only.
            "amd64" => (level <= amd64_level()).then_some(60 - level),
            _ => None,
        }
    }

    /// Returns whether an image for the platform `image` runs on this one.
    pub(super) fn runs(&self, image: &Platform) -> bool {
        self.suits(image).is_some()
    }

    /// Chooses the manifest of an index that fits this platform best, else the one entry that names no
    /// platform. What platform an image is for is checked by its configuration too.
    pub(super) fn choose<'a>(&self, manifests: &'a [Descriptor]) -> Option<&'a Descriptor> {
        let mut best: Option<(u32, &Descriptor)> = None;
        for manifest in manifests {
            let Some(suits) = named(manifest).and_then(|image| self.suits(&image)) else { continue };
            if best.is_none_or(|(suited, _)| suits > suited) {
                best = Some((suits, manifest));
            }
        }
        best.map(|(_, manifest)| manifest).or_else(|| only_unnamed(manifests))
    }
}

/// Returns the entry of an index that names no platform, if it is the only entry: as with an index that
/// leads to another.
fn only_unnamed(manifests: &[Descriptor]) -> Option<&Descriptor> {
    match manifests {
        [only] if only.platform().is_none() => Some(only),
        _ => None,
    }
}

/// Formats the platforms of an index for a message.
pub(super) fn offered(manifests: &[Descriptor]) -> String {
    const OFFERED_MAX: usize = 20;
    let mut names: Vec<String> = manifests
        .iter()
        .filter_map(named)
        // Signatures and the like have the platform `unknown`.
        .filter(|platform| platform.os != "unknown")
        .map(|platform| shown(&platform.to_string()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names.truncate(OFFERED_MAX);
    if names.is_empty() { "none named".to_owned() } else { names.join(", ") }
}

fn named(manifest: &Descriptor) -> Option<Platform> {
    let platform = manifest.platform().as_ref()?;
    Some(Platform {
        os: platform.os().to_string(),
        architecture: platform.architecture().to_string(),
        variant: platform.variant().clone().filter(|variant| !variant.is_empty()),
    })
}

/// Returns the level of this processor in the ABI of x86-64, 1 to 3.
fn amd64_level() -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        let v2 = std::arch::is_x86_feature_detected!("sse4.2") && std::arch::is_x86_feature_detected!("popcnt");
        let v3 = v2 && std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi2");
        if v3 {
            3
        } else if v2 {
            2
        } else {
            1
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    1
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.iter().try_for_each(|variant| write!(f, "/{variant}"))
    }
}

#[cfg(test)]
mod test {
    use oci_spec::image::MediaType;

    use super::*;

    fn index(platforms: &[(&str, &str, Option<&str>)]) -> Vec<Descriptor> {
        let each = platforms.iter().enumerate().map(|(number, (os, architecture, variant))| {
            let mut platform = PlatformBuilder::default().os(*os).architecture(*architecture);
            if let Some(variant) = variant {
                platform = platform.variant(*variant);
            }
            let digest = format!("sha256:{number:064x}");
            let mut manifest =
                Descriptor::new(MediaType::ImageManifest, 1, digest.parse::<oci_spec::image::Digest>().unwrap());
            manifest.set_platform(Some(platform.build().unwrap()));
            manifest
        });
        each.collect()
    }

    fn host(architecture: &str, variant: Option<&str>) -> Platform {
        Platform { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: variant.map(str::to_owned) }
    }

    #[test]
    fn the_closest_platform_of_an_index_is_taken() {
        let all = index(&[
            ("unknown", "unknown", None),
            ("windows", "amd64", None),
            ("linux", "arm", Some("v5")),
            ("linux", "arm", Some("v7")),
            ("linux", "arm64", Some("v8")),
            ("linux", "amd64", None),
            ("linux", "s390x", None),
        ]);
        for (host, place) in [
            (host("amd64", None), 5),
            (host("arm64", Some("v8")), 4),
            (host("arm", Some("v7")), 3),
            (host("s390x", None), 6),
        ] {
            assert_eq!(host.choose(&all), Some(&all[place]), "{host}");
        }
        assert_eq!(host("riscv64", None).choose(&all), None);
        assert!(!offered(&all).contains("unknown"), "{}", offered(&all));
        assert!(offered(&all).contains("`linux/arm/v7`"), "{}", offered(&all));
    }

    #[test]
    fn an_image_for_every_processor_goes_before_one_for_newer_ones() {
        let all = index(&[("linux", "amd64", Some("v9")), ("linux", "amd64", Some("v1")), ("linux", "amd64", None)]);
        assert_eq!(host("amd64", None).choose(&all), Some(&all[1]));
        assert_eq!(host("amd64", None).choose(&all[..1]), None);
    }
}
