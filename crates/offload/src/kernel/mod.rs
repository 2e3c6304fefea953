//! Kernels: how to write, deploy and run them (StRoM §5.2).
//!
//! A kernel is an `async fn` over a [`Context`], whose methods replace the eight streams of
//! StRoM's Listing 1:
//!
//! | StRoM | here |
//! |---|---|
//! | `qpnIn` | [`Context::qpn`] |
//! | `paramIn` | [`Context::params`] |
//! | `roceDataIn` | [`Context::payload`] |
//! | `dmaCmdOut`, `dmaDataIn` | [`Context::read`], [`Context::fetch`] |
//! | `dmaCmdOut`, `dmaDataOut` | [`Context::write`], [`Port::write`], [`Port::scatter`] |
//! | `roceMetaOut` | [`Context::send_to`], [`Context::send_memory`] |
//! | `roceDataOut` | [`Context::output`], [`Port::output`] |
//!
//! On a live card, an awaited memory access is ready at once; in a simulation it takes the time
//! that [`Timing`] says. The same source runs in both.
//!
//! [`Executor`] runs kernels for a card. It keeps deployed kernels by op-code, a limited number of
//! invocations in flight, a budget for each, and does a bounded amount of work in each turn.
//! Futures are replaced in place, so an invocation allocates nothing once the pools are warm. A
//! kernel that is bound to a stream ([`Tap`]) sees every payload in place as it passes.
//!
//! Where to read on:
//!
//! - Written by a kernel: `context`: what a kernel uses; `port`: what it may do while it looks at
//!   payload; `scatter`: writes in many places; `tap`: kernels bound to streams.
//! - Deployed: `deploy`: a program under an op-code; `grant`: the memory that it may use;
//!   `fallback`: calls whose op-code has no kernel.
//! - Run: `executor`: which invocation runs, and how it ends ([`Executor`]); `limits`: how much of
//!   the card they may use; `invocation`: what is kept of a call; `pool`: buffers for results, and
//!   `owners`: whose they are; `sleeping`: when invocations are looked at; `turn`: what a poll is
//!   lent, and pays for each step of its budget; `timing`: what memory takes in a simulation;
//!   `caught`: panics of kernels; `hasher`: of their numbers.
//! - [`builtin`]: the kernels of the paper. `loadable`: kernels that are loaded at run time
//!   ([`Loadable`]); `memory_share`: what their instances have of memory; [`hosting`]: what their
//!   host needs.

pub mod builtin;
mod caught;
mod context;
mod deploy;
mod executor;
mod fallback;
mod grant;
mod hasher;
pub mod hosting;
mod invocation;
mod limits;
mod loadable;
mod memory_share;
mod owners;
mod pool;
mod port;
mod scatter;
mod sleeping;
mod tap;
mod timing;
mod turn;

pub use context::Context;
pub use deploy::{AsyncProgram, DeployError, Deployment, KernelInfo, Program};
pub use executor::Executor;
pub use fallback::FallbackCall;
pub use grant::Grant;
pub use limits::ExecutorLimits;
pub use loadable::{LoadRefusal, Loadable, Loader, ModuleLimits, no_loader};
pub use memory_share::MemoryShare;
pub use port::Port;
pub use scatter::Scatter;
pub use tap::{Tap, TapInfo, TapIo};
pub use timing::{Direction, Timing};

pub use remora_nic::kernel::{CallStatus, Header, Notify, Passing, StatusWord, Verdict};
