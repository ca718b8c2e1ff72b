//! Keys of the providers and of the image store.

use providers::images::PullPolicy;

use super::{COUNT_MAX, Default, Enabled, Key, read};

pub(super) const PROVIDERS: &[Key] = &[
    Key {
        name: "providers.native.enabled",
        default: Default::Text("auto"),
        doc: &[
            "auto offers it where the host can do it; true offers it always, and shows it",
            "as unhealthy where the host cannot; false never.",
        ],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.native.enabled = it),
    },
    Key {
        name: "providers.native.subids",
        default: Default::Unset,
        doc: &[
            "Host user and group ids for boxes, as first:count; a box takes 65536 of them.",
            "Two servers on one host need different ones. Unset: 1073741824:536870912.",
        ],
        read: |config, value, _| read::optional(value, read::subids).map(|it| config.providers.native.subids = it),
    },
    Key {
        name: "providers.native.cgroup_parent",
        default: Default::Unset,
        doc: &["Control group below which boxes get theirs. Unset: the server's own."],
        read: |config, value, _| {
            read::optional(value, read::cgroup).map(|it| config.providers.native.cgroup_parent = it)
        },
    },
    Key {
        name: "providers.docker.enabled",
        default: Default::Text("auto"),
        doc: &["auto offers it where a Docker Engine answers; true always; false never."],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.docker.enabled = it),
    },
    Key {
        name: "providers.docker.socket",
        default: Default::Unset,
        doc: &[
            "Where the Engine listens: a path, unix:///path or tcp://host:port.",
            "Unset: DOCKER_HOST, then the usual place.",
        ],
        read: |config, value, _| read::optional(value, read::engine).map(|it| config.providers.docker.socket = it),
    },
    Key {
        name: "providers.docker.tls.ca_file",
        default: Default::Unset,
        doc: &["PEM authority that signed the certificate of an Engine on tcp://."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.docker.tls.ca_file = it),
    },
    Key {
        name: "providers.docker.tls.cert_file",
        default: Default::Unset,
        doc: &["PEM certificate that is shown to it; needs providers.docker.tls.key_file."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.docker.tls.cert_file = it),
    },
    Key {
        name: "providers.docker.tls.key_file",
        default: Default::Unset,
        doc: &["PEM private key of providers.docker.tls.cert_file."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.docker.tls.key_file = it),
    },
    Key {
        name: "providers.docker.runtime",
        default: Default::Unset,
        doc: &["Runtime of the containers, such as runc, runsc or kata. Unset: the Engine's default."],
        read: |config, value, _| read::optional(value, read::label).map(|it| config.providers.docker.runtime = it),
    },
    Key {
        name: "providers.docker.network_mode",
        default: Default::Text("none"),
        doc: &["none, bridge, or the name of a network of the Engine. none: loopback alone."],
        read: |config, value, _| read::network_mode(value).map(|it| config.providers.docker.network_mode = it),
    },
    Key {
        name: "providers.docker.seccomp_profile",
        default: Default::Unset,
        doc: &["File (JSON) of a profile in place of the Engine's own."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.docker.seccomp_profile = it),
    },
    Key {
        name: "providers.docker.read_only_rootfs",
        default: Default::Text("false"),
        doc: &["Make the image's files read-only; what may be written is in memory."],
        read: |config, value, _| read::flag(value).map(|it| config.providers.docker.read_only_rootfs = it),
    },
    Key {
        name: "providers.docker.pids_limit",
        default: Default::Unset,
        doc: &["The most processes and threads in a box. Unset: defaults.pids."],
        read: |config, value, _| {
            let pids = |value: &_| read::integer(value, 8..=4_194_304);
            read::optional(value, pids).map(|it| config.providers.docker.pids_limit = it)
        },
    },
    Key {
        name: "providers.docker.user",
        default: Default::Unset,
        doc: &["User of the boxes: name, uid, name:group or uid:gid. Unset: the image's."],
        read: |config, value, _| read::optional(value, read::user).map(|it| config.providers.docker.user = it),
    },
    Key {
        name: "providers.docker.dropped_caps",
        default: Default::Text(""),
        doc: &["Capabilities that boxes do not get, such as NET_RAW; ALL for all of them."],
        read: |config, value, _| {
            read::list(value, read::capability_or_all).map(|it| config.providers.docker.dropped_caps = it)
        },
    },
    Key {
        name: "providers.docker.added_caps",
        default: Default::Text(""),
        doc: &["Capabilities that boxes get beyond the Engine's default ones, or in spite of ALL above."],
        read: |config, value, _| read::list(value, read::capability).map(|it| config.providers.docker.added_caps = it),
    },
    Key {
        name: "providers.docker.tmpfs",
        default: Default::Text(""),
        doc: &["Folders in memory, such as /tmp or /run:size=64m."],
        read: |config, value, _| read::list(value, read::tmpfs).map(|it| config.providers.docker.tmpfs = it),
    },
    Key {
        name: "providers.docker.pull",
        default: Default::Text("missing"),
        doc: &["When a spawn has the Engine ask the registry: missing, never or always."],
        read: |config, value, _| read::word(value, PULLS).map(|it| config.providers.docker.pull = it),
    },
    Key {
        name: "providers.proot.enabled",
        default: Default::Text("auto"),
        doc: &[
            "auto offers it where there is a proot program; true always; false never.",
            "It isolates little, whatever runs in it.",
        ],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.proot.enabled = it),
    },
    Key {
        name: "providers.proot.binary",
        default: Default::Unset,
        doc: &["The proot program. Unset: the one on the PATH."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.proot.binary = it),
    },
    Key {
        name: "providers.mock.enabled",
        default: Default::Text("false"),
        doc: &["Offer the test double, which isolates nothing: true or false (auto is false)."],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.mock.enabled = it == Enabled::True),
    },
    Key {
        name: "providers.firecracker.enabled",
        default: Default::Text("false"),
        doc: &["This version does not have it: false, or auto, which is false."],
        read: |_, value, _| read::not_offered(value),
    },
    Key {
        name: "providers.e2b.enabled",
        default: Default::Text("false"),
        doc: &["This version does not have it: false, or auto, which is false."],
        read: |_, value, _| read::not_offered(value),
    },
    Key {
        name: "providers.custom.enabled",
        default: Default::Text("false"),
        doc: &["Offer another service that speaks this API: true or false (auto is false)."],
        read: |config, value, _| read::enabled(value).map(|it| config.providers.custom.enabled = it == Enabled::True),
    },
    Key {
        name: "providers.custom.name",
        default: Default::Text("custom"),
        doc: &["The provider's name in this server's API."],
        read: |config, value, _| read::label(value).map(|it| config.providers.custom.name = it),
    },
    Key {
        name: "providers.custom.base_url",
        default: Default::Unset,
        doc: &["Its base URL, such as https://boxes.example.com."],
        read: |config, value, _| {
            read::optional(value, read::url).map(|it| config.providers.custom.base_url = it.unwrap_or_default())
        },
    },
    Key {
        name: "providers.custom.api_key",
        default: Default::Unset,
        doc: &["Key that its API asks for."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.providers.custom.api_key = it),
    },
    Key {
        name: "providers.custom.api_key_file",
        default: Default::Unset,
        doc: &["File that holds providers.custom.api_key; one of the two."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.custom.api_key_file = it),
    },
    Key {
        name: "providers.custom.ca_file",
        default: Default::Unset,
        doc: &["PEM file of the authorities that may vouch for it, instead of the system's."],
        read: |config, value, at| read::file(value, at.home).map(|it| config.providers.custom.ca_file = it),
    },
    Key {
        name: "providers.custom.remote_provider",
        default: Default::Unset,
        doc: &["The provider that is asked of it. Unset: its default."],
        read: |config, value, _| {
            read::optional(value, read::label).map(|it| config.providers.custom.remote_provider = it)
        },
    },
    Key {
        name: "providers.custom.timeout",
        default: Default::Text("30s"),
        doc: &["How long one of its answers may take to begin."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.providers.custom.timeout = it),
    },
];

