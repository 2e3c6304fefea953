//! Packets that wait until they are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use remora_nic::Time;

use super::ImpairCounters;
use super::engine::Delayed;

/// The most packets that wait in one direction, and the most bytes.
const PACKETS_MAX: usize = 1 << 16;
const BYTES_MAX: usize = 64 << 20;
/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 1024;

/// Packets that wait, each with a `T` that says where it goes or came from.
#[derive(Debug)]
pub(crate) struct Hold<T> {
    /// By the time that they are due, then in the order in which they came.
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    came: u64,
    bytes: usize,
    spare: Vec<Vec<u8>>,
}

/// A packet that waits.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    due: Time,
    number: u64,
    /// Was a bit of it changed?
    pub(crate) corrupt: bool,
    /// BTH to ICRC.
    pub(crate) bytes: Vec<u8>,
    /// Where it goes, or came from.
    pub(crate) about: T,
}

impl<T> Default for Hold<T> {
    fn default() -> Hold<T> {
        Hold { waiting: BinaryHeap::new(), came: 0, bytes: 0, spare: Vec::new() }
    }
}

impl<T: Copy> Hold<T> {
    /// Keeps a packet that came `now`, as `held` says, or loses it if too many wait. Counts it for
    /// what became of it.
    pub(crate) fn keep(
        &mut self,
        now: Time,
        held: Delayed,
        (about, packet): (T, &[u8]),
        counters: &mut ImpairCounters,
    ) {
        let copies = self.keep_copies(held, about, packet);
        if copies == 0 {
            counters.queue_full += 1;
            return;
        }
        counters.delayed += u64::from(held.due > now);
        counters.reordered += u64::from(held.reordered);
        counters.duplicated += u64::from(copies > 1);
        counters.corrupted += u64::from(held.flip.is_some());
    }

    /// Keeps as many copies as `held` says. Returns how many there was room for.
    fn keep_copies(&mut self, held: Delayed, about: T, packet: &[u8]) -> u32 {
        let wanted = 1 + u32::from(held.twice);
        for kept in 0..wanted {
            if self.waiting.len() >= PACKETS_MAX || self.bytes + packet.len() > BYTES_MAX {
                return kept;
            }
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(packet);
            let bits = (8 * bytes.len()) as u32;
            if let Some(bit) = held.flip.map(|bit| bit % bits.max(1))
                && let Some(byte) = bytes.get_mut(bit as usize / 8)
            {
                *byte ^= 1 << (bit % 8);
            }
            self.bytes += bytes.len();
            let (due, number, corrupt) = (held.due, self.came, held.flip.is_some());
            self.came += 1;
            self.waiting.push(Reverse(Waiting { due, number, corrupt, bytes, about }));
        }
        wanted
    }

    /// When the next packet is due.
    pub(crate) fn next_due(&self) -> Time {
        self.waiting.peek().map_or(Time::NEVER, |Reverse(waiting)| waiting.due)
    }

    /// The next packet that is due. [`Hold::reuse`] takes its bytes back.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Waiting<T>> {
        if self.next_due() > now {
            return None;
        }
        let Reverse(waiting) = self.waiting.pop()?;
        self.bytes -= waiting.bytes.len();
        Some(waiting)
    }

    /// Puts a packet back that [`Hold::take_due`] returned, since there was no room for it. It is
    /// the next one again.
    pub(crate) fn put_back(&mut self, waiting: Waiting<T>) {
        self.bytes += waiting.bytes.len();
        self.waiting.push(Reverse(waiting));
    }

    /// Keeps the room of a packet that has gone on.
    pub(crate) fn reuse(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(bytes);
        }
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Waiting<T>) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Waiting<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Waiting<T>) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(due: u64) -> Delayed {
        Delayed { due: Time(due), reordered: false, flip: None, twice: false }
    }

    #[test]
    fn packets_come_out_when_they_are_due_and_in_their_order() {
        let mut hold = Hold::default();
        for (due, name) in [(30, 'c'), (10, 'a'), (10, 'b')] {
            assert_eq!(hold.keep_copies(at(due), name, b"packet"), 1);
        }
        assert_eq!(hold.next_due(), Time(10));
        let mut out = |now| {
            let waiting = hold.take_due(Time(now))?;
            hold.reuse(waiting.bytes);
            Some(waiting.about)
        };
        assert_eq!(
            [out(9), out(10), out(10), out(29), out(30)],
            [None, Some('a'), Some('b'), None, Some('c')]
        );
        assert_eq!((hold.next_due(), hold.bytes), (Time::NEVER, 0));
    }

    #[test]
    fn one_bit_of_a_damaged_packet_differs() {
        let mut hold = Hold::default();
        let damaged = Delayed { flip: Some(17), twice: true, ..at(0) };
        assert_eq!(hold.keep_copies(damaged, (), &[0; 2]), 2);
        for _ in 0..2 {
            let waiting = hold.take_due(Time(0)).unwrap();
            assert!(waiting.corrupt);
            assert_eq!(waiting.bytes, [2, 0], "bit 17 of 16 is bit 1");
        }
        assert!(hold.take_due(Time(0)).is_none());
        let empty = Delayed { flip: Some(3), ..at(0) };
        assert_eq!(hold.keep_copies(empty, (), &[]), 1, "a packet without bytes");
    }

    #[test]
    fn what_waits_is_counted() {
        let (mut hold, mut counters) = (Hold::default(), ImpairCounters::default());
        let damaged = Delayed { flip: Some(1), twice: true, ..at(9) };
        hold.keep(Time(9), damaged, ((), &[0; 2]), &mut counters);
        let late = Delayed { reordered: true, ..at(10) };
        hold.keep(Time(9), late, ((), &[0; 2]), &mut counters);
        let ImpairCounters { lost, delayed, reordered, duplicated, corrupted, queue_full } =
            counters;
        assert_eq!((delayed, reordered, duplicated, corrupted), (1, 1, 1, 1));
        assert_eq!((lost, queue_full), (0, 0));
    }

    #[test]
    fn room_is_limited() {
        let mut hold = Hold::default();
        let kept: u32 = (0..PACKETS_MAX + 5).map(|_| hold.keep_copies(at(0), (), &[0])).sum();
        assert_eq!(kept as usize, PACKETS_MAX);
        let mut hold = Hold::default();
        let big = vec![0; BYTES_MAX / 4];
        let twice = Delayed { twice: true, ..at(0) };
        let kept = [at(0), twice, twice, at(0)].map(|held| hold.keep_copies(held, (), &big));
        assert_eq!(kept, [1, 2, 1, 0]);
    }
}
