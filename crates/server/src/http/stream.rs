//! Bodies and sockets that are sent or received piece by piece: what every front needs, whatever it
//! sends.

pub mod codec;
pub mod flow_control;
pub mod list_body;
pub mod paced_read;
pub mod port_stream;
pub mod run_lines;
pub mod streamed;
pub mod subprotocol;
pub mod utf8;
pub mod websocket;
