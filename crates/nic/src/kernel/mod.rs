//! Kernels: code on the data path between the transport and memory (StRoM §5).
//!
//! The card knows how a kernel is invoked and how its results travel; what kernels there are, and
//! how they are run, is the business of whoever implements [`Kernels`]. The responder calls it
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
mod writer;

pub use crate::buffer::{Buffer, Draft};
pub use call::{
    BadHeader, Call, CallStatus, HEADER_LEN, Header, Notify, STATUS_WORD_LEN, StatusWord,
};
pub use io::{KernelIo, Reply, WriteOut};
pub use writer::Writer;

use core::any::Any;
use core::fmt;
use std::collections::VecDeque;

use crate::memory::key::{Key, Pd};
use crate::queue::Status;
use crate::time::Time;

/// What a kernel sends.
#[derive(Clone, Debug, Default)]
pub enum Payload {
    /// Nothing.
    #[default]
    None,
    /// Registered memory, by reference: what it holds when the packet is made.
    Memory {
        /// A key of the invocation's protection domain.
        key: Key,
        /// Address within the region.
        addr: u64,
        /// Bytes.
        len: u32,
    },
    /// The first `len` bytes of a buffer.
    Buffer {
        /// The bytes.
        buffer: Buffer,
        /// How many of them.
        len: u32,
    },
}

impl Payload {
    /// Bytes.
    pub fn len(&self) -> u32 {
        match self {
            Payload::None => 0,
            Payload::Memory { len, .. } | Payload::Buffer { len, .. } => *len,
        }
    }

    /// Is there nothing?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the buffer out, if there is one; nothing is left then.
    pub(crate) fn take_buffer(&mut self) -> Option<Buffer> {
        matches!(self, Payload::Buffer { .. }).then(|| core::mem::take(self).into_buffer())?
    }

    /// The buffer, to be used again.
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Payload::Buffer { buffer, .. } => Some(buffer),
            _ => None,
        }
    }
}

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

/// A message that a kernel has posted and that has no PSN yet.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) qpn: u32,
    pub(crate) pd: Pd,
    pub(crate) to: crate::queue::Remote,
    pub(crate) data: Payload,
    pub(crate) then: Then,
    pub(crate) token: u64,
}

/// What follows the data of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Then {
    Nothing,
    Immediate { cookie: u64, status: CallStatus },
    Word { at: crate::queue::Remote, word: StatusWord },
}

/// The token of messages that nobody asks about.
pub(crate) const NO_TOKEN: u64 = u64::MAX;
/// The token of a status word: its buffer is the card's.
pub(crate) const WORD_TOKEN: u64 = u64::MAX - 1;

/// The card's part of kernels.
#[derive(Debug)]
pub(crate) struct KernelState {
    pub(crate) kernels: Option<Box<dyn Kernels>>,
    /// When they want a turn, as they said last: asked after every packet, mostly in vain.
    due: Time,
    /// Posted, and not yet handed to its queue pair.
    pub(crate) posted: VecDeque<Posted>,
    /// Posted and not yet acknowledged, those of `posted` included.
    pub(crate) in_flight: usize,
    /// Buffers of messages that have PSNs.
    pub(crate) buffers: Buffers,
    /// Buffers for status words.
    pub(crate) words: Vec<Buffer>,
    /// Bindings there are: none is the usual case, and costs nothing.
    pub(crate) taps: u32,
    /// What a receive kernel wants written instead.
    pub(crate) replaced: Vec<u8>,
    /// Buffers to be used again.
    pub(crate) returned: Vec<Buffer>,
}

impl KernelState {
    pub(crate) fn new() -> KernelState {
        KernelState {
            kernels: None,
            due: Time::NEVER,
            posted: VecDeque::new(),
            in_flight: 0,
            buffers: Buffers::default(),
            words: Vec::new(),
            taps: 0,
            replaced: Vec::new(),
            returned: Vec::new(),
        }
    }

    /// When kernels want a turn.
    #[inline]
    pub(crate) fn due(&self) -> Time {
        self.due
    }

    /// Asks the kernels when they want a turn: something has happened to them.
    pub(crate) fn ask_due(&mut self) {
        self.due = self.kernels.as_ref().map_or(Time::NEVER, |kernels| kernels.due());
    }

    /// A message is done, or was never begun.
    pub(crate) fn ended(&mut self, token: u64, status: Status, buffer: Option<Buffer>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        let mut buffer = buffer;
        if token == WORD_TOKEN {
            self.words.extend(buffer.take());
        }
        // Of a status word too: there is room for another message.
        if let Some(kernels) = &mut self.kernels {
            kernels.sent(token, status, buffer);
            self.ask_due();
        }
    }

    /// A buffer with a status word in it.
    pub(crate) fn word(&mut self, word: &StatusWord) -> Buffer {
        let bytes = word.to_bytes();
        // One that a batch still refers to is left to that batch.
        let mut kept = self.words.pop().unwrap_or_default();
        match Buffer::get_mut(&mut kept) {
            Some(old) => {
                old.clear();
                old.extend_from_slice(&bytes);
                kept
            }
            None => Buffer::new(bytes.to_vec()),
        }
    }

    /// A queue pair is gone or fails: so are its invocations, and what they posted.
    pub(crate) fn closed(&mut self, qpn: u32) {
        if let Some(kernels) = &mut self.kernels {
            kernels.closed(qpn);
            self.ask_due();
        }
        let mut i = 0;
        while i < self.posted.len() {
            if self.posted[i].qpn != qpn {
                i += 1;
            } else if let Some(post) = self.posted.remove(i) {
                self.ended(post.token, Status::Flushed, post.data.into_buffer());
            }
        }
    }
}

/// Buffers by number, so that what refers to one stays small.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    slots: Vec<Option<Buffer>>,
    free: Vec<u32>,
}

impl Buffers {
    pub(crate) fn keep(&mut self, buffer: Buffer) -> u32 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[at as usize] = Some(buffer);
        at
    }

    pub(crate) fn get(&self, at: u32) -> Option<&Buffer> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub(crate) fn release(&mut self, at: u32) -> Option<Buffer> {
        let buffer = self.slots.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(buffer)
    }
}
