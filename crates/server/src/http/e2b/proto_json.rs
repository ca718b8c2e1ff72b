//! Values in the JSON of protobuf.

use serde::{Deserialize, Deserializer};

/// Reads a value, or its default for `null`, as protobuf does.
pub fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// Reads a number, 0 for `null`.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    optional_number(from).map(Option::unwrap_or_default)
}

/// Reads a number, which protobuf allows as text too.
pub fn optional_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Number(u32),
        Text(String),
    }
    let expected = "expected a whole number from 0 to 4294967295";
    let found = Option::<Number>::deserialize(from).map_err(|_| serde::de::Error::custom(expected))?;
    match found {
        None => Ok(None),
        Some(Number::Number(number)) => Ok(Some(number)),
        Some(Number::Text(text)) => text.parse().map(Some).map_err(|_| serde::de::Error::custom(expected)),
    }
}
