//! Record of a box on disk.

use guest_protocol::CgroupDir;
use serde::{Deserialize, Serialize};

/// Version of the format of [`Record`].
const FORMAT: u32 = 1;

/// Resources of a box or a slot besides its folder.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Record {
    format: u32,
    /// First of the host's ids that belong to the box; `None` if it runs as the server's user. A
    /// slot uses those of its box, and has none itself.
    // `proot` wrote `id`.
    #[serde(default, alias = "id")]
    pub(crate) id_base: Option<u32>,
    #[serde(default)]
    pub(crate) cgroups: Vec<CgroupDir>,
    /// Digest of the image whose files the box uses; `None` for `host`, and for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image: Option<String>,
    /// Digest of the image of which the box has a copy; `None` for `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copied: Option<String>,
    /// Path of the generated root that the box uses; `None` for a copy.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "skeleton")]
    pub(crate) host_rootfs: Option<String>,
    /// True for a box that holds slots.
    #[serde(default)]
    pub(crate) holds_slots: bool,
    /// Uid of a slot, as its box numbers it; `None` for a box.
    #[serde(default)]
    pub(crate) slot_uid: Option<u32>,
}

impl Record {
    pub(crate) fn new(cgroups: Vec<CgroupDir>) -> Record {
        Record { format: FORMAT, cgroups, ..Record::default() }
    }

    /// Parses a record; `None` if it is incomplete or of another format.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Record> {
        serde_json::from_slice(bytes).ok().filter(|record: &Record| record.format == FORMAT)
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn records_of_earlier_servers_are_read() {
        let native = br#"{"format":1,"id_base":1073741824,"cgroups":[{"path":"/sys/fs/cgroup/x","v2":true}],
            "image":"sha256:00","skeleton":"/data/native/host-0","holds_slots":true,"slot_uid":10000}"#;
        let cgroups = vec![CgroupDir { path: "/sys/fs/cgroup/x".to_owned(), v2: true }];
        let expected = Record {
            id_base: Some(1_073_741_824),
            image: Some("sha256:00".to_owned()),
            host_rootfs: Some("/data/native/host-0".to_owned()),
            holds_slots: true,
            slot_uid: Some(10_000),
            ..Record::new(cgroups)
        };
        assert_eq!(Record::parse(native), Some(expected));
        let proot = |id| Some(Record { id_base: id, ..Record::new(Vec::new()) });
        assert_eq!(Record::parse(br#"{"format":1,"id":1610612736}"#), proot(Some(1_610_612_736)));
        assert_eq!(Record::parse(br#"{"format":1,"id":null}"#), proot(None));
        assert_eq!(Record::parse(br#"{"format":2,"id":null}"#), None);
    }

    #[test]
    fn a_written_record_is_read() {
        for id_base in [None, Some(7)] {
            let record = Record { id_base, ..Record::new(Vec::new()) };
            assert_eq!(Record::parse(&serde_json::to_vec(&record).unwrap()), Some(record));
        }
    }
}
