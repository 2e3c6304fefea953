//! Kernels on the live card (StRoM): deploying them, binding them to streams, calling them.
//!
//! A kernel is deployed on a device, with the regions of its memory that the kernel may use. Peers
//! that agreed to StRoM's op-codes ([`ConnectionParams::kernels`]) call it by
//! [`QueuePair::post_rpc`] and [`QueuePair::post_rpc_write`]. [`KernelClient`] and
//! [`AsyncKernelClient`] do the rest of a call: they make the header, have room for the results,
//! and wait for them.
//!
//! - Here: deploying, binding and posting calls, as methods of the device and the queue pair.
//! - [`builtin`]: the catalogue of the built-in kernels; `builtin/calls.rs` calls them.
//! - `client`: calls by polling; `awaited`: calls as futures; `places`: the registered memory of
//!   both; `failure`: why a call has no result.
//! - `elsewhere`: what runs on the card of another process;
//! - `fallback`: calls that no kernel is deployed for, answered by the host.
//!
//! `docs/kernels.md` says how to write and load kernels.
//!
//! [`ConnectionParams::kernels`]: crate::ConnectionParams::kernels

mod awaited;
pub mod builtin;
mod client;
mod elsewhere;
mod failure;
mod fallback;
mod places;

pub use awaited::{AsyncKernelClient, Call};
pub use client::{BegunCall, KernelClient};
pub use failure::CallFailure;
pub use fallback::Fallback;
pub use remora_nic::kernel::Bound;
pub use remora_offload::kernel::{
    AsyncProgram, CallStatus, Context, DeployError, Deployment, Executor, ExecutorLimits,
    FallbackCall, Grant, Header, KernelInfo, LoadRefusal, Loadable, Loader, MemoryShare,
    ModuleLimits, Notify, Program, StatusWord, Tap, TapInfo, no_loader,
};

use std::sync::Arc;

use remora_nic::PostError;
use remora_nic::kernel::KernelIo;
use remora_nic::nic::{BindError, CallError};
use remora_nic::queue::{Data, SendFlags, SendOp, SendRequest};

use crate::commands::Commands;
use crate::device::Device;
use crate::driver::Own;
use crate::either::Driver;
use crate::live::Live;
use crate::queue_pair::QueuePair;
use crate::region::MemoryRegion;

impl Own {
    /// Gives the card's kernels a command.
    pub(crate) fn kernels<R>(
        &mut self,
        act: impl FnOnce(&mut Executor, &mut KernelIo<'_>) -> R,
    ) -> R {
        let now = self.now();
        let done = self.nic.with_kernels(now, &mut self.memory, act);
        done.expect("the device gives its card kernels when it is opened")
    }
}

impl Device {
    /// Deploys a kernel for an op-code. Peers may call it from now on.
    ///
    /// # Errors
    /// The op-code is taken, or the card has no room.
    pub fn deploy<F, Fut>(
        &self,
        opcode: u64,
        deployment: Deployment,
        make: F,
    ) -> Result<(), DeployError>
    where
        F: FnMut(Context) -> Fut + Send + 'static,
        Fut: Future<Output = Result<(), CallStatus>> + Send + 'static,
    {
        self.deploy_program(opcode, deployment, Box::new(AsyncProgram::new(make)))
    }

    /// As [`Device::deploy`], for kernels that are not `async` functions.
    ///
    /// # Errors
    /// The op-code is taken, or the card has no room.
    pub fn deploy_program(
        &self,
        opcode: u64,
        deployment: Deployment,
        program: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        if self.is_attached() {
            return Err(DeployError::Elsewhere);
        }
        self.command_kernels(|kernels, _| kernels.deploy(opcode, deployment, program))
    }

    /// Commands the kernels of this process's card. Those that have ended are dropped without the
    /// card's lock, which the end of a region that they own needs.
    fn command_kernels<R>(&self, act: impl FnOnce(&mut Executor, &mut KernelIo<'_>) -> R) -> R {
        let act = |kernels: &mut Executor, io: &mut KernelIo<'_>| {
            let result = act(kernels, io);
            (result, kernels.take_ended())
        };
        let (result, ended) = self.live.command_own(|own| own.kernels(act));
        drop(ended);
        result
    }

    /// Deploys a kernel that was loaded, by the crate `remora-wasm` for one. On a card of
    /// another process it answers calls that come by this device's queue pairs; that process
    /// compiles the module again. [`Device::replace_by_module`] puts it in another kernel's place.
    ///
    /// # Errors
    /// The op-code is taken, or the card has no room.
    pub fn load_kernel(
        &self,
        opcode: u64,
        deployment: Deployment,
        module: &dyn Loadable,
    ) -> Result<(), DeployError> {
        if let Driver::Attached(card) = &mut *self.live.lock() {
            return elsewhere::deploy(card, opcode, false, deployment, elsewhere::module(module));
        }
        self.deploy_program(opcode, deployment, module.program())
    }

