//! Templates: named sets of defaults for spawns.

use api::{Sandbox, SpawnOptions, Status, Template, TemplateRequest, TemplateSpawnRequest};
use reqwest::Method;

use crate::connection::Patience;
use crate::path::segment;
use crate::{Client, Result};

/// Templates: named sets of defaults for spawns.
impl Client {
    /// Stores a new template.
    ///
    /// # Errors
    /// `conflict` if the name is taken; another [`crate::Error`] if no answer comes.
    pub async fn create_template(&self, request: &TemplateRequest) -> Result<Template> {
        self.send_json(Method::POST, "/templates", request, Patience::Short).await
    }

    /// Returns every template, by name.
    ///
    /// # Errors
    /// [`crate::Error::Api`] if the server refuses, another [`crate::Error`] if no answer comes.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        self.get_list("/templates").await
    }

    /// Returns one template.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn template(&self, name: &str) -> Result<Template> {
        self.get(&template_path(name)?).await
    }

    /// Replaces all values of a template; a value that is absent in `options` is cleared.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn update_template(&self, name: &str, options: &SpawnOptions) -> Result<Template> {
        self.send_json(Method::PUT, &template_path(name)?, options, Patience::Short).await
    }

    /// Removes a template; sandboxes made from it stay.
    ///
    /// # Errors
    /// `not_found` if there is none of that name; another [`crate::Error`] if no answer comes.
    pub async fn delete_template(&self, name: &str) -> Result<Status> {
        self.delete(&template_path(name)?, Patience::Short).await
    }

    /// Makes a sandbox from a template and waits until it runs, like [`Client::spawn`]; values of
    /// the request override the template's.
    ///
    /// # Errors
    /// `not_found` if there is no template of that name; another [`crate::Error`] if the server
    /// refuses or no answer comes.
    pub async fn spawn_template(&self, name: &str, request: &TemplateSpawnRequest) -> Result<Sandbox> {
        let path = format!("{}/spawn", template_path(name)?);
        self.send_json(Method::POST, &path, request, Patience::Long).await
    }
}

fn template_path(name: &str) -> Result<String> {
    Ok(format!("/templates/{}", segment("the template name", name)?))
}
