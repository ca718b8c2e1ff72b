//! Keys of owners, for the operator.

use api::{CreatedOwnerKey, OwnerKey, OwnerKeyRequest, Status};
use reqwest::Method;

use crate::connection::Patience;
use crate::path::segment;
use crate::{Client, Result};

/// Keys of owners, which open the server to one owner alone. These calls need the admin key.
impl Client {
    /// Creates a key for an owner. Only this answer contains the text of the key.
    ///
    /// # Errors
    /// `resource_limit` if there are as many keys as there may be; another [`crate::Error`] if the server refuses or
    /// no answer comes.
    pub async fn create_key(&self, request: &OwnerKeyRequest) -> Result<CreatedOwnerKey> {
        self.send_json(Method::POST, "/admin/keys", request, Patience::Short).await
    }

    /// Returns every key without its text, the newest first; revoked and expired ones for a while.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn keys(&self) -> Result<Vec<OwnerKey>> {
        self.get_list("/admin/keys").await
    }

    /// Revokes a key by its id. Streams that were opened with it end.
    ///
    /// # Errors
    /// `not_found` if there is none of that id; another [`crate::Error`] if no answer comes.
    pub async fn revoke_key(&self, id: &str) -> Result<Status> {
        self.delete(&format!("/admin/keys/{}", segment("the key id", id)?), Patience::Short).await
    }
}
