//! Transactions that an engine of the store provides.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use domain::{
    Caps, EgressPolicy, OwnerId, Quota, Room, SandboxEgress, SandboxId, SecretName, SnapshotId, SpawnOptions, State,
    StoreId, Timestamp, WorkerId,
};

use super::admission::{Admitted, NewSandbox};
use super::audit::AuditStore;
use super::error::Result;
use super::keys::KeyStore;
use super::pool::PoolStore;
use super::quotas::{OwnerQuota, QuotaSummary};
use super::sandboxes::{Applied, Change, Counts, Cursor, ListFilter, Page, Sandbox};
use super::secrets::{NewSecret, StoredSecret};
use super::snapshots::SnapshotStore;
use super::templates::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};
use super::workers::Workers;

/// Care for the files and the clock of an engine, beside the transactions of the service.
#[async_trait]
pub trait Maintenance {
    /// Checks that the store can be read and written.
    async fn check(&self) -> Result<()>;

    /// Shifts all times that are compared with the clock by `by_ms`: future ends of sandboxes,
    /// ends of leases, and last heartbeats. Returns the number of sandboxes shifted.
    async fn shift_times(&self, by_ms: i64) -> Result<u64>;

    /// Returns a few free pages of the files to the disk; few, so that other writers hardly
    /// wait. Returns whether there are more. An engine whose files are not this server's has none.
    async fn give_back(&self) -> Result<bool> {
        Ok(false)
    }

    /// Frees the disk space that is kept for removals: a full disk must not keep sandboxes from being
    /// removed. Returns whether there was any. Later calls of [`Maintenance::give_back`] take it again.
    async fn free_reserve(&self) -> bool {
        false
    }

    /// Writes pending changes and closes the files.
    async fn close(&self);
}

