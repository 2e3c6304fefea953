//! What of a node outlives its process: the log, and the store as of some place in it.

use std::collections::VecDeque;

use remora_store::replica::{Mark, Replica, Snapshot};

use super::kept::Table;
use super::plan::RING;

/// A copy of the store is kept when so much of the log, some rings, was written since the last one.
const EVERY: u64 = 3 * RING;

/// A store as of a place in the log.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) at: Mark,
    pub(crate) snapshot: Snapshot,
    pub(crate) table: Table,
}

/// A disk. What was written is there when [`Disk::sync`] says so; a crash before that leaves some
/// of it.
pub(crate) struct Disk {
    base: Copy,
    /// Copies that become the base once the log is on the disk up to there.
    copies: VecDeque<Copy>,
    /// Records behind the base: where each ends, and its bytes.
    log: VecDeque<(Mark, Vec<u8>)>,
    synced: Mark,
}

impl Disk {
    pub(crate) fn new(replica: &Replica) -> Disk {
        let base = Copy { at: Mark::default(), snapshot: replica.snapshot(), table: Table::new() };
        Disk { base, copies: VecDeque::new(), log: VecDeque::new(), synced: Mark::default() }
    }

    /// The end of what was written.
    pub(crate) fn written(&self) -> Mark {
        self.log.back().map_or(self.base.at.max(self.synced), |(mark, _)| *mark)
    }

    pub(crate) fn write(&mut self, mark: Mark, record: &[u8]) {
        self.log.push_back((mark, record.to_vec()));
    }

    /// The store is a copy as of `copy.at`: it replaces the log before once that is on the disk.
    pub(crate) fn checkpoint(&mut self, copy: Copy) {
        let before = self.copies.back().map_or(self.base.at, |copy| copy.at);
        if copy.at.offset >= before.offset + EVERY {
            self.copies.push_back(copy);
            self.advance_base();
        }
    }

    /// What was written up to `mark` is on the disk.
    pub(crate) fn sync(&mut self, mark: Mark) {
        self.synced = self.synced.max(mark);
        self.advance_base();
    }

    fn advance_base(&mut self) {
        while self.copies.front().is_some_and(|copy| copy.at <= self.synced) {
            self.base = self.copies.pop_front().unwrap();
        }
        while self.log.front().is_some_and(|(mark, _)| *mark <= self.base.at) {
            self.log.pop_front();
        }
    }

    /// Records after `mark` are no more.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.log.retain(|(at, _)| *at <= mark);
        self.copies.retain(|copy| copy.at <= mark);
        self.synced = self.synced.min(mark);
    }

    /// Another node's store stands in the place of everything.
    pub(crate) fn replace(&mut self, copy: Copy) {
        self.log.clear();
        self.copies.clear();
        (self.synced, self.base) = (copy.at, copy);
    }

    /// The process is gone: of what was not synced, `torn` records are left.
    pub(crate) fn crash(&mut self, torn: usize) {
        let synced = self.log.iter().filter(|(mark, _)| *mark <= self.synced).count();
        self.log.truncate(synced + torn);
        self.copies.clear();
        self.synced = self.written();
    }

    /// What a node begins with that comes back: a store, and the records that follow.
    pub(crate) fn recover(&self) -> (&Copy, impl Iterator<Item = &[u8]>) {
        (&self.base, self.log.iter().map(|(_, bytes)| &bytes[..]))
    }
}
