//! The area's pages, and the limit on those in use.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

/// Bytes in use by index and pages, and the most there may be.
#[derive(Debug)]
pub(crate) struct Usage {
    used: AtomicU64,
    limit: u64,
    /// As many may be taken at the moment, at most `limit`, unless the limit is lifted.
    ceiling: AtomicU64,
    /// How many callers of [`Usage::lifted`] there are.
    lifts: AtomicU64,
}

impl Usage {
    pub(crate) fn new(limit: u64) -> Usage {
        Usage {
            used: AtomicU64::new(0),
            limit,
            ceiling: AtomicU64::new(limit),
            lifts: AtomicU64::new(0),
        }
    }

    /// Takes so many bytes, if as many are left.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let lifted = self.lifts.load(Relaxed) > 0;
        let limit = if lifted { self.limit.saturating_mul(2) } else { self.limit() };
        let more = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        self.used.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    /// Doubles the limit for the length of a call, to which the area's pages suffice.
    pub(crate) fn lifted<T>(&self, body: impl FnOnce() -> T) -> T {
        self.lifts.fetch_add(1, Relaxed);
        let result = body();
        self.lifts.fetch_sub(1, Relaxed);
        result
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.ceiling.load(Relaxed)
    }

    /// From now on so many bytes may be in use, at most as many as at first. What is in use stays.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.ceiling.store(bytes.min(self.limit), Relaxed);
    }
}

/// Which pages are in use.
#[derive(Debug)]
pub(crate) struct Pages {
    map: Mutex<Map>,
}

#[derive(Debug)]
struct Map {
    /// A bit for each page, set if it is in use.
    used: Vec<u64>,
    count: u32,
    /// No page below is free.
    lowest: u32,
    /// A bit for each page that was used since the machine had it back.
    touched: Vec<u64>,
    /// Pages that are touched and free.
    idle: u32,
    /// No word behind this one has an idle page.
    last_idle: usize,
}

impl Pages {
    pub(crate) fn new(count: u32) -> Pages {
        let used = vec![0; count.div_ceil(64) as usize];
        let touched = used.clone();
        let map = Map { used, count, lowest: 0, touched, idle: 0, last_idle: 0 };
        Pages { map: Mutex::new(map) }
    }

    /// So many pages in a row. The first that are free, so that the pages in use stay together;
    /// `high` takes the last ones, so that long rows are not between short ones.
    pub(crate) fn take(&self, pages: u32, high: bool) -> Option<u32> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let first = if high { map.last_row(pages) } else { map.first_row(pages) }?;
        (first..first + pages).for_each(|page| map.use_page(page));
        if first == map.lowest {
            map.lowest = first + pages;
        }
        Some(first)
    }

    pub(crate) fn give(&self, first: u32, pages: u32) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        (first..first + pages).for_each(|page| map.set(page, false));
        map.lowest = map.lowest.min(first);
        map.idle += pages;
        map.last_idle = map.last_idle.max((first + pages - 1) as usize / 64);
    }

    /// Takes a row of idle pages, so many at most and the last ones first, if there are more than
    /// `kept`. Nobody else has them until the caller has given them back to the machine and calls
    /// [`Pages::put_back`].
    pub(crate) fn take_idle(&self, kept: u32, at_most: u32) -> Option<(u32, u32)> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let most = map.idle.saturating_sub(kept).min(at_most);
        if most == 0 {
            return None;
        }
        while map.idle_in(map.last_idle) == 0 {
            map.last_idle = map.last_idle.checked_sub(1)?;
        }
        let end = map.last_idle as u32 * 64 + 64 - map.idle_in(map.last_idle).leading_zeros();
        let mut first = end;
        while first > 0 && end - first < most && map.is_idle(first - 1) {
            first -= 1;
            map.set(first, true);
        }
        map.idle -= end - first;
        Some((first, end - first))
    }

    /// Ends what [`Pages::take_idle`] has begun.
    pub(crate) fn put_back(&self, first: u32, pages: u32) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        for page in first..first + pages {
            map.set(page, false);
            map.touched[page as usize / 64] &= !(1 << (page % 64));
        }
        map.lowest = map.lowest.min(first);
    }
}

