//! Kernels: interpreters that stay alive between runs of code, as those of a notebook do.
//!
//! A kernel is a process of an interpreter that a sandbox has, with a driver of one file that it is given at its start.
//! [`Language`] has the command that starts it, [`Request`] what is written to its stdin, and [`Decoder`] takes what it
//! writes apart, into the output of the code and the [`Message`]s of the driver.
//!
//! The driver's messages travel in the output itself, in segments that begin with a [`Marker`] only the driver was
//! told. So output costs nothing extra, keeps its order with the messages, and programs that the code starts can write
//! to it too. A segment has at most [`SEGMENT_BYTES_MAX`] bytes, because a pipe takes that many from one writer without
//! mixing them with those of another.
//!
//! Everything that a kernel writes is untrusted.

mod decoder;
mod language;
mod message;
mod request;

pub use decoder::{Broken, Decoder, Marker, Piece, SEGMENT_BYTES_MAX};
pub use language::{Language, UnknownLanguage};
pub use message::{MESSAGE_BYTES_MAX, Message};
pub use request::{Request, start};
