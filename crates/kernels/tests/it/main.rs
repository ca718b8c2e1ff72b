//! Kernels of each language, with the interpreters of this machine.

mod bash;
mod java;
mod javascript;
mod kernel;
mod python;
mod r;
mod started;
mod typescript;