impl Map {
    fn use_page(&mut self, page: u32) {
        self.idle -= u32::from(self.is_idle(page));
        self.set(page, true);
        self.touched[page as usize / 64] |= 1 << (page % 64);
    }

    /// A bit for each page of a word that is idle.
    fn idle_in(&self, word: usize) -> u64 {
        self.touched[word] & !self.used[word]
    }

    fn is_idle(&self, page: u32) -> bool {
        self.idle_in(page as usize / 64) >> (page % 64) & 1 != 0
    }

    fn is_used(&self, page: u32) -> bool {
        self.used[page as usize / 64] >> (page % 64) & 1 != 0
    }

    fn set(&mut self, page: u32, used: bool) {
        let word = &mut self.used[page as usize / 64];
        let bit = 1 << (page % 64);
        *word = if used { *word | bit } else { *word & !bit };
    }

    fn first_row(&self, pages: u32) -> Option<u32> {
        let (mut page, mut row) = (self.lowest, 0);
        while page < self.count {
            if page.is_multiple_of(64) && self.used[page as usize / 64] == u64::MAX {
                (page, row) = (page + 64, 0);
                continue;
            }
            row = if self.is_used(page) { 0 } else { row + 1 };
            page += 1;
            if row == pages {
                return Some(page - pages);
            }
        }
        None
    }

    fn last_row(&self, pages: u32) -> Option<u32> {
        let mut row = 0;
        for page in (0..self.count).rev() {
            row = if self.is_used(page) { 0 } else { row + 1 };
            if row == pages {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_from_both_ends() {
        let pages = Pages::new(200);
        assert_eq!(pages.take(3, false), Some(0));
        assert_eq!(pages.take(10, true), Some(190));
        assert_eq!(pages.take(150, false), Some(3));
        pages.give(1, 1);
        assert_eq!(pages.take(2, false), Some(153));
        assert_eq!(pages.take(1, false), Some(1));
        assert_eq!(pages.take(36, false), None);
        assert_eq!(pages.take(35, true), Some(155));
        assert_eq!(pages.take(1, false), None);
    }

    #[test]
    fn idle_pages_are_taken_once_and_the_last_ones_first() {
        let pages = Pages::new(200);
        assert_eq!(pages.take_idle(0, 9), None, "none was ever used");
        assert_eq!(pages.take(150, false), Some(0));
        pages.give(140, 5);
        pages.give(60, 10);
        assert_eq!(pages.take_idle(15, 9), None);
        assert_eq!(pages.take_idle(0, 9), Some((140, 5)));
        pages.put_back(140, 5);
        assert_eq!(pages.take_idle(4, 4), Some((66, 4)));
        assert_eq!(pages.take(5, false), Some(60));
        assert_eq!(pages.take(2, false), Some(140), "one is left, and four are being given back");
        pages.put_back(66, 4);
        assert_eq!(pages.take_idle(0, 64), Some((65, 1)));
        pages.put_back(65, 1);
        assert_eq!(pages.take_idle(0, 64), None);
        assert_eq!(pages.take(5, false), Some(65));
    }

    #[test]
    fn usage_stays_within_its_limit() {
        let usage = Usage::new(100);
        assert!(usage.take(60) && !usage.take(41) && usage.take(40));
        usage.give(10);
        assert_eq!(usage.used(), 90);
        assert!(usage.lifted(|| usage.take(110)) && !usage.lifted(|| usage.take(1)));
        assert!(!usage.take(1));
        usage.give(150);
        usage.set_limit(60);
        assert!(usage.take(10) && !usage.take(1) && usage.lifted(|| usage.take(140)));
        usage.give(140);
        usage.set_limit(1000);
        assert!(usage.take(40) && !usage.take(1), "it is never more than at first");
    }
}
