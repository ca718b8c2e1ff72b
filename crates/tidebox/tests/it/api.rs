//! The API, route by route.

mod errors;
mod exec;
mod files;
mod sandboxes;
mod system;
mod templates;
