//! [`KernelIo`]: what a kernel may do on the card. It may reach memory and send.

use super::Passing;
use super::call::{Call, CallStatus, Notify, StatusWord};
use super::message::{NO_TOKEN, Payload, Posted, Then};
use super::writer::Writer;
use crate::buffer::Buffer;
use crate::card::Card;
use crate::counters::Counters;
use crate::memory::key::{Access, AccessError, Key, Pd, Scope};
use crate::memory::{Memory, MemoryFault};
use crate::queue::RemoteAddress;
use crate::time::Time;
use crate::transmit::Segment;

/// The card and its memory, lent to [`super::Kernels`] for one call.
///
/// Every access names a key and a protection domain and is checked when it is made: the key of a
/// region that was deregistered meanwhile opens nothing.
pub struct KernelIo<'a> {
    pub(crate) now: Time,
    pub(crate) mem: &'a mut dyn Memory,
    pub(crate) card: &'a mut Card,
}

/// A WRITE on a kernel's behalf.
#[derive(Clone, Debug)]
pub struct WriteOut {
    /// The queue pair that sends it.
    pub qpn: u32,
    /// The protection domain that the queue pair must belong to.
    pub pd: Pd,
    /// The target at the peer.
    pub to: RemoteAddress,
    /// The bytes to write.
    pub data: Payload,
    /// A number that comes back in [`super::Kernels::sent`]. The two highest are reserved for the
    /// card.
    pub token: u64,
}

/// The end of an invocation, with the last of its results.
#[derive(Clone, Debug)]
pub struct Reply {
    /// How the invocation ended.
    pub status: CallStatus,
    /// Where in the buffer for results `data` goes: how many bytes were written before.
    pub offset: u32,
    /// The results that are still to be written. The caller must have checked that they fit, and
    /// that those of a local call, which are copied at once, are not long.
    pub data: Payload,
    /// A number that comes back in [`super::Kernels::sent`], as that of a WRITE does.
    pub token: u64,
    /// The token of the WRITEs that bring the results before them. If one of these must be dropped
    /// because its memory is gone, the requester is told [`CallStatus::ACCESS`].
    pub parts: Option<u64>,
}

impl Reply {
    /// The end of an invocation that has no results.
    pub(crate) fn failure(status: CallStatus) -> Reply {
        Reply { status, offset: 0, data: Payload::None, token: NO_TOKEN, parts: None }
    }
}

