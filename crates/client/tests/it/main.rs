//! Tests of the client against servers of their own.

mod port;
mod tls;
mod wire;
