//! Templates: named spawn requests.

use std::sync::Arc;

use domain::{InvalidName, OwnerId, SpawnOptions};
use serde_json::json;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use super::snapshots::image_names::check_image_of_owner;
use super::template_name::check_name;
use crate::events::EventType;
use store::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};

/// Label that names the template of a sandbox.
pub(super) const TEMPLATE_LABEL: &str = "template";

/// Most of the templates that one owner may have, as a part of all.
pub(super) const OWNERS_SHARE: u64 = 10;

/// Templates that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Templates {
    /// Those of this owner, or the operator's for `None`: a list has those of all.
    Of(Option<OwnerId>),
    /// Those that the holder of this owner's key may use: its own and the operator's, which it may not change.
    UsableBy(OwnerId),
}

impl Templates {
    /// Returns the templates that a sandbox of `owner` may be made of; the operator's for `None`.
    pub fn usable_by(owner: Option<&OwnerId>) -> Self {
        owner.cloned().map_or(Self::Of(None), Self::UsableBy)
    }

    /// Returns the owner of what is changed.
    fn owner(&self) -> Option<&OwnerId> {
        match self {
            Templates::Of(owner) => owner.as_ref(),
            Templates::UsableBy(owner) => Some(owner),
        }
    }
}

impl Control {
    /// Stores a new template.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Conflict`] if the owner has one of the name, [`Error::LimitReached`] at the
    /// maximum number of templates.
    pub async fn create_template(
        &self,
        owner: Option<OwnerId>,
        name: String,
        options: SpawnOptions,
    ) -> Result<Template> {
        check_name(&name)?;
        self.check_template(&name, &options)?;
        if owner.is_some() {
            check_image_of_owner(options.image.as_deref())?;
        }
        self.check_secrets(options.egress.as_ref(), owner.as_ref()).await?;
        let now = self.now();
        let template = Template { name, owner, options, built: None, created_at: now, updated_at: now };
        let TemplateBounds { total, per_owner } = self.template_bounds();
        match self.store.insert_template(&template, TemplateBounds { total, per_owner }).await? {
            Inserted::Done => {
                let data = json!({"name": template.name});
                self.publish_of(template.owner.as_ref(), EventType::TemplateSaved, data);
                Ok(template)
            }
            Inserted::Taken => {
                Err(Conflict::Exists { resource: Resource::Template, name: template.name.to_string() }.into())
            }
            Inserted::Full => Err(Limit::TooMany { objects: Counted::Templates, max: total }.into()),
            Inserted::FullOfOwner => Err(Limit::TooMany { objects: Counted::TemplatesOfOwner, max: per_owner }.into()),
        }
    }

    /// Replaces the options of a template, and what a build gave it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name, [`Error::OfOperator`] if it is the operator's.
    pub async fn update_template(
        self: &Arc<Self>,
        among: &Templates,
        name: &str,
        options: SpawnOptions,
    ) -> Result<Template> {
        self.check_template(name, &options)?;
        let owner = among.owner();
        if owner.is_some() {
            check_image_of_owner(options.image.as_deref())?;
        }
        self.check_secrets(options.egress.as_ref(), owner).await?;
        let Some(template) = self.store.update_template(owner, name, &options, self.now()).await? else {
            return Err(self.unchangeable(among, name).await?);
        };
        self.publish_of(owner, EventType::TemplateSaved, json!({"name": name}));
        self.remove_unused_builds().await?;
        Ok(template)
    }

    /// Returns one template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name.
    pub async fn template(&self, among: &Templates, name: &str) -> Result<Template> {
        let found = match among {
            Templates::Of(owner) => self.store.template(owner.as_ref(), name).await?,
            Templates::UsableBy(owner) => self.store.usable_template(owner, name).await?,
        };
        found.ok_or_else(|| missing(name))
    }

    /// Returns templates by name, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn templates(
        &self,
        among: &Templates,
        after: Option<&TemplateCursor>,
        limit: u32,
    ) -> Result<Vec<Template>> {
        let filter = match among {
            Templates::Of(None) => TemplateFilter::All,
            Templates::Of(Some(owner)) => TemplateFilter::Of(owner.clone()),
            Templates::UsableBy(owner) => TemplateFilter::UsableBy(owner.clone()),
        };
        Ok(self.store.templates(&filter, after, limit).await?)
    }

    /// Removes a template. Its sandboxes are not affected.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name, [`Error::OfOperator`] if it is the operator's.
    pub async fn delete_template(self: &Arc<Self>, among: &Templates, name: &str) -> Result<()> {
        if !self.store.delete_template(among.owner(), name).await? {
            return Err(self.unchangeable(among, name).await?);
        }
        self.publish_template_deleted(among.owner(), name);
        self.remove_unused_builds().await
    }

    pub(super) fn publish_template_deleted(&self, owner: Option<&OwnerId>, name: &str) {
        self.publish_of(owner, EventType::TemplateDeleted, json!({"name": name}));
    }

    /// Returns the error of a change of a template that is not among the owner's.
    async fn unchangeable(&self, among: &Templates, name: &str) -> Result<Error> {
        let is_usable = matches!(among, Templates::UsableBy(_)) && self.store.template(None, name).await?.is_some();
        Ok(if is_usable { Error::OfOperator(Resource::Template, name.to_owned()) } else { missing(name) })
    }

    /// Rejects, already on saving, options that no spawn could use.
    fn check_template(&self, name: &str, options: &SpawnOptions) -> Result<()> {
        let mut labelled = options.clone();
        labelled.metadata.insert(TEMPLATE_LABEL.to_owned(), name.to_owned());
        self.check_options(&labelled)?;
        let provider = options.provider.as_deref().map_or(Ok(()), InvalidName::check_provider);
        provider.map_err(|error| Error::Invalid(error.to_string()))
    }
}

fn missing(name: &str) -> Error {
    Error::NotFound(Resource::Template, name.to_owned())
}
