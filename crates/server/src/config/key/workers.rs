//! Keys of several servers together: the workers of a control plane, this server's own role as a
//! worker, and leases.

use super::{Default, Key, read};

pub(super) const KEYS: &[Key] = &[
    Key {
        name: "workers.*.url",
        default: Default::Unset,
        doc: &["Where the worker of this id is reached, such as https://w1.example.com:7423."],
        read: |config, value, at| {
            let (id, url) = (read::worker_id(at.entry)?, read::url(value)?);
            config.workers.entry(id).or_default().url = url;
            Ok(())
        },
    },
    Key {
        name: "workers.*.api_key",
        default: Default::Unset,
        doc: &["Key that the worker's API asks for."],
        read: |config, value, at| {
            let (id, key) = (read::worker_id(at.entry)?, read::optional(value, read::secret)?);
            config.workers.entry(id).or_default().api_key = key;
            Ok(())
        },
    },
    Key {
        name: "workers.*.api_key_file",
        default: Default::Unset,
        doc: &["File that holds workers.*.api_key; one of the two."],
        read: |config, value, at| {
            let (id, file) = (read::worker_id(at.entry)?, read::optional(value, |value| read::path(value, at.home))?);
            config.workers.entry(id).or_default().api_key_file = file;
            Ok(())
        },
    },
    Key {
        name: "workers.*.ca_file",
        default: Default::Unset,
        doc: &["PEM authority that signed the worker's certificate. Unset: the usual ones."],
        read: |config, value, at| {
            let (id, file) = (read::worker_id(at.entry)?, read::optional(value, |value| read::path(value, at.home))?);
            config.workers.entry(id).or_default().ca_file = file;
            Ok(())
        },
    },
    Key {
        name: "worker.control_plane",
        default: Default::Unset,
        doc: &["Base URL of the control plane that tidebox worker works for."],
        read: |config, value, _| {
            read::optional(value, read::url).map(|it| config.worker.control_plane = it.unwrap_or_default())
        },
    },
    Key {
        name: "worker.id",
        default: Default::Unset,
        doc: &["Id of this worker. Unset: the name of the host."],
        read: |config, value, _| {
            let id = |value: &_| read::label(value).and_then(|id| read::worker_id(&id));
            read::optional(value, id).map(|it| config.worker.id = it)
        },
    },
    Key {
        name: "worker.token",
        default: Default::Unset,
        doc: &["What this worker shows to the control plane: its auth.worker_tokens entry or auth.worker_token."],
        read: |config, value, _| read::optional(value, read::secret).map(|it| config.worker.token = it),
    },
    Key {
        name: "worker.token_file",
        default: Default::Unset,
        doc: &[
            "File that holds worker.token; one of the two. Read again for every request,",
            "so that a short-lived signed token can be put there from time to time.",
        ],
        read: |config, value, at| {
            read::optional(value, |value| read::path(value, at.home)).map(|it| config.worker.token_file = it)
        },
    },
    Key {
        name: "worker.ca_file",
        default: Default::Unset,
        doc: &["PEM authority that signed the control plane's certificate. Unset: the usual ones."],
        read: |config, value, at| {
            read::optional(value, |value| read::path(value, at.home)).map(|it| config.worker.ca_file = it)
        },
    },
    Key {
        name: "leases.ttl",
        default: Default::Text("2m"),
        doc: &[
            "How long a worker may be out of touch before the lease on a sandbox ends. The",
            "same on the control plane and its workers, as all of leases.",
        ],
        read: |config, value, _| read::positive_duration(value).map(|it| config.leases.ttl = it),
    },
    Key {
        name: "leases.grace",
        default: Default::Text("30s"),
        doc: &["How long after that the worker ends the sandbox by itself, and the control plane gives it up."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.leases.grace = it),
    },
    Key {
        name: "leases.heartbeat_interval",
        default: Default::Text("30s"),
        doc: &["How often a worker says that it is there and renews its leases; below leases.ttl."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.leases.heartbeat_interval = it),
    },
    Key {
        name: "leases.stale_after",
        default: Default::Text("2m"),
        doc: &["How long a worker may be silent before it gets no more sandboxes."],
        read: |config, value, _| read::positive_duration(value).map(|it| config.leases.stale_after = it),
    },
];