    /// Deploys a built-in kernel under an op-code, on a card of this process or of another one.
    /// Built-in kernels of a device share their state with each other and with those that
    /// [`Device::bind_builtin`] binds, but not with the host, as those of
    /// [`Device::deploy_builtin`] do; `shared` is the state on a card of this process.
    ///
    /// # Errors
    /// The op-code is taken, or the card has no room.
    pub fn deploy_kind(
        &self,
        opcode: u64,
        deployment: Deployment,
        kind: builtin::Kind,
        shared: &builtin::Builtin,
    ) -> Result<(), DeployError> {
        match &mut *self.live.lock() {
            Driver::Attached(card) => {
                elsewhere::deploy(card, opcode, false, deployment, elsewhere::builtin(kind))
            }
            Driver::Own(own) => {
                let program = shared.program(kind);
                own.kernels(|kernels, _| kernels.deploy(opcode, deployment, program))
            }
        }
    }

    /// Deploys a kernel that was loaded in the place of another, on a card of this process or of
    /// another one, as [`Device::replace_kernel`] does.
    ///
    /// # Errors
    /// No kernel is deployed for the op-code, or the card's process refuses the module.
    pub fn replace_by_module(
        &self,
        opcode: u64,
        deployment: Deployment,
        module: &dyn Loadable,
    ) -> Result<(), DeployError> {
        if let Driver::Attached(card) = &mut *self.live.lock() {
            return elsewhere::deploy(card, opcode, true, deployment, elsewhere::module(module));
        }
        self.replace_kernel(opcode, deployment, module.program())
    }

    /// Deploys a kernel in the place of another. Calls from now on go to the new one; calls in
    /// flight end with the old one. Code of this process cannot run on a card of another one: see
    /// [`Device::replace_by_module`].
    ///
    /// # Errors
    /// No kernel is deployed for the op-code, or the card is another process's.
    pub fn replace_kernel(
        &self,
        opcode: u64,
        deployment: Deployment,
        program: Box<dyn Program>,
    ) -> Result<(), DeployError> {
        if self.is_attached() {
            return Err(DeployError::Elsewhere);
        }
        self.command_kernels(|kernels, _| kernels.replace(opcode, deployment, program))
    }

    /// Ends a kernel. Its invocations end with [`CallStatus::UNLOADED`].
    ///
    /// # Errors
    /// No kernel is deployed for the op-code.
    pub fn undeploy(&self, opcode: u64) -> Result<(), DeployError> {
        if let Driver::Attached(card) = &mut *self.live.lock() {
            return elsewhere::undeploy(card, opcode);
        }
        self.command_kernels(|kernels, io| kernels.undeploy(io, opcode))
    }

    /// The deployed kernels, by op-code.
    pub fn kernels(&self) -> Vec<KernelInfo> {
        match &mut *self.live.lock() {
            Driver::Attached(card) => elsewhere::list(card),
            Driver::Own(own) => own.kernels(|kernels, _| kernels.list()),
        }
    }

    /// Binds a kernel to a stream of WRITEs: a bump in the wire (StRoM §3.4). Dropping the binding
    /// unbinds the kernel.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_kernel(
        &self,
        to: Bound,
        grants: Vec<Grant>,
        tap: Box<dyn Tap>,
    ) -> Result<Binding, BindError> {
        if self.is_attached() {
            return Err(BindError::Elsewhere);
        }
        let mut driver = self.live.lock();
        let number = driver.own().kernels(|kernels, _| kernels.add_tap(grants, tap));
        if let Err(error) = driver.bind_kernel(to, number) {
            let tap = driver.own().kernels(|kernels, _| kernels.remove_tap(number));
            // As in `command_kernels`.
            drop(driver);
            drop(tap);
            return Err(error);
        }
        drop(driver);
        Ok(Binding { live: self.live.clone(), to, number })
    }

    /// Binds a module that exports a `tap` to a stream of WRITEs, on a card of this process or of
    /// another one. It may take `budget` steps for each payload.
    ///
    /// # Errors
    /// See [`BindError`]; [`BindError::Refused`], too, with a reason in words.
    pub fn bind_module(
        &self,
        to: Bound,
        grants: Vec<Grant>,
        module: &dyn Loadable,
        budget: u64,
    ) -> Result<Binding, BindError> {
        if let Driver::Attached(card) = &mut *self.live.lock() {
            let number = elsewhere::bind(card, to, (&grants, budget), elsewhere::module(module))?;
            return Ok(Binding { live: self.live.clone(), to, number });
        }
        let tap = module.tap(budget).map_err(|error| BindError::Refused(error.to_string()))?;
        self.bind_kernel(to, grants, tap)
    }

