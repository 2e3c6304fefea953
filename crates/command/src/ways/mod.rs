//! The same work near remote memory, done in several ways: by a kernel on the peer's card (StRoM),
//! by one-sided READs as Pilaf and FaRM do it, and by an RPC over TCP that the peer's CPU serves;
//! by chains (RedN), and by SENDs that the peer's CPU answers.
//!
//! [`server`] is the far end: a process with a card, memory, the built-in kernels, and an
//! application that answers RPCs; [`agreed`] is what both ends know in advance. [`client`] fills
//! that memory by WRITEs ([`image`]) and looks things up in it ([`lookup`]); [`sketchers`] counts
//! what is streamed; [`rpc`] is the way over TCP, and [`loaded`] that of kernels as WebAssembly.
//! [`served`] and [`asker`] are the two ends of chains. `remora bench kernels`
//! `remora bench chains` and `remora bench store` measure with these, and `remora demo` shows them.

pub mod agreed;
pub mod asker;
pub mod client;
pub mod image;
pub mod loaded;
pub mod lookup;
pub mod rpc;
pub mod served;
pub mod server;
mod sketchers;

pub use client::Client;
pub use image::{Image, List};
pub use server::Server;
