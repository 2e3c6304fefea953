//! What the poll of an invocation uses: the card, the invocation, and the steps that are left.

use core::task::Poll;

use remora_nic::kernel::KernelIo;
use remora_nic::{Access, Key, Time};

use super::grant::{Grant, granted};
use super::invocation::{Invocation, SENDS, Wait, flush};
use super::pool::{CHUNK, Pool, Room};
use super::port::Ports;
use super::timing::{Direction, Timing};
use super::{CallStatus, Scatter};

pub(super) struct Turn<'a, 'b> {
    pub(super) io: &'a mut KernelIo<'b>,
    pub(super) invocation: &'a mut Invocation,
    pub(super) buffers: &'a mut Pool,
    pub(super) grants: &'a [Grant],
    pub(super) timing: Option<&'a mut (dyn Timing + 'static)>,
    /// The invocation's number.
    pub(super) id: u32,
    /// Payload that has just arrived.
    pub(super) chunk: Option<&'a [u8]>,
    /// Steps left in this turn.
    pub(super) steps: u32,
    /// Steps that were taken, for which the client pays.
    pub(super) taken: u64,
}

impl Turn<'_, '_> {
    /// Pays for a step with `len` bytes; `false` if the turn is over.
    #[inline]
    pub(super) fn spend(&mut self, len: usize) -> Result<bool, CallStatus> {
        self.invocation.is_whole()?;
        let cost = 1 + len as u64 / 64;
        if self.steps == 0 {
            return Ok(false);
        }
        // A step that begins in a turn ends in it, so that steps longer than a turn are possible.
        self.steps = self.steps.saturating_sub(cost.min(u32::MAX.into()) as u32);
        self.taken += cost;
        self.invocation.left = self.invocation.left.checked_sub(cost).ok_or(CallStatus::BUDGET)?;
        Ok(true)
    }

    /// Accesses memory at once, and is ready when [`Timing`](super::Timing) says.
    #[inline]
    pub(super) fn access(
        &mut self,
        until: &mut Option<Time>,
        direction: Direction,
        len: usize,
        act: impl FnOnce(&mut Self) -> Result<(), CallStatus>,
    ) -> Result<Poll<()>, CallStatus> {
        if let Some(ready) = *until {
            if self.io.now() >= ready {
                return Ok(Poll::Ready(()));
            }
            self.invocation.wait = Wait::Until(ready);
            return Ok(Poll::Pending);
        }
        if !self.spend(len)? {
            return Ok(Poll::Pending);
        }
        act(self)?;
        let Some(timing) = &mut self.timing else { return Ok(Poll::Ready(())) };
        let ready = timing.over(self.io.now(), direction, len);
        *until = Some(ready);
        self.invocation.wait = Wait::Until(ready);
        Ok(Poll::Pending)
    }

    /// Appends memory to the results, by a copy.
    pub(super) fn fetch(&mut self, addr: u64, len: usize) -> Result<(), CallStatus> {
        let Invocation { out, hint, call, .. } = &mut *self.invocation;
        let (io, out) = (&mut *self.io, out.as_mut().ok_or(CallStatus::TRAP)?);
        granted(self.grants, hint, false, |key| io.append((key, call.pd), addr, len, out))
    }

    /// The key of the granted region that holds a range.
    pub(super) fn key_for(&mut self, addr: u64, len: u32) -> Result<Key, CallStatus> {
        let (io, pd) = (&*self.io, self.invocation.call.pd);
        granted(self.grants, &mut self.invocation.hint, false, |key| {
            io.check((key, pd), addr, len.into(), Access::empty()).map(|()| key)
        })
    }

    /// Whether another message can be sent. If not, the invocation waits for room.
    pub(super) fn can_send(&mut self) -> bool {
        let can = self.invocation.in_flight < SENDS && self.io.has_room(1);
        if !can {
            self.invocation.wait = Wait::Room;
        }
        can
    }

