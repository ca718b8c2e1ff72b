//! Tests of the image store: layers, hostile or not, and registries, real or not.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod layers;
mod registry;
