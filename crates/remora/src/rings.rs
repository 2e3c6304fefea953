//! The rings of a card's queues, which the card's owner keeps until the queues are destroyed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::memory::{AllocError, Buffer};

/// The queue, or the two queues, that memory holds the rings of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum RingsOf {
    /// A queue pair, by its number.
    Qp(u32),
    /// A shared receive queue, by its handle.
    Srq(u32),
}

/// The shortest part of a slab, and how many lengths there are, each twice the one before: rings
/// of more than half a page have memory of their own.
const LEAST: usize = 128;
const CLASSES: usize = 5;
/// The bytes of the first slab of a length, and of all others, which huge pages hold.
const FIRST_SLAB: usize = 64 << 10;
const SLAB: usize = 2 << 20;

/// The memory of the rings that the card's owner has made, until the card has dropped the queues.
///
/// Short rings share pages: thousands of queue pairs would take a page each.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    of: HashMap<RingsOf, Buffer>,
    classes: [Class; CLASSES],
}

/// Memory for rings of one length.
#[derive(Debug, Default)]
struct Class {
    /// The newest slab, and where it is free from.
    slab: Option<(Arc<Buffer>, usize)>,
    /// Parts that were in use.
    free: Vec<Buffer>,
    in_use: usize,
}

impl Rings {
    /// Memory of zeroes for `bytes`, to be kept or given back.
    pub(crate) fn make(&mut self, bytes: usize) -> Result<Buffer, AllocError> {
        match Rings::class(bytes) {
            Some(class) => self.classes[class].make(LEAST << class),
            None => Buffer::new(bytes),
        }
    }

    /// Keeps the memory until [`Rings::remove`], in the place of what was kept for that queue.
    pub(crate) fn keep(&mut self, of: RingsOf, memory: Buffer) {
        let before = self.of.insert(of, memory);
        before.into_iter().for_each(|memory| self.give_back(memory));
    }

    /// Gives back what was kept, if there was anything.
    pub(crate) fn remove(&mut self, of: RingsOf) {
        let kept = self.of.remove(&of);
        kept.into_iter().for_each(|memory| self.give_back(memory));
    }

    /// Gives back what was made and not kept.
    pub(crate) fn give_back(&mut self, memory: Buffer) {
        if let Some(class) = Rings::class(memory.len()) {
            self.classes[class].give_back(memory);
        }
    }

    /// The class of rings of this length, if they share slabs.
    fn class(bytes: usize) -> Option<usize> {
        let class = bytes.max(LEAST).next_power_of_two().ilog2() - LEAST.ilog2();
        Some(class as usize).filter(|class| *class < CLASSES)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty() && self.classes.iter().all(|class| class.slab.is_none())
    }
}

impl Class {
    /// A part of `len` bytes, the length of the class.
    fn make(&mut self, len: usize) -> Result<Buffer, AllocError> {
        let part = match self.free.pop() {
            Some(part) => {
                part.fill(0);
                part
            }
            None => self.cut(len)?,
        };
        self.in_use += 1;
        Ok(part)
    }

    fn cut(&mut self, len: usize) -> Result<Buffer, AllocError> {
        let (slab, at) = match self.slab.take() {
            Some((slab, at)) if at + len <= slab.len() => (slab, at),
            Some(_) => (Arc::new(Buffer::with_huge_pages(SLAB)?), 0),
            None => (Arc::new(Buffer::new(FIRST_SLAB)?), 0),
        };
        let part = Buffer::part(&slab, at, len).expect("it ends before the slab");
        self.slab = Some((slab, at + len));
        Ok(part)
    }

    fn give_back(&mut self, part: Buffer) {
        self.free.push(part);
        self.in_use -= 1;
        if self.in_use == 0 {
            // The slabs are unmapped with their last parts.
            *self = Class::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rings_share_pages_and_long_ones_do_not() {
        let mut rings = Rings::default();
        let made: Vec<Buffer> = (0..1000).map(|_| rings.make(300).unwrap()).collect();
        let mut places: Vec<u64> = made.iter().map(Buffer::addr).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 512), "parts overlap");
        places.iter_mut().for_each(|place| *place /= 4096);
        places.dedup();
        assert!(places.len() <= 1000 / 8 + 3, "{} pages", places.len());
        assert_eq!(rings.make(2049).unwrap().len(), 2049);
        made.into_iter().for_each(|part| rings.give_back(part));
        assert!(rings.is_empty());
    }

    #[test]
    fn a_part_that_was_used_is_zero_again() {
        let mut rings = Rings::default();
        let (used, other) = (rings.make(128).unwrap(), rings.make(128).unwrap());
        used.fill(7);
        let addr = used.addr();
        rings.keep(RingsOf::Qp(1), used);
        rings.keep(RingsOf::Qp(1), other);
        let again = rings.make(100).unwrap();
        assert_eq!((again.addr(), again.len()), (addr, 128));
        let mut bytes = [1; 128];
        again.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 128]);
        rings.give_back(again);
        rings.remove(RingsOf::Qp(1));
        rings.remove(RingsOf::Qp(1));
        assert!(rings.is_empty());
    }
}