    /// Sends the results that were held back; `false` if there is no room yet.
    pub(super) fn flush(&mut self) -> Result<bool, CallStatus> {
        self.invocation.fits(0)?;
        let rest = self.invocation.held.is_some()
            || self.invocation.out.as_ref().is_some_and(|out| !out.is_empty());
        if rest && self.invocation.trial {
            return Ok(false);
        }
        if rest && self.invocation.call.header.local {
            // A local call's results are copied once, at the end.
            return self.localize().map(|()| true);
        }
        let flushed = flush(self.invocation, self.id, self.io, self.buffers);
        if !flushed {
            self.invocation.wait = Wait::Room;
        }
        Ok(flushed)
    }

    /// Discards all results of a trial, and sets the budget back to `left` steps.
    pub(super) fn undo(&mut self, left: u64) {
        self.invocation.drop_out(self.buffers);
        self.invocation.held = None;
        (self.invocation.left, self.invocation.wait) = (left, Wait::Turn);
    }

    /// Copies results to their place in the memory of a local caller.
    fn localize(&mut self) -> Result<(), CallStatus> {
        let header = self.invocation.call.header;
        let pd = self.invocation.call.pd;
        let to = header.to.addr.wrapping_add(self.invocation.written.into());
        let mut bytes = Vec::new();
        if let Some((key, addr, len)) = self.invocation.held.take() {
            bytes.resize(len as usize, 0);
            self.io.read((key, pd), addr, &mut bytes).map_err(|_| CallStatus::ACCESS)?;
        } else if let Some(out) = &mut self.invocation.out {
            bytes.append(out);
        }
        self.invocation.written += bytes.len() as u32;
        self.io.write((header.to.rkey, pd), to, &bytes).map_err(|_| CallStatus::ACCESS)
    }

    /// Sends results if there are at least `most` bytes of them.
    pub(super) fn make_room(&mut self, most: usize) -> Result<bool, CallStatus> {
        self.invocation.fits(0)?;
        let many = self.invocation.out.as_ref().is_some_and(|out| out.len() >= most);
        if many { self.flush() } else { Ok(true) }
    }

    /// Ensures a buffer with room for `len` more bytes of results; `false` if there is none yet.
    #[inline(always)]
    pub(super) fn make_room_for(&mut self, len: usize) -> Result<bool, CallStatus> {
        let held = self.invocation.held.is_some();
        let out = self.invocation.out.as_ref().map(|out| out.len());
        if (held || out.is_some_and(|out| out > 0 && out + len > CHUNK)) && !self.flush()? {
            return Ok(false);
        }
        if let Some(out) = &mut self.invocation.out
            && !self.buffers.widen(out, len)
        {
            // Only an empty one has to count for more, as a long one is flushed. Others may wait
            // for what it counts for.
            self.invocation.drop_out(self.buffers);
        }
        if self.invocation.out.is_none() {
            self.invocation.out = self.take_buffer(len);
        }
        if self.invocation.out.is_none() {
            self.invocation.wait = Wait::Room;
        }
        Ok(self.invocation.out.is_some())
    }

    /// An empty buffer that will take `len` bytes, if there is one.
    pub(super) fn take_buffer(&mut self, len: usize) -> Option<Room> {
        let buffer = self.buffers.take(self.invocation.account, len)?;
        self.invocation.has_buffer();
        Some(buffer)
    }
}

impl Ports for Turn<'_, '_> {
    #[inline]
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), CallStatus> {
        let (io, pd) = (&mut *self.io, self.invocation.call.pd);
        let hint = &mut self.invocation.hint;
        granted(self.grants, hint, false, |key| io.read((key, pd), addr, dst))
    }

    #[inline]
    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), CallStatus> {
        let (io, pd) = (&mut *self.io, self.invocation.call.pd);
        let hint = &mut self.invocation.hint;
        granted(self.grants, hint, true, |key| io.write((key, pd), addr, src))
    }

    fn scatter(&mut self) -> Scatter<'_> {
        let pd = self.invocation.call.pd;
        Scatter::new(self.io, pd, self.grants, &mut self.invocation.hint)
    }

    #[inline(always)]
    fn output(&mut self, len: usize) -> Result<&mut Vec<u8>, CallStatus> {
        if self.invocation.held.is_some() {
            return Err(CallStatus::UNAVAILABLE);
        }
        if self.invocation.out.is_none() {
            self.invocation.out = self.take_buffer(len);
        }
        Ok(self.invocation.out.as_mut().ok_or(CallStatus::UNAVAILABLE)?)
    }
}