    /// Binds the built-in kernel `kind` to a stream of WRITEs, on a card of this process or of
    /// another one: see [`builtin::Builtin::tap`], and [`Device::deploy_kind`] for `shared`.
    ///
    /// # Errors
    /// See [`BindError`]; [`BindError::Refused`] for a kernel that cannot be bound.
    pub fn bind_builtin(
        &self,
        to: Bound,
        grants: Vec<Grant>,
        kind: builtin::Kind,
        shared: &builtin::Builtin,
    ) -> Result<Binding, BindError> {
        if let Driver::Attached(card) = &mut *self.live.lock() {
            let number = elsewhere::bind(card, to, (&grants, u64::MAX), elsewhere::builtin(kind))?;
            return Ok(Binding { live: self.live.clone(), to, number });
        }
        let tap = shared.tap(kind).ok_or_else(|| BindError::Refused(kind.unbindable()))?;
        self.bind_kernel(to, grants, tap)
    }
}

/// A kernel bound to a stream; dropping it ends the binding.
///
/// ```
/// use remora::prelude::*;
/// use remora::kernel::{Bound, builtin::Builtin};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let memory = device.alloc_pd()?.alloc(4096, Access::all())?;
/// let shared = Builtin::new();
/// let to = Bound::Region(memory.key());
/// let binding = device.bind_kernel(to, vec![], shared.hyperloglog.tap())?;
/// assert_eq!(binding.info().payloads, 0); // no peer has written to the region yet
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Binding {
    live: Arc<Live>,
    to: Bound,
    number: u32,
}

impl Binding {
    /// What the kernel is bound to.
    pub fn to(&self) -> Bound {
        self.to
    }

    /// What the kernel has seen, and whether it was stopped.
    pub fn info(&self) -> TapInfo {
        match &mut *self.live.lock() {
            Driver::Attached(card) => elsewhere::tap(card, self.number),
            Driver::Own(own) => {
                own.kernels(|kernels, _| kernels.tap(self.number)).unwrap_or_default()
            }
        }
    }

    /// Puts another kernel in the place of the bound one; no payload passes unseen between them. On
    /// a card of another process this does nothing.
    pub fn replace(&self, grants: Vec<Grant>, tap: Box<dyn Tap>) {
        let mut driver = self.live.lock();
        if driver.as_own().is_none() {
            drop(driver);
            return;
        }
        let old = driver.own().kernels(|kernels, _| kernels.replace_tap(self.number, grants, tap));
        // As in `Device::command_kernels`.
        drop(driver);
        drop(old);
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        let mut driver = self.live.lock();
        if let Driver::Attached(card) = &mut *driver {
            return elsewhere::unbind(card, self.number);
        }
        // The binding may have ended with its queue pair or region, and another may exist there
        // now.
        if driver.bound_kernel(self.to) == Some(self.number) {
            driver.unbind_kernel(self.to).ok();
        }
        let tap = driver.kernels(|kernels, _| kernels.remove_tap(self.number));
        // As in `Device::command_kernels`.
        drop(driver);
        drop(tap);
    }
}

impl MemoryRegion {
    /// A grant that lets a kernel read the region.
    pub fn grant_read(&self) -> Grant {
        Grant { key: self.key(), write: false }
    }

    /// A grant that lets a kernel read and write the region.
    pub fn grant_write(&self) -> Grant {
        Grant { key: self.key(), write: true }
    }
}

impl QueuePair {
    /// Posts an RPC (StRoM's `postRpc`): `call` is a [`Header`] and parameters, a path MTU in all
    /// at most. A longer one completes with
    /// [`Status::LocalLength`](remora_nic::queue::Status::LocalLength), and the queue pair stops.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_rpc(
        &self,
        wr_id: u64,
        opcode: u64,
        call: Data<'_>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post_send(&SendRequest { wr_id, op: SendOp::Rpc { opcode }, data: call, flags })
    }

    /// Posts an RPC WRITE (StRoM's `postRpcWrite`): as [`QueuePair::post_rpc`], with payload of any
    /// length behind the parameters. A call whose header and parameters are longer than a path MTU
    /// ends with [`CallStatus::BAD_PARAMS`].
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    pub fn post_rpc_write(
        &self,
        wr_id: u64,
        opcode: u64,
        call: Data<'_>,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        self.post_send(&SendRequest { wr_id, op: SendOp::RpcWrite { opcode }, data: call, flags })
    }

    /// Invokes a kernel of this device from its own host (StRoM §5.2). The results go to the queue
    /// pair's peer, or with [`Header::local`] to memory of this host.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_kernel(&self, opcode: u64, call: &[u8]) -> Result<(), CallError> {
        self.live().command(|driver| driver.call_kernel(self.qpn(), opcode, call))
    }
}
