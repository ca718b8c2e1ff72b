//! Hostile layers. Every test unpacks an image beside files that must not change, and then checks
//! their mode, owner, times, links and content.

mod bombs;
mod contents;
mod ways_out;
mod work;
