//! The Tidebox server.

pub mod config;
