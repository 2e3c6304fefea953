//! rsockets: the calls of sockets, over queue pairs.
//!
//! A stream socket is an id of the connection manager with a reliable queue pair, and speaks
//! rdma-core's protocol of rsockets: see `wire`. Its number is the descriptor of its event channel.
//! A datagram socket is a UDP socket of the kernel's, with a queue pair beside it that takes its
//! place as soon as peers know each other's: see `datagram`.
//!
//! - `wire` is the protocol's bytes, `stream` one connection that speaks it, `map` what peers may
//!   write to directly.
//! - `datagram` is what datagram sockets have, `ud` their queue pairs.
//! - `socket` is a socket's state and how calls wait; `calls`, `messages`, `iomap`, `sockopt` and
//!   `poll` are the calls.

mod calls;
mod datagram;
mod iomap;
mod map;
mod messages;
mod options;
mod poll;
mod socket;
mod sockopt;
mod stream;
mod symbols;
mod ud;
mod wire;
