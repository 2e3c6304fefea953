//! The near-data key-value store (Caribou): rows in registered memory that kernels, one-sided
//! reads, chains, and the clients of Redis and memcached reach alike.
//!
//! - [`memory`]: the bytes that the store lives in, as any other party may change them.
//! - [`layout`], [`item`]: what lies where in them.
//! - [`table`], [`slab`], [`tablespace`]: the index, the blocks, and who may use how many.
//! - [`store`]: the operations, on all of these.
//! - [`sweep`], [`evict`], [`scan`]: what walks the table.
//! - [`codec`], [`select`]: compression, and selection next to the data.
//! - [`journal`], [`log`], [`snapshot`], [`rdb`], [`disk`]: what outlives the process.
//! - [`replica`]: the log on several machines; [`request`]: what its clients number.
//! - [`way`]: kernels, one-sided reads and chains.
//! - [`service`]: a store that is served in every way at once.
//! - [`client`]: a client over the card.
//! - [`front`]: Redis' and memcached's protocols; [`stats`]: what the store counts.

pub mod client;
pub mod codec;
pub mod disk;
pub mod evict;
pub mod front;
pub mod item;
pub mod journal;
pub mod layout;
pub mod log;
pub mod memory;
pub mod rdb;
pub mod replica;
pub mod request;
pub mod scan;
pub mod select;
pub mod service;
pub mod slab;
pub mod snapshot;
pub mod stats;
pub mod store;
pub mod sweep;
pub mod table;
pub mod tablespace;
pub mod way;

/// The Rust of the page about the store is compiled by the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/store.md")]
struct Page;
