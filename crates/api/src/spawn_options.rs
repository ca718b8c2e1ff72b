//! Options of a spawn, declared once for every body that has them.

/// Declares the fields of [`SpawnOptions`] in a request body, before its own.
///
/// They are declared in each body instead of flattened into it: a flattened body would accept
/// unknown fields, and its errors would not name the field.
macro_rules! body_with_spawn_options {
    ($(#[$about:meta])* pub struct $body:ident {
        $($(#[$of_own:meta])* pub $own:ident: $type:ty,)*
    }) => {
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$about])*
        pub struct $body {
            /// Name of the image, such as `host`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(min_length = 1)]
            pub image: Option<String>,
            /// Provider to use; the server's default unless set.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(min_length = 1)]
            pub provider: Option<String>,
            /// Memory limit in mebibytes.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 16, maximum = 16_777_216)]
            pub memory_mb: Option<u32>,
            /// Number of virtual CPUs.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 1, maximum = 1024)]
            pub vcpus: Option<u32>,
            /// Size limit of the sandbox's file system in mebibytes; 0 for no limit.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 0, maximum = 16_777_216)]
            pub disk_mb: Option<u32>,
            /// Maximum number of processes and threads at once.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(minimum = 8, maximum = 4_194_304)]
            pub pids: Option<u32>,
            /// True to also start the image's entry point, whose output is the console. False by default.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub entrypoint: Option<bool>,
            /// Lifetime, such as `30m`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<crate::Span>)]
            pub ttl: Option<String>,
            /// Labels of the sandbox.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<crate::Labels>)]
            pub metadata: Option<crate::StringMap>,
            /// Connections out of the sandbox; the server's default unless set.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub egress: Option<crate::EgressPolicy>,
            /// Time without requests, connections or work after which the sandbox is paused, such as `10m`; `0s` for
            /// never.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(value_type = Option<crate::Span>)]
            pub auto_pause: Option<String>,
            /// Commands that run one after the other before the sandbox counts as running.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schema(max_items = 16)]
            pub prepare: Option<Vec<crate::PrepareCommand>>,
            $($(#[$of_own])* pub $own: $type,)*
        }
    };
}

/// Declares a request body with the fields of [`SpawnOptions`] and its own, and the conversions
/// between the two.
macro_rules! with_spawn_options {
    ($(#[$about:meta])* pub struct $body:ident {
        $($(#[$of_own:meta])* pub $own:ident: $type:ty,)*
    }) => {
        crate::spawn_options::body_with_spawn_options! {
            $(#[$about])* pub struct $body { $($(#[$of_own])* pub $own: $type,)* }
        }

        impl From<crate::SpawnOptions> for $body {
            fn from(options: crate::SpawnOptions) -> Self {
                let crate::SpawnOptions { image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl, metadata, egress, auto_pause, prepare } =
                    options;
                Self {
                    image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl, metadata, egress, auto_pause, prepare,
                    $($own: Default::default(),)*
                }
            }
        }

        impl From<$body> for crate::SpawnOptions {
            fn from(body: $body) -> Self {
                let $body { image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl, metadata, egress, auto_pause, prepare, .. } = body;
                Self { image, provider, memory_mb, vcpus, disk_mb, pids, entrypoint, ttl, metadata, egress, auto_pause, prepare }
            }
        }
    };
}

pub(crate) use body_with_spawn_options;
pub(crate) use with_spawn_options;

body_with_spawn_options! {
    /// Options of a spawn or of a template; an absent field is left to the template or the
    /// server's default.
    #[schema(as = TemplateBody, description = "New values for a template; an absent field is cleared.")]
    pub struct SpawnOptions {}
}

#[cfg(test)]
mod test {
    use serde::de::DeserializeOwned;

    use crate::{
        EgressMode, EgressPolicy, PrepareCommand, SpawnOptions, SpawnRequest, StringMap, TemplateRequest,
        TemplateSpawnRequest,
    };

    const OPTIONS: &str = r#""image":"host","provider":"mock","memory_mb":64,"vcpus":2,"disk_mb":0,"pids":64,"entrypoint":true,"ttl":"1m","metadata":{"a":"b"},"egress":{"mode":"allow-list","allow":["a.example"],"secrets":["key"]},"auto_pause":"10m","prepare":[{"command":"true","mode":"shell"}]"#;

    fn options() -> SpawnOptions {
        SpawnOptions {
            image: Some("host".to_owned()),
            provider: Some("mock".to_owned()),
            memory_mb: Some(64),
            vcpus: Some(2),
            disk_mb: Some(0),
            pids: Some(64),
            entrypoint: Some(true),
            ttl: Some("1m".to_owned()),
            metadata: Some(StringMap([("a".to_owned(), "b".to_owned())].into())),
            egress: Some(EgressPolicy {
                mode: EgressMode::AllowList,
                allow: vec!["a.example".to_owned()],
                deny: Vec::new(),
                secrets: vec!["key".to_owned()],
            }),
            auto_pause: Some("10m".to_owned()),
            prepare: Some(vec![PrepareCommand { command: "true".to_owned(), ..PrepareCommand::default() }]),
        }
    }

    /// Checks a body whose own fields are `own`, as JSON with a comma before each.
    #[track_caller]
    fn check<T: DeserializeOwned + Into<SpawnOptions>>(own: &str) {
        let read = |text: String| serde_json::from_str::<T>(&text);
        let body: SpawnOptions = read(format!("{{{OPTIONS}{own}}}")).ok().unwrap().into();
        assert_eq!(body, options());
        let refused = read(format!("{{{OPTIONS}{own},\"memory\":64}}")).err().unwrap().to_string();
        assert!(refused.contains("unknown field `memory`"), "{refused}");
    }

    #[test]
    fn every_body_has_the_options_beside_its_own_fields_and_no_others() {
        check::<SpawnOptions>("");
        check::<SpawnRequest>(r#","owner_id":"alice","template":"py","snapshot":"snap-a""#);
        check::<TemplateRequest>(r#","name":"py""#);
        check::<TemplateSpawnRequest>(r#","owner_id":"alice""#);
    }

    #[test]
    fn a_body_made_of_options_is_sent_with_these_and_leaves_the_rest_out() {
        let body = serde_json::to_string(&SpawnRequest::from(options())).unwrap();
        assert_eq!(body, format!("{{{OPTIONS}}}"));
    }
}
