//! What a receiver of the lossy dialect remembers: which packets have arrived behind a missing one,
//! which messages they belong to, and what is to be done when their turn has come.
//!
//! While nothing is missing, this is empty but for the message that is under way.

use std::collections::VecDeque;
use std::ops::Range;

use super::bitmap::Bitmap;
use crate::psn::{HALF, Psn};
use crate::qp::receive::Receive;
use crate::time::Time;
use crate::wire::{Bth, Extensions, Leth, Op, Operation, Packet, Reth};

/// How far ahead of the expected PSN a packet may be. What is farther is dropped. It bounds the
/// bitmap (4 KB) and is more than any requester has under way.
pub(crate) const AHEAD: u32 = 1 << 15;
/// How many messages may be begun and unfinished, and how many packets may wait for their turn.
const MESSAGES_MAX: usize = 4096;
const WAITING_MAX: usize = 4096;
/// Bytes of payload that may wait with their packets, because they cannot be placed out of order.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// The receiver's half of the state.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// The packets behind the expected one that have arrived.
    pub(super) arrived: Bitmap,
    /// Messages of which some packets have arrived, by their first PSNs.
    messages: VecDeque<Message>,
    /// Packets with effects that must wait for their turn, by PSN.
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// The receive elements of the next messages that take one, in the order of their SSNs.
    pub(crate) receives: VecDeque<Receive>,
    /// The SSN of the first of them.
    pub(super) next_ssn: u32,
    /// The packet that arrived last, for the next acknowledge.
    pub(super) last: Last,
    /// Packets that have arrived, and those with a congestion mark, modulo 2¹⁶.
    pub(super) received: u16,
    pub(super) marked: u16,
}

/// The packet that arrived last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub(super) psn: Psn,
    pub(super) sent: u32,
    pub(super) path: u8,
    pub(super) at: Time,
    /// It had arrived before.
    pub(super) copy: bool,
    /// One has arrived at all.
    pub(super) any: bool,
}

/// A message of which some packets have arrived.
#[derive(Clone, Copy, Debug)]
struct Message {
    first: Psn,
    /// The packets of it up to the last that is known.
    known: u32,
    /// Its last packet has arrived, so that `known` is its length.
    ended: bool,
    operation: Operation,
    ssn: u32,
    reth: Reth,
}

impl Message {
    /// The packets of a WRITE that have bytes in this range, with the part of it that is theirs.
    /// Not its last packet, which is placed in its turn.
    fn parts(&self, mtu: u32, range: &Range<u64>) -> impl Iterator<Item = (u32, Range<u64>)> {
        let (begin, mtu) = (self.reth.addr, u64::from(mtu));
        // All packets but the last are of the path MTU.
        let early = u64::from(self.reth.len.saturating_sub(1)) / mtu * mtu;
        let start = range.start.max(begin);
        let end = range.end.min(begin.saturating_add(early)).max(start);
        let packets = (start - begin) / mtu..(end - begin).div_ceil(mtu);
        packets.map(move |packet| {
            let at = begin + packet * mtu;
            (packet as u32, start.max(at)..end.min(at.saturating_add(mtu)))
        })
    }
}

/// A packet whose effect waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    psn: Psn,
    bth: Bth,
    op: &'static Op,
    ext: Extensions,
    /// The length of the message so far.
    pub(super) len: u32,
    /// The payload, if it has not been placed.
    payload: Box<[u8]>,
}

impl Waiting {
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet { bth: self.bth, op: self.op, ext: self.ext, payload: &self.payload }
    }
}

/// Why a packet is not part of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stray {
    /// It contradicts itself, or what another packet has said.
    Contradicts,
    /// As many messages are under way as are remembered.
    TooMany,
}

/// The distance of `psn` from `base`, negative if it is before it.
fn signed(psn: Psn, base: Psn) -> i64 {
    let ahead = i64::from(psn.distance_from(base));
    if ahead < i64::from(HALF) { ahead } else { ahead - 2 * i64::from(HALF) }
}

/// Ranges without this part of them.
fn without(ranges: Vec<Range<u64>>, part: &Range<u64>) -> Vec<Range<u64>> {
    let cut = |range: Range<u64>| {
        [range.start..range.end.min(part.start), range.start.max(part.end)..range.end]
    };
    ranges.into_iter().flat_map(cut).filter(|range| !range.is_empty()).collect()
}

