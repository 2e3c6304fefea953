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
/// The number of a vacant place.
const VACANT: u32 = 0;

/// A table whose numbers are random, so that nobody can tell one from another.
///
/// The low bits of a number are its place, so a look-up needs no search. A number whose place is
/// taken is not drawn; at most half of the places are taken, so two draws do on average.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    /// Each at the low bits of its number. The length is zero or a power of two.
    places: Vec<Entry<T>>,
    len: usize,
    resting: VecDeque<u32>,
    limit: usize,
    bits: u32,
    random: ChaCha8Rng,
}

/// A place has the number itself, so that a look-up reads two words beside each other, and then the
/// object.
#[derive(Debug)]
struct Entry<T> {
    /// The number that lives or rests here, or [`VACANT`].
    number: u32,
    /// `None` while the number rests.
    value: Option<Box<T>>,
}

impl<T> Entry<T> {
    const VACANT: Entry<T> = Entry { number: VACANT, value: None };
}

impl<T> Numbered<T> {
    /// An empty table for at most `limit` values (and an eighth of the numbers), with
    /// numbers of `bits` bits (10 to 24) from `random`.
    pub(crate) fn new(limit: usize, bits: u32, random: ChaCha8Rng) -> Self {
        let bits = bits.clamp(FEWEST_BITS, BITS);
        let limit = limit.min(1 << (bits - 3));
        Numbered { places: Vec::new(), len: 0, resting: VecDeque::new(), limit, bits, random }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The most objects that there can be.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// The bytes of the places, which do not hold the values themselves.
    pub(crate) fn bytes_of_places(&self) -> usize {
        self.places.capacity() * size_of::<Entry<T>>()
    }

    /// Adds the value that `make` builds from its number. `None` if the table is full.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        if self.len >= self.limit {
            return None;
        }
        let number = self.draw();
        let at = self.at(number);
        self.places[at] = Entry { number, value: Some(Box::new(make(number))) };
        self.len += 1;
        Some(number)
    }

    /// A number whose place is vacant.
    fn draw(&mut self) -> u32 {
        if 2 * (self.len + self.resting.len() + 1) > self.places.len() {
            self.grow();
        }
        loop {
            let number = self.random.next_u32() >> (u32::BITS - self.bits);
            let vacant = self.places[self.at(number)].number == VACANT;
            // The highest number of all stands for all queue pairs of a multicast group.
            if vacant && (FIRST..MULTICAST_QPN).contains(&number) {
                return number;
            }
        }
    }

    /// Doubles the places. Numbers that differed in their low bits still do.
    fn grow(&mut self) {
        let before = core::mem::take(&mut self.places);
        self.places.resize_with((2 * before.len()).max(8), || Entry::VACANT);
        for place in before.into_iter().filter(|place| place.number != VACANT) {
            let at = self.at(place.number);
            self.places[at] = place;
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let at = self.at(number);
        let place = self.places.get_mut(at).filter(|place| place.number == number)?;
        let value = place.value.take()?;
        self.len -= 1;
        self.resting.push_back(number);
        if self.resting.len() > RESTING.min(1 << (self.bits - 3))
            && let Some(rested) = self.resting.pop_front()
        {
            let at = self.at(rested);
            self.places[at] = Entry::VACANT;
        }
        Some(*value)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let place = self.places.get(self.at(number))?;
        if place.number == number { place.value.as_deref() } else { None }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let at = self.at(number);
        let place = self.places.get_mut(at)?;
        if place.number == number { place.value.as_deref_mut() } else { None }
    }

    /// The objects, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|place| place.value.as_deref())
    }

    /// The objects, in no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_deref_mut())
    }

    /// The index of the only place that may have a number. (Without places it is out of range.)
    #[inline]
    fn at(&self, number: u32) -> usize {
        number as usize & self.places.len().wrapping_sub(1)
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
        assert_eq!(table.len(), 0);
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