/// Transactions of the store.
#[async_trait]
pub trait Store:
    AuditStore + KeyStore + Maintenance + PoolStore + SnapshotStore + Workers + fmt::Debug + Send + Sync
{
    /// Returns the id of this store, which stays the same for as long as the store exists.
    fn id(&self) -> &StoreId;

    /// Stores a sandbox in state `creating`, unless a cap is reached, and leases it to the
    /// worker that the placement rules choose.
    ///
    /// - Concurrent calls never exceed a cap together.
    /// - A sandbox without an owner is under no owner's cap.
    /// - The cost does not depend on the number of active sandboxes.
    /// - With [`NewSandbox::pool`], it takes a place in the fullest open box of the same
    ///   provider, image and size, else in a new one. Concurrent calls never exceed a bound
    ///   together.
    /// - A key is free if it is older than [`super::KEY_LIFETIME`], or if its sandbox failed or was
    ///   removed before any caller received it.
    async fn admit(&self, new: &NewSandbox) -> Result<Admitted>;

    /// Stores those of these sandboxes that [`Self::admit`] would store on this server, one after the other,
    /// in one transaction. Returns which were stored. One that was not may be, on this server or another, by
    /// a call of its own, which also names the reason if not.
    ///
    /// Stores none unless the engine gains by it, as SQLite does, whose one writer takes several for the price of a
    /// single one.
    async fn admit_together(&self, new: &[&NewSandbox]) -> Result<Vec<bool>> {
        Ok(vec![false; new.len()])
    }

    /// Returns the active sandboxes, and the caps that apply to `owner`.
    async fn room(&self, owner: Option<&OwnerId>, caps: Caps) -> Result<Room>;

    /// Returns the request and the sandbox of the owner's `key` at `now`.
    async fn keyed(&self, owner: Option<&OwnerId>, key: &str, now: Timestamp) -> Result<Option<(String, SandboxId)>>;

    /// Returns the numbers of sandboxes.
    async fn counts(&self) -> Result<Counts>;

    /// Returns one sandbox, also a destroyed one while its row is kept.
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<Sandbox>>;

    /// Returns a page of the sandboxes that a request may see at `now`, newest first.
    async fn sandboxes(&self, filter: &ListFilter, now: Timestamp) -> Result<Page>;

    /// Returns sandboxes in state `creating`, `running` or `paused` whose lifetime ended by `now`, the
    /// earliest end first, at most `limit`.
    async fn due(&self, now: Timestamp, limit: u32) -> Result<Vec<SandboxId>>;

    /// Returns a page of the sandboxes in `state`, oldest first: those after `after`, at most `limit`.
    async fn in_state(&self, state: State, after: Option<Cursor>, limit: u32) -> Result<Page>;

    /// Returns the ids of the sandboxes on `worker` that are in one of `states`, of one `provider` or
    /// of all.
    async fn ids_in(&self, states: &[State], worker: &WorkerId, provider: Option<&str>) -> Result<Vec<SandboxId>>;

    /// Returns the running sandboxes that are paused after a time without use.
    async fn with_auto_pause(&self) -> Result<Vec<Sandbox>>;

    /// Returns the environment in the terms of a sandbox, which no sandbox that is read has; none without terms.
    async fn env(&self, id: &SandboxId) -> Result<BTreeMap<String, String>>;

    /// Returns the policies on connections out of a sandbox; `None` if there is no such sandbox.
    async fn egress(&self, id: &SandboxId) -> Result<Option<SandboxEgress>>;

    /// Replaces a sandbox's own policy, and returns all of its policies; `None` if it has ended or
    /// does not exist.
    async fn set_egress(&self, id: &SandboxId, own: EgressPolicy) -> Result<Option<SandboxEgress>>;

    /// Returns the running sandboxes on `worker` that have policies, with their owners, and reads
    /// no other rows.
    async fn with_egress(&self, worker: &WorkerId) -> Result<Vec<(SandboxId, Option<OwnerId>)>>;

    /// Returns the bytes that a sandbox has exchanged with hosts, as far as they were stored; 0 if there is no such
    /// sandbox.
    async fn egress_bytes(&self, id: &SandboxId) -> Result<u64>;

    /// Stores the bytes that sandboxes have exchanged with hosts, all of them or none. One that does not exist is left
    /// out.
    async fn set_egress_bytes(&self, exchanged: &[(SandboxId, u64)]) -> Result<()>;

    /// Applies a change, if the state machine allows it in the stored state.
    ///
    /// A sandbox that ends counts against [`super::Kept`], and replaces an older row. The cost does not
    /// depend on the number of rows.
    async fn apply(&self, id: &SandboxId, change: Change) -> Result<Applied>;

    /// Deletes sandboxes that ended before `before` or are beyond [`super::Kept`], and old
    /// [`super::IdempotencyKey`]s. Returns the number of sandboxes deleted. Other writers can run in
    /// between.
    async fn purge_ended(&self, before: Timestamp, now: Timestamp) -> Result<u64>;

    /// Stores a new template, unless its owner has one of its name, or a bound is reached.
    async fn insert_template(&self, template: &Template, bounds: TemplateBounds) -> Result<Inserted>;

    /// Replaces the options of an owner's template, or of the operator's for `None`, and what a build gave it. Returns the stored row, or
    /// `None` if there is no such template.
    async fn update_template(
        &self,
        owner: Option<&OwnerId>,
        name: &str,
        options: &SpawnOptions,
        at: Timestamp,
    ) -> Result<Option<Template>>;

    /// Returns a template of `owner`, or of the operator for `None`.
    async fn template(&self, owner: Option<&OwnerId>, name: &str) -> Result<Option<Template>>;

    /// Returns the template that `owner` means by this name: its own, else the operator's.
    async fn usable_template(&self, owner: &OwnerId, name: &str) -> Result<Option<Template>>;

    /// Returns templates by name and owner, those after `after`, at most `limit`.
    async fn templates(
        &self,
        filter: &TemplateFilter,
        after: Option<&TemplateCursor>,
        limit: u32,
    ) -> Result<Vec<Template>>;

    /// Stores templates that a build made, all or none, in the place of those of the same names. A name is taken by a
    /// template that no build made.
    async fn save_built(&self, templates: &[Template], bounds: TemplateBounds) -> Result<Inserted>;

    /// Returns the template of this name that a build made, and its tags `<name>:<tag>`, by name.
    async fn built_templates(&self, owner: Option<&OwnerId>, name: &str) -> Result<Vec<Template>>;

    /// Removes a template that a build made, with its tags. Returns the number of rows.
    async fn delete_built(&self, owner: Option<&OwnerId>, name: &str) -> Result<u64>;

    /// Returns the ready snapshots with files of templates that no template starts from.
    async fn unused_builds(&self) -> Result<Vec<SnapshotId>>;

    /// Removes a template; `false` if there is none.
    async fn delete_template(&self, owner: Option<&OwnerId>, name: &str) -> Result<bool>;

    /// Reserves `count` numbers for event ids. No two calls, in this process or a later one,
    /// return the same number, and later calls return higher ones. The reservation survives a
    /// power failure.
    async fn reserve_event_ids(&self, count: u64) -> Result<Range<u64>>;

    /// Stores an owner's quota, replacing all of its values. Returns the stored row, or `None`
    /// if it would be a new one and there are `rows_max`.
    async fn save_quota(
        &self,
        owner: &OwnerId,
        quota: &Quota,
        at: Timestamp,
        rows_max: u64,
    ) -> Result<Option<OwnerQuota>>;

    async fn quota(&self, owner: &OwnerId) -> Result<Option<OwnerQuota>>;

    /// Returns quotas by owner, those after `after`, at most `limit`.
    async fn quotas(&self, after: Option<&OwnerId>, limit: u32) -> Result<Vec<OwnerQuota>>;

    /// Returns the numbers of quotas.
    async fn quota_summary(&self) -> Result<QuotaSummary>;

    /// Removes an owner's quota; `false` if there is none.
    async fn delete_quota(&self, owner: &OwnerId) -> Result<bool>;

    /// Stores a secret, in the place of an earlier one of its name. Returns the stored row, or `None`
    /// if it would be a new one and there are `rows_max`.
    async fn save_secret(&self, new: &NewSecret, at: Timestamp, rows_max: u64) -> Result<Option<StoredSecret>>;

    async fn secret(&self, name: &SecretName) -> Result<Option<StoredSecret>>;

    /// Returns secrets by name, those after `after`, at most `limit`.
    async fn secrets(&self, after: Option<&SecretName>, limit: u32) -> Result<Vec<StoredSecret>>;

    /// Removes a secret; `false` if there is none.
    async fn delete_secret(&self, name: &SecretName) -> Result<bool>;

    /// Returns the sealed key of a sandbox's authority.
    async fn authority(&self, id: &SandboxId) -> Result<Option<Vec<u8>>>;

    /// Stores the sealed key of the authority of an active sandbox that has none, and returns the one
    /// that is stored; `None` if there is no such sandbox.
    async fn set_authority(&self, id: &SandboxId, sealed: &[u8]) -> Result<Option<Vec<u8>>>;
}