impl Arrivals {
    /// Notes a packet, whatever becomes of it.
    pub(super) fn note(&mut self, packet: &Packet<'_>, leth: Leth, now: Time, marked: bool) {
        let (psn, Leth { sent, path, .. }) = (packet.bth.psn, leth);
        self.last = Last { psn, sent, path, at: now, copy: false, any: true };
        self.received = self.received.wrapping_add(1);
        self.marked = self.marked.wrapping_add(marked.into());
    }

    /// Makes a packet part of its message, if it agrees with all that other packets have said: what
    /// the message does and where, which receive element it takes, and where it begins and ends.
    /// Returns whether it is the first packet of the message that has arrived.
    #[inline]
    pub(super) fn join(
        &mut self,
        expected: Psn,
        packet: &Packet<'_>,
        leth: Leth,
    ) -> Result<bool, Stray> {
        match self.join_usual(expected, packet, leth) {
            Some(begins) => Ok(begins),
            None => self.join_any(expected, packet, leth),
        }
    }

    /// As [`Arrivals::join`], for what comes as long as nothing is missing: a message of one packet
    /// while none is under way, and the next packet of the only one that is. `None` for any other.
    #[inline]
    fn join_usual(&mut self, expected: Psn, packet: &Packet<'_>, leth: Leth) -> Option<bool> {
        let (psn, position) = (packet.bth.psn, packet.op.position);
        let Some(message) = self.messages.front_mut() else {
            let is_whole = position.begins() && position.ends() && leth.offset == 0;
            return (is_whole && psn == expected).then_some(true);
        };
        let is_next = !position.begins() && !message.ended && leth.offset == message.known;
        let agrees = message.operation == packet.op.operation
            && message.ssn == leth.ssn
            && (message.operation != Operation::Write || message.reth == packet.ext.reth);
        let fits = is_next && agrees && psn == message.first.plus(leth.offset);
        if !fits || self.messages.len() > 1 {
            return None;
        }
        let message = self.messages.front_mut()?;
        message.known += 1;
        message.ended = position.ends();
        Some(false)
    }

    #[inline(never)]
    fn join_any(&mut self, expected: Psn, packet: &Packet<'_>, leth: Leth) -> Result<bool, Stray> {
        let (position, operation) = (packet.op.position, packet.op.operation);
        let Leth { ssn, offset, .. } = leth;
        let reth = if operation == Operation::Write { packet.ext.reth } else { Reth::default() };
        // FIRST and ONLY are at offset 0, and nothing else is.
        if position.begins() != (offset == 0) {
            return Err(Stray::Contradicts);
        }
        let at = signed(packet.bth.psn, expected);
        let begin = at - i64::from(offset);
        let (known, ended) = (offset + 1, position.ends());
        // The least that the message reaches to.
        let end = at + if ended { 1 } else { 2 };
        let place = self.messages.partition_point(|m| signed(m.first, expected) <= begin);
        // No packet may be part of two messages.
        let next = self.messages.get(place);
        if next.is_some_and(|next| end > signed(next.first, expected)) {
            return Err(Stray::Contradicts);
        }
        if let Some(before) = place.checked_sub(1).and_then(|i| self.messages.get_mut(i)) {
            let first = signed(before.first, expected);
            if first == begin {
                let agrees = (before.operation, before.ssn, before.reth) == (operation, ssn, reth);
                let fits = match (before.ended, ended) {
                    (true, true) => known == before.known,
                    (true, false) => known < before.known,
                    (false, true) => known >= before.known,
                    (false, false) => true,
                };
                if !agrees || !fits {
                    return Err(Stray::Contradicts);
                }
                before.known = before.known.max(known);
                before.ended |= ended;
                return Ok(false);
            }
            if first + i64::from(before.known) + i64::from(!before.ended) > begin {
                return Err(Stray::Contradicts);
            }
        }
        // A message that began before the expected packet is remembered until it ends.
        if begin < 0 {
            return Err(Stray::Contradicts);
        }
        // A message of one packet that comes in its turn is over at once.
        if at == 0 && ended {
            return Ok(true);
        }
        // Only the expected packet makes room again, so there is always room for its message.
        if at > 0 && self.messages.len() >= MESSAGES_MAX {
            return Err(Stray::TooMany);
        }
        let first = packet.bth.psn.minus(offset);
        self.messages.insert(place, Message { first, known, ended, operation, ssn, reth });
        Ok(true)
    }

