//! The queue of events: a wheel of short slots, in the order of (time, number).
//!
//! A number says what an event is about, and no two pending events of one moment have the same one.
//! So the order does not depend on which event was added first, and two halves of a world that run
//! beside each other come to the same order as one whole.
//!
//! A slot is a list without order; it is sorted when its time comes. What is further away than the
//! wheel reaches waits in a heap.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::time::{NEVER, Ps};

/// log2 of a slot's length: 2 ns, so that a part of a large network has a few events in each, whose
/// state is fetched at once.
const SLOT: u32 = 11;
/// log2 of the number of slots: 8.4 µs, more than the usual delay of a link.
const SLOTS: u32 = 12;
const MASK: u64 = (1 << SLOTS) - 1;
/// The end of a list.
const END: u32 = u32::MAX;

/// A pending event: its time and its number.
pub type Entry = (Ps, u32);

#[derive(Clone, Copy, Debug)]
struct Node {
    at: Ps,
    number: u32,
    next: u32,
}

/// The pending events.
#[derive(Debug)]
pub struct Wheel {
    /// The first of each slot's events.
    heads: Box<[u32]>,
    /// A bit for each slot that has events, and a bit for each word of those.
    filled: Box<[u64]>,
    words: [u64; 1 << (SLOTS - 12)],
    nodes: Vec<Node>,
    free: u32,
    /// The slot up to which `current` has all events, counted from time zero.
    base: u64,
    /// Events of the slots up to `base`, the next one last.
    current: Vec<Entry>,
    far: BinaryHeap<Reverse<Entry>>,
}

impl Default for Wheel {
    fn default() -> Wheel {
        Wheel {
            heads: vec![END; 1 << SLOTS].into(),
            filled: vec![0; 1 << (SLOTS - 6)].into(),
            words: [0; 1 << (SLOTS - 12)],
            nodes: Vec::new(),
            free: END,
            base: 0,
            current: Vec::new(),
            far: BinaryHeap::new(),
        }
    }
}

impl Wheel {
    /// Adds an event. Its time must not be before that of an event which was taken.
    #[inline]
    pub fn push(&mut self, at: Ps, number: u32) {
        let slot = at >> SLOT;
        if slot <= self.base {
            // Seldom: only what happens at once, or nearly so.
            let place = self.current.partition_point(|entry| *entry > (at, number));
            self.current.insert(place, (at, number));
        } else if slot - self.base <= MASK {
            self.put(at, number);
        } else {
            self.far.push(Reverse((at, number)));
        }
    }

    #[inline]
    fn put(&mut self, at: Ps, number: u32) {
        let place = (at >> SLOT & MASK) as usize;
        let node = Node { at, number, next: self.heads[place] };
        self.heads[place] = if self.free == END {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        } else {
            let index = self.free;
            self.free = self.nodes[index as usize].next;
            self.nodes[index as usize] = node;
            index
        };
        self.filled[place >> 6] |= 1 << (place & 63);
        self.words[place >> 12] |= 1 << (place >> 6 & 63);
    }

    /// The time of the next event; [`NEVER`] if there is none.
    #[inline]
    pub fn next_at(&mut self) -> Ps {
        if self.current.is_empty() {
            self.turn();
        }
        self.current.last().map_or(NEVER, |(at, _)| *at)
    }

    /// Takes the next event, if it is not later than `until`.
    #[inline]
    pub fn pop(&mut self, until: Ps) -> Option<Entry> {
        if self.current.is_empty() {
            self.turn();
        }
        if self.current.last()?.0 > until {
            return None;
        }
        self.current.pop()
    }

    /// Is there nothing left of the slot that was sorted last? The next look at the wheel then
    /// sorts another.
    #[inline]
    pub fn is_used_up(&self) -> bool {
        self.current.is_empty()
    }

    /// The events that come next: all of one slot, the first of them last.
    #[inline]
    pub fn slot(&self) -> &[Entry] {
        &self.current
    }

