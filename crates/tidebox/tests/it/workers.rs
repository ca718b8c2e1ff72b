//! Workers and leases.

mod registry;
