//! Keys of owners: made, listed and revoked by the operator.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use domain::{KeyScopes, OwnerId, OwnerKeyId};
use store::clock::{after, from_ms};
use store::{KeyInserted, OwnerKey};

use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use crate::owner_keys::{self, KeyCursor, OwnerKeys};

/// Random bytes of a key.
const KEY_BYTES: usize = 20;
/// Characters of a key that are shown later: 32 of its 160 random bits, by which people recognize it.
const PREFIX_CHARS: usize = 12;
/// Maximum length of a key's name, in characters.
const NAME_CHARS_MAX: usize = 64;
/// Time for which a revoked or expired key stays in the list.
const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Number of keys that are read at once.
const PAGE_ROWS: u32 = 1000;

/// Form of a new key's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyFormat {
    /// `tbx_` and 40 hexadecimal digits.
    #[default]
    Tidebox,
    /// `e2b_` and 40 hexadecimal digits, which the clients of E2B demand.
    E2b,
}

/// A request for a key.
#[derive(Debug, Clone)]
pub struct NewKeyRequest {
    /// Owner that the holder acts as.
    pub owner: OwnerId,
    /// Name for people; need not be unique.
    pub name: Option<String>,
    pub scopes: KeyScopes,
    /// Time after which the key expires; `None` for a key without an end.
    pub ttl: Option<Duration>,
    pub format: KeyFormat,
}

/// A key that was made, with its text, which is kept nowhere.
pub struct NewKey {
    pub key: OwnerKey,
    pub text: String,
}

impl Control {
    /// Makes a key.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that breaks the rules or no scope, [`Error::LimitReached`] at the maximum
    /// number of keys.
    pub async fn create_key(&self, request: NewKeyRequest) -> Result<NewKey> {
        let NewKeyRequest { owner, name, scopes, ttl, format } = request;
        check_name(name.as_deref())?;
        if scopes.is_empty() {
            return Err(Error::Invalid("`scopes` names none; leave it out for the usual ones".to_owned()));
        }
        let text = key_text(format, rand::random());
        let now = self.now();
        let key = OwnerKey {
            id: OwnerKeyId::from_entropy(rand::random()),
            name,
            owner,
            scopes,
            hash: owner_keys::hash(text.as_bytes()),
            prefix: text.chars().take(PREFIX_CHARS).collect(),
            created_at: now,
            expires_at: ttl.map(|ttl| after(now, ttl)),
            revoked_at: None,
            last_used_at: None,
        };
        let max = self.policy.keys_max;
        let KeyInserted::Done { displaced } = self.store.insert_key(&key, max).await? else {
            return Err(Limit::TooMany { objects: Counted::Keys, max }.into());
        };
        self.owner_keys.remove(&displaced);
        self.owner_keys.insert([key.clone()]);
        Ok(NewKey { key, text })
    }

    /// Returns keys of `owner` or of all owners, newest first: those after `after`, at most `limit`. Ended ones are
    /// among them for a while.
    pub fn keys(&self, owner: Option<&OwnerId>, after: Option<KeyCursor>, limit: u32) -> Vec<OwnerKey> {
        self.owner_keys.page(owner, after, limit as usize)
    }

    /// Revokes a key: it opens nothing more, and what goes on with it ends. A key that has ended stays as it is.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this id.
    pub async fn revoke_key(&self, id: &str) -> Result<OwnerKey> {
        let missing = || Error::NotFound(Resource::Key, id.to_owned());
        let parsed = OwnerKeyId::parse(id).ok_or_else(missing)?;
        let key = self.store.revoke_key(&parsed, self.now()).await?.ok_or_else(missing)?;
        self.owner_keys.revoke(key.clone());
        Ok(key)
    }

    /// Returns the keys in memory, by which requests are authenticated.
    pub fn owner_keys(&self) -> &Arc<OwnerKeys> {
        &self.owner_keys
    }

    /// Reads every key of the store into memory.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn load_keys(&self) -> Result<()> {
        let mut after: Option<OwnerKeyId> = None;
        loop {
            let rows = self.store.keys(after.as_ref(), PAGE_ROWS).await?;
            let is_last = rows.len() < PAGE_ROWS as usize;
            after = rows.last().map(|row| row.id.clone());
            self.owner_keys.insert(rows);
            if is_last {
                return Ok(());
            }
        }
    }

    /// Stores when keys were last used.
    ///
    /// # Errors
    /// If the store fails; the next call then tries again.
    pub(crate) async fn store_key_uses(&self) -> Result<()> {
        let uses = self.owner_keys.unstored_uses();
        if uses.is_empty() {
            return Ok(());
        }
        self.store.note_key_uses(&uses).await?;
        self.owner_keys.uses_were_stored(&uses);
        Ok(())
    }

    /// Forgets the keys that ended long ago. Returns their number.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) async fn purge_keys(&self) -> Result<usize> {
        let kept_ms = i64::try_from(KEPT.as_millis()).unwrap_or(i64::MAX);
        let before = from_ms(self.now().as_millisecond().saturating_sub(kept_ms));
        let purged = self.store.purge_keys(before).await?;
        self.owner_keys.remove(&purged);
        Ok(purged.len())
    }
}

/// Returns the text of a key.
fn key_text(format: KeyFormat, entropy: [u8; KEY_BYTES]) -> String {
    let mut text = match format {
        KeyFormat::Tidebox => "tbx_",
        KeyFormat::E2b => "e2b_",
    }
    .to_owned();
    for byte in entropy {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn check_name(name: Option<&str>) -> Result<()> {
    let is_fit = name
        .is_none_or(|name| (1..=NAME_CHARS_MAX).contains(&name.chars().count()) && !name.chars().any(char::is_control));
    let words = || format!("`name` must be 1 to {NAME_CHARS_MAX} characters without control characters");
    if is_fit { Ok(()) } else { Err(Error::Invalid(words())) }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::test::harness::{TestApp, TestProvider};

    #[test]
    fn a_key_is_a_prefix_and_forty_digits() {
        assert_eq!(key_text(KeyFormat::Tidebox, [0xab; 20]), format!("tbx_{}", "ab".repeat(20)));
        assert_eq!(key_text(KeyFormat::E2b, [0x07; 20]), format!("e2b_{}", "07".repeat(20)));
    }

    #[test]
    fn a_name_is_short_and_printable() {
        for name in [None, Some("a"), Some("CI, team \"7\" ü"), Some(&*"ü".repeat(64))] {
            assert!(check_name(name).is_ok(), "{name:?}");
        }
        for name in ["", "a\n", "\u{1b}[2J", &"x".repeat(65)] {
            assert!(check_name(Some(name)).is_err(), "{name}");
        }
    }

    #[tokio::test]
    async fn more_keys_than_one_page_are_read_at_the_start() {
        let app = TestApp::builder().provider(TestProvider::new("test")).start().await;
        let request = NewKeyRequest {
            owner: OwnerId::parse("ann").unwrap(),
            name: None,
            scopes: KeyScopes::default(),
            ttl: None,
            format: KeyFormat::default(),
        };
        for _ in 0..=PAGE_ROWS {
            app.control.create_key(request.clone()).await.unwrap();
        }
        let store = Arc::clone(&app.control.store);
        let later = TestApp::builder().provider(TestProvider::new("test")).store(store).start().await;
        assert_eq!(later.control.keys(None, None, u32::MAX).len(), PAGE_ROWS as usize + 1);
    }
}
