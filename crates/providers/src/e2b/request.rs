//! The request for a sandbox, made from a spec, and what of a spec cannot be kept.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use domain::{EgressEntry, EgressMode, EgressPolicy, InvalidMetadata, Metadata, Resources, SandboxId};

use super::control_plane::{Described, Network, NewSandbox};
use super::labels::{ID_LABEL, SERVER_LABEL, STORE_LABEL};
use crate::{Error, Result, Spec};

/// Networks that stand for all hosts.
const ALL: &str = "0.0.0.0/0";

/// A template of the account.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    /// Name or id of the template.
    pub name: String,
    /// Memory of its sandboxes in MiB, which a spawn may ask for; `None` if it is not known.
    pub memory_mb: Option<u32>,
    /// Processors of its sandboxes.
    pub vcpus: Option<u32>,
    /// Disk of its sandboxes in MiB.
    pub disk_mb: Option<u32>,
}

/// Rules by which a spec becomes a request.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    /// Templates by the names of images.
    pub(super) templates: BTreeMap<String, Template>,
    /// Sizes of a spawn that names none: what the template has is used for them.
    pub(super) usual: Resources,
    /// The longest lifetime that the account allows.
    pub(super) lifetime_max: Duration,
    /// Time of a lifetime that is for the case that this server does not come back, and may be left out.
    pub(super) grace: Duration,
    /// Store of this server.
    pub(super) label: String,
    /// Host of this server.
    pub(super) server: String,
}

fn not_supported(text: impl Into<String>) -> Error {
    Error::NotSupported(text.into())
}

impl Rules {
    /// Checks that a spec asks only for what the service enforces.
    pub(super) fn check(&self, spec: &Spec) -> Result<()> {
        if spec.entrypoint {
            return Err(not_supported(
                "`entrypoint` is not supported by the provider `e2b`, because the template decides what is started; \
                 leave it out",
            ));
        }
        self.check_size(spec)?;
        self.network(&spec.egress)?;
        self.seconds(spec.lifetime)?;
        InvalidMetadata::check(&self.labelled(None, spec))
            .map_err(|error| Error::Invalid(format!("{error}, and the provider `e2b` adds three")))
    }

    fn template(&self, image: &str) -> Template {
        let of_its_own_name = || Template { name: image.to_owned(), ..Template::default() };
        self.templates.get(image).cloned().unwrap_or_else(of_its_own_name)
    }

    /// Checks that a size is that of the template, unless it was left out.
    fn check_size(&self, spec: &Spec) -> Result<()> {
        let (asked, usual, template) = (spec.resources, self.usual, self.template(&spec.image));
        let sizes = [
            ("memory_mb", asked.memory_mb, usual.memory_mb, template.memory_mb),
            ("vcpus", asked.vcpus, usual.vcpus, template.vcpus),
            ("disk_mb", asked.disk_mb, usual.disk_mb, template.disk_mb),
            ("pids", asked.pids, usual.pids, None),
        ];
        for (name, asked, usual, has) in sizes {
            if asked == usual || Some(asked) == has {
                continue;
            }
            let template = &template.name;
            return Err(not_supported(match (name, has) {
                ("pids", _) => "`pids` cannot be limited by the provider `e2b`; leave it out".to_owned(),
                (_, Some(has)) => format!(
                    "`{name}` is {has} in sandboxes of the template `{template}`; leave it out, or name the image of \
                     another template"
                ),
                (_, None) => format!(
                    "`{name}` is set by the template `{template}` with the provider `e2b`; leave it out, or name it in \
                     `providers.e2b.templates` if the template has it"
                ),
            }));
        }
        Ok(())
    }

    /// Checks that a sandbox has the size that its template is said to have, and that was asked for.
    pub(super) fn check_made(&self, made: &Described, spec: &Spec) -> Result<()> {
        let (asked, template) = (spec.resources, self.template(&spec.image));
        let sizes = [
            ("memory_mb", asked.memory_mb, template.memory_mb, made.memory_mb),
            ("vcpus", asked.vcpus, template.vcpus, made.cpu_count),
        ];
        for (name, asked, said, has) in sizes {
            if Some(asked) == said && has.is_some_and(|has| has != u64::from(asked)) {
                let has = has.unwrap_or_default();
                return Err(Error::NotSupported(format!(
                    "`{name}` is {has} in sandboxes of the template `{}`, and not {asked}; the operator has to correct \
                     `providers.e2b.templates`",
                    template.name
                )));
            }
        }
        Ok(())
    }

    /// Returns the lifetime to ask for, in whole seconds.
    pub(super) fn seconds(&self, lifetime: Duration) -> Result<u64> {
        let max = self.lifetime_max;
        if lifetime.saturating_sub(self.grace) > max {
            return Err(Error::Exhausted(format!(
                "the account behind the provider `e2b` keeps a sandbox for at most {} (`providers.e2b.max_lifetime`); \
                 ask for a shorter `ttl`",
                domain::format_duration(max)
            )));
        }
        Ok(self.seconds_within(lifetime))
    }

