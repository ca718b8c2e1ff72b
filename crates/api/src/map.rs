//! String-to-string objects that refuse a key given twice.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use utoipa::{PartialSchema, ToSchema};

/// A JSON object whose values are strings. Reading refuses a key given twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StringMap(pub BTreeMap<String, String>);

impl StringMap {
    /// Returns whether the map has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Serialize for StringMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = StringMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if entries.contains_key(&key) {
                        return Err(A::Error::custom(format_args!("duplicate key `{key}`")));
                    }
                    entries.insert(key, value);
                }
                Ok(StringMap(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl PartialSchema for StringMap {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        BTreeMap::<String, String>::schema()
    }
}

impl ToSchema for StringMap {}

#[cfg(test)]
mod test {
    use super::StringMap;

    #[test]
    fn a_key_given_twice_is_refused_by_name() {
        let error = serde_json::from_str::<StringMap>(r#"{"a":"1","a":"2"}"#).unwrap_err();
        assert!(error.to_string().contains("duplicate key `a`"), "{error}");
    }

    #[test]
    fn values_are_strings_and_nothing_else() {
        assert!(serde_json::from_str::<StringMap>(r#"{"a":1}"#).is_err());
        assert!(serde_json::from_str::<StringMap>(r#"{"a":null}"#).is_err());
    }
}
