//! Tests of the provider `firecracker`, with a real Firecracker where one is named.

mod harness;
mod suite;