    /// Moves on to the next slot with events.
    fn turn(&mut self) {
        let near = self.next_filled();
        let far = self.far.peek().map(|Reverse((at, _))| at >> SLOT);
        let Some(slot) = [near, far].into_iter().flatten().min() else { return };
        self.base = slot;
        while let Some(Reverse((at, _))) = self.far.peek()
            && (at >> SLOT) - slot <= MASK
        {
            if let Some(Reverse((at, number))) = self.far.pop() {
                self.put(at, number);
            }
        }
        self.take_slot((slot & MASK) as usize);
    }

    fn take_slot(&mut self, place: usize) {
        let mut index = core::mem::replace(&mut self.heads[place], END);
        while index != END {
            let node = &mut self.nodes[index as usize];
            self.current.push((node.at, node.number));
            let next = core::mem::replace(&mut node.next, self.free);
            self.free = index;
            index = next;
        }
        self.filled[place >> 6] &= !(1 << (place & 63));
        if self.filled[place >> 6] == 0 {
            self.words[place >> 12] &= !(1 << (place >> 6 & 63));
        }
        self.current.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// The first slot behind `base` that has events, counted from time zero.
    fn next_filled(&self) -> Option<u64> {
        let start = ((self.base + 1) & MASK) as usize;
        let place = self.filled_from(start).or_else(|| self.filled_from(0))? as u64;
        let ahead = place.wrapping_sub(start as u64) & MASK;
        Some(self.base + 1 + ahead)
    }

    /// The first place from `start` on that has events.
    fn filled_from(&self, start: usize) -> Option<usize> {
        let word = start >> 6;
        let here = self.filled[word] & (u64::MAX << (start & 63));
        if here != 0 {
            return Some(word << 6 | here.trailing_zeros() as usize);
        }
        let mut group = (word + 1) >> 6;
        let mut mask = u64::MAX << ((word + 1) & 63);
        while group < self.words.len() {
            let words = self.words[group] & mask;
            if words != 0 {
                let word = group << 6 | words.trailing_zeros() as usize;
                return Some(word << 6 | self.filled[word].trailing_zeros() as usize);
            }
            (group, mask) = (group + 1, u64::MAX);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_wheel_has_nothing() {
        let mut wheel = Wheel::default();
        assert_eq!((wheel.next_at(), wheel.pop(NEVER)), (NEVER, None));
    }

    #[test]
    fn what_is_too_late_stays() {
        let mut wheel = Wheel::default();
        wheel.push(5_000, 1);
        assert_eq!(wheel.pop(4_999), None);
        // An earlier event may come after the wheel has looked ahead.
        wheel.push(4_000, 2);
        assert_eq!(wheel.pop(5_000), Some((4_000, 2)));
        assert_eq!(wheel.pop(5_000), Some((5_000, 1)));
    }

    proptest! {
        /// As a heap does, whatever the distances: in the slot, on the wheel, far away.
        #[test]
        fn the_order_is_that_of_a_heap(
            steps in prop::collection::vec((0u32..45, any::<u32>(), 0u32..3), 1..400)
        ) {
            let (mut wheel, mut heap) = (Wheel::default(), BinaryHeap::new());
            let mut now = 0;
            for (number, (bits, random, pops)) in (0u32..).zip(steps) {
                let at = now + (u64::from(random) << 13 & ((1 << bits) - 1));
                wheel.push(at, number);
                heap.push(Reverse((at, number)));
                for _ in 0..pops {
                    prop_assert_eq!(wheel.next_at(), heap.peek().map_or(NEVER, |e| e.0.0));
                    let expected = heap.pop().map(|e| e.0);
                    now = expected.map_or(now, |e| e.0);
                    prop_assert_eq!(wheel.pop(NEVER), expected);
                }
            }
            while let Some(Reverse(expected)) = heap.pop() {
                prop_assert_eq!(wheel.pop(NEVER), Some(expected));
            }
            prop_assert_eq!(wheel.pop(NEVER), None);
        }
    }
}
