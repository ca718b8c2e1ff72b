//! Conversions of secrets.

use domain::{OwnerId, SecretBinding, SecretForm, Target};

use super::scalars::{shortened, time};
use crate::control::StoredSecret;
use crate::http::error::{ApiError, malformed};

/// Header of a secret whose request names none.
const AUTHORIZATION: &str = "authorization";

/// Converts what a request says about a secret but its value.
pub fn secret_binding(body: &api::SecretRequest) -> Result<SecretBinding, ApiError> {
    let hosts = body.hosts.iter().enumerate().map(|(index, text)| {
        Target::parse(text).map_err(|error| malformed(format!("`hosts[{index}]`: `{}` {error}", shortened(text))))
    });
    let owners =
        body.owners.iter().enumerate().map(|(index, text)| {
            OwnerId::parse(text).map_err(|error| malformed(format!("`owners[{index}]`: {error}")))
        });
    if body.hosts.is_empty() && (body.header.is_some() || body.form.is_some()) {
        let words = "`header` and `form` are for requests to hosts; name them in `hosts`, or omit both";
        return Err(malformed(words.to_owned()));
    }
    let header = body.header.as_deref().unwrap_or(AUTHORIZATION).to_ascii_lowercase();
    let form = match body.form.as_deref() {
        Some(text) => SecretForm::parse(text)
            .ok_or_else(|| malformed("`form` must be `plain`, `bearer`, or `basic:` followed by a user".to_owned()))?,
        None if header == AUTHORIZATION => SecretForm::Bearer,
        None => SecretForm::Plain,
    };
    Ok(SecretBinding {
        hosts: hosts.collect::<Result<_, _>>()?,
        header,
        form,
        owners: owners.collect::<Result<_, _>>()?,
    })
}

/// Converts a secret to the API, without its value and without owners other than the `viewer`; `None` if the viewer
/// may not use it.
pub fn secret_for(viewer: Option<&OwnerId>, stored: &StoredSecret) -> Option<api::Secret> {
    let Some(viewer) = viewer else { return Some(secret(stored)) };
    let mut shown = stored.binding.admits(Some(viewer)).then(|| secret(stored))?;
    shown.owners.retain(|owner| owner == viewer.as_str());
    Some(shown)
}

/// Converts a secret to the API, without its value.
pub fn secret(secret: &StoredSecret) -> api::Secret {
    let is_for_commands = secret.binding.is_for_commands();
    let SecretBinding { hosts, header, form, owners } = &secret.binding;
    api::Secret {
        name: secret.name.to_string(),
        hosts: hosts.iter().map(ToString::to_string).collect(),
        header: (!is_for_commands).then(|| header.clone()),
        form: (!is_for_commands).then(|| form.to_string()),
        owners: owners.iter().map(|owner| owner.as_str().to_owned()).collect(),
        created_at: time(secret.created_at),
        updated_at: time(secret.updated_at),
    }
}
