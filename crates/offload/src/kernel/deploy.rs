//! What is deployed: a program, its op-code, what it may reach and how much it may do.

use core::future::Future;
use core::pin::Pin;
use core::task::{self, Poll};

use thiserror::Error;

use super::CallStatus;
use super::context::Context;
use super::grant::Grant;

/// What to deploy a kernel with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deployment {
    /// A name for people.
    pub name: String,
    /// The regions it may use.
    pub grants: Vec<Grant>,
    /// Steps that one invocation may take: a step is a memory access, and every 64 bytes more of
    /// it, or 64 bytes of payload.
    pub budget: u64,
}

impl Deployment {
    /// A kernel that may use `grants`, with the usual budget: a million steps.
    pub fn new(name: impl Into<String>, grants: impl Into<Vec<Grant>>) -> Deployment {
        Deployment { name: name.into(), grants: grants.into(), budget: 1_000_000 }
    }

    /// The same with another budget.
    #[must_use]
    pub fn budget(mut self, steps: u64) -> Deployment {
        self.budget = steps;
        self
    }
}

/// Why a kernel was not deployed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeployError {
    /// Another kernel is deployed for the op-code.
    #[error("op-code {0:#x} is taken: undeploy its kernel, or replace it")]
    Taken(u64),
    /// None is.
    #[error("no kernel is deployed for op-code {0:#x}")]
    Unknown(u64),
    /// The card has no room for more kernels.
    #[error("the card has no room for more than {0} kernels")]
    Full(usize),
}

/// A deployed kernel, as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KernelInfo {
    /// Its op-code.
    pub opcode: u64,
    /// Its name.
    pub name: String,
    /// The regions it may use.
    pub grants: Vec<Grant>,
    /// Steps an invocation may take.
    pub budget: u64,
    /// Invocations so far.
    pub calls: u64,
    /// Those that did not end with [`CallStatus::OK`].
    pub failed: u64,
    /// Invocations in flight.
    pub running: u32,
}

/// The code of a kernel: makes invocations and takes them forward. [`AsyncProgram`] is the usual
/// one.
pub trait Program: Send {
    /// Begins an invocation; returns a number for it.
    fn start(&mut self, context: Context) -> u32;

    /// Takes an invocation forward. `Pending` is answered by another call when what it waits for
    /// is there: what that is, the methods of [`Context`] have noted. With `Ready` it is over, and
    /// its number may be given again.
    fn poll(&mut self, cell: u32, cx: &mut task::Context<'_>) -> Poll<Result<(), CallStatus>>;

    /// An invocation is to end that is not over: its number may be given again.
    fn stop(&mut self, cell: u32);

    /// A queue pair is gone: its number may come again, for another requester.
    fn closed(&mut self, qpn: u32) {
        let _ = qpn;
    }
}

/// An `async fn(Context) -> Result<(), CallStatus>` as a program. Its futures are pinned once and
/// reset in place.
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
    /// The program whose invocations `make` makes.
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
    pub(super) opcode: u64,
    pub(super) deployment: Deployment,
    pub(super) code: Box<dyn Program>,
    pub(super) calls: u64,
    pub(super) failed: u64,
    pub(super) running: u32,
    /// Replaced: ends with its last invocation.
    pub(super) retired: bool,
}

impl Deployed {
    pub(super) fn info(&self) -> KernelInfo {
        let Deployment { name, grants, budget } = &self.deployment;
        KernelInfo {
            opcode: self.opcode,
            name: name.clone(),
            grants: grants.clone(),
            budget: *budget,
            calls: self.calls,
            failed: self.failed,
            running: self.running,
        }
    }
}

impl core::fmt::Debug for Deployed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.info().fmt(f)
    }
}
