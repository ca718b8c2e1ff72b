//! Parts that providers share whose boxes another service makes.

pub(crate) mod boxes;
pub(crate) mod upload;
pub(crate) mod words;
