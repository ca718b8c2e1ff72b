//! Tests of the client against servers of their own.

mod tls;
mod wire;
