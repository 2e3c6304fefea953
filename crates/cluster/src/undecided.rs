//! Changes that the primary has ordered and that no majority holds yet: which keys they are about,
//! so that answers about other keys do not wait for them; and whether anybody decides on them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use remora_store::log::Position;

/// What waits for a majority, as the primary has ordered it in its epoch. (What it took over from
/// earlier ones was committed before it served.)
#[derive(Debug, Default)]
pub(crate) struct Undecided {
    hasher: RandomState,
    /// The last change of each key, by a hash of it. Two keys of one hash wait for each other.
    changes: HashMap<u64, Position, BuildHasherDefault<Hashed>>,
    /// The same in their order.
    order: VecDeque<(Position, u64)>,
    /// The last change that is about more than one key.
    of_all: Position,
    /// What was committed when somebody had waited in vain for more.
    stalled_at: Option<Position>,
}

/// The hash of a hash: itself.
#[derive(Debug, Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {
        unreachable!("only numbers are looked up");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Undecided {
    /// A change is logged at a position: of a key, or of more than one.
    pub(crate) fn note(&mut self, position: Position, key: Option<&[u8]>, committed: Position) {
        while let Some((at, hash)) = self.order.front().copied().filter(|(at, _)| *at <= committed)
        {
            self.order.pop_front();
            if self.changes.get(&hash) == Some(&at) {
                self.changes.remove(&hash);
            }
        }
        let Some(key) = key else {
            self.of_all = position;
            return;
        };
        let hash = self.hasher.hash_one(key);
        self.changes.insert(hash, position);
        self.order.push_back((position, hash));
    }

    /// What an answer about these keys, as the store shows them, waits for.
    pub(crate) fn until<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
        committed: Position,
    ) -> Position {
        // Usually all is decided, and then no key is looked up.
        if self.order.back().is_none_or(|(last, _)| *last <= committed) {
            return self.of_all.max(committed);
        }
        let changes = keys.filter_map(|key| self.changes.get(&self.hasher.hash_one(key)).copied());
        changes.fold(self.of_all.max(committed), Position::max)
    }

    /// Somebody has waited in vain, and so much is committed still.
    pub(crate) fn stall(&mut self, committed: Position) {
        self.stalled_at = Some(committed);
    }

    /// Whether nothing was committed since somebody has waited in vain, though the log goes on.
    pub(crate) fn is_stalled(&self, last: Position, committed: Position) -> bool {
        self.stalled_at == Some(committed) && last > committed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_the_last_change_of_its_keys() {
        let (mut changes, at) = (Undecided::default(), |counter| Position::new(1, counter));
        let until = |changes: &Undecided, keys: &[&[u8]], committed| {
            changes.until(keys.iter().copied(), committed)
        };
        changes.note(at(1), Some(b"a"), at(0));
        changes.note(at(2), Some(b"b"), at(0));
        changes.note(at(3), Some(b"a"), at(0));
        assert_eq!(until(&changes, &[b"a"], at(0)), at(3));
        assert_eq!(until(&changes, &[b"b"], at(0)), at(2));
        assert_eq!(until(&changes, &[b"b", b"a"], at(0)), at(3));
        assert_eq!(until(&changes, &[b"c"], at(0)), at(0));
        // What is decided is waited for by nobody.
        assert_eq!(until(&changes, &[b"b"], at(2)), at(2));
        changes.note(at(4), None, at(2));
        assert_eq!(until(&changes, &[b"c"], at(2)), at(4), "a flush is about all keys");
        changes.note(at(5), Some(b"d"), at(4));
        assert!(changes.changes.len() == 1 && changes.order.len() == 1);
    }

    #[test]
    fn a_stall_ends_when_something_is_committed() {
        let (mut changes, at) = (Undecided::default(), |counter| Position::new(1, counter));
        assert!(!changes.is_stalled(at(5), at(4)));
        changes.stall(at(4));
        assert!(changes.is_stalled(at(5), at(4)));
        assert!(!changes.is_stalled(at(6), at(5)) && !changes.is_stalled(at(4), at(4)));
    }
}
