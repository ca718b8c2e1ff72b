//! Tests with hostile layers, and with layers that other programs unpack too.

mod equal;
mod harness;
mod hostile;
mod imports;
mod random;
mod user;
