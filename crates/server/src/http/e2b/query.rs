//! Queries of E2B's SDKs. Parameters that are not known are ignored: later SDKs send more.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::request::Parts;
use percent_encoding::percent_decode;

use crate::http::error::{Result, malformed};

/// Decoded parameters of a query.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads the query of a URI.
    pub fn of(uri: &Uri) -> Self {
        Self(form(uri.query().unwrap_or_default()))
    }

    /// Returns the first value of a parameter.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a parameter as a number within a range.
    ///
    /// # Errors
    /// If it is none.
    pub fn number(&self, name: &str, (least, most): (u64, u64)) -> Result<Option<u64>> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| malformed(format!("`{name}` must be a whole number from {least} to {most}")))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::of(&parts.uri))
    }
}

/// Decodes a form, in which spaces may be written as `+`.
pub fn form(text: &str) -> Vec<(String, String)> {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(&name.replace('+', " ")), decoded(&value.replace('+', " ")))
        })
        .collect()
}

/// Decodes percent escapes.
pub fn decoded(text: &str) -> String {
    percent_decode(text.as_bytes()).decode_utf8_lossy().into_owned()
}
