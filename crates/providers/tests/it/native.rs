//! Tests of the provider `native`, attacked from inside its boxes and from outside.

mod burst;
mod capabilities;
mod cleanup;
mod groups;
mod harness;
mod host_mounts;
mod hostile;
mod images;
mod isolation;
mod limits;
mod programs;
mod restart;
mod shares;
mod size;
mod slots;
mod snapshots;
mod suite;
mod transparent;
