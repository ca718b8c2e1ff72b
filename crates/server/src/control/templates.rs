//! Templates: named spawn requests.

use domain::{InvalidName, OwnerId, SpawnOptions};
use serde_json::json;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use super::snapshots::image_names::check_image_of_owner;
use crate::events::EventType;
use store::{Inserted, Template, TemplateBounds, TemplateCursor, TemplateFilter};

/// Maximum length of a template name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Label that names the template of a sandbox.
pub(super) const TEMPLATE_LABEL: &str = "template";

/// Most of the templates that one owner may have, as a part of all.
const OWNERS_SHARE: u64 = 10;

/// Templates that a request is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Templates {
    /// Those of this owner, or the operator's for `None`: a list has those of all.
    Of(Option<OwnerId>),
    /// Those that the holder of this owner's key may use: its own and the operator's, which it may not change.
    UsableBy(OwnerId),
}

impl Templates {
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
        let template = Template { name, owner, options, created_at: now, updated_at: now };
        let total = self.policy.templates_max;
        let per_owner = total.div_ceil(OWNERS_SHARE);
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

    /// Replaces the options of a template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name, [`Error::OfOperator`] if it is the operator's.
    pub async fn update_template(&self, among: &Templates, name: &str, options: SpawnOptions) -> Result<Template> {
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
    pub async fn delete_template(&self, among: &Templates, name: &str) -> Result<()> {
        if !self.store.delete_template(among.owner(), name).await? {
            return Err(self.unchangeable(among, name).await?);
        }
        self.publish_of(among.owner(), EventType::TemplateDeleted, json!({"name": name}));
        Ok(())
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

fn check_name(name: &str) -> Result<()> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !matches!(name, "." | "..");
    if fits { Ok(()) } else { Err(Error::InvalidName { resource: Resource::Template, chars_max: NAME_BYTES_MAX }) }
}

#[cfg(test)]
mod test {
    use super::check_name;

    #[test]
    fn template_names_are_safe_in_a_path() {
        for name in ["a", "python-3.12_slim", &"x".repeat(128)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
        for name in ["", ".", "..", "a/b", "a b", "ä", "a\0", "a%2fb", &"x".repeat(129)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
