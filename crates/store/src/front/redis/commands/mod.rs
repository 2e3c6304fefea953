//! The commands, by what they are about.
//!
//! - on keys: `keys`, `expiry` (when they end), `scan` (walks over all of them), `dump` (as Redis'
//!   files have them); `options` are what several of them share;
//! - on values: `strings`, `lcs`, `numbers`, `bits`, `bitfield` (numbers of any width);
//! - on rows: `select`, which has `REMORA.SCAN` and `REMORA.GET` (Redis' `SELECT` is in
//!   `connection`);
//! - on the connection: `connection`, and `transaction`;
//! - on the server: `server`, `info`, `latency`, `config`, `cluster`, and `transfer` (moves of
//!   slots).

pub(crate) mod bitfield;
pub(crate) mod bits;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod dump;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod latency;
pub(crate) mod lcs;
pub(crate) mod numbers;
pub(crate) mod options;
pub(crate) mod scan;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod strings;
pub(crate) mod transaction;
mod transfer;
