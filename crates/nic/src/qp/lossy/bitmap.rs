//! A bitmap of packets, counted from a moving base. It takes one word while its bits are within 64
//! of the base, and allocates only beyond that.

use std::collections::VecDeque;

/// Bits by their distance from a base that only moves forward.
#[derive(Debug, Default)]
pub(crate) struct Bitmap {
    /// The first word: bit `shift` of it is the base.
    word: u64,
    shift: u32,
    ones: u32,
    /// The words behind the first; the last one is never zero. (Boxed, since most bitmaps have none
    /// and are part of a queue pair's state.)
    #[allow(clippy::box_collection)]
    rest: Option<Box<VecDeque<u64>>>,
}

impl Bitmap {
    /// The bytes that are allocated for it, beside its own.
    pub(crate) fn allocated_bytes(&self) -> usize {
        let words = |rest: &VecDeque<u64>| size_of_val(rest) + rest.capacity() * size_of::<u64>();
        self.rest.as_deref().map_or(0, words)
    }

    /// How many bits are set.
    pub(crate) fn ones(&self) -> u32 {
        self.ones
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ones == 0
    }

    fn word(&self, index: usize) -> u64 {
        match index {
            0 => self.word,
            _ => self.rest.as_ref().and_then(|rest| rest.get(index - 1)).copied().unwrap_or(0),
        }
    }

    fn place(&self, at: u32) -> (usize, u64) {
        let at = at + self.shift;
        ((at / 64) as usize, 1 << (at % 64))
    }

    /// Is the bit at this distance from the base set?
    pub(crate) fn get(&self, at: u32) -> bool {
        let (index, bit) = self.place(at);
        self.word(index) & bit != 0
    }

    /// Sets the bit at this distance from the base. Returns whether it was clear. The caller bounds
    /// the distance, to which memory is proportional.
    pub(crate) fn set(&mut self, at: u32) -> bool {
        let (index, bit) = self.place(at);
        if index > 0 && self.rest.as_ref().is_none_or(|rest| rest.len() < index) {
            self.rest.get_or_insert_default().resize(index, 0);
        }
        let word = match (index, &mut self.rest) {
            (1.., Some(rest)) => &mut rest[index - 1],
            _ => &mut self.word,
        };
        let was_clear = *word & bit == 0;
        *word |= bit;
        self.ones += u32::from(was_clear);
        was_clear
    }

    /// Clears the bit at the base.
    pub(crate) fn clear_base(&mut self) {
        self.ones -= u32::from(self.get(0));
        self.word &= !(1 << self.shift);
    }

    /// Moves the base forward; the bits before it are forgotten.
    #[inline]
    pub(crate) fn advance(&mut self, by: u32) {
        if self.ones > 0 {
            self.advance_bits(by);
        }
    }

    #[inline(never)]
    fn advance_bits(&mut self, by: u32) {
        let mut left = by;
        while left > 0 && self.ones > 0 {
            let step = left.min(64 - self.shift);
            let gone = (u64::MAX >> (64 - step)) << self.shift;
            self.ones -= (self.word & gone).count_ones();
            self.word &= !gone;
            self.shift += step;
            left -= step;
            if self.shift == 64 {
                self.shift = 0;
                self.word = self.rest.as_mut().and_then(|rest| rest.pop_front()).unwrap_or(0);
            }
        }
        if self.ones == 0 {
            *self = Bitmap::default();
        }
    }

    /// The distance of the first clear bit at this distance from the base or farther.
    pub(crate) fn next_clear(&self, from: u32) -> u32 {
        let at = from + self.shift;
        let (mut index, mut skipped) = (at / 64, at % 64);
        loop {
            let clear = !self.word(index as usize) >> skipped;
            if clear != 0 {
                return index * 64 + skipped + clear.trailing_zeros() - self.shift;
            }
            (index, skipped) = (index + 1, 0);
        }
    }

    /// The distance of the last set bit from the base.
    pub(crate) fn last(&self) -> Option<u32> {
        let words = self.rest.as_ref().map_or(0, |rest| rest.len()) + 1;
        let index = (0..words).rev().find(|index| self.word(*index) != 0)?;
        Some(index as u32 * 64 + self.word(index).ilog2() - self.shift)
    }

    /// The 64 bits from this distance on.
    pub(crate) fn window(&self, from: u32) -> u64 {
        let at = from + self.shift;
        let (index, shift) = ((at / 64) as usize, at % 64);
        let low = self.word(index) >> shift;
        if shift == 0 { low } else { low | self.word(index + 1) << (64 - shift) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The same as a set of numbers.
        #[test]
        fn it_is_a_set_with_a_moving_base(
            steps in prop::collection::vec((0u32..700, 0u32..200), 0..100)
        ) {
            let (mut bitmap, mut set, mut base) = (Bitmap::default(), BTreeSet::new(), 0);
            for (at, by) in steps {
                prop_assert_eq!(bitmap.set(at), set.insert(base + at));
                prop_assert!(bitmap.get(at));
                base += by;
                bitmap.advance(by);
                set.retain(|bit| *bit >= base);
                prop_assert_eq!(bitmap.ones() as usize, set.len());
                prop_assert_eq!(bitmap.is_empty(), set.is_empty());
                prop_assert_eq!(bitmap.last(), set.last().map(|last| last - base));
                bitmap.clear_base();
                set.remove(&base);
                prop_assert_eq!(bitmap.ones() as usize, set.len());
                let expected = (0..64).filter(|i| set.contains(&(base + at + i)));
                let window = expected.fold(0, |all, i| all | 1u64 << i);
                prop_assert_eq!(bitmap.window(at), window);
                let clear = (at..).find(|i| !set.contains(&(base + i)));
                prop_assert_eq!(Some(bitmap.next_clear(at)), clear);
            }
        }
    }

    #[test]
    fn one_word_needs_no_memory() {
        let mut bitmap = Bitmap::default();
        (0..64).for_each(|at| assert!(bitmap.set(at)));
        assert!(bitmap.rest.is_none());
        assert!(bitmap.set(64) && bitmap.rest.is_some());
        bitmap.advance(65);
        assert!(bitmap.is_empty() && bitmap.rest.is_none());
    }
}
