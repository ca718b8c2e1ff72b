//! Plan of a spawn: what the request, its template, its snapshot, the owner's quota and the settings make of it.

use std::sync::Arc;
use std::time::Duration;

use domain::{
    Ceilings, EgressPolicy, ProcessDefaults, Quota, Resources, SandboxEgress, SandboxId, Site, SizeOptions,
    SpawnOptions, State, Terms, WorkerId,
};
use providers::Spec;
use store::{NewSandbox, Sandbox, clock};

use super::{Plan, Source, SpawnRequest};
use crate::control::error::{Error, Result, above};
use crate::control::limit::Limit;
use crate::control::pause::pauses_of;
use crate::control::policy::ORPHAN_GRACE;
use crate::control::service::Control;
use crate::control::snapshots::image_names::check_image_of_owner;
use crate::control::templates::{TEMPLATE_LABEL, Templates};
use crate::control::workers::placement::Offer;

impl Control {
    /// Checks the options of a request without calling a provider or worker.
    pub(in crate::control) fn check_options(&self, options: &SpawnOptions) -> Result<()> {
        options.check(self.policy.resources).map_err(|error| Error::Invalid(error.to_string()))?;
        options.egress.as_ref().map_or(Ok(()), |policy| self.check_egress(policy))
    }

    /// Determines the size, and whether a box of this size may be made on this server. `asked` are
    /// the fields that the caller chose, `default` is the size where it chose none.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for an explicit value above its ceiling.
    fn size(&self, asked: SizeOptions, default: Resources, quota: &Quota, offer: &Offer) -> Result<(Resources, bool)> {
        let is_service = self.policy.is_service(&offer.name);
        let ceilings = |site| -> Ceilings { self.policy.sizes.of(quota, site) };
        let site = if is_service || offer.elsewhere { Site::Elsewhere } else { Site::Here };
        let size = ceilings(site).size(asked, default).map_err(Limit::AboveCeiling)?;
        Ok((size, is_service || ceilings(Site::Here).allow(&size)))
    }

    /// Returns whether this server can make such a box. A disk bound that comes from a ceiling
    /// only is dropped if the provider does not support one, as the sandbox's detail then shows.
    fn can_be_here(&self, offer: &Offer, spec: &mut Spec, names_disk: bool) -> Result<bool> {
        let refused = match offer.check(spec) {
            Err(error @ Error::NotSupported(_)) if !names_disk && spec.resources.disk_mb > 0 => error,
            answer => return answer.map_err(|error| self.with_image(spec, error)),
        };
        spec.resources.disk_mb = 0;
        offer.check(spec).map_err(|_| self.with_image(spec, refused))
    }

    pub(in crate::control) async fn plan(&self, request: SpawnRequest) -> Result<Plan> {
        let asked = request.options.size;
        let request = self.filled(request).await?;
        self.plan_filled(request, asked).await
    }

