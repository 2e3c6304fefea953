//! Kernels: code on the data path between the transport and memory (StRoM §5).
//!
//! The card knows how a kernel is invoked and how its results travel; what kernels there are, and
//! how they are run, is the business of the implementation of [`Kernels`]. The responder calls it
//! with payload as it arrives, in order and without a copy; [`KernelIo`] is what it may do in
//! return: reach memory, and send RDMA WRITEs on a queue pair. Those are messages of the queue
//! pair like any others, with PSNs, retries and acknowledges (§5.1); they only come from a queue
//! on the card instead of from the host's ring, and end in [`Kernels::sent`] instead of in a
//! completion.
//!
//! Nothing here is unbounded: what has no room is refused with an RNR NAK, the flow control that
//! reliable connections have anyway.

mod call;
mod io;
mod message;
mod runner;
mod state;
mod writer;

pub use crate::buffer::{Buffer, Draft};
pub use call::{
    BadHeader, Call, CallStatus, HEADER_LEN, Header, Notify, STATUS_WORD_LEN, StatusWord,
};
pub use io::{KernelIo, Reply, WriteOut};
pub use message::Payload;
pub(crate) use message::{Posted, Then, WORD_TOKEN};
pub(crate) use runner::Runner;
pub(crate) use state::KernelState;
pub use writer::Writer;

use core::any::Any;
use core::fmt;

use crate::memory::key::{Key, Pd};
use crate::queue::Status;
use crate::time::Time;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// All of it was taken (or nobody wants the rest of the payload).
    Done,
    /// The rest of the payload is to go to this invocation, by [`Kernels::data`].
    Wants(u32),
    /// No kernel is deployed for the op-code: the card writes the error code back.
    NoKernel,
    /// No room for another invocation: the requester is told to wait.
    Busy,
}

/// There is no room now: the packet is refused with an RNR NAK, and will come again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// A payload on its way through a bound kernel (StRoM §3.4: a bump in the wire).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passing {
    /// The queue pair of ours.
    pub qpn: u32,
    /// Its protection domain.
    pub pd: Pd,
    /// Where this payload is to go: the peer's address of it when sending.
    pub addr: u64,
    /// The key that opens the target.
    pub key: Key,
    /// Bytes of the message before this payload.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// Sent before, and now sent again (sending only).
    pub again: bool,
}

impl Passing {
    /// Does the message end with a payload of `len` bytes here?
    pub fn ends(&self, len: usize) -> bool {
        u64::from(self.offset) + len as u64 == u64::from(self.total)
    }
}

/// What is to become of a payload that a receive kernel has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Written where it was to go.
    Pass,
    /// What the kernel has put into `replaced` is written there instead; its length may be less.
    Replace,
    /// Written nowhere: the kernel has placed it, or nobody wants it.
    Take,
    /// No room: the packet is refused with an RNR NAK, and will come again.
    Busy,
}

/// Runs kernels for a card: see the module documentation.
///
/// All calls are bounded in time by their arguments, or by a budget of the implementation's.
pub trait Kernels: Any + Send + fmt::Debug {
    /// An RPC, or the first packet of an RPC WRITE. `params` are the parameters behind the
    /// header; `data` is what payload came with them, and `more` says how many bytes of it are
    /// still to come.
    fn call(
        &mut self,
        io: &mut KernelIo<'_>,
        call: &Call,
        params: &[u8],
        data: &[u8],
        more: u32,
    ) -> Taken;

    /// More payload for an invocation; with `last`, no more will come.
    fn data(
        &mut self,
        io: &mut KernelIo<'_>,
        invocation: u32,
        bytes: &[u8],
        last: bool,
    ) -> Result<(), Busy>;

    /// Goes on with invocations that have more to do: called when [`Kernels::due`] says so.
    fn turn(&mut self, io: &mut KernelIo<'_>);

    /// When a turn is wanted: [`Time::ZERO`] at once, [`Time::NEVER`] not until something happens.
    fn due(&self) -> Time;

    /// A message that [`KernelIo::write_out`] posted with this token is done; the buffer may be
    /// used again (as soon as no batch refers to it).
    fn sent(&mut self, token: u64, status: Status, buffer: Option<Buffer>);

    /// A queue pair is gone, or in the error state: its invocations end.
    fn closed(&mut self, qpn: u32);

    /// A WRITE's payload passes the kernel that is bound as `tap`, for the first and only time.
    fn receiving(
        &mut self,
        io: &mut KernelIo<'_>,
        tap: u32,
        passing: &Passing,
        bytes: &[u8],
        replaced: &mut Vec<u8>,
    ) -> Verdict {
        let _ = (io, tap, passing, bytes, replaced);
        Verdict::Pass
    }

    /// A WRITE's payload leaves through the kernel that is bound as `tap`, which may change the
    /// bytes: again the same way, if [`Passing::again`].
    fn sending(&mut self, tap: u32, passing: &Passing, bytes: &mut [u8]) {
        let _ = (tap, passing, bytes);
    }
}

/// What a kernel is bound to: see [`crate::Nic::bind_kernel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bound {
    /// Payload of WRITEs that a queue pair receives.
    Receive(u32),
    /// Payload of WRITEs that a queue pair sends.
    Send(u32),
    /// Payload of WRITEs into a region.
    Region(Key),
}
