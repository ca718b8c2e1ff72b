//! Owner quotas.

use std::time::Duration;

use domain::{Caps, Ceilings, Limits, OwnerId, Quota, Site};
use serde_json::json;

use super::{Control, Error, Resource, Result};
use crate::events::EventType;
use crate::store::{OwnerQuota, QuotaSummary};

/// What an owner has, and may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// Whose.
    pub owner: OwnerId,
    /// How many active sandboxes.
    pub active_sandboxes: u64,
    /// The cap that holds; 0 for none.
    pub max_sandboxes: u64,
    /// The longest lifetime that holds.
    pub max_ttl: Duration,
    /// The longest deadline that holds.
    pub max_exec_timeout: Duration,
    /// The largest size of one sandbox here that holds.
    pub ceilings: Ceilings,
    /// Whether there is a quota of the owner's own.
    pub quota_configured: bool,
}

impl Control {
    /// Saves an owner's quota whole. Whoever waits for room looks again.
    ///
    /// # Errors
    /// [`Error::LimitReached`] when it is a new one and there are as many as there may be.
    pub async fn save_quota(&self, owner: &OwnerId, quota: &Quota) -> Result<OwnerQuota> {
        let max = self.policy.quotas_max;
        let saved = self.store.save_quota(owner, quota, self.now(), max).await?.ok_or_else(|| {
            Error::LimitReached(format!(
                "there are {max} quotas, as many as `limits.max_quotas` allows; delete one that is not needed"
            ))
        })?;
        self.admission.quota_changed(owner);
        self.publish(EventType::QuotaSaved, None, json!({"owner_id": owner.as_str()}));
        Ok(saved)
    }

    /// Removes an owner's quota; the global limits hold again.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none.
    pub async fn delete_quota(&self, owner: &OwnerId) -> Result<()> {
        if !self.store.delete_quota(owner).await? {
            return Err(missing(owner));
        }
        self.admission.quota_changed(owner);
        self.publish(EventType::QuotaDeleted, None, json!({"owner_id": owner.as_str()}));
        Ok(())
    }

    /// An owner's quota.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none.
    pub async fn quota(&self, owner: &OwnerId) -> Result<OwnerQuota> {
        self.store.quota(owner).await?.ok_or_else(|| missing(owner))
    }

    /// Quotas by owner, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>> {
        Ok(self.store.quotas(after, limit).await?)
    }

    /// How many quotas say what.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn quota_summary(&self) -> Result<QuotaSummary> {
        Ok(self.store.quota_summary().await?)
    }

    /// What an owner has, and may have, with or without a quota of its own.
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

    /// The limits on time that hold for `owner`.
    pub(super) async fn limits_of(&self, owner: Option<&OwnerId>) -> Result<Limits> {
        Ok(self.policy.limits.under(&self.quota_of(owner).await?))
    }

    /// The quota that holds for `owner`; one that inherits everything without one.
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
