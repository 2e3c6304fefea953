//! An invocation: what the card keeps of a call while its kernel runs. (`executor` begins and ends
//! it.)

use remora_nic::kernel::{Call, KernelIo, Payload, WriteOut};
use remora_nic::queue::RemoteAddress;
use remora_nic::{Key, Pd, Time};

use super::CallStatus;
use super::pool::{Pool, Room};

/// The most messages of one invocation in flight.
pub(super) const SENDS: u32 = 8;
/// The most bytes of payload that wait for a busy kernel.
pub(super) const STAGE: usize = 64 << 10;
/// The most bytes of an object that the card keeps whole.
pub const OBJECT_MAX: usize = 1 << 20;

/// In place of an invocation's number: there is none.
pub(super) const NOBODY: u32 = u32::MAX;

/// What comes back when a message has ended: whose its buffer is, and the number of the invocation
/// that hears of it.
pub(super) fn token(account: u32, id: u32) -> u64 {
    u64::from(account) << 32 | u64::from(id)
}

/// What an invocation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Nothing: it runs, or waits for its next turn.
    Turn,
    /// Memory, until this time.
    Until(Time),
    /// Payload.
    Payload,
    /// Room to send.
    Room,
    /// The host's answer to a call without a kernel.
    Host,
}

/// A place for an invocation; `live` says whether it is in use.
pub(super) struct Invocation {
    pub(super) generation: u16,
    pub(super) live: bool,
    pub(super) call: Call,
    /// Whose its buffers are.
    pub(super) account: u32,
    /// The deployed kernel. `cell` is the kernel's number for the invocation while it runs.
    pub(super) program: u32,
    pub(super) cell: Option<u32>,
    pub(super) params: Vec<u8>,
    /// Payload that has arrived and that the kernel has not taken.
    pub(super) staged: Vec<u8>,
    /// All payload has arrived.
    pub(super) ended: bool,
    /// Results that were not sent yet: bytes in `out` or granted memory in `held`, never both.
    pub(super) out: Option<Room>,
    pub(super) held: Option<(Key, u64, u32)>,
    /// Bytes that its kernel keeps beside results: see [`super::Context::keep`].
    pub(super) kept: usize,
    /// Bytes of results that were sent.
    pub(super) written: u32,
    /// Messages that were sent and not acknowledged yet.
    pub(super) in_flight: u32,
    /// How often one was sent, or acknowledged, or a buffer for one came.
    pub(super) progress: u32,
    /// Steps left in the budget.
    pub(super) left: u64,
    pub(super) wait: Wait,
    /// The invocation is in the queue of those that can run.
    pub(super) queued: bool,
    /// The index of the grant that was used last.
    pub(super) hint: usize,
    /// A message of the invocation could not be sent.
    pub(super) broken: bool,
    /// The time of the next check that it gets room, and `progress` at the last one.
    pub(super) room_by: Option<(Time, u32)>,
    /// Bytes of payload that have arrived.
    pub(super) received: u64,
    /// The time of the next check that payload still arrives, and `received` at the last one.
    pub(super) payload_by: Option<(Time, u64)>,
    /// The invocation may be undone, so nothing may leave the card yet.
    pub(super) trial: bool,
}

impl Invocation {
    pub(super) fn new(call: Call) -> Invocation {
        Invocation {
            generation: 0,
            live: false,
            call,
            account: 0,
            program: 0,
            cell: None,
            params: Vec::new(),
            staged: Vec::new(),
            ended: false,
            out: None,
            held: None,
            kept: 0,
            written: 0,
            in_flight: 0,
            progress: 0,
            left: 0,
            wait: Wait::Turn,
            queued: false,
            hint: 0,
            broken: false,
            room_by: None,
            received: 0,
            payload_by: None,
            trial: false,
        }
    }