    /// The parts of a range that packets of later WRITEs by the same key have not written already,
    /// for a packet of the message that begins at `first` which comes late. `None`, almost always,
    /// if that is all of it.
    #[inline]
    pub(super) fn unwritten(
        &self,
        (expected, first): (Psn, Psn),
        mtu: u32,
        (rkey, range): (u32, Range<u64>),
    ) -> Option<Vec<Range<u64>>> {
        let later = self.messages.back().is_some_and(|last| signed(last.first, first) > 0);
        let looks = later && !self.arrived.is_empty();
        looks.then(|| self.look_for_unwritten((expected, first), mtu, (rkey, range))).flatten()
    }

    #[inline(never)]
    fn look_for_unwritten(
        &self,
        (expected, first): (Psn, Psn),
        mtu: u32,
        (rkey, range): (u32, Range<u64>),
    ) -> Option<Vec<Range<u64>>> {
        let begin = signed(first, expected);
        let later = self.messages.partition_point(|m| signed(m.first, expected) <= begin);
        let mut left = None;
        for message in self.messages.range(later..) {
            if message.operation != Operation::Write || message.reth.rkey != rkey {
                continue;
            }
            for (packet, part) in message.parts(mtu, &range) {
                if self.arrived.get(message.first.plus(packet).distance_from(expected)) {
                    let before: Vec<_> = left.unwrap_or_else(|| vec![range.clone()]);
                    left = Some(without(before, &part));
                }
            }
        }
        left
    }

    /// Forgets the message that begins at `first`.
    pub(super) fn forget(&mut self, first: Psn) {
        self.messages.retain(|message| message.first != first);
    }

    /// Keeps a packet until its turn has come, with its payload if that has not been placed.
    /// Returns whether there was room.
    pub(super) fn wait(
        &mut self,
        expected: Psn,
        packet: &Packet<'_>,
        len: u32,
        placed: bool,
    ) -> bool {
        let payload = if placed { &[] } else { packet.payload };
        if self.waiting.len() >= WAITING_MAX
            || self.waiting_bytes + payload.len() > WAITING_BYTES_MAX
        {
            return false;
        }
        self.waiting_bytes += payload.len();
        let (bth, op, ext, psn) = (packet.bth, packet.op, packet.ext, packet.bth.psn);
        let ahead = psn.distance_from(expected);
        let place = self.waiting.partition_point(|w| w.psn.distance_from(expected) < ahead);
        let waiting = Waiting { psn, bth, op, ext, len, payload: payload.into() };
        self.waiting.insert(place, waiting);
        true
    }

    /// Takes the packet that has waited for `psn` to be expected.
    pub(super) fn take_waiting(&mut self, psn: Psn) -> Option<Waiting> {
        self.waiting.front().filter(|waiting| waiting.psn == psn)?;
        let waiting = self.waiting.pop_front()?;
        self.waiting_bytes -= waiting.payload.len();
        Some(waiting)
    }

    /// Notes that the next PSN is expected. Returns whether its packet has arrived already.
    pub(super) fn advance(&mut self, expected: Psn) -> bool {
        self.arrived.advance(1);
        let over = |m: &Message| m.ended && m.first.plus(m.known) == expected;
        if self.messages.front().is_some_and(over) {
            self.messages.pop_front();
        }
        self.arrived.get(0)
    }

    /// How many packets wait for their turn with their payload, and its bytes.
    pub(super) fn waiting_payload(&self) -> (usize, usize) {
        let with = self.waiting.iter().filter(|waiting| !waiting.payload.is_empty());
        (with.count(), self.waiting_bytes)
    }

    /// How many messages, packets and receive elements are remembered, and the bytes that are
    /// allocated for them, without payload.
    pub(super) fn records(&self) -> (usize, usize) {
        let count = self.messages.len() + self.waiting.len() + self.receives.len();
        let messages = self.messages.capacity() * size_of::<Message>();
        let waiting = self.waiting.capacity() * size_of::<Waiting>();
        (count, messages + waiting + self.receives.capacity() * size_of::<Receive>())
    }

    /// Forgets what waits, when the connection ends.
    pub(super) fn clear(&mut self) {
        self.arrived = Bitmap::default();
        self.messages.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
    }
}
