//! Secrets: saved, looked up by the policies that use them, and opened.

use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use domain::{Host, OwnerId, SandboxId, SecretBinding, SecretForm, SecretName, SecretUse, Timestamp};
use secrecy::zeroize::Zeroizing;

use super::authority::{Authority, CertificateError};
use super::key::SealingKey;
use store::{NewSecret, Store, StoredSecret};

/// Most secrets of a server.
pub const SECRETS_MAX: u64 = 1000;

/// Reason why secrets cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// It was sealed with another key than the one in the key file.
    #[error(
        "{0} was sealed with a different key than the one in the key file; restore that key, or save the secret again"
    )]
    OtherKey(String),
    /// A certificate cannot be made.
    #[error("a certificate cannot be made: {0}")]
    Certificate(CertificateError),
}

/// Secrets in the store.
#[derive(Debug)]
pub struct Secrets {
    store: Arc<dyn Store>,
    key: SealingKey,
}

impl Secrets {
    /// Creates the service over a store, whose secrets `key` seals.
    pub fn new(store: Arc<dyn Store>, key: SealingKey) -> Secrets {
        Secrets { store, key }
    }

    /// Stores a secret, in the place of an earlier one of its name. Returns the stored row; `None` if it
    /// would be a new one and there are [`SECRETS_MAX`].
    ///
    /// # Errors
    /// If the store fails.
    pub async fn save(
        &self,
        name: SecretName,
        binding: SecretBinding,
        value: &str,
        at: Timestamp,
    ) -> Result<Option<StoredSecret>, SecretsError> {
        let sealed = self.key.seal(&purpose(&name, &binding), value.as_bytes());
        let new = NewSecret { name, binding, sealed };
        Ok(self.store.save_secret(&new, at, SECRETS_MAX).await?)
    }

    /// Opens a secret whose value is a text.
    ///
    /// # Errors
    /// If it was sealed with another key.
    pub fn text(&self, secret: &StoredSecret) -> Result<String, SecretsError> {
        let StoredSecret { name, binding, sealed, .. } = secret;
        let opened = self.key.open(&purpose(name, binding), sealed);
        let text = opened.and_then(|opened| String::from_utf8(opened.to_vec()).ok());
        text.ok_or_else(|| SecretsError::OtherKey(format!("the secret `{name}`")))
    }

    /// Returns whether any secret is sent to this host.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn are_bound(
        &self,
        uses: &[SecretUse],
        owner: Option<&OwnerId>,
        host: &Host,
        port: u16,
    ) -> Result<bool, SecretsError> {
        Ok(!self.at(uses, owner, host, port).await?.is_empty())
    }

    /// Returns the headers that requests to this host get, with values that are not printed. Of two
    /// secrets for one header, the first counts.
    ///
    /// # Errors
    /// If the store fails, or a secret was sealed with another key.
    pub async fn headers(
        &self,
        uses: &[SecretUse],
        owner: Option<&OwnerId>,
        host: &Host,
        port: u16,
    ) -> Result<Vec<(HeaderName, HeaderValue)>, SecretsError> {
        let mut headers: Vec<(HeaderName, HeaderValue)> = Vec::new();
        for StoredSecret { name, binding, sealed, .. } in self.at(uses, owner, host, port).await? {
            let opened = self.key.open(&purpose(&name, &binding), &sealed);
            let value = opened.ok_or_else(|| other_key_of(&name))?;
            let header = HeaderName::from_bytes(binding.header.as_bytes());
            let header = header.map_err(|_| other_key_of(&name))?;
            if headers.iter().all(|(other, _)| *other != header) {
                let value = header_value(&binding.form, &value);
                headers.push((header, value.ok_or_else(|| other_key_of(&name))?));
            }
        }
        Ok(headers)
    }

    async fn at(
        &self,
        uses: &[SecretUse],
        owner: Option<&OwnerId>,
        host: &Host,
        port: u16,
    ) -> Result<Vec<StoredSecret>, SecretsError> {
        let mut found = Vec::new();
        for used in uses {
            if let Some(secret) = self.store.secret(&used.name).await?
                && secret.binding.admits(owner)
                && used.covers(&secret.binding, host, port)
            {
                found.push(secret);
            }
        }
        Ok(found)
    }

    /// Returns the authority of a sandbox, which is made at the first call.
    ///
    /// # Errors
    /// If the store fails, or it was sealed with another key.
    pub async fn authority(&self, id: &SandboxId, now: Timestamp) -> Result<Option<Authority>, SecretsError> {
        let purpose = format!("tidebox authority 1\0{id}");
        let sealed = match self.store.authority(id).await? {
            Some(sealed) => sealed,
            None => {
                let key = Authority::new_key().map_err(SecretsError::Certificate)?;
                // Of two callers at once, both get the one that was stored first.
                let Some(sealed) = self.store.set_authority(id, &self.key.seal(&purpose, &key)).await? else {
                    return Ok(None);
                };
                sealed
            }
        };
        let Some(key) = self.key.open(&purpose, &sealed) else {
            return Err(SecretsError::OtherKey(format!("the authority of sandbox `{id}`")));
        };
        Authority::open(id, &key, now).map(Some).map_err(SecretsError::Certificate)
    }
}

fn other_key_of(secret: &SecretName) -> SecretsError {
    SecretsError::OtherKey(format!("the secret `{secret}`"))
}

/// Returns the text that a secret is sealed for: all that decides where its value goes.
fn purpose(name: &SecretName, binding: &SecretBinding) -> String {
    let SecretBinding { hosts, header, form, owners } = binding;
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let owners: Vec<&str> = owners.iter().map(OwnerId::as_str).collect();
    format!("tidebox secret 1\0{name}\0{}\0{header}\0{form}\0{}", hosts.join(","), owners.join("/"))
}

/// Returns the value of the header; `None` if it cannot be one.
fn header_value(form: &SecretForm, value: &[u8]) -> Option<HeaderValue> {
    let text = match form {
        SecretForm::Plain => Zeroizing::new(value.to_vec()),
        SecretForm::Bearer => Zeroizing::new([b"Bearer ", value].concat()),
        SecretForm::Basic(user) => {
            let pair = Zeroizing::new([user.as_bytes(), b":", value].concat());
            Zeroizing::new(format!("Basic {}", STANDARD.encode(&*pair)).into_bytes())
        }
    };
    let mut value = HeaderValue::from_bytes(&text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
