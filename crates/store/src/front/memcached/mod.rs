//! memcached's protocols: text, its meta commands, and binary.
//!
//! - [`operations`]: what all three do to the store.
//! - [`text`], [`meta`], [`binary`]: requests of each, and their answers. [`statistics`]: those of
//!   `stats`.
//! - [`dump`]: walks over all keys, and what else concerns memory.
//! - [`numbers`]: numbers and times as clients write them.
//! - [`flags`]: the flags of meta commands. [`base64`]: keys of any bytes in these.
//! - [`chunk`]: values that follow a line of text.
//! - [`mark`]: what a node says for a client that it relays.
//! - [`leases`]: which client may fill a key anew, for the meta commands.
//! - [`conversation`]: what a connection remembers, and what a request is given.
//! - [`session`]: a connection, from bytes to bytes.

mod base64;
mod binary;
mod chunk;
mod conversation;
mod dump;
mod flags;
mod leases;
mod mark;
mod meta;
mod numbers;
mod operations;
pub mod session;
mod statistics;
mod text;

pub(crate) use leases::Leases;
pub(crate) use mark::ACCEPTED;
