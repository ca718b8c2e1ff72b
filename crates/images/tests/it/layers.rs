//! Tests with hostile layers, and with layers that other programs unpack too.

mod equal;
mod ground;
mod hostile;
mod imports;
mod random;
mod user;