impl KernelIo<'_> {
    /// The time of the call.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The card's counters.
    pub fn counters(&mut self) -> &mut Counters {
        &mut self.card.counters
    }

    /// Are turns on the card paid for, as where several clients share it?
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.card.scheduler.is_shared()
    }

    /// Has a client of the card pay for so many steps of its kernels: its queue pairs and kernels
    /// wait as if it had sent so much.
    #[inline]
    pub fn pay(&mut self, client: u16, steps: u64) {
        self.card.scheduler.charge_steps(client, steps);
    }

    /// How much of the card a client has had, among those that want it: who has had least comes
    /// first.
    pub fn had(&self, client: u16) -> u128 {
        self.card.scheduler.clock(client)
    }

    /// Do others' turns come before those of a client's kernels? Then its kernels are to wait, and
    /// have another turn when some of those are over.
    #[inline]
    pub fn comes_later(&mut self, client: u16) -> bool {
        let later = self.card.scheduler.comes_later(client);
        self.card.kernel.held |= later;
        later
    }

    /// A region's first address and length, if the key names one in this protection domain.
    pub fn region(&self, key: Key, pd: Pd) -> Option<(u64, u64)> {
        self.card.regions.range(key, pd)
    }

    /// May `len` bytes at `addr` be used through `key` in the way `need` says?
    ///
    /// # Errors
    /// [`AccessError::Key`] if the key opens nothing, [`AccessError::Domain`] if it is of another
    /// protection domain or of a window of type 2, [`AccessError::Bounds`] if the range is not
    /// inside what it opens, [`AccessError::Permission`] if it does not permit `need`.
    pub fn check(
        &self,
        (key, pd): (Key, Pd),
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), AccessError> {
        self.card.regions.check(key, Scope::card(pd), addr, len, need)
    }

    /// Reads memory.
    ///
    /// # Errors
    /// As [`KernelIo::check`] with an empty `need`; [`AccessError::Bounds`] also for 2^32 bytes or
    /// more; [`AccessError::Memory`] if the memory cannot be reached.
    #[inline]
    pub fn read(&mut self, from: (Key, Pd), addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        let mut rest = dst;
        self.pieces(from, addr, rest.len(), |mem, piece| {
            let (now, later) = core::mem::take(&mut rest).split_at_mut(piece.len as usize);
            rest = later;
            if piece.addr == Segment::NOWHERE {
                now.fill(0);
                return Ok(());
            }
            mem.read(piece.addr, now)
        })
    }

    /// Appends `len` bytes to `out`.
    ///
    /// # Errors
    /// As [`KernelIo::read`]; `out` stays unchanged then.
    #[inline]
    pub fn append(
        &mut self,
        from: (Key, Pd),
        addr: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), AccessError> {
        let before = out.len();
        let read = self.pieces(from, addr, len, |mem, piece| {
            if piece.addr == Segment::NOWHERE {
                out.resize(out.len() + piece.len as usize, 0);
                return Ok(());
            }
            mem.append(piece.addr, piece.len as usize, out)
        });
        if read.is_err() {
            out.truncate(before);
        }
        read
    }

    /// Calls `each` with the pieces of memory that `len` bytes lie in, up to the first that cannot
    /// be reached.
    #[inline]
    fn pieces(
        &mut self,
        (key, pd): (Key, Pd),
        addr: u64,
        len: usize,
        mut act: impl FnMut(&mut dyn Memory, Segment) -> Result<(), MemoryFault>,
    ) -> Result<(), AccessError> {
        let (mut result, need) = (Ok(()), Access::empty());
        let len = u32::try_from(len).map_err(|_| AccessError::Bounds)?;
        let mem = &mut *self.mem;
        self.card.regions.translate(key, Scope::card(pd), addr, len, need, |piece| {
            if result.is_ok() {
                result = act(mem, piece).map_err(|_| AccessError::Memory);
            }
        })?;
        result
    }

    /// Writes memory that the card may write for its own host (`LOCAL_WRITE`).
    ///
    /// # Errors
    /// As [`KernelIo::check`] with a `need` of [`Access::LOCAL_WRITE`]; [`AccessError::Memory`] if
    /// the memory cannot be reached.
    #[inline]
    pub fn write(
        &mut self,
        (key, pd): (Key, Pd),
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let key = (key, Scope::card(pd));
        self.card.regions.write(self.mem, key, addr, src, Access::LOCAL_WRITE)
    }

    /// Writes memory that the peer of a passing WRITE may write with its key, which may be a
    /// window's.
    ///
    /// # Errors
    /// As [`KernelIo::write`], with a `need` of [`Access::REMOTE_WRITE`].
    pub fn write_for_peer(
        &mut self,
        passing: &Passing,
        addr: u64,
        src: &[u8],
    ) -> Result<(), AccessError> {
        let key = (passing.key, Scope { pd: passing.pd, qpn: passing.qpn });
        self.card.regions.write(self.mem, key, addr, src, Access::REMOTE_WRITE)
    }

    /// A writer for many small writes in a row in a protection domain. It is fastest for those
    /// through `keys`.
    pub fn writer(&mut self, pd: Pd, keys: impl Iterator<Item = Key>) -> Writer<'_> {
        Writer::new(&self.card.regions, &mut *self.mem, pd, keys)
    }

    /// Does the card have room for `messages` more messages of kernels?
    pub fn has_room(&self, messages: usize) -> bool {
        messages <= self.card.kernel_sends_left()
    }

    /// Sends a WRITE. The caller has found that there is room ([`KernelIo::has_room`]), or answers
    /// a call and has no other WRITE of it under way.
    pub fn write_out(&mut self, write: WriteOut) {
        let WriteOut { qpn, pd, to, data, token } = write;
        self.post(Posted { qpn, pd, to, data, then: Then::Nothing, token, parts: None });
    }

    /// Ends an invocation: sends the last of its results, and tells the requester. There is always
    /// room for this message: no call is taken while there is none, and the implementation of the
    /// kernels limits their invocations.
    pub fn reply(&mut self, call: &Call, reply: Reply) {
        let Reply { status, offset, data, token, parts } = reply;
        let header = &call.header;
        let RemoteAddress { addr, rkey } = header.to;
        let to = RemoteAddress { addr: addr.wrapping_add(u64::from(offset)), rkey };
        // Where memory was gone, some of the results may be missing: none of them counts.
        let is_whole = status != CallStatus::ACCESS;
        let len = if is_whole { offset.saturating_add(data.len()) } else { 0 };
        let word = StatusWord { cookie: header.cookie, len, status };
        let (qpn, pd) = (call.qpn, call.pd);
        if header.local {
            return self.reply_here(call, to, data, word);
        }
        status.count(&mut self.card.counters);
        let then = match header.notify {
            Notify::Nothing if data.is_empty() => return self.give_back(data),
            Notify::Nothing => Then::Nothing,
            Notify::Immediate => Then::Immediate { cookie: header.cookie, status },
            Notify::Both(at) => {
                if offset > 0 {
                    let (data, then) = (Payload::None, Then::Word { at, word });
                    self.post(Posted { qpn, pd, to: at, data, then, token, parts });
                }
                Then::Immediate { cookie: header.cookie, status }
            }
            Notify::Word(at) => Then::Word { at, word },
        };
        self.post(Posted { qpn, pd, to, data, then, token, parts });
    }

    /// Ends a local call: its results are written to this host's memory.
    fn reply_here(&mut self, call: &Call, to: RemoteAddress, data: Payload, mut word: StatusWord) {
        let key = (to.rkey, call.pd);
        let written = match &data {
            Payload::None => Ok(()),
            Payload::Buffer { buffer, len } => {
                let bytes = buffer.get(..*len as usize).unwrap_or_default();
                self.write(key, to.addr, bytes)
            }
            Payload::Memory { key: from, addr, len } => {
                let mut bytes = vec![0; *len as usize];
                let read = self.read((*from, call.pd), *addr, &mut bytes);
                read.and_then(|()| self.write(key, to.addr, &bytes))
            }
        };
        if written.is_err() {
            (word.status, word.len) = (CallStatus::ACCESS, 0);
        }
        word.status.count(&mut self.card.counters);
        if let Notify::Word(at) | Notify::Both(at) = call.header.notify
            && self.write((at.rkey, call.pd), at.addr, &word.to_bytes()).is_err()
        {
            self.card.counters.kernel_access += 1;
        }
        self.give_back(data);
    }

    fn give_back(&mut self, data: Payload) {
        // The kernels cannot be called while they run: they get the buffer back later.
        if let Some(buffer) = data.into_buffer() {
            self.card.kernel.returned.push(buffer);
        }
    }

    fn post(&mut self, post: Posted) {
        self.card.kernel.in_flight += 1;
        self.card.kernel.posted.push_back(post);
    }

    /// Takes a buffer that a message did not need after all, so that it can be used again.
    pub fn take_returned(&mut self) -> Option<Buffer> {
        self.card.kernel.returned.pop()
    }
}

impl core::fmt::Debug for KernelIo<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("KernelIo").field("now", &self.now).finish_non_exhaustive()
    }
}