    /// Returns a lifetime within that of the account, in whole seconds.
    pub(super) fn seconds_within(&self, lifetime: Duration) -> u64 {
        let lifetime = lifetime.min(self.lifetime_max);
        (lifetime.as_secs() + u64::from(lifetime.subsec_nanos() > 0)).max(1)
    }

    /// Adds this provider's labels to the caller's.
    fn labelled(&self, id: Option<&SandboxId>, spec: &Spec) -> Metadata {
        let mut labels = spec.metadata.clone();
        labels.insert(ID_LABEL.to_owned(), id.map(ToString::to_string).unwrap_or_default());
        labels.insert(STORE_LABEL.to_owned(), self.label.clone());
        labels.insert(SERVER_LABEL.to_owned(), self.server.clone());
        labels
    }

    /// Returns whether connections are allowed, and the rules on them.
    fn network(&self, policies: &[EgressPolicy]) -> Result<(bool, Network)> {
        let closed = Network { allow_public_traffic: false, ..Network::default() };
        let policy = match policies {
            [] => return Ok((false, closed)),
            [policy] => policy,
            _ => {
                return Err(not_supported(
                    "the provider `e2b` accepts one egress policy, but the sandbox has its own and its template's; \
                     leave out `egress` or the template",
                ));
            }
        };
        if !policy.secrets.is_empty() {
            return Err(not_supported(
                "`egress.secrets` are not supported by the provider `e2b`, because its connections do not pass this \
                 server; leave them out",
            ));
        }
        Ok(match policy.mode {
            EgressMode::None => (false, closed),
            EgressMode::AllowList if policy.deny.is_empty() => {
                let allow_out = targets("allow", &policy.allow)?;
                (true, Network { allow_out, deny_out: vec![ALL.to_owned()], ..closed })
            }
            EgressMode::AllowList => {
                return Err(not_supported(
                    "`egress.deny` beside an allow list is not supported by the provider `e2b`, where an allowed host \
                     cannot be denied; leave it out",
                ));
            }
            EgressMode::Open => {
                let deny_out = targets("deny", &policy.deny)?;
                if let Some(name) = deny_out.iter().find(|target| !is_network(target)) {
                    return Err(not_supported(format!(
                        "`egress.deny` with the host name `{name}` is not supported by the provider `e2b`; deny \
                         addresses or networks"
                    )));
                }
                (true, Network { deny_out, ..closed })
            }
        })
    }

    /// Makes the request for the box `id`.
    pub(super) fn request(&self, id: &SandboxId, spec: &Spec) -> Result<NewSandbox> {
        let (allow_internet_access, network) = self.network(&spec.egress)?;
        Ok(NewSandbox {
            template_id: self.template(&spec.image).name,
            timeout: self.seconds(spec.lifetime)?,
            metadata: self.labelled(Some(id), spec).into_iter().collect(),
            auto_pause: false,
            allow_internet_access,
            network: Some(network),
        })
    }
}

/// Returns entries of a policy as the service writes them.
fn targets(field: &str, entries: &[EgressEntry]) -> Result<Vec<String>> {
    let target = |entry: &EgressEntry| match entry {
        EgressEntry::List(name) => Err(not_supported(format!(
            "`egress.{field}` with the list `@{name}` is not supported by the provider `e2b`; name its hosts"
        ))),
        EgressEntry::Target(target) if target.port().is_some() => Err(not_supported(format!(
            "`egress.{field}` with the port of `{target}` is not supported by the provider `e2b`; leave the port out"
        ))),
        EgressEntry::Target(target) => Ok(target.to_string()),
    };
    entries.iter().map(target).collect()
}

