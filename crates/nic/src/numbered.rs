//! Tables of the objects that peers know by a number: queue pairs, and XRC's shared receive queues.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use crate::wire::multicast::MULTICAST_QPN;

/// The most bits of a number, and the fewest.
pub(crate) const BITS: u32 = 24;
const FEWEST_BITS: u32 = 10;
/// Numbers below this one have meanings of their own (queue pairs 0 and 1) or are left to them.
const FIRST: u32 = 256;
/// So many numbers of removed objects rest before they are drawn again, since peers may still know
/// them (time-wait), or an eighth of all, if there are fewer.
const RESTING: usize = 4096;
/// A place without a slot.
const VACANT: u32 = u32::MAX;

/// A table whose numbers are random, so that nobody can tell one from another.
///
/// The low bits of a number are its place in a list that says where the object is, so a look-up
/// needs no search. A number whose place is taken is not drawn; at most half of the places are
/// taken, so two draws do on average.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    /// The slot of the number that ends with an entry's index, or [`VACANT`]. The length is zero or
    /// a power of two.
    places: Vec<u32>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    resting: VecDeque<u32>,
    limit: usize,
    bits: u32,
    random: ChaCha8Rng,
}

#[derive(Debug)]
struct Slot<T> {
    number: u32,
    value: Option<T>,
}

