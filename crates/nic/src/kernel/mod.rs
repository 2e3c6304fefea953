//! Kernels: code on the data path between the transport and memory (StRoM §5).
//!
//! The card knows how a kernel is invoked and how its results are sent. Which kernels there are,
//! and how they are run, is up to the implementation of [`Kernels`]: that of the crate
//! `remora-offload` has the op-codes and the budgets. The responder calls it with payload as it
//! arrives, in order and without a copy. Through [`KernelIo`] the implementation can reach memory
//! and send RDMA WRITEs on a queue pair. These are messages of the queue pair like all others, with
//! PSNs, retries and acknowledges (StRoM §5.1). Two things differ: they come from a queue on the
//! card instead of the host's ring, and their end is reported by [`Kernels::sent`] instead of a
//! completion.
//!
//! Everything here has a limit. A packet for which there is no room is refused with an RNR NAK, the
//! flow control of reliable connections.
//!
//! - `call`: the header of a call, and the status word. `message`: messages that kernels send.
//! - `io`: what a kernel may do on the card ([`KernelIo`]); `writer`: many small writes in a row.
//! - `runner`: holds the implementation and calls it; `state`: the card's state of messages and
//!   bindings.
//! - The queue pair's side is `qp/kernel.rs`; the commands are `nic/kernels.rs`.

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

/// The answer to a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// All of the call was taken, or the rest of its payload is not wanted.
    Done,
    /// The rest of the payload is for this invocation, by [`Kernels::data`].
    Wants(u32),
    /// No kernel is deployed for the op-code: the card writes the error code back.
    NoKernel,
    /// There is no room for another invocation: the requester is told to wait.
    Busy,
}

/// There is no room now: the packet is refused with an RNR NAK, and comes again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// A payload on its way through a bound kernel (StRoM §3.4: a bump in the wire).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passing {
    /// The number of this card's queue pair.
    pub qpn: u32,
    /// The queue pair's protection domain.
    pub pd: Pd,
    /// The address that this payload is written to: at the peer, if it is being sent.
    pub addr: u64,
    /// The key that opens the target.
    pub key: Key,
    /// Bytes of the message before this payload.
    pub offset: u32,
    /// Bytes of the whole message.
    pub total: u32,
    /// The payload was sent before, and is now sent again (sending only).
    pub again: bool,
}

impl Passing {
    /// Does the message end with a payload of `len` bytes here?
    pub fn ends(&self, len: usize) -> bool {
        u64::from(self.offset) + len as u64 == u64::from(self.total)
    }
}

/// What happens to a payload that a bound kernel has seen on arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The payload is written to its address.
    Pass,
    /// The bytes in `replaced` are written there instead. They may be fewer.
    Replace,
    /// Nothing is written: the kernel has placed the payload elsewhere, or dropped it.
    Take,
    /// There is no room: the packet is refused with an RNR NAK, and comes again.
    Busy,
}

/// Runs kernels for a card: see the module documentation.
///
/// The time that a call takes must be limited by its arguments or by a budget of the
/// implementation's. Where several clients share the card, it is paid for: see [`KernelIo::pay`]
/// and [`KernelIo::comes_later`].
pub trait Kernels: Any + Send + fmt::Debug {
    /// Takes an RPC, or the first packet of an RPC WRITE. `params` are the parameters behind the
    /// header, `data` is the payload that came with them, and `more` says how many bytes of payload
    /// are still to come.
    fn call(
        &mut self,
        io: &mut KernelIo<'_>,
        call: &Call,
        params: &[u8],
        data: &[u8],
        more: u32,
    ) -> Taken;

    /// Takes more payload for an invocation. After `last` no more comes.
    fn data(
        &mut self,
        io: &mut KernelIo<'_>,
        invocation: u32,
        bytes: &[u8],
        last: bool,
    ) -> Result<(), Busy>;

    /// Continues invocations that have more to do. The card calls it when [`Kernels::due`] says so.
    fn turn(&mut self, io: &mut KernelIo<'_>);

    /// When a turn is wanted: [`Time::ZERO`] at once, [`Time::NEVER`] not before another call.
    fn due(&self) -> Time;

    /// Reports that a message that [`KernelIo::write_out`] or [`KernelIo::reply`] posted with this
    /// token has ended. The buffer may be used again as soon as no batch refers to it.
    fn sent(&mut self, token: u64, status: Status, buffer: Option<Buffer>);

    /// Reports that a queue pair is gone, or in the error state: its invocations end.
    fn closed(&mut self, qpn: u32);

    /// Passes a WRITE's payload that has arrived to the kernel that is bound as `tap`. Each byte
    /// passes once.
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

    /// Passes a WRITE's payload that leaves to the kernel that is bound as `tap`, which may change
    /// the bytes. If [`Passing::again`], it must change them in the same way as before.
    fn sending(&mut self, tap: u32, passing: &Passing, bytes: &mut [u8]) {
        let _ = (tap, passing, bytes);
    }
}

/// What a kernel is bound to: see [`crate::Nic::bind_kernel`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Bound {
    /// Payload of WRITEs that a queue pair receives.
    Receive(u32),
    /// Payload of WRITEs that a queue pair sends.
    Send(u32),
    /// Payload of WRITEs into a region, by its key or that of a window of it.
    Region(Key),
}
