//! Secrets of the operator.

use std::collections::BTreeMap;

use domain::{EgressPolicy, OwnerId, SecretBinding, SecretName, SecretUse};
use serde_json::json;

use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use crate::events::EventType;
use crate::secrets::{SECRETS_MAX, SecretsError};
use store::StoredSecret;

/// Longest value, in bytes: most servers take a header of this length.
const VALUE_BYTES_MAX: usize = 8192;
/// Maximum length of a name, which [`SecretName::parse`] checks.
const NAME_CHARS_MAX: usize = 64;

impl Control {
    /// Stores a secret, in the place of an earlier one of its name, and in force at the next request.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Invalid`] for a binding or a value that breaks a rule,
    /// [`Error::LimitReached`] at the maximum number of secrets.
    pub async fn save_secret(&self, name: &str, binding: SecretBinding, value: &str) -> Result<StoredSecret> {
        let invalid = Error::InvalidName { resource: Resource::Secret, chars_max: NAME_CHARS_MAX };
        let name = SecretName::parse(name).ok_or(invalid)?;
        binding.check().map_err(|error| Error::Invalid(error.to_string()))?;
        check_value(value, binding.is_for_commands())?;
        let stored = self.secrets.save(name, binding, value, self.now()).await.map_err(failed)?;
        let secret = stored.ok_or(Limit::TooMany { objects: Counted::Secrets, max: SECRETS_MAX })?;
        self.publish(EventType::SecretSaved, None, json!({"name": secret.name.as_str()}));
        Ok(secret)
    }

    /// Returns one secret, whose value is sealed.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name.
    pub async fn secret(&self, name: &str) -> Result<StoredSecret> {
        let found = match SecretName::parse(name) {
            Some(name) => self.store.secret(&name).await?,
            None => None,
        };
        found.ok_or_else(|| missing(name))
    }

    /// Returns secrets by name, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn stored_secrets(&self, after: Option<&SecretName>, limit: u32) -> Result<Vec<StoredSecret>> {
        Ok(self.store.secrets(after, limit).await?)
    }

    /// Removes a secret. From now on requests go without it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name.
    pub async fn delete_secret(&self, name: &str) -> Result<()> {
        let is_deleted = match SecretName::parse(name) {
            Some(name) => self.store.delete_secret(&name).await?,
            None => false,
        };
        if !is_deleted {
            return Err(missing(name));
        }
        self.publish(EventType::SecretDeleted, None, json!({"name": name}));
        Ok(())
    }

    /// Returns the values of secrets that are for commands, by the names of the variables.
    pub(super) async fn secret_variables(
        &self,
        variables: &BTreeMap<String, SecretName>,
        owner: Option<&OwnerId>,
    ) -> Result<Vec<(String, String)>> {
        let mut values = Vec::new();
        for (variable, name) in variables {
            let secret = self.store.secret(name).await?.filter(|secret| secret.binding.admits(owner));
            let secret = secret.ok_or_else(|| missing(name.as_str()))?;
            if !secret.binding.is_for_commands() {
                return Err(Error::Invalid(format!(
                    "the secret `{name}` is sent to hosts and never enters a sandbox; name it in `egress.secrets`, or \
                     save one without `hosts`"
                )));
            }
            values.push((variable.clone(), self.secrets.text(&secret).map_err(failed)?));
        }
        Ok(values)
    }

    /// Checks that the secrets of a policy exist, and that the owner's sandboxes may use them.
    pub(super) async fn check_secrets(&self, policy: Option<&EgressPolicy>, owner: Option<&OwnerId>) -> Result<()> {
        let uses = policy.map_or(&[][..], |policy| &policy.secrets);
        for SecretUse { name, .. } in uses {
            let secret = self.store.secret(name).await?.filter(|secret| secret.binding.admits(owner));
            if secret.ok_or_else(|| missing(name.as_str()))?.binding.is_for_commands() {
                return Err(Error::Invalid(format!(
                    "the secret `{name}` is not bound to a host; name it in `env_secret` of a command, or save it with \
                     `hosts`"
                )));
            }
        }
        Ok(())
    }
}

/// Checks that a value can be in a variable, or else in a header.
fn check_value(value: &str, is_for_commands: bool) -> Result<()> {
    if is_for_commands {
        let is_variable = (1..=VALUE_BYTES_MAX).contains(&value.len()) && !value.contains('\0');
        let words = || format!("`value` must be 1 to {VALUE_BYTES_MAX} bytes without NUL");
        return if is_variable { Ok(()) } else { Err(Error::Invalid(words())) };
    }
    let is_header = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    if (1..=VALUE_BYTES_MAX).contains(&value.len()) && is_header && value.trim_ascii() == value {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "`value` must be 1 to {VALUE_BYTES_MAX} printable ASCII characters without a space at either end; check for a \
         trailing line break"
    )))
}

fn missing(name: &str) -> Error {
    Error::NotFound(Resource::Secret, name.to_owned())
}

/// Converts an error of the secrets.
pub(super) fn failed(error: SecretsError) -> Error {
    match error {
        SecretsError::Store(error) => error.into(),
        error @ (SecretsError::OtherKey(_) | SecretsError::Certificate(_)) => Error::Secrets(error),
    }
}
