//! Secrets of the operator: sealed in the store, opened for the requests that they are sent with, and
//! the authorities whose certificates the boxes trust for those requests.

mod authority;
mod key;
mod service;

pub use authority::Authority;
pub use key::{KEY_BYTES, SealingKey};
pub use service::{SECRETS_MAX, Secrets, SecretsError};
