//! Redis' protocol (RESP), and its commands on keys, strings, connections, transactions and the
//! server; besides, two of the store's own, on rows.
//!
//! - [`request`]: what clients send; [`reply`]: what they get.
//! - `conversation`: what a connection remembers; `command`: what a command is given.
//! - `commands`: the commands themselves; `table`: their names, arities and flags; `glob`: patterns
//!   of keys; `number`: numbers with fractions.
//! - `routing`: which keys are served here, and where clients ask for others.
//! - `weight`: what a transaction may bring to the log.
//! - [`session`]: a connection, from bytes to bytes.

mod command;
mod commands;
mod conversation;
mod glob;
mod number;
pub mod reply;
pub mod request;
mod routing;
pub mod session;
mod table;
mod weight;
