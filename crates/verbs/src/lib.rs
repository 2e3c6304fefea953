//! `libibverbs.so.1` and `librdmacm.so.1` on top of Remora's card.
//!
//! One shared object serves under both names, so that both libraries use the same cards of the
//! process. Programs written for RDMA hardware and linked to rdma-core's libraries run on it
//! unmodified.
//!
//! - [`abi`] is the contract: the structs and constants of the C headers. The tests hold it to the
//!   distribution's headers by compiling C.
//! - [`export`] gives functions the symbol versions that programs are linked to.
//! - [`process`] holds the state of a process and says what `fork` does to it; [`cards`] opens its
//!   cards, and `farewell` is what is done when it ends.
//! - [`ibverbs`] and [`rdmacm`] are the two libraries; [`rsocket`] is built on [`rdmacm`].
//! - `card` is one card, `pool` the memory behind handles, and `log` what the library logs. `sleep`
//!   is how calls of both libraries wait, and what signals do to that; `cancel` is what lets a
//!   program end a thread that waits.
//! - `sysfs` makes the files that stand for `/sys/class/infiniband`; `preload` says where they are.
//!
//! Handles are pointers to structs that begin with the C struct of the header; programs read its
//! fields and, by inline functions, call the functions in it. Each call checks a handle before it
//! uses it: see [`handles`].

pub mod abi;
mod cancel;
pub mod card;
pub mod cards;
mod export;
mod farewell;
pub mod handles;
pub mod ibverbs;
pub mod log;
mod pool;
pub mod preload;
pub mod process;
mod rdmacm;
mod rsocket;
#[cfg(test)]
#[path = "../../remora/tests/support/skips.rs"]
mod skips;
mod sleep;
pub mod sysfs;
