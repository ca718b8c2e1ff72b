//! Messages of `filesystem.Filesystem` in the JSON of protobuf: fields may be left out or be `null`, numbers be texts,
//! names be written in snake case.

use domain::Timestamp;
use providers::{FileInfo, Xattrs};
use serde::{Deserialize, Serialize};

use crate::http::e2b::proto_json::{number, or_default};

/// Type of a link that leads nowhere.
pub const NO_KIND: &str = "FILE_TYPE_UNSPECIFIED";

/// A request about one path.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct PathOnly {
    #[serde(deserialize_with = "or_default")]
    pub path: String,
}

/// A request for a list.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ListDir {
    #[serde(deserialize_with = "or_default")]
    pub path: String,
    #[serde(deserialize_with = "number")]
    pub depth: u32,
}

/// A request to move a file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Move {
    #[serde(deserialize_with = "or_default")]
    pub source: String,
    #[serde(deserialize_with = "or_default")]
    pub destination: String,
}

/// A request to watch a directory.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Watch {
    #[serde(deserialize_with = "or_default")]
    pub path: String,
    #[serde(deserialize_with = "or_default")]
    pub recursive: bool,
    #[serde(alias = "include_entry", deserialize_with = "or_default")]
    pub include_entry: bool,
}

/// A request about a watcher.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OfWatcher {
    #[serde(alias = "watcher_id", deserialize_with = "or_default")]
    pub watcher_id: String,
}

/// Description of a file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    path: String,
    size: String,
    mode: u32,
    permissions: String,
    owner: String,
    group: String,
    modified_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    #[serde(skip_serializing_if = "Xattrs::is_empty")]
    metadata: Xattrs,
}

impl Entry {
    /// Returns the description with the metadata of the file.
    #[must_use]
    pub fn with(self, metadata: Xattrs) -> Self {
        Self { metadata, ..self }
    }

    /// Describes a file of this type. `leads_to` is the path that a link leads to.
    pub fn of(info: FileInfo, kind: &'static str, leads_to: Option<String>) -> Self {
        Self {
            kind,
            size: info.size.to_string(),
            mode: info.mode & 0o777,
            permissions: permissions(&info),
            modified_time: time(info.modified),
            name: info.name,
            path: info.path,
            owner: info.owner.unwrap_or_default(),
            group: info.group.unwrap_or_default(),
            symlink_target: leads_to,
            metadata: Xattrs::new(),
        }
    }
}

/// Returns the type of a file that is no link.
pub fn kind(is_dir: bool) -> &'static str {
    if is_dir { "FILE_TYPE_DIRECTORY" } else { "FILE_TYPE_FILE" }
}

fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// Writes the permission bits as `ls` does.
fn permissions(info: &FileInfo) -> String {
    let kind = match (info.is_symlink, info.is_dir) {
        (true, _) => 'L',
        (false, true) => 'd',
        (false, false) => '-',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let bits = bits.map(|(bit, letter)| if info.mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(kind).chain(bits).collect()
}

#[cfg(test)]
mod test {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_read_as_protobuf_writes_them() {
        for (text, depth) in [
            (json!({}), 0),
            (json!({"depth": 3}), 3),
            (json!({"depth": "3", "x": 1}), 3),
            (json!({"depth": null, "path": null}), 0),
        ] {
            assert_eq!(serde_json::from_value::<ListDir>(text).unwrap().depth, depth);
        }
        for text in [json!({"includeEntry": true, "recursive": null}), json!({"include_entry": true, "path": null})] {
            assert!(serde_json::from_value::<Watch>(text).unwrap().include_entry);
        }
        assert_eq!(serde_json::from_value::<OfWatcher>(json!({"watcherId": null})).unwrap().watcher_id, "");
        assert_eq!(serde_json::from_value::<PathOnly>(json!({"path": null})).unwrap().path, "");
        assert_eq!(serde_json::from_value::<Move>(json!({"source": null, "destination": "b"})).unwrap().source, "");
        for bad in [json!({"depth": -1}), json!({"depth": "x"}), json!({"depth": 1.5}), json!({"path": 1})] {
            serde_json::from_value::<ListDir>(bad.clone()).expect_err(&bad.to_string());
        }
    }

    fn info(mode: u32, is_dir: bool, is_symlink: bool) -> FileInfo {
        FileInfo {
            name: "a".to_owned(),
            path: "/a".to_owned(),
            size: 3,
            is_dir,
            is_symlink,
            target: None,
            modified: Timestamp::UNIX_EPOCH,
            mode,
            owner: Some("user".to_owned()),
            group: Some("users".to_owned()),
        }
    }

    #[test]
    fn permissions_are_written_as_ls_does() {
        for (mode, is_dir, is_symlink, expected) in [
            (0o644, false, false, "-rw-r--r--"),
            (0o755, true, false, "drwxr-xr-x"),
            (0o777, false, true, "Lrwxrwxrwx"),
            (0, false, false, "----------"),
            (0o4711, false, false, "-rwx--x--x"),
        ] {
            assert_eq!(permissions(&info(mode, is_dir, is_symlink)), expected);
        }
    }

    #[test]
    fn a_file_is_described_as_protobuf_writes_it() {
        let link = Entry::of(info(0o777, false, true), kind(true), Some("/d".to_owned()));
        assert_eq!((link.kind, link.symlink_target.as_deref()), ("FILE_TYPE_DIRECTORY", Some("/d")));
        let file = Entry::of(info(0o644, false, false), kind(false), None);
        assert_eq!(
            serde_json::to_value(file).unwrap(),
            json!({"name": "a", "type": "FILE_TYPE_FILE", "path": "/a", "size": "3", "mode": 420,
                "permissions": "-rw-r--r--", "owner": "user", "group": "users",
                "modifiedTime": "1970-01-01T00:00:00.000Z"})
        );
    }
}
