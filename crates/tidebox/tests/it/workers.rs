//! Workers and leases.

mod loss;
mod pair;
mod registry;
mod remote;
