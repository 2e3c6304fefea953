//! What is deployed for an op-code: a program, the memory it may use, and its budget. (`executor`
//! deploys it, and `turn` charges it.)

use core::future::Future;
use core::pin::Pin;
use core::task::{self, Poll};

use thiserror::Error;

use super::CallStatus;
use super::caught::caught;
use super::context::Context;
use super::grant::Grant;

/// The settings of a kernel that is to be deployed.
///
/// ```
/// use remora_offload::kernel::Deployment;
///
/// let sums = Deployment::new("sum", []).budget(10_000);
/// assert_eq!((sums.name.as_str(), sums.budget), ("sum", 10_000));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deployment {
    /// A name for people to read.
    pub name: String,
    /// The regions that the kernel may use.
    pub grants: Vec<Grant>,
    /// The most steps of one invocation. A memory access costs one step, and one more for every
    /// further 64 bytes; 64 bytes of payload cost one step.
    pub budget: u64,
}

impl Deployment {
    /// A kernel that may use `grants`, with the default budget of a million steps.
    pub fn new(name: impl Into<String>, grants: impl Into<Vec<Grant>>) -> Deployment {
        Deployment { name: name.into(), grants: grants.into(), budget: 1_000_000 }
    }

    /// The same kernel with a budget of `steps`.
    #[must_use]
    pub fn budget(mut self, steps: u64) -> Deployment {
        self.budget = steps;
        self
    }
}

/// Why a kernel cannot be deployed, replaced or undeployed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DeployError {
    /// Another kernel is deployed for the op-code.
    #[error(
        "op-code {0:#x} is taken: take its kernel away first (undeploy, unload), or replace it"
    )]
    Taken(u64),
    /// No kernel is deployed for the op-code.
    #[error("no kernel is deployed for op-code {0:#x}")]
    Unknown(u64),
    /// The card has reached its limit of kernels.
    #[error("the card has no room for more than {0} kernels: undeploy one first")]
    Full(usize),
    /// The card is another process's, where only kernels run that can be sent there.
    #[error(
        "the card is another process’s: only built-in kernels and loaded modules can be deployed \
         there"
    )]
    Elsewhere,
    /// The card is another process's, and that process refuses, in these words.
    #[error("the process that has the card refuses: {0}")]
    Refused(String),
}

/// A deployed kernel and its counters.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelInfo {
    /// Its op-code.
    pub opcode: u64,
    /// Its name.
    pub name: String,
    /// The regions that the kernel may use.
    pub grants: Vec<Grant>,
    /// The most steps of one invocation.
    pub budget: u64,
    /// Invocations since the kernel was deployed.
    pub calls: u64,
    /// Invocations that did not end with [`CallStatus::OK`].
    pub failed: u64,
    /// Invocations in flight.
    pub running: u32,
}

impl KernelInfo {
    /// A kernel that was not called yet.
    pub fn new(opcode: u64, deployment: Deployment) -> KernelInfo {
        let Deployment { name, grants, budget } = deployment;
        KernelInfo { opcode, name, grants, budget, calls: 0, failed: 0, running: 0 }
    }
}

impl core::fmt::Debug for dyn Program {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Program")
    }
}

/// The code of a kernel: starts invocations and runs them. [`AsyncProgram`] is the usual one.
///
/// A panic ends the invocation in which it happens with [`CallStatus::TRAP`]; further ones begin as
/// before.
pub trait Program: Send {
    /// Starts an invocation. Returns a number for it, which is unique among unfinished
    /// invocations.
    fn start(&mut self, context: Context) -> u32;

    /// Runs an invocation further. After `Pending`, the executor polls again when what the
    /// invocation waits for is there; the methods of [`Context`] have recorded what that is. After
    /// `Ready` the invocation is over, and its number may be used again.
    fn poll(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>>;

    /// Ends an unfinished invocation. Its number may be used again.
    fn stop(&mut self, cell: u32);

    /// Says that a queue pair is gone. A new queue pair, of another requester, may get its number.
    fn closed(&mut self, qpn: u32) {
        let _ = qpn;
    }
}

/// A program made of an `async fn(Context) -> Result<(), CallStatus>`. Futures are pinned once and
/// replaced in place, so an invocation allocates nothing.
pub struct AsyncProgram<F, Fut> {
    make: F,
    cells: Vec<Pin<Box<Option<Fut>>>>,
    free: Vec<u32>,
}

impl<F, Fut> AsyncProgram<F, Fut>
where
    F: FnMut(Context) -> Fut + Send,
    Fut: Future<Output = Result<(), CallStatus>> + Send,
{
    /// The program whose invocations are the futures of `make`.
    pub fn new(make: F) -> AsyncProgram<F, Fut> {
        AsyncProgram { make, cells: Vec::new(), free: Vec::new() }
    }
}

impl<F, Fut> Program for AsyncProgram<F, Fut>
where
    F: FnMut(Context) -> Fut + Send,
    Fut: Future<Output = Result<(), CallStatus>> + Send,
{
    fn start(&mut self, context: Context) -> u32 {
        let future = (self.make)(context);
        match self.free.pop() {
            Some(cell) => {
                self.cells[cell as usize].as_mut().set(Some(future));
                cell
            }
            None => {
                self.cells.push(Box::pin(Some(future)));
                self.cells.len() as u32 - 1
            }
        }
    }

    fn poll(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>> {
        let future = self.cells.get_mut(cell as usize).and_then(|c| c.as_mut().as_pin_mut());
        let Some(future) = future else { return Poll::Ready(Err(CallStatus::TRAP)) };
        let polled = future.poll(cx);
        if polled.is_ready() {
            self.stop(cell);
        }
        polled
    }

    fn stop(&mut self, cell: u32) {
        if let Some(future) = self.cells.get_mut(cell as usize) {
            future.as_mut().set(None);
            self.free.push(cell);
        }
    }
}

impl<F, Fut> core::fmt::Debug for AsyncProgram<F, Fut> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AsyncProgram").field("cells", &self.cells.len()).finish_non_exhaustive()
    }
}

/// A deployed kernel.
pub(super) struct Deployed {
    /// The client of the card for which it runs.
    pub(super) client: u16,
    pub(super) opcode: u64,
    pub(super) deployment: Deployment,
    pub(super) code: Box<dyn Program>,
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) running: u32,
    /// Undeployed or replaced: removed after its last invocation.
    pub(super) retired: bool,
}

impl Deployed {
    /// Ends an unfinished invocation.
    pub(super) fn stop(&mut self, cell: u32) {
        // A panic here has nobody to be told: the invocation is over.
        caught(|| self.code.stop(cell));
    }

    /// A queue pair is gone.
    pub(super) fn closed(&mut self, qpn: u32) {
        caught(|| self.code.closed(qpn));
    }

    pub(super) fn info(&self) -> KernelInfo {
        let mut info = KernelInfo::new(self.opcode, self.deployment.clone());
        (info.calls, info.failed, info.running) = (self.calls, self.failed, self.running);
        info
    }
}

impl core::fmt::Debug for Deployed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.info().fmt(f)
    }
}
