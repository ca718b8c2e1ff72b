//! The provider `native`, attacked from inside its boxes and from outside.

mod burst;
mod ground;
mod limits;
mod powers;
mod remains;
mod restart;
mod suite;
mod walls;
