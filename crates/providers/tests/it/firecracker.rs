//! Tests of the provider `firecracker`: with one that makes no machines, and with a real one where it is
//! named.

mod fake;
mod harness;
mod kept;
mod lifecycle;
mod restored;
mod suite;
