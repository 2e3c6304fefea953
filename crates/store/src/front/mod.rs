//! The store over TCP, in the protocols that clients already speak.
//!
//! - [`server`]: listens, and has threads, each a `worker`, which takes the bytes of a `connection`
//!   (its `input`) to its session and the answers back; `bell`: what wakes it; `relay`: the way to
//!   another node, for clients that know no primaries.
//! - [`redis`]: Redis' protocol and commands.
//! - [`memcached`]: memcached's three protocols and their commands.
//! - [`keyspace`]: the store, as the commands use it.
//! - [`served`]: that store, bound to what the commands use.
//! - [`slots`]: the slots of a cluster's keys, and what one group is for each.
//! - [`server_state`]: what all connections share; `clients`: who is connected.
//!
//! A session is a plain value: bytes in, bytes out, time in a [`server_state::Turn`]. So tests and
//! the fuzz targets run it without sockets.

mod bell;
mod clients;
mod connection;
mod input;
pub mod keyspace;
pub mod memcached;
pub mod redis;
mod relay;
pub mod served;
pub mod server;
pub mod server_state;
pub mod slots;
mod worker;
