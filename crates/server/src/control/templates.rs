//! Templates: named spawn requests.

use domain::{InvalidName, SpawnOptions};
use serde_json::json;

use super::conflict::Conflict;
use super::error::{Error, Result};
use super::limit::{Counted, Limit};
use super::resource::Resource;
use super::service::Control;
use crate::events::EventType;
use store::{Inserted, Template};

/// Maximum length of a template name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// Label that names the template of a sandbox.
pub(super) const TEMPLATE_LABEL: &str = "template";

impl Control {
    /// Stores a new template.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::Conflict`] if the name is taken, [`Error::LimitReached`] at the
    /// maximum number of templates.
    pub async fn create_template(&self, name: String, options: SpawnOptions) -> Result<Template> {
        check_name(&name)?;
        self.check_template(&name, &options)?;
        self.check_secrets(options.egress.as_ref(), None).await?;
        let now = self.now();
        let template = Template { name, options, created_at: now, updated_at: now };
        let max = self.policy.templates_max;
        match self.store.insert_template(&template, max).await? {
            Inserted::Done => {
                self.publish(EventType::TemplateSaved, None, json!({"name": template.name}));
                Ok(template)
            }
            Inserted::Taken => {
                Err(Conflict::Exists { resource: Resource::Template, name: template.name.to_string() }.into())
            }
            Inserted::Full => Err(Limit::TooMany { objects: Counted::Templates, max }.into()),
        }
    }

    /// Replaces the options of a template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name.
    pub async fn update_template(&self, name: &str, options: SpawnOptions) -> Result<Template> {
        self.check_template(name, &options)?;
        self.check_secrets(options.egress.as_ref(), None).await?;
        let template = self.store.update_template(name, &options, self.now()).await?.ok_or_else(|| missing(name))?;
        self.publish(EventType::TemplateSaved, None, json!({"name": name}));
        Ok(template)
    }

    /// Returns one template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name.
    pub async fn template(&self, name: &str) -> Result<Template> {
        self.store.template(name).await?.ok_or_else(|| missing(name))
    }

    /// Returns templates by name, those after `after`, at most `limit`.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn templates(&self, after: Option<&str>, limit: u32) -> Result<Vec<Template>> {
        Ok(self.store.templates(after, limit).await?)
    }

    /// Removes a template. Its sandboxes are not affected.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is no template of this name.
    pub async fn delete_template(&self, name: &str) -> Result<()> {
        if !self.store.delete_template(name).await? {
            return Err(missing(name));
        }
        self.publish(EventType::TemplateDeleted, None, json!({"name": name}));
        Ok(())
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
