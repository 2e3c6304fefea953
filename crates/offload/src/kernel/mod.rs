//! Kernels: how they are written, deployed and run (StRoM §5.2).
//!
//! A kernel is an `async fn` over a [`Context`], which stands for the eight streams of StRoM's
//! Listing 1:
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
//! Live, an awaited memory access is ready at once; in a simulated world it takes the time that
//! [`Timing`] says. The same source runs in both.
//!
//! [`Kernels`] runs them for a card: it keeps the deployed ones by op-code, a fixed number of
//! invocations in flight, a budget for each, and bounded work a turn. Reset futures stay where
//! they are, so that an invocation allocates nothing once the pools are warm. A kernel that is
//! bound to a stream ([`Tap`]) sees every payload as it passes, in place.
//!
//! [`builtin`] are the kernels of the paper; `wasm` (with the feature of that name) runs those that
//! are loaded at run time.

pub mod builtin;
mod context;
mod deploy;
mod fallback;
mod grant;
mod invocation;
mod kernels;
mod port;
mod scatter;
mod tap;
mod timing;
mod turn;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use context::Context;
pub use deploy::{AsyncProgram, DeployError, Deployment, KernelInfo, Program};
pub use fallback::FallbackCall;
pub use grant::Grant;
pub use kernels::{Kernels, Limits};
pub use port::Port;
pub use scatter::Scatter;
pub use tap::{Tap, TapInfo, TapIo};
pub use timing::Timing;

pub use remora_nic::kernel::{CallStatus, Header, Notify, Passing, StatusWord, Verdict};
