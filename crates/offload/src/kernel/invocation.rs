//! An invocation: what the card keeps of a call while its kernel runs.

use remora_nic::kernel::{Buffer, Call, Draft, KernelIo, Payload, WriteOut};
use remora_nic::queue::Remote;
use remora_nic::{Key, Pd, Time};

use super::CallStatus;

/// Bytes of results that leave as one WRITE: enough to be efficient, few enough to share.
pub(super) const CHUNK: usize = 64 << 10;
/// Messages of one invocation in flight.
pub(super) const SENDS: u32 = 8;
/// Payload that waits for a kernel that is busy with something else.
pub(super) const STAGE: usize = 64 << 10;
/// The longest object that is kept on the card whole.
pub(super) const OBJECT_MAX: usize = 1 << 20;

/// What an invocation waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Nothing: it is running, or its turn is over.
    Turn,
    /// Memory, until then.
    Until(Time),
    /// Payload.
    Payload,
    /// Room to send.
    Room,
    /// The host's fallback.
    Host,
}

/// A place for an invocation.
pub(super) struct Invocation {
    pub(super) generation: u16,
    pub(super) live: bool,
    pub(super) call: Call,
    /// Which deployed kernel, and its number for the invocation, while that is not over.
    pub(super) program: u32,
    pub(super) cell: Option<u32>,
    pub(super) params: Vec<u8>,
    /// Payload that came and was not taken yet.
    pub(super) staged: Vec<u8>,
    /// No more payload will come.
    pub(super) ended: bool,
    /// Results that were not sent yet: at most one of the two.
    pub(super) out: Option<Draft>,
    pub(super) held: Option<(Key, u64, u32)>,
    /// Bytes of results sent.
    pub(super) written: u32,
    pub(super) in_flight: u32,
    /// Steps left.
    pub(super) left: u64,
    pub(super) wait: Wait,
    /// It stands in the queue of those to be run.
    pub(super) queued: bool,
    /// The grant that was used last.
    pub(super) hint: usize,
    /// A message of it could not be sent.
    pub(super) broken: bool,
    /// Since it waits for room: until when it may, and what it had sent before.
    pub(super) room_by: Option<(Time, u32)>,
    /// Bytes of payload that came.
    pub(super) received: u64,
    /// When it is next seen to whether payload still comes, and what had come before.
    pub(super) payload_by: Option<(Time, u64)>,
    /// It may be undone: nothing is to leave the card yet.
    pub(super) trial: bool,
}

impl Invocation {
    pub(super) fn new(call: Call) -> Invocation {
        Invocation {
            generation: 0,
            live: false,
            call,
            program: 0,
            cell: None,
            params: Vec::new(),
            staged: Vec::new(),
            ended: false,
            out: None,
            held: None,
            written: 0,
            in_flight: 0,
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
        (self.out, self.held) = (None, None);
        (self.written, self.in_flight, self.left) = (0, 0, budget);
        (self.wait, self.queued, self.hint, self.broken) = (Wait::Turn, false, 0, false);
        (self.room_by, self.received, self.payload_by) = (None, 0, None);
        self.trial = false;
    }

    /// It waits for payload: its kernel does, or the host, which is told when all has come.
    pub(super) fn wants_payload(&self) -> bool {
        self.wait == Wait::Payload || self.wait == Wait::Host && !self.ended
    }

    /// Bytes of results so far.
    pub(super) fn len(&self) -> usize {
        let held = self.held.map_or(0, |(.., len)| len as usize);
        self.written as usize + held + self.out.as_ref().map_or(0, |out| out.len())
    }

    /// Do the results, and `more` bytes, fit the requester's buffer?
    pub(super) fn fits(&self, more: usize) -> Result<(), CallStatus> {
        let fits = self.len().saturating_add(more) <= self.call.header.max_len as usize;
        if fits { Ok(()) } else { Err(CallStatus::TOO_LONG) }
    }

    /// What was not sent yet.
    pub(super) fn take_rest(&mut self) -> Payload {
        if let Some((key, addr, len)) = self.held.take() {
            return Payload::Memory { key, addr, len };
        }
        match self.out.take() {
            Some(bytes) if !bytes.is_empty() => {
                let len = bytes.len() as u32;
                Payload::Buffer { buffer: bytes.shareable(), len }
            }
            empty => {
                self.out = empty;
                Payload::None
            }
        }
    }
}

impl core::fmt::Debug for Invocation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Invocation")
            .field("call", &self.call)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// Buffers for results, a bounded amount of bytes.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<Buffer>,
    /// Bytes given out.
    out: usize,
    limit: usize,
}

impl Pool {
    pub(super) fn new(limit: usize) -> Pool {
        Pool { free: Vec::new(), out: 0, limit }
    }

    /// What a buffer counts that will hold, or held, so many bytes: results in the making may grow
    /// past a chunk by what one step adds.
    fn cost(len: usize) -> usize {
        if len <= 2 * CHUNK { CHUNK } else { len }
    }

    /// An empty buffer that will take `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<Draft> {
        let size = Pool::cost(len);
        if self.out + size > self.limit {
            return None;
        }
        self.out += size;
        while let Some(buffer) = self.free.pop() {
            // One that a batch of packets still refers to is left to that batch.
            if let Ok(mut bytes) = Buffer::try_unique(buffer) {
                bytes.clear();
                return Some(bytes);
            }
        }
        Some(Draft::new(Vec::new()))
    }

    /// Takes a buffer back.
    pub(super) fn put(&mut self, buffer: Buffer) {
        self.out = self.out.saturating_sub(Pool::cost(buffer.len()));
        // Few are needed at once as a rule; a long one would keep its memory for ever.
        if self.free.len() < 64 && buffer.capacity() <= 4 * CHUNK {
            self.free.push(buffer);
        }
    }
}

/// Sends what an invocation has held back; `false` if there is no room for it now.
pub(super) fn flush(invocation: &mut Invocation, id: u32, io: &mut KernelIo<'_>) -> bool {
    if invocation.held.is_none() && invocation.out.as_ref().is_none_or(|out| out.is_empty()) {
        return true;
    }
    if invocation.in_flight >= SENDS || !io.has_room(1) || invocation.call.header.local {
        return false;
    }
    let data = invocation.take_rest();
    let len = data.len();
    let Remote { addr, rkey } = invocation.call.header.to;
    let to = Remote { addr: addr.wrapping_add(invocation.written.into()), rkey };
    let (qpn, pd): (u32, Pd) = (invocation.call.qpn, invocation.call.pd);
    let sent = io.write_out(WriteOut { qpn, pd, to, data, token: id.into() });
    if sent.is_ok() {
        invocation.in_flight += 1;
        invocation.written += len;
    } else {
        // There was room a moment ago, so this cannot be; if it is, the requester hears of it.
        invocation.broken = true;
    }
    true
}
