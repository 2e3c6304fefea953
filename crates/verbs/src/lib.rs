//! `libibverbs.so.1` and `librdmacm.so.1` on Remora's card.
//!
//! One shared object is both libraries, under two names: they share the process's card. Programs
//! written for RDMA hardware, linked to rdma-core's libraries, run on it unmodified.
//!
//! - [`abi`] is the contract: the structs and constants of the C headers. The tests hold it to the
//!   distribution's headers by compiling C.
//! - [`export`] gives functions the symbol versions that programs ask for.
//! - [`process`] is what a process has, and what becomes of it in `fork`; [`cards`] opens its
//!   cards.
//! - [`ibverbs`] and [`rdmacm`] are the two libraries; [`rsocket`] stands on the second.
//!
//! Handles are pointers to structs that begin with the C struct of the header; programs read (and
//! with inline functions call) what stands there. A call looks a handle up before it believes it.

pub mod abi;
pub mod card;
pub mod cards;
mod export;
pub mod handles;
pub mod ibverbs;
pub mod log;
mod pool;
pub mod preload;
pub mod process;
mod rdmacm;
mod rsocket;
pub mod sysfs;
