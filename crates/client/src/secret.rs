//! Secrets of the operator.

use api::{Secret, SecretRequest, Status};
use reqwest::Method;

use crate::connection::Patience;
use crate::path::segment;
use crate::{Client, Result};

/// Secrets of the operator, which the server sends to hosts in the place of sandboxes.
impl Client {
    /// Stores a secret, in the place of an earlier one of its name.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn save_secret(&self, name: &str, request: &SecretRequest) -> Result<Secret> {
        self.send_json(Method::PUT, &secret_path(name)?, request, Patience::Short).await
    }

    /// Returns every secret without its value, by name.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn secrets(&self) -> Result<Vec<Secret>> {
        self.get_list("/secrets").await
    }

    /// Returns one secret without its value.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn secret(&self, name: &str) -> Result<Secret> {
        self.get(&secret_path(name)?).await
    }

    /// Deletes a secret; requests go without it from then on.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn delete_secret(&self, name: &str) -> Result<Status> {
        self.delete(&secret_path(name)?, Patience::Short).await
    }
}

fn secret_path(name: &str) -> Result<String> {
    Ok(format!("/secrets/{}", segment("the name of the secret", name)?))
}
