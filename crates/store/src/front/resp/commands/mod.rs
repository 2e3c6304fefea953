//! The commands, by what they are about.

pub(crate) mod bits;
pub(crate) mod cluster;
pub(crate) mod config;
pub(crate) mod connection;
pub(crate) mod expiry;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod numbers;
pub(crate) mod options;
pub(crate) mod scan;
pub(crate) mod server;
pub(crate) mod strings;
pub(crate) mod transaction;
