//! Owner quotas.

use std::time::Duration;

use domain::{Caps, Ceilings, Limits, OwnerId, Quota, Site};
use serde_json::json;

use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use crate::events::EventType;
use store::{OwnerQuota, QuotaSummary};

/// Usage and limits of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    pub owner: OwnerId,
    /// Number of active sandboxes.
    pub active_sandboxes: u64,
    /// Cap on active sandboxes in force; 0 for none.
    pub max_sandboxes: u64,
    /// Maximum lifetime in force.
    pub max_ttl: Duration,
    /// Maximum command deadline in force.
    pub max_exec_timeout: Duration,
    /// Maximum size of one sandbox on this server in force.
    pub ceilings: Ceilings,
    /// True if a quota is set for the owner.
    pub quota_configured: bool,
}

impl Control {
    /// Stores an owner's quota, replacing all of its values. Queued spawns are tried again.
    ///
    /// # Errors
    /// [`Error::LimitReached`] for a new quota at the maximum number of quotas.
    pub async fn save_quota(&self, owner: &OwnerId, quota: &Quota) -> Result<OwnerQuota> {
        let max = self.policy.quotas_max;
        let saved = self.store.save_quota(owner, quota, self.now(), max).await?;
        let saved = saved.ok_or(Limit::TooMany { objects: Counted::Quotas, max })?;
        self.admission.quota_changed(owner);
        self.publish_of(Some(owner), EventType::QuotaSaved, json!({"owner_id": owner.as_str()}));
        Ok(saved)
    }

    /// Removes an owner's quota, so that the global limits apply again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the owner has no quota.
    pub async fn delete_quota(&self, owner: &OwnerId) -> Result<()> {
        if !self.store.delete_quota(owner).await? {
            return Err(missing(owner));
        }
        self.admission.quota_changed(owner);
        self.publish_of(Some(owner), EventType::QuotaDeleted, json!({"owner_id": owner.as_str()}));
        Ok(())
    }

    /// Returns an owner's quota.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the owner has no quota.
    pub async fn quota(&self, owner: &OwnerId) -> Result<OwnerQuota> {
        self.store.quota(owner).await?.ok_or_else(|| missing(owner))
    }

    /// Returns quotas by owner, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>> {
        Ok(self.store.quotas(after, limit).await?)
    }

    /// Returns the numbers of quotas.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn quota_summary(&self) -> Result<QuotaSummary> {
        Ok(self.store.quota_summary().await?)
    }

    /// Returns the usage and limits of an owner, with or without a quota of its own.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn usage(&self, owner: &OwnerId) -> Result<Usage> {
        let own = self.store.quota(owner).await?;
        let room = self.store.room(Some(owner), self.policy.caps).await?;
        let quota = own.as_ref().map(|own| own.quota).unwrap_or_default();
        let limits = self.policy.limits.under(&quota);
        let caps: Caps = self.policy.caps.under(&quota);
        Ok(Usage {
            owner: owner.clone(),
            active_sandboxes: room.active.owner.unwrap_or(0),
            max_sandboxes: caps.max_sandboxes_per_owner,
            max_ttl: limits.ttl_max,
            max_exec_timeout: limits.exec_timeout_max,
            ceilings: self.policy.sizes.of(&quota, Site::Here),
            quota_configured: own.is_some(),
        })
    }

    /// Returns the limits on lifetimes and deadlines that apply to `owner`.
    pub(super) async fn limits_of(&self, owner: Option<&OwnerId>) -> Result<Limits> {
        Ok(self.policy.limits.under(&self.quota_of(owner).await?))
    }

    /// Returns the quota of `owner`; one that inherits every value if it has none.
    pub(super) async fn quota_of(&self, owner: Option<&OwnerId>) -> Result<Quota> {
        Ok(match owner {
            Some(owner) => self.store.quota(owner).await?.map(|own| own.quota).unwrap_or_default(),
            None => Quota::default(),
        })
    }
}

fn missing(owner: &OwnerId) -> Error {
    Error::NotFound(Resource::Quota, owner.to_string())
}
