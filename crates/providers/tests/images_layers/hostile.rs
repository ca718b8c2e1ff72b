//! What hostile layers try. Every test unpacks an image beside precious files,
//! and every one of these is then as it was: mode, owner, times, links, content.

mod bombs;
mod contents;
mod ways_out;
mod work;
