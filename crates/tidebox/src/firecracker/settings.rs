//! Settings of the provider, as a part of the configuration file.

use std::path::{Path, PathBuf};

use serde::ser::{Serialize, SerializeMap as _, Serializer};

/// Keys below `providers.firecracker`.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    pub binary: PathBuf,
    pub kernel: PathBuf,
    pub modules: Option<PathBuf>,
    pub jailer: Option<PathBuf>,
}

impl Settings {
    fn values(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let values = [
            ("binary", Some(&self.binary)),
            ("kernel", Some(&self.kernel)),
            ("modules", self.modules.as_ref()),
            ("jailer.binary", self.jailer.as_ref()),
        ];
        values.into_iter().filter_map(|(key, path)| Some((key, path?.as_path())))
    }

    /// Formats them as lines of the configuration file.
    pub fn yaml(&self) -> String {
        let mut text = "providers:\n  firecracker:\n".to_owned();
        for (key, path) in self.values() {
            let value = quoted(&path.to_string_lossy());
            match key.split_once('.') {
                Some((section, key)) => text += &format!("    {section}:\n      {key}: {value}\n"),
                None => text += &format!("    {key}: {value}\n"),
            }
        }
        text
    }
}

/// As dotted keys with their values.
impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (key, path) in self.values() {
            map.serialize_entry(&format!("providers.firecracker.{key}"), path)?;
        }
        map.end()
    }
}

/// Returns the text as YAML takes it: as it is if nothing in it could mean anything else, else as a
/// JSON string, which is YAML too.
fn quoted(text: &str) -> String {
    let mut bytes = text.bytes();
    if text.starts_with('/') && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"/._+-".contains(&byte)) {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn they_are_lines_of_the_configuration_file() {
        let mut settings = Settings {
            binary: "/usr/local/bin/firecracker".into(),
            kernel: "/boot/vmlinuz-6.1.0-56-amd64".into(),
            modules: None,
            jailer: None,
        };
        let lines = "providers:\n  firecracker:\n    binary: /usr/local/bin/firecracker\n    \
                     kernel: /boot/vmlinuz-6.1.0-56-amd64\n";
        assert_eq!(settings.yaml(), lines);
        settings.modules = Some("/a folder: \"x\"\n#".into());
        settings.jailer = Some("/usr/local/bin/jailer".into());
        let more = "    modules: \"/a folder: \\\"x\\\"\\n#\"\n    jailer:\n      binary: /usr/local/bin/jailer\n";
        assert_eq!(settings.yaml(), format!("{lines}{more}"));
        let json = serde_json::to_value(&settings).unwrap();
        assert_eq!(json["providers.firecracker.jailer.binary"], "/usr/local/bin/jailer");
        assert_eq!(json["providers.firecracker.modules"], "/a folder: \"x\"\n#");
    }
}