impl<T> Numbered<T> {
    /// An empty table for at most `limit` values (65,536, and an eighth of the numbers), with
    /// numbers of `bits` bits (10 to 24) from `random`.
    pub(crate) fn new(limit: usize, bits: u32, random: ChaCha8Rng) -> Self {
        let bits = bits.clamp(FEWEST_BITS, BITS);
        let limit = limit.min(1 << 16).min(1 << (bits - 3));
        let (places, slots, free, resting) = (Vec::new(), Vec::new(), Vec::new(), VecDeque::new());
        Numbered { places, slots, free, resting, limit, bits, random }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds the value that `make` builds from its number. `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.len() >= self.limit {
            return None;
        }
        let number = self.draw();
        let value = Some(make(number));
        let slot = Slot { number, value };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        let place = self.place(number);
        self.places[place] = index;
        Some(number)
    }

    /// A number whose place is vacant.
    fn draw(&mut self) -> u32 {
        if 2 * (self.len() + self.resting.len() + 1) > self.places.len() {
            self.grow();
        }
        loop {
            let number = self.random.next_u32() >> (u32::BITS - self.bits);
            let vacant = self.places[self.place(number)] == VACANT;
            // The highest number of all stands for all queue pairs of a multicast group.
            if vacant && (FIRST..MULTICAST_QPN).contains(&number) {
                return number;
            }
        }
    }

    /// Doubles the places. Numbers that differed in their low bits still do.
    fn grow(&mut self) {
        let before = core::mem::take(&mut self.places);
        self.places = vec![VACANT; (2 * before.len()).max(8)];
        let live = self.slots.iter().filter(|slot| slot.value.is_some()).map(|slot| slot.number);
        for number in live.chain(self.resting.iter().copied()) {
            let place = number as usize & (self.places.len() - 1);
            self.places[place] = before[number as usize & (before.len() - 1)];
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.index(number)?;
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.number == number)?;
        let value = slot.value.take()?;
        self.free.push(index);
        self.resting.push_back(number);
        if self.resting.len() > RESTING.min(1 << (self.bits - 3))
            && let Some(rested) = self.resting.pop_front()
        {
            let place = self.place(rested);
            self.places[place] = VACANT;
        }
        Some(value)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let slot = self.slots.get(self.index(number)? as usize)?;
        if slot.number == number { slot.value.as_ref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let index = self.index(number)? as usize;
        let slot = self.slots.get_mut(index)?;
        if slot.number == number { slot.value.as_mut() } else { None }
    }

    /// The objects, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.value.as_mut())
    }

    /// Where a number's place is. (There are places.)
    #[inline]
    fn place(&self, number: u32) -> usize {
        number as usize & (self.places.len() - 1)
    }

    /// The only slot that may have a number; perhaps [`VACANT`].
    #[inline]
    fn index(&self, number: u32) -> Option<u32> {
        self.places.get(number as usize & self.places.len().wrapping_sub(1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand_core::SeedableRng;

    use super::*;

    fn table(limit: usize) -> Numbered<u32> {
        Numbered::new(limit, BITS, ChaCha8Rng::seed_from_u64(7))
    }

    #[test]
    fn numbers_are_random_and_name_their_objects() {
        let mut table = table(10_000);
        let numbers: Vec<u32> = (0..10_000).map(|n| table.insert_with(|_| n).unwrap()).collect();
        assert_eq!(table.insert_with(|_| 0), None, "the limit holds");
        assert_eq!(numbers.iter().collect::<BTreeSet<_>>().len(), 10_000, "none comes twice");
        assert!(numbers.iter().all(|number| (FIRST..MULTICAST_QPN).contains(number)));
        for (number, n) in numbers.iter().zip(0..) {
            assert_eq!(table.get(*number), Some(&n));
            assert_eq!(table.get_mut(*number), Some(&mut n.clone()));
        }
        // Neither the next number nor its distance from the last one is known: about half of the
        // numbers have any given bit, and about half of them differ in it from their predecessor.
        for bit in (0..BITS).map(|bit| 1 << bit) {
            let ones = numbers.iter().filter(|number| *number & bit != 0).count();
            let changes = numbers.windows(2).filter(|two| (two[0] ^ two[1]) & bit != 0).count();
            assert!((4500..5500).contains(&ones), "bit {bit:#x}: {ones}");
            assert!((4500..5500).contains(&changes), "bit {bit:#x}: {changes}");
        }
        let steps: BTreeSet<u32> = numbers.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert!(steps.len() > 9990, "{}", steps.len());
    }

    #[test]
    fn another_seed_gives_other_numbers() {
        let mut other = Numbered::new(8, BITS, ChaCha8Rng::seed_from_u64(8));
        assert_ne!(table(8).insert_with(|_| 1), other.insert_with(|_| 1));
        assert_eq!(table(8).insert_with(|_| 1), table(8).insert_with(|_| 1), "seeded");
    }

    #[test]
    fn a_number_rests_before_it_is_drawn_again() {
        let mut table = table(4);
        let mut seen = VecDeque::new();
        for n in 0..3 * RESTING as u32 {
            let number = table.insert_with(|_| n).unwrap();
            assert!(!seen.contains(&number), "{number:#x}");
            assert_eq!(table.remove(number), Some(n));
            assert_eq!((table.remove(number), table.get(number)), (None, None));
            seen.push_back(number);
            if seen.len() > RESTING {
                seen.pop_front();
            }
        }
        assert_eq!((table.len(), table.slots.len()), (0, 1), "one slot serves all");
        assert!(table.places.len() <= 4 * RESTING, "{}", table.places.len());
    }

    #[test]
    fn few_bits_are_enough_for_few_objects() {
        let mut table = Numbered::new(1000, 0, ChaCha8Rng::seed_from_u64(7));
        for _ in 0..100 {
            let all: Vec<u32> = std::iter::from_fn(|| table.insert_with(|_| 0)).collect();
            assert_eq!(all.len(), 128);
            assert!(all.iter().all(|number| (FIRST..1024).contains(number)));
            assert!(all.iter().all(|number| table.remove(*number).is_some()));
        }
    }

    #[test]
    fn what_is_no_number_is_not_found() {
        let mut table = table(100);
        assert_eq!(table.get(0), None, "in an empty table");
        let numbers: Vec<u32> = (0..100).map(|n| table.insert_with(|_| n).unwrap()).collect();
        let wrong =
            numbers.iter().map(|number| number ^ 0x80_0000).chain([0, 1, MULTICAST_QPN, !0]);
        for number in wrong.filter(|number| !numbers.contains(number)) {
            assert!(table.get(number).is_none() && table.remove(number).is_none(), "{number:#x}");
        }
    }
}
