//! memcached's protocols: text, meta commands, and binary.

pub mod session;