fn is_network(target: &str) -> bool {
    target.contains('/') || target.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod test {
    use domain::SecretUse;

    use super::*;

    fn rules() -> Rules {
        let sized = Template { name: "big".to_owned(), memory_mb: Some(4096), vcpus: Some(4), disk_mb: Some(9000) };
        let plain = Template { name: "py:v2".to_owned(), ..Template::default() };
        Rules {
            templates: [("large".to_owned(), sized), ("python".to_owned(), plain)].into(),
            usual: Resources { memory_mb: 512, vcpus: 1, disk_mb: 0, pids: 256 },
            lifetime_max: Duration::from_secs(3600),
            grace: Duration::from_secs(3600),
            label: "ours".to_owned(),
            server: "host".to_owned(),
        }
    }

    fn spec() -> Spec {
        Spec {
            image: "base".to_owned(),
            resources: rules().usual,
            entrypoint: false,
            metadata: Metadata::new(),
            lifetime: Duration::from_millis(90_500),
            egress: Vec::new(),
            trust: None,
            snapshot: None,
            is_copy: false,
            asker: None,
        }
    }

    fn with(change: impl FnOnce(&mut Spec)) -> Spec {
        let mut spec = spec();
        change(&mut spec);
        spec
    }

    fn egress(mode: EgressMode, allow: &[&str], deny: &[&str]) -> EgressPolicy {
        let entries = |texts: &[&str]| texts.iter().map(|text| EgressEntry::parse(text).unwrap()).collect();
        EgressPolicy { mode, allow: entries(allow), deny: entries(deny), ..EgressPolicy::default() }
    }

    #[test]
    fn an_image_is_a_template_of_its_name_unless_the_operator_says_otherwise() {
        for (image, template) in [("base", "base"), ("python", "py:v2"), ("team/x:1", "team/x:1")] {
            let request =
                rules().request(&SandboxId::from_entropy([1; 10]), &with(|spec| spec.image = image.to_owned()));
            assert_eq!(request.unwrap().template_id, template);
        }
    }

    #[test]
    fn a_size_is_that_of_the_template_or_refused_by_name() {
        let sized = |image: &str, change: fn(&mut Resources)| {
            rules().check(&with(|spec| {
                spec.image = image.to_owned();
                change(&mut spec.resources);
            }))
        };
        sized("base", |_| {}).unwrap();
        sized("large", |size| (size.memory_mb, size.vcpus, size.disk_mb) = (4096, 4, 9000)).unwrap();
        sized("large", |_| {}).unwrap();
        for (image, change, name) in [
            ("base", (|size| size.memory_mb = 1024) as fn(&mut Resources), "`memory_mb`"),
            ("base", |size| size.vcpus = 2, "`vcpus`"),
            ("base", |size| size.disk_mb = 10, "`disk_mb`"),
            ("large", |size| size.memory_mb = 8192, "`memory_mb`"),
            ("large", |size| size.pids = 10, "`pids`"),
        ] {
            let Err(Error::NotSupported(text)) = sized(image, change) else { panic!("{image} {name}") };
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn a_lifetime_is_asked_for_in_whole_seconds_and_within_the_account() {
        let seconds = |lifetime| rules().seconds(lifetime);
        assert_eq!(seconds(Duration::from_millis(300)).unwrap(), 1);
        assert_eq!(seconds(Duration::from_millis(90_500)).unwrap(), 91);
        // The hour for a server that does not come back is what is left out.
        assert_eq!(seconds(Duration::from_secs(2 * 3600)).unwrap(), 3600);
        let Err(Error::Exhausted(text)) = seconds(Duration::from_secs(2 * 3600 + 1)) else { panic!("it is granted") };
        assert!(text.contains("1h0m0s"), "{text}");
    }

    #[test]
    fn a_policy_becomes_the_rules_that_let_the_same_connections_through() {
        let of = |policies: &[EgressPolicy]| {
            let (allowed, network) = rules().network(policies).unwrap();
            assert!(!network.allow_public_traffic);
            (allowed, network.allow_out.join(" "), network.deny_out.join(" "))
        };
        let answer = |allowed, allow: &str, deny: &str| (allowed, allow.to_owned(), deny.to_owned());
        assert_eq!(of(&[]), answer(false, "", ""));
        assert_eq!(of(&[egress(EgressMode::None, &[], &[])]), answer(false, "", ""));
        assert_eq!(of(&[egress(EgressMode::Open, &[], &[])]), answer(true, "", ""));
        assert_eq!(
            of(&[egress(EgressMode::Open, &[], &["10.0.0.0/8", "1.1.1.1"])]),
            answer(true, "", "10.0.0.0/8 1.1.1.1")
        );
        let list = egress(EgressMode::AllowList, &["*.a.example", "8.8.8.8"], &[]);
        assert_eq!(of(&[list]), answer(true, "*.a.example 8.8.8.8", "0.0.0.0/0"));
    }

    #[test]
    fn a_policy_that_cannot_be_kept_is_refused_by_name() {
        let open = egress(EgressMode::Open, &[], &[]);
        let secret = EgressPolicy { secrets: vec![SecretUse::parse("k@a.example").unwrap()], ..open.clone() };
        for (policies, words) in [
            (vec![open.clone(), open], "`egress`"),
            (vec![secret], "`egress.secrets`"),
            (vec![egress(EgressMode::AllowList, &["a.example:443"], &[])], "port"),
            (vec![egress(EgressMode::AllowList, &["@list"], &[])], "`@list`"),
            (vec![egress(EgressMode::AllowList, &["a.example"], &["b.a.example"])], "`egress.deny`"),
            (vec![egress(EgressMode::Open, &[], &["a.example"])], "`a.example`"),
        ] {
            let refused = rules().check(&with(|spec| spec.egress = policies));
            let Err(Error::NotSupported(text)) = refused else { panic!("{words}: {refused:?}") };
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn labels_that_leave_no_room_for_ours_are_refused() {
        let with =
            |count: u32| with(|spec| spec.metadata = (0..count).map(|n| (n.to_string(), String::new())).collect());
        rules().check(&with(61)).unwrap();
        let Err(Error::Invalid(text)) = rules().check(&with(62)) else { panic!("they are not refused") };
        assert!(text.contains("64") && text.contains("three"), "{text}");
    }

    #[test]
    fn an_entry_point_is_refused_by_name() {
        let refused = rules().check(&with(|spec| spec.entrypoint = true));
        assert!(matches!(refused, Err(Error::NotSupported(text)) if text.contains("`entrypoint`")));
    }
}
