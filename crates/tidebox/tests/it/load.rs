//! Many clients at once.
