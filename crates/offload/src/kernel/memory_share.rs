//! A share of the memory that instances of modules have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most bytes that the instances of some modules have together, those of a program that shares
/// a card for one. It may be part of a larger share, of a user for one.
#[derive(Debug)]
pub struct MemoryShare {
    limit: usize,
    taken: AtomicUsize,
    whole: Option<Arc<MemoryShare>>,
}

impl MemoryShare {
    /// A share of `limit` bytes.
    pub const fn new(limit: usize) -> MemoryShare {
        MemoryShare { limit, taken: AtomicUsize::new(0), whole: None }
    }

    /// A share of at most `limit` bytes of another one.
    pub fn of(whole: Arc<MemoryShare>, limit: usize) -> MemoryShare {
        MemoryShare { whole: Some(whole), ..MemoryShare::new(limit) }
    }

    /// The most bytes that it, or what it is part of, has room for.
    pub fn limit(&self) -> usize {
        self.whole.as_ref().map_or(self.limit, |whole| self.limit.min(whole.limit()))
    }

    /// The share that this one is part of.
    pub fn whole(&self) -> Option<&Arc<MemoryShare>> {
        self.whole.as_ref()
    }

    /// Bytes that are taken now.
    pub fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Is there room for so many more bytes now?
    pub fn has_room(&self, bytes: usize) -> bool {
        self.taken().checked_add(bytes).is_some_and(|sum| sum <= self.limit)
            && self.whole.as_ref().is_none_or(|whole| whole.has_room(bytes))
    }

    /// Takes so many more bytes, which [`MemoryShare::give_back`] gives back; returns whether there
    /// was room for all of them.
    #[must_use]
    pub fn take(&self, bytes: usize) -> bool {
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= self.limit);
        if self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return false;
        }
        let has_room = self.whole.as_ref().is_none_or(|whole| whole.take(bytes));
        if !has_room {
            self.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        has_room
    }

    /// Gives bytes back that were taken.
    pub fn give_back(&self, bytes: usize) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.give_back(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_whole_has_no_room_for_is_not_taken() {
        let whole = Arc::new(MemoryShare::new(100));
        let [one, two] = [(); 2].map(|()| MemoryShare::of(whole.clone(), 70));
        assert_eq!((one.limit(), MemoryShare::of(whole.clone(), 101).limit()), (70, 100));
        assert!(one.take(70) && !one.take(1) && !one.take(usize::MAX));
        assert!(!two.has_room(31) && !two.take(31) && two.has_room(30) && two.take(30));
        assert_eq!((one.taken(), two.taken(), whole.taken()), (70, 30, 100));
        one.give_back(70);
        assert!(two.take(40));
        assert_eq!((one.taken(), two.taken(), whole.taken()), (0, 70, 70));
    }
}
