//! Templates: named spawn requests.

use domain::InvalidMetadata;
use serde_json::json;

use super::{Control, Error, Resource, Result};
use crate::events::EventType;
use crate::store::{Template, TemplateValues};

/// The longest template name, in bytes.
const NAME_BYTES_MAX: usize = 128;

impl Control {
    /// Stores a new template.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the name is taken.
    pub async fn create_template(&self, name: String, values: TemplateValues) -> Result<Template> {
        check_name(&name)?;
        self.check_values(&values)?;
        let now = self.now();
        let template = Template { name, values, created_at: now, updated_at: now };
        if self.store.insert_template(&template).await? {
            self.publish(EventType::TemplateSaved, None, json!({"name": template.name}));
            Ok(template)
        } else {
            Err(Error::Conflict(format!("template `{}` already exists; replace it with PUT", template.name)))
        }
    }

    /// Replaces the values of a template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name.
    pub async fn update_template(&self, name: &str, values: TemplateValues) -> Result<Template> {
        self.check_values(&values)?;
        let template = self.store.update_template(name, &values, self.now()).await?.ok_or_else(|| missing(name))?;
        self.publish(EventType::TemplateSaved, None, json!({"name": name}));
        Ok(template)
    }

    /// One template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name.
    pub async fn template(&self, name: &str) -> Result<Template> {
        self.store.template(name).await?.ok_or_else(|| missing(name))
    }

    /// All templates by name.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn templates(&self) -> Result<Vec<Template>> {
        Ok(self.store.templates().await?)
    }

    /// Removes a template. Sandboxes made from it live on.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is none of this name.
    pub async fn delete_template(&self, name: &str) -> Result<()> {
        if !self.store.delete_template(name).await? {
            return Err(missing(name));
        }
        self.publish(EventType::TemplateDeleted, None, json!({"name": name}));
        Ok(())
    }

    /// What could not be spawned by anybody is refused when it is saved.
    fn check_values(&self, values: &TemplateValues) -> Result<()> {
        let invalid = |error: &dyn std::fmt::Display| Error::Invalid(error.to_string());
        InvalidMetadata::check(&values.metadata).map_err(|error| invalid(&error))?;
        let defaults = self.policy.resources;
        domain::Resources {
            memory_mb: values.memory_mb.unwrap_or(defaults.memory_mb),
            vcpus: values.vcpus.unwrap_or(defaults.vcpus),
            disk_mb: values.disk_mb.unwrap_or(0),
            pids: defaults.pids,
        }
        .check()
        .map_err(|error| invalid(&error))?;
        if values.image.as_deref() == Some("") || values.provider.as_deref() == Some("") {
            return Err(Error::Invalid("`image` and `provider` may be left out, but not be empty".to_owned()));
        }
        Ok(())
    }
}

fn missing(name: &str) -> Error {
    Error::NotFound(Resource::Template, name.to_owned())
}

fn check_name(name: &str) -> Result<()> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !matches!(name, "." | "..");
    if fits {
        Ok(())
    } else {
        Err(Error::Invalid("`name` must be 1 to 128 letters, digits, `.`, `_` or `-`".to_owned()))
    }
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