    pub(super) fn begin(&mut self, call: &Call, params: &[u8], ended: bool, budget: u64) {
        self.live = true;
        self.call = *call;
        self.params.clear();
        self.params.extend_from_slice(params);
        self.staged.clear();
        self.ended = ended;
        (self.out, self.held, self.kept) = (None, None, 0);
        (self.written, self.in_flight, self.progress, self.left) = (0, 0, 0, budget);
        (self.wait, self.queued, self.hint, self.broken) = (Wait::Turn, false, 0, false);
        (self.room_by, self.received, self.payload_by) = (None, 0, None);
        self.trial = false;
    }

    /// Notes that a message was sent.
    pub(super) fn has_sent(&mut self) {
        self.in_flight += 1;
        self.progress = self.progress.wrapping_add(1);
    }

    /// Notes that a message was acknowledged, or will never be.
    pub(super) fn has_arrived(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.progress = self.progress.wrapping_add(1);
    }

    /// Notes that a buffer for results has come.
    pub(super) fn has_buffer(&mut self) {
        self.progress = self.progress.wrapping_add(1);
    }

    /// Whether its kernel waits for payload, or it is a call for the host that is not complete.
    pub(super) fn wants_payload(&self) -> bool {
        self.wait == Wait::Payload || self.wait == Wait::Host && !self.ended
    }

    /// Bytes of results so far.
    pub(super) fn len(&self) -> usize {
        let held = self.held.map_or(0, |(.., len)| len as usize);
        self.written as usize + held + self.out.as_ref().map_or(0, |out| out.len())
    }

    /// Refuses results of which a message could not be sent.
    pub(super) fn is_whole(&self) -> Result<(), CallStatus> {
        if self.broken { Err(CallStatus::ACCESS) } else { Ok(()) }
    }

    /// Refuses results that, with `more` bytes, do not fit the requester's buffer.
    pub(super) fn fits(&self, more: usize) -> Result<(), CallStatus> {
        let fits = self.len().saturating_add(more) <= self.call.header.max_len as usize;
        if fits { Ok(()) } else { Err(CallStatus::TOO_LONG) }
    }

    /// Drops the results that were copied and not sent yet.
    pub(super) fn drop_out(&mut self, buffers: &mut Pool) {
        if let Some(out) = self.out.take() {
            buffers.drop_room(out);
        }
    }

    /// Takes the results that were not sent yet.
    pub(super) fn take_rest(&mut self, buffers: &mut Pool) -> Payload {
        if let Some((key, addr, len)) = self.held.take() {
            return Payload::Memory { key, addr, len };
        }
        match self.out.take() {
            Some(bytes) if !bytes.is_empty() => {
                let len = bytes.len() as u32;
                Payload::Buffer { buffer: buffers.close(bytes), len }
            }
            empty => {
                self.out = empty;
                Payload::None
            }
        }
    }
}

/// The place of the invocation that a number stands for, if it has not ended.
#[inline]
pub(super) fn find(invocations: &[Invocation], id: u32) -> Option<u32> {
    let index = id & 0xFFFF;
    let invocation = invocations.get(index as usize)?;
    (invocation.live && u32::from(invocation.generation) == id >> 16).then_some(index)
}

impl core::fmt::Debug for Invocation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Invocation")
            .field("call", &self.call)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Sends the results that an invocation has held back; `false` if there is no room now.
pub(super) fn flush(
    invocation: &mut Invocation,
    id: u32,
    io: &mut KernelIo<'_>,
    buffers: &mut Pool,
) -> bool {
    if invocation.held.is_none() && invocation.out.as_ref().is_none_or(|out| out.is_empty()) {
        return true;
    }
    // Others may have all messages of the card, so an invocation may always have one under way.
    let has_room = invocation.in_flight == 0 || invocation.in_flight < SENDS && io.has_room(1);
    if !has_room || invocation.call.header.local {
        return false;
    }
    let data = invocation.take_rest(buffers);
    let len = data.len();
    let RemoteAddress { addr, rkey } = invocation.call.header.to;
    let to = RemoteAddress { addr: addr.wrapping_add(invocation.written.into()), rkey };
    let (qpn, pd): (u32, Pd) = (invocation.call.qpn, invocation.call.pd);
    io.write_out(WriteOut { qpn, pd, to, data, token: token(invocation.account, id) });
    invocation.has_sent();
    invocation.written += len;
    true
}
