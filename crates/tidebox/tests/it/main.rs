//! The whole service, driven through HTTP and the command line with the real binary.

mod api;
mod cli;
mod contract;
mod crash;
mod load;
mod server;
