//! Tags of templates that builds made. A tag is a template `<name>:<tag>` of its own, so that whatever takes the
//! name of a template takes a tag too.

use std::sync::Arc;

use domain::OwnerId;
use store::Template;

use crate::control::error::{Error, Result};
use crate::control::resource::Resource;
use crate::control::service::Control;
use crate::control::template_name::{TemplateRef, check_tag};
use crate::control::templates::Templates;

/// Most tags of one request.
const TAGS_MAX: usize = 20;

impl Control {
    /// Returns the template of this name that a build made, and its tags.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no build made one.
    pub async fn built_templates(&self, owner: Option<&OwnerId>, name: &TemplateRef) -> Result<Vec<Template>> {
        let found = self.store.built_templates(owner, &name.name).await?;
        if found.is_empty() { Err(missing(name)) } else { Ok(found) }
    }

    /// Gives tags to a template that a build made, and takes them from those that had them. Returns the template.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no build made it.
    pub async fn tag_template(
        self: &Arc<Self>,
        owner: Option<&OwnerId>,
        target: &TemplateRef,
        tags: &[String],
    ) -> Result<Template> {
        check_tags(tags)?;
        let template = {
            let _lock = self.builds.templates.lock().await;
            let found = self.store.template(owner, &target.to_string()).await?;
            let template = found.filter(|template| template.built.is_some()).ok_or_else(|| missing(target))?;
            let at = self.now();
            let tagged = |tag: &String| Template {
                name: target.tagged(tag),
                created_at: at,
                updated_at: at,
                ..template.clone()
            };
            self.save_templates(&tags.iter().map(tagged).collect::<Vec<_>>()).await?;
            template
        };
        self.remove_unused_builds().await?;
        Ok(template)
    }

    /// Takes tags from a template that a build made.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has not all of them; none is taken then.
    pub async fn untag_template(
        self: &Arc<Self>,
        owner: Option<&OwnerId>,
        name: &TemplateRef,
        tags: &[String],
    ) -> Result<()> {
        check_tags(tags)?;
        let found = self.built_templates(owner, name).await?;
        let names: Vec<_> = tags.iter().map(|tag| name.tagged(tag)).collect();
        if let Some(other) = names.iter().find(|name| !found.iter().any(|template| template.name == **name)) {
            return Err(Error::NotFound(Resource::Template, other.clone()));
        }
        for name in &names {
            self.delete_template(&Templates::Of(owner.cloned()), name).await?;
        }
        Ok(())
    }

    /// Removes a template that a build made: with all its tags, or the one tag that is named.
    ///
    /// # Errors
    /// [`Error::NotFound`] if no build made it.
    pub async fn delete_built_template(self: &Arc<Self>, owner: Option<&OwnerId>, name: &TemplateRef) -> Result<()> {
        if let Some(tag) = &name.tag {
            return self.untag_template(owner, name, std::slice::from_ref(tag)).await;
        }
        let found = self.built_templates(owner, name).await?;
        self.store.delete_built(owner, &name.name).await?;
        for template in found {
            self.publish_template_deleted(owner, &template.name);
        }
        self.remove_unused_builds().await
    }
}

fn check_tags(tags: &[String]) -> Result<()> {
    if !(1..=TAGS_MAX).contains(&tags.len()) {
        return Err(Error::Invalid(format!("name 1 to {TAGS_MAX} tags")));
    }
    tags.iter().try_for_each(|tag| check_tag(tag))
}

fn missing(name: &TemplateRef) -> Error {
    Error::NotFound(Resource::Template, name.to_string())
}
