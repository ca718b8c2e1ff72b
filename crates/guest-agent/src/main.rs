//! The first process of a box, and the launcher that makes native boxes.
fn main() {}
