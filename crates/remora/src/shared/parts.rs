//! Which pages of an arena are in use: the daemon's notes, which no client can reach.

use std::collections::BTreeMap;

use super::arena::{DATA, PAGE};

/// The pages of an arena behind its rings, given out by first fit.
#[derive(Debug)]
pub struct Parts {
    /// Free ranges by their beginnings; no two touch.
    free: BTreeMap<usize, usize>,
    len: usize,
    used: usize,
}

impl Parts {
    /// The parts of an arena of `len` bytes.
    pub fn new(len: usize) -> Parts {
        let mut free = BTreeMap::new();
        if len > DATA {
            free.insert(DATA, len);
        }
        Parts { free, len: len.saturating_sub(DATA), used: 0 }
    }

    /// Bytes that are given out.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes that there are in all.
    pub fn capacity(&self) -> usize {
        self.len
    }

    /// The bytes that a part of `len` takes: whole pages, one at least.
    pub fn taken_by(len: usize) -> usize {
        len.max(1).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX)
    }

    /// Takes `len` bytes, rounded up to pages; returns where they begin. `None`: no free range is
    /// that long.
    pub fn take(&mut self, len: usize) -> Option<usize> {
        let len = Parts::taken_by(len);
        let (&start, &end) = self.free.iter().find(|(start, end)| *end - *start >= len)?;
        self.free.remove(&start);
        if end - start > len {
            self.free.insert(start + len, end);
        }
        self.used += len;
        Some(start)
    }

    /// Bytes of the arena in pages of `page` bytes that are not wholly free, its rings included.
    pub fn reach(&self, page: usize) -> usize {
        let whole = |(from, to): (&usize, &usize)| {
            (to / page * page).saturating_sub(from.next_multiple_of(page))
        };
        let free: usize = self.free.iter().map(whole).sum();
        (DATA + self.len).next_multiple_of(page) - free
    }

    /// Gives back what [`Parts::take`] gave out as `len` bytes at `start`. The caller punches its
    /// pages out of the file.
    ///
    /// # Panics
    /// If some of it is free: the daemon has then lost count of its own objects.
    pub fn give_back(&mut self, start: usize, len: usize) {
        let end = start + Parts::taken_by(len);
        let before = self.free.range(..end).next_back().map(|(start, end)| (*start, *end));
        assert!(before.is_none_or(|(_, before)| before <= start), "a part is given back twice");
        let (mut from, mut to) = (start, end);
        if let Some((first, _)) = before.filter(|(_, before)| *before == start) {
            from = first;
        }
        if let Some(after) = self.free.remove(&end) {
            to = after;
        }
        self.free.insert(from, to);
        self.used -= end - start;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_pages_and_join_again() {
        let mut parts = Parts::new(DATA + 8 * PAGE);
        let a = parts.take(1).unwrap();
        let b = parts.take(2 * PAGE).unwrap();
        let c = parts.take(PAGE + 1).unwrap();
        assert_eq!((a, b, c), (DATA, DATA + PAGE, DATA + 3 * PAGE));
        assert_eq!(parts.used(), 5 * PAGE);
        assert_eq!(parts.take(4 * PAGE), None, "no room in one piece");
        parts.give_back(b, 2 * PAGE);
        assert_eq!(parts.used(), 3 * PAGE);
        assert_eq!(parts.take(PAGE), Some(b), "the first that fits");
        parts.give_back(a, 1);
        parts.give_back(c, PAGE + 1);
        parts.give_back(b, PAGE);
        assert_eq!((parts.used(), parts.take(8 * PAGE)), (0, Some(DATA)));
        assert_eq!(parts.take(usize::MAX), None);
        assert_eq!(Parts::new(100).take(1), None);
    }

    #[test]
    fn pages_count_that_are_not_wholly_free() {
        let mut parts = Parts::new(DATA + 8 * PAGE);
        assert_eq!(parts.reach(PAGE), DATA);
        parts.take(3 * PAGE);
        assert_eq!(parts.reach(PAGE), DATA + 3 * PAGE);
        let large = (DATA + 4 * PAGE) / 2;
        assert_eq!(parts.reach(large), 3 * large);
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn a_part_is_given_back_once() {
        let mut parts = Parts::new(DATA + 8 * PAGE);
        let part = parts.take(PAGE).unwrap();
        parts.give_back(part, PAGE);
        parts.give_back(part, PAGE);
    }
}
