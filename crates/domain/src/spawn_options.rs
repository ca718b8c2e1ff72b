//! Optional values of a spawn.

use std::time::Duration;

use crate::{
    EgressPolicy, InvalidMetadata, InvalidName, InvalidPrepare, InvalidResource, Metadata, PrepareCommand, Resources,
    SizeOptions,
};

/// Values that a spawn request or a template may leave out; `None` for those that it does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SpawnOptions {
    /// Name of the image.
    pub image: Option<String>,
    /// Name of the provider.
    pub provider: Option<String>,
    /// Size of the sandbox.
    pub size: SizeOptions,
    /// True to start the image's entry point.
    pub entrypoint: Option<bool>,
    /// Lifetime of the sandbox.
    pub ttl: Option<Duration>,
    /// Labels of the sandbox.
    pub metadata: Metadata,
    /// Policy on connections out of the sandbox.
    pub egress: Option<EgressPolicy>,
    /// Time without use after which the sandbox is paused; zero for never.
    pub auto_pause: Option<Duration>,
    /// Commands that run before the sandbox counts as running.
    pub prepare: Option<Vec<PrepareCommand>>,
}

/// The rule that the options of a spawn break.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOptions {
    /// A rule on the labels.
    #[error(transparent)]
    Metadata(#[from] InvalidMetadata),
    /// The rule on the name of the image.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The range of a size field.
    #[error(transparent)]
    Size(#[from] InvalidResource),
    /// The least idle time.
    #[error("`auto_pause` must be at least 1s, or 0s for never")]
    AutoPause,
    /// The bound on the commands of `prepare`.
    #[error(transparent)]
    Prepare(#[from] InvalidPrepare),
}

impl SpawnOptions {
    /// Least time without use after which a sandbox can be paused.
    pub const AUTO_PAUSE_MIN: Duration = Duration::from_secs(1);

    /// Returns these options, with those left out taken from `template`. The labels are those of
    /// both; of a label in both, the value here counts.
    #[must_use]
    pub fn or(self, template: Self) -> Self {
        let mut metadata = template.metadata;
        metadata.extend(self.metadata);
        Self {
            image: self.image.or(template.image),
            provider: self.provider.or(template.provider),
            size: self.size.or(template.size),
            entrypoint: self.entrypoint.or(template.entrypoint),
            ttl: self.ttl.or(template.ttl),
            metadata,
            egress: self.egress.or(template.egress),
            auto_pause: self.auto_pause.or(template.auto_pause),
            prepare: self.prepare.or(template.prepare),
        }
    }

    /// Checks labels, image, size and the number of commands. The name of a provider is not checked: one that breaks the
    /// rules does not exist. The size fields that are left out are those of `default`.
    ///
    /// # Errors
    /// [`InvalidOptions`] names the first broken rule.
    pub fn check(&self, default: Resources) -> Result<(), InvalidOptions> {
        InvalidMetadata::check(&self.metadata)?;
        if let Some(image) = &self.image {
            InvalidName::check_image(image)?;
        }
        if self.auto_pause.is_some_and(|idle| !idle.is_zero() && idle < Self::AUTO_PAUSE_MIN) {
            return Err(InvalidOptions::AutoPause);
        }
        PrepareCommand::check(self.prepare.as_deref().unwrap_or_default())?;
        Ok(self.size.unwrap_or(default).check()?)
    }
}

#[cfg(test)]
mod test {
    use proptest::prelude::*;

    use super::*;
    use crate::EgressMode;

    const DEFAULT: Resources = Resources { memory_mb: 512, vcpus: 1, disk_mb: 0, pids: 256 };

    fn name() -> impl Strategy<Value = Option<String>> {
        prop::option::of("[a-c]{1,2}")
    }

    fn number() -> impl Strategy<Value = Option<u32>> {
        prop::option::of(16..1024u32)
    }

    fn any_options() -> impl Strategy<Value = SpawnOptions> {
        let size = (number(), number(), number(), number());
        let metadata = prop::collection::btree_map("[a-c]", "[a-c]", 0..3);
        let mode = prop::sample::select(EgressMode::ALL.to_vec());
        let egress = prop::option::of(mode.prop_map(|mode| EgressPolicy { mode, ..EgressPolicy::default() }));
        let command = "[a-c]".prop_map(|command| PrepareCommand { command, ..PrepareCommand::default() });
        let prepare = prop::option::of(prop::collection::vec(command, 0..3));
        let rest = (metadata, egress, prepare, prop::option::of(0..9u64));
        (name(), name(), size, prop::option::of(any::<bool>()), prop::option::of(0..9u64), rest).prop_map(
            |(
                image,
                provider,
                (memory_mb, vcpus, disk_mb, pids),
                entrypoint,
                ttl,
                (metadata, egress, prepare, auto_pause),
            )| {
                SpawnOptions {
                    image,
                    provider,
                    size: SizeOptions { memory_mb, vcpus, disk_mb, pids },
                    entrypoint,
                    ttl: ttl.map(Duration::from_secs),
                    metadata,
                    egress,
                    auto_pause: auto_pause.map(Duration::from_secs),
                    prepare,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn nothing_left_out_and_nothing_added_change_nothing(own in any_options()) {
            prop_assert_eq!(own.clone().or(SpawnOptions::default()), own.clone());
            prop_assert_eq!(SpawnOptions::default().or(own.clone()), own.clone());
            prop_assert_eq!(own.clone().or(own.clone()), own);
        }

        #[test]
        fn an_option_of_the_request_counts_and_one_left_out_is_the_templates(
            own in any_options(), template in any_options(),
        ) {
            let merged = own.clone().or(template.clone());
            prop_assert_eq!(&merged.image, if own.image.is_some() { &own.image } else { &template.image });
            prop_assert_eq!(&merged.provider, if own.provider.is_some() { &own.provider } else { &template.provider });
            prop_assert_eq!(merged.entrypoint, own.entrypoint.or(template.entrypoint));
            prop_assert_eq!(merged.ttl, own.ttl.or(template.ttl));
            prop_assert_eq!(&merged.egress, if own.egress.is_some() { &own.egress } else { &template.egress });
            prop_assert_eq!(merged.auto_pause, own.auto_pause.or(template.auto_pause));
            prop_assert_eq!(&merged.prepare, if own.prepare.is_some() { &own.prepare } else { &template.prepare });
            prop_assert_eq!(merged.size.unwrap_or(DEFAULT), own.size.unwrap_or(template.size.unwrap_or(DEFAULT)));
            for key in ["a", "b", "c"] {
                let expected = own.metadata.get(key).or(template.metadata.get(key));
                prop_assert_eq!(merged.metadata.get(key), expected);
            }
        }

        #[test]
        fn options_of_three_sources_may_be_merged_in_either_order(
            a in any_options(), b in any_options(), c in any_options(),
        ) {
            prop_assert_eq!(a.clone().or(b.clone()).or(c.clone()), a.or(b.or(c)));
        }
    }

    #[test]
    fn the_first_broken_rule_is_named() {
        let with = |key: &str, image: &str, memory_mb| SpawnOptions {
            image: Some(image.to_owned()),
            size: SizeOptions { memory_mb: Some(memory_mb), ..SizeOptions::default() },
            metadata: [(key.to_owned(), String::new())].into(),
            ..SpawnOptions::default()
        };
        let memory = InvalidResource { field: "memory_mb", min: 16, max: 16_777_216 };
        for (options, expected) in [
            (with("k", "host", 16), Ok(())),
            (SpawnOptions::default(), Ok(())),
            (with("k", "host", 15), Err(InvalidOptions::Size(memory))),
            (with("k", "a b", 15), Err(InvalidOptions::Name(InvalidName::Image))),
            (SpawnOptions { auto_pause: Some(Duration::ZERO), ..SpawnOptions::default() }, Ok(())),
            (
                SpawnOptions { auto_pause: Some(Duration::from_millis(999)), ..SpawnOptions::default() },
                Err(InvalidOptions::AutoPause),
            ),
            (with("", "a b", 15), Err(InvalidOptions::Metadata(InvalidMetadata::Key))),
        ] {
            assert_eq!(options.check(DEFAULT), expected, "{options:?}");
        }
    }
}