pub(super) const IMAGES: &[Key] = &[
    Key {
        name: "images.pull",
        default: Default::Text("missing"),
        doc: &[
            "When a spawn asks the registry for its image: missing (if it is not here),",
            "never (it is here, or the spawn is refused) or always.",
        ],
        read: |config, value, _| read::word(value, PULLS).map(|it| config.images.pull = it),
    },
    Key {
        name: "images.pull_timeout",
        default: Default::Text("5m"),
        doc: &["How long a spawn waits for its image. The pull goes on after that."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.images.pull_timeout = it),
    },
    Key {
        name: "images.max_mb",
        default: Default::Text("0"),
        doc: &["MiB above which images that no box uses go, the longest unused first; 0 is no limit."],
        read: |config, value, _| read::integer(value, 0..=COUNT_MAX).map(|it| config.images.max_mb = it),
    },
    Key {
        name: "images.max_image_mb",
        default: Default::Text("32768"),
        doc: &["The largest image that is taken, unpacked, in MiB."],
        read: |config, value, _| read::integer(value, 1..=COUNT_MAX).map(|it| config.images.max_image_mb = it),
    },
    Key {
        name: "images.allowed_registries",
        default: Default::Text(""),
        doc: &["The only registries that are asked, such as docker.io or localhost:5000. Empty: any."],
        read: |config, value, _| read::list(value, read::registry_host).map(|it| config.images.allowed_registries = it),
    },
    Key {
        name: "images.docker_config",
        default: Default::Unset,
        doc: &[
            "Docker's config.json, for its logins and credential helpers.",
            "Unset: ~/.docker/config.json, if it is there.",
        ],
        read: |config, value, at| read::file(value, at.home).map(|it| config.images.docker_config = it),
    },
    Key {
        name: "images.registries.*.mirrors",
        default: Default::Unset,
        doc: &["Hosts that are asked before this registry, in order, such as mirror.example.com:5000."],
        read: |config, value, at| {
            let host = read::registry(at.entry)?;
            let mirrors = read::optional(value, |value| read::list(value, read::registry_host))?;
            config.images.registries.entry(host).or_default().mirrors = mirrors.unwrap_or_default();
            Ok(())
        },
    },
    Key {
        name: "images.registries.*.plain_http",
        default: Default::Unset,
        doc: &["Speak to this registry or mirror without TLS."],
        read: |config, value, at| {
            let (host, plain) = (read::registry(at.entry)?, read::flag(value)?);
            config.images.registries.entry(host).or_default().plain_http = plain;
            Ok(())
        },
    },
    Key {
        name: "images.registries.*.username",
        default: Default::Unset,
        doc: &["User to log in as; stronger than Docker's config.json."],
        read: |config, value, at| {
            let (host, name) = (read::registry(at.entry)?, read::optional(value, read::user_name)?);
            config.images.registries.entry(host).or_default().username = name;
            Ok(())
        },
    },
    Key {
        name: "images.registries.*.password",
        default: Default::Unset,
        doc: &["Password or token of that user."],
        read: |config, value, at| {
            let (host, secret) = (read::registry(at.entry)?, read::optional(value, read::secret)?);
            config.images.registries.entry(host).or_default().password = secret;
            Ok(())
        },
    },
    Key {
        name: "images.registries.*.password_file",
        default: Default::Unset,
        doc: &["File that holds images.registries.*.password; one of the two."],
        read: |config, value, at| {
            let (host, file) = (read::registry(at.entry)?, read::file(value, at.home)?);
            config.images.registries.entry(host).or_default().password_file = file;
            Ok(())
        },
    },
    Key {
        name: "images.registries.*.ca_file",
        default: Default::Unset,
        doc: &["PEM authority to trust for this registry besides the system's."],
        read: |config, value, at| {
            let (host, file) = (read::registry(at.entry)?, read::file(value, at.home)?);
            config.images.registries.entry(host).or_default().ca_file = file;
            Ok(())
        },
    },
];

const PULLS: &[(&str, PullPolicy)] =
    &[("missing", PullPolicy::Missing), ("never", PullPolicy::Never), ("always", PullPolicy::Always)];
