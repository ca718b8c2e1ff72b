//! Bytes of snapshots that were removed: their images have no name any more, and stay for containers.

use std::collections::{HashMap, HashSet};

use bollard::Docker as Client;
use bollard::errors::Error as ClientError;
use bollard::models::ImageSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, ListImagesOptionsBuilder};

use super::Inner;
use super::container;
use super::fault::{LOOK_WAIT, within};
use super::labels::{ORIGIN_LABEL, STORE_LABEL};
use super::snapshots::Origin;

/// Image of a snapshot.
#[derive(Debug)]
struct Kept {
    bytes: u64,
    /// Bytes of the image that the first of its sandboxes was made from.
    image_bytes: u64,
    parent: String,
    is_named: bool,
}

impl From<ImageSummary> for Kept {
    fn from(image: ImageSummary) -> Kept {
        let origin = image.labels.get(ORIGIN_LABEL).and_then(|label| serde_json::from_str::<Origin>(label).ok());
        Kept {
            bytes: u64::try_from(image.size).unwrap_or(0),
            image_bytes: origin.map_or(0, |origin| origin.image_bytes),
            parent: image.parent_id,
            is_named: image.repo_tags.iter().any(|tag| tag != "<none>:<none>"),
        }
    }
}

/// Images of the snapshots of a store, by their ids.
#[derive(Debug)]
pub(super) struct KeptImages(HashMap<String, Kept>);

impl KeptImages {
    /// Returns the images from `image` down to the first that has a name, and the bytes that they have above it.
    fn nameless(&self, image: &str) -> (Vec<&str>, u64) {
        let mut found = Vec::new();
        let mut at = self.0.get_key_value(image);
        let Some((_, first)) = at else { return (found, 0) };
        while let Some((id, kept)) = at {
            if kept.is_named || found.len() > self.0.len() {
                return (found, first.bytes.saturating_sub(kept.bytes));
            }
            found.push(id.as_str());
            at = self.0.get_key_value(&kept.parent);
        }
        (found, first.bytes.saturating_sub(first.image_bytes))
    }

    /// Returns the bytes that an image has above the first image with another name.
    pub(super) fn above_named(&self, image: &str) -> u64 {
        let Some(kept) = self.0.get(image) else { return 0 };
        let (below, bytes) = self.nameless(&kept.parent);
        let own = self.own_bytes(kept);
        if below.is_empty() { own } else { own.saturating_add(bytes) }
    }

    /// Returns the bytes of all images that have no name, and that no image with a name needs.
    pub(super) fn left_bytes(&self) -> u64 {
        let mut needed = HashSet::new();
        for kept in self.0.values().filter(|kept| kept.is_named) {
            let mut parent = &kept.parent;
            while let Some((id, below)) = self.0.get_key_value(parent)
                && needed.insert(id)
            {
                parent = &below.parent;
            }
        }
        let left = self.0.iter().filter(|(id, kept)| !kept.is_named && !needed.contains(id));
        left.map(|(_, kept)| self.own_bytes(kept)).fold(0, u64::saturating_add)
    }

    /// Returns the bytes that an image has above its parent.
    fn own_bytes(&self, kept: &Kept) -> u64 {
        let below = self.0.get(&kept.parent).map_or(kept.image_bytes, |parent| parent.bytes);
        kept.bytes.saturating_sub(below)
    }
}

impl Inner {
    /// Lists the images of the snapshots of this store, those without a name too.
    pub(super) async fn kept_images(&self, client: &Client) -> Result<KeptImages, ClientError> {
        let store = format!("{STORE_LABEL}={}", self.config.store_id.as_str());
        let filters = HashMap::from([("label", vec![store])]);
        let options = ListImagesOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = within(LOOK_WAIT, client.list_images(Some(options))).await?;
        Ok(KeptImages(listed.into_iter().map(|image| (image.id.clone(), Kept::from(image))).collect()))
    }

    /// Returns the bytes that a container of this name holds of removed snapshots.
    pub(super) async fn held_by(&self, client: &Client, name: &str) -> Result<u64, ClientError> {
        let inspected = within(LOOK_WAIT, client.inspect_container(name, None)).await?;
        match (container::snapshot_of(&inspected), inspected.image.as_deref()) {
            (Some(_), Some(image)) => self.held_of_snapshots(client, image).await,
            (None, _) | (_, None) => Ok(0),
        }
    }

    /// Returns the bytes that a container holds of removed snapshots, which containers of one image hold in
    /// equal parts.
    async fn held_of_snapshots(&self, client: &Client, image: &str) -> Result<u64, ClientError> {
        let (_, bytes) = self.kept_images(client).await?.nameless(image);
        if bytes == 0 {
            return Ok(0);
        }
        let filters = HashMap::from([("ancestor", vec![image.to_owned()])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let holders = within(LOOK_WAIT, client.list_containers(Some(options))).await?;
        let holders = holders.iter().filter(|holder| holder.image_id.as_deref() == Some(image)).count();
        Ok(bytes.div_ceil(u64::try_from(holders.max(1)).unwrap_or(1)))
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn images(all: &[(&str, u64, &str, bool)]) -> KeptImages {
        let of = |(id, bytes, parent, is_named): &(&str, u64, &str, bool)| {
            let kept = Kept { bytes: *bytes, image_bytes: 100, parent: (*parent).to_owned(), is_named: *is_named };
            ((*id).to_owned(), kept)
        };
        KeptImages(all.iter().map(of).collect())
    }

    #[test]
    fn what_has_no_name_is_held_down_to_the_first_image_with_one() {
        let chain = images(&[("c", 160, "b", false), ("b", 130, "a", false), ("a", 110, "base", false)]);
        assert_eq!((chain.nameless("c").1, chain.left_bytes(), chain.above_named("c")), (60, 60, 60));
        let named = images(&[("c", 160, "b", false), ("b", 130, "a", true), ("a", 110, "base", false)]);
        assert_eq!((named.nameless("c").1, named.left_bytes()), (30, 30), "the rest is that of the snapshot");
        assert_eq!((named.nameless("b").1, named.above_named("b"), named.nameless("d").1), (0, 30, 0));
    }
}