    /// Plans a request whose template was filled in. `asked` are the size fields that the caller
    /// chose, not the template.
    pub(in crate::control) async fn plan_filled(&self, request: SpawnRequest, asked: SizeOptions) -> Result<Plan> {
        let SpawnRequest { options, owner, key, generation, asker, template_egress, source, terms, defaults, .. } =
            request;
        self.check_options(&options)?;
        let quota = self.quota_of(owner.as_ref()).await?;
        let ttl = self.policy.limits.under(&quota).ttl(options.ttl).map_err(|error| above("ttl", error))?;
        let terms = with_defaults(terms, defaults, &options, ttl);
        terms.as_ref().map_or(Ok(()), Terms::check).map_err(|error| Error::Invalid(error.to_string()))?;
        let mut offer = self.offer(options.provider.as_deref()).await?;
        if let Some(source) = &source {
            self.keep_here(&mut offer, source)?;
        }
        let default = options.size.unwrap_or(self.policy.resources);
        let (resources, fits_here) = self.size(asked, default, &quota, &offer)?;
        Control::check_pids(source.as_ref(), &resources)?;
        let is_copy = matches!(&source, Some(Source::Kept(snapshot)) if snapshot.is_temporary);
        let (kept, imaged) = match source {
            Some(Source::Kept(snapshot)) => (Some(snapshot.id), None),
            Some(Source::Image(snapshot)) => (None, Some(snapshot)),
            None => (None, None),
        };
        let is_of_snapshot = kept.is_some() || imaged.is_some();
        let image = options.image.or_else(|| self.policy.image.clone()).unwrap_or_else(|| offer.default_image());
        let own = options.egress.unwrap_or_else(|| self.egress.default_policy().clone());
        let egress = SandboxEgress { template: template_egress, own };
        let names_secrets = egress.secrets().next().is_some();
        if names_secrets && !self.policy.is_service(&offer.name) {
            for policy in egress.each() {
                self.check_secrets(Some(policy), owner.as_ref()).await?;
            }
        }
        let mut spec = Spec {
            image,
            resources,
            entrypoint: options.entrypoint.unwrap_or(false),
            metadata: options.metadata,
            lifetime: ttl + ORPHAN_GRACE,
            trust: None,
            snapshot: kept,
            is_copy,
            egress: asked_of_provider(&egress),
            asker,
        };
        let names_disk = options.size.disk_mb.is_some_and(|disk_mb| disk_mb > 0);
        let here = fits_here && self.can_be_here(&offer, &mut spec, names_disk)?;
        let here = here && self.has_room(&offer, &spec)?;
        if let Some(provider) = offer.here.as_deref().filter(|_| here && imaged.is_none()) {
            self.check_image(provider, &spec.image).await?;
        }
        let auto_pause = options.auto_pause.filter(|idle| !idle.is_zero());
        let pauses = auto_pause.is_some() || terms.as_ref().is_some_and(|terms| terms.pauses_at_end);
        if let Some(provider) = offer.here.as_deref().filter(|_| pauses && !offer.elsewhere) {
            pauses_of(provider)?;
        }
        let now = self.now();
        let sandbox = Sandbox {
            id: SandboxId::from_entropy(rand::random()),
            state: State::Creating,
            provider: offer.name,
            image: spec.image.clone(),
            resources: spec.resources,
            metadata: spec.metadata.clone(),
            owner,
            worker: WorkerId::local(),
            created_at: now,
            expires_at: clock::after(now, ttl),
            ended_at: None,
            error: None,
            auto_pause,
            terms: terms.map(Box::new),
        };
        let (caps, mut placement, pool) = (self.policy.caps, self.placement(here), self.place());
        if names_secrets || is_of_snapshot {
            // The secrets are in the store of this server, and snapshots on this host.
            placement.reachable = Arc::default();
        }
        let new = NewSandbox { sandbox, egress, caps, key, placement, pool };
        let prepare = options.prepare.unwrap_or_default();
        Ok(Plan { new, spec, ttl, prepare, generation, imaged })
    }

    /// Fills options that the request leaves out from its snapshot or its template.
    pub(in crate::control) async fn filled(&self, request: SpawnRequest) -> Result<SpawnRequest> {
        if request.only_own {
            check_image_of_owner(request.options.image.as_deref())?;
        }
        if request.snapshot.is_some() { self.with_snapshot(request).await } else { self.with_template(request).await }
    }

    /// Fills options that the request leaves out from its template.
    pub(in crate::control) async fn with_template(&self, mut request: SpawnRequest) -> Result<SpawnRequest> {
        let Some(name) = request.template.take() else { return Ok(request) };
        let among = Templates::usable_by(request.owner.as_ref());
        let template = self.template(&among, &name).await?;
        let limits = self.limits_of(request.owner.as_ref()).await?;
        // The caller did not choose the template's lifetime. It is lowered to the maximum.
        let ttl = template.options.ttl.map(|ttl| ttl.min(limits.ttl_max));
        request.template_egress.clone_from(&template.options.egress);
        request.options = request.options.or(SpawnOptions { ttl, ..template.options });
        request.options.metadata.insert(TEMPLATE_LABEL.to_owned(), name.clone());
        match template.built {
            Some(built) => self.with_built(&name, built, request).await,
            None => Ok(request),
        }
    }
}

/// Returns the terms of a sandbox that lives for `ttl`, and whose template has `defaults` of its processes. Where no
/// front agreed on terms, they are those of every sandbox of the API.
fn with_defaults(
    terms: Option<Terms>,
    defaults: ProcessDefaults,
    options: &SpawnOptions,
    ttl: Duration,
) -> Option<Terms> {
    match terms {
        Some(terms) => Some(Terms { defaults: terms.defaults.or(defaults), lifetime: Some(ttl), ..terms }),
        None if defaults == ProcessDefaults::default() => None,
        None => {
            let made_of = options.metadata.get(TEMPLATE_LABEL).cloned().unwrap_or_default();
            Some(Terms { made_of, defaults, wakes: true, ..Terms::default() })
        }
    }
}

/// Returns the policies on connections that a provider is asked to hold, each once.
fn asked_of_provider(egress: &SandboxEgress) -> Vec<EgressPolicy> {
    let mut policies: Vec<EgressPolicy> = egress.each().filter(|_| !egress.is_none()).cloned().collect();
    policies.dedup();
    policies
}
