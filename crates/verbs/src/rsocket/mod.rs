//! rsockets: the calls of sockets, over queue pairs.
//!
//! A stream socket is an id of the connection manager with a reliable queue pair, and speaks
//! rdma-core's protocol of rsockets: see `wire`. Its number is the descriptor of its event channel.
//! Datagram sockets are the kernel's UDP sockets under another name; rdma-core's carry datagrams
//! over queue pairs, so the two cannot talk to each other.
//!
//! - `wire` is the protocol's bytes, `stream` one connection that speaks it, `map` what peers may
//!   write to directly.
//! - `socket` is a socket's state and how calls wait; `calls`, `poll` and `options` are the calls.

mod calls;
mod map;
mod options;
mod poll;
mod socket;
mod stream;
mod symbols;
mod wire;
