//! rsockets: the socket calls over queue pairs.
//!
//! A stream socket is an id of the connection manager with a reliable queue pair, and speaks
//! rdma-core's rsocket protocol: see `wire`. Its descriptor is that of its event channel. A
//! datagram socket is a UDP socket of the kernel's with a queue pair beside it, which carries the
//! datagrams once peers know each other's: see `datagram`. A forked child has none of them.
//!
//! - `wire` is the protocol's bytes, `stream` a connection that speaks it, `map` the buffers to
//!   which a peer may write directly.
//! - `datagram` is the state of datagram sockets, `ud` their queue pairs.
//! - `socket` is a socket's state and how calls wait, `bell` how they wake each other, `options` a
//!   socket's options and sizes; `calls`, `messages`, `iomap`, `sockopt` and `poll` are the calls,
//!   and `repoll` what rdma-core has added to them. `symbols` are the names that programs are
//!   linked to.

mod bell;
mod calls;
mod datagram;
mod iomap;
mod map;
mod messages;
mod options;
mod poll;
mod repoll;
mod socket;
mod sockopt;
mod stream;
mod symbols;
#[cfg(test)]
mod tests;
mod ud;
mod wire;
