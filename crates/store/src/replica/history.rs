//! The end of the log, as it lies in a ring.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::region::pieces;
use crate::log::{Fields, HEADER, NoRecord, Position};
use crate::memory::Memory;

/// Ends of how many epochs a history remembers. Where two histories share none of them, one is
/// replaced as a whole.
const EPOCHS_MAX: usize = 32;

/// Where a record ends.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Mark {
    /// The record's position.
    pub position: Position,
    /// The bytes of the log up to its end.
    pub offset: u64,
}

/// Whether each of these marks lies behind the one before, in a later epoch: what the ends of a
/// history are.
pub(super) fn are_in_order(ends: &[Mark]) -> bool {
    ends.windows(2).all(|pair| {
        let (before, after) = (pair[0], pair[1]);
        before.position.epoch() < after.position.epoch()
            && before.position.counter() < after.position.counter()
            && before.offset < after.offset
    })
}

/// What a node has of the log: which records, by the last one of each epoch, and which of them
/// still lie in its ring.
///
/// An epoch has one primary, which goes on from one history. So two histories with a record at the
/// same position have the same records before it, at the same offsets: that is what
/// [`History::common`] is built on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct History {
    ring_bytes: u64,
    salt: u64,
    /// Bytes before this one never lay in this ring.
    begin: u64,
    /// Bytes from this one on are not of what was read here: behind the last record and before it
    /// there may be some that no history has in this order.
    read_until: u64,
    /// Where the last record of each epoch ends, by epochs.
    ends: VecDeque<Mark>,
    /// The end of the last record before a transaction whose own last record is not here.
    unfinished: Option<Mark>,
}

impl History {
    /// No records; the ring will have `ring_bytes`. All nodes of a group have the same salt: see
    /// [`Fields::decode`].
    #[must_use]
    pub fn new(ring_bytes: u64, salt: u64) -> History {
        let ends = VecDeque::new();
        History { ring_bytes, salt, begin: 0, read_until: 0, ends, unfinished: None }
    }

    /// The end of the last record.
    #[must_use]
    pub fn last(&self) -> Mark {
        self.ends.back().copied().unwrap_or_default()
    }

    /// The end of the last record before a transaction that is not whole here, if there is one.
    pub(super) fn unfinished(&self) -> Option<Mark> {
        self.unfinished
    }

    /// Where the last record of each epoch ends, the latest ones.
    pub fn ends(&self) -> impl Iterator<Item = Mark> + '_ {
        self.ends.iter().copied()
    }

    /// The offset of the first byte that lies in the ring for sure: a write that was under way may
    /// have covered a window's bytes more than the records that came of it.
    #[must_use]
    pub fn first_offset(&self) -> u64 {
        let sure = self.ring_bytes - self.window();
        self.begin.max(self.last().offset.saturating_sub(sure))
    }

    /// How many bytes a primary may write ahead of what a backup is known to have: a quarter of the
    /// ring. No record is longer.
    #[must_use]
    pub fn window(&self) -> u64 {
        self.ring_bytes / 4
    }

    /// Where this history and another one part: the end of the last record that both have, or of
    /// none if they share no epoch.
    #[must_use]
    pub fn common(&self, other: &[Mark]) -> Mark {
        let pairs = self.ends.iter().rev().filter_map(|mine| {
            let epoch = mine.position.epoch();
            let theirs = other.iter().rev().find(|mark| mark.position.epoch() == epoch)?;
            Some(*mine.min(theirs))
        });
        pairs.max().unwrap_or_default()
    }

    /// Whether the record at a position is here, or was; not if that was too many epochs ago.
    #[must_use]
    pub fn has(&self, position: Position) -> bool {
        let end = self.ends.iter().find(|end| end.position.epoch() == position.epoch());
        end.is_some_and(|end| position.counter() <= end.position.counter())
    }

    /// The ends up to a mark, which is that of a record here.
    #[must_use]
    pub fn ends_until(&self, mark: Mark) -> Vec<Mark> {
        let before = self.ends.iter().copied().take_while(|end| end.position < mark.position);
        let mark = Some(mark).filter(|mark| *mark != Mark::default());
        before.chain(mark).collect()
    }

    /// The checksum of a record's contents, which [`History::append`] takes: see
    /// [`Fields::checksum_contents`].
    pub(super) fn sum(&self, fields: &Fields<'_>) -> u64 {
        fields.checksum_contents(self.salt)
    }

    /// Appends a record. The caller sees to it that what it overwrites is of no more use.
    pub(super) fn append<M: Memory>(
        &mut self,
        memory: &M,
        position: Position,
        (fields, sum): (&Fields<'_>, u64),
        scratch: &mut Vec<u8>,
    ) -> Mark {
        scratch.clear();
        fields.encode(position, sum, scratch);
        let offset = self.last().offset;
        let mut rest = &scratch[..];
        for (at, len) in pieces(self.ring_bytes, offset, scratch.len() as u64) {
            let (piece, after) = rest.split_at(len as usize);
            memory.write(at, piece);
            rest = after;
        }
        let mark = Mark { position, offset: offset + scratch.len() as u64 };
        self.push(mark, fields.goes_on);
        mark
    }

    /// A record ends here; whether a transaction goes on behind it.
    fn push(&mut self, mark: Mark, goes_on: bool) {
        let before = self.unfinished.unwrap_or(self.last());
        self.unfinished = goes_on.then_some(before);
        match self.ends.back_mut() {
            Some(last) if last.position.epoch() == mark.position.epoch() => *last = mark,
            _ => {
                if self.ends.len() == EPOCHS_MAX {
                    self.ends.pop_front();
                }
                self.ends.push_back(mark);
            }
        }
    }

    /// Takes up the records that lie in the ring behind the last one, whole and in order, and end
    /// at `until` or before. The node that wrote them was let in to write the log of `epoch` or of
    /// an earlier one.
    pub(super) fn scan<M: Memory>(
        &mut self,
        memory: &M,
        epoch: u32,
        until: u64,
        scratch: &mut Vec<u8>,
    ) {
        let mut last = self.last();
        while let Some((mark, fields)) = self.after(memory, last, scratch) {
            if mark.position.epoch() > epoch || mark.offset > until {
                break;
            }
            self.push(mark, fields.goes_on);
            last = mark;
        }
    }

    /// Bytes up to `until` are about to be read into the ring, out of another node's. Those that
    /// they overwrite do not lie here any more, whether all of them come or not.
    pub(super) fn expect(&mut self, until: u64) {
        self.begin = self.begin.max(until.saturating_sub(self.ring_bytes));
        self.read_until = self.read_until.max(until);
    }

    /// The last place up to `mark` that is not amid a transaction, as the records say that lie
    /// behind `from`, itself such a place; `mark` is where one of them ends.
    pub(super) fn whole_until<M: Memory>(
        &self,
        memory: &M,
        from: Mark,
        mark: Mark,
        scratch: &mut Vec<u8>,
    ) -> Mark {
        let (mut at, mut whole) = (from, from);
        while at.offset < mark.offset
            && let Some((next, fields)) = self.after(memory, at, scratch)
        {
            at = next;
            whole = if fields.goes_on { whole } else { at };
        }
        whole
    }

    /// Whether `mark` is where a record ends that lies behind `from`, itself such a place.
    pub(super) fn has_mark<M: Memory>(
        &self,
        memory: &M,
        from: Mark,
        mark: Mark,
        scratch: &mut Vec<u8>,
    ) -> bool {
        let mut at = from;
        while at.position < mark.position && at.offset < self.last().offset {
            let Some((next, _)) = self.after(memory, at, scratch) else { return false };
            at = next;
        }
        at == mark
    }

    /// The record after a mark, if it lies in the ring, whole.
    pub(super) fn after<'s, M: Memory>(
        &self,
        memory: &M,
        mark: Mark,
        scratch: &'s mut Vec<u8>,
    ) -> Option<(Mark, Fields<'s>)> {
        scratch.clear();
        self.copy(memory, mark.offset, HEADER as u64, scratch);
        if let Err(NoRecord::Short(needed)) = Fields::decode(scratch, self.salt) {
            if needed as u64 > self.window() {
                return None;
            }
            let rest = (needed - HEADER) as u64;
            self.copy(memory, mark.offset + HEADER as u64, rest, scratch);
        }
        let (position, fields, len) = Fields::decode(scratch, self.salt).ok()?;
        let follows = position.follows(mark.position);
        follows.then_some((Mark { position, offset: mark.offset + len as u64 }, fields))
    }

    /// Appends bytes of the ring to `scratch`.
    fn copy<M: Memory>(&self, memory: &M, offset: u64, len: u64, scratch: &mut Vec<u8>) {
        let begin = scratch.len();
        scratch.resize(begin + len as usize, 0);
        let mut rest = &mut scratch[begin..];
        for (at, len) in pieces(self.ring_bytes, offset, len) {
            let (piece, after) = rest.split_at_mut(len as usize);
            memory.read(at, piece);
            rest = after;
        }
    }

    /// Forgets the records after a mark, which is that of a record here. Their bytes become zeros,
    /// so that none of them is taken for the next record once others lie before it; so do those
    /// that were read here and did not become records. `whole` is the last place up to the mark
    /// that is not amid a transaction: of one that was whole, a part may be left.
    pub(super) fn truncate<M: Memory>(&mut self, memory: &M, mark: Mark, whole: Mark) {
        let end = self.last().offset.max(self.read_until);
        // What was overwritten for the forgotten records does not come back either.
        self.begin = self.first_offset().min(mark.offset);
        self.clear(memory, mark.offset, end.saturating_sub(mark.offset));
        self.read_until = mark.offset;
        self.ends = self.ends_until(mark).into();
        self.unfinished = Some(whole).filter(|whole| whole.offset < mark.offset);
    }

    /// Clears the bytes behind the last record, up to `until`. Nobody writes here now; but one who
    /// did may have placed a record there and not the one before it, and this one would follow what
    /// somebody else writes into the gap.
    pub(super) fn clear_ahead<M: Memory>(&self, memory: &M, until: u64) {
        let end = self.last().offset;
        self.clear(memory, end, until.saturating_sub(end));
    }

    /// Begins anew behind a snapshot, whose last record is the last of these ends.
    pub(super) fn restart<M: Memory>(&mut self, memory: &M, ends: &[Mark]) {
        self.clear(memory, 0, self.ring_bytes);
        self.resume(ends);
    }

    /// Goes on behind a snapshot with these ends, with what lies in the ring.
    pub(super) fn resume(&mut self, ends: &[Mark]) {
        self.ends = ends[ends.len().saturating_sub(EPOCHS_MAX)..].iter().copied().collect();
        self.begin = self.last().offset;
        self.read_until = self.begin;
        self.unfinished = None;
    }

    fn clear<M: Memory>(&self, memory: &M, offset: u64, len: u64) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for (mut at, mut len) in pieces(self.ring_bytes, offset, len.min(self.ring_bytes)) {
            while len > 0 {
                let some = len.min(ZEROS.len() as u64);
                memory.write(at, &ZEROS[..some as usize]);
                (at, len) = (at + some, len - some);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::region::region_bytes;
    use super::*;
    use crate::log::Operation;
    use crate::memory::Heap;

    const RING: u64 = 512;

    struct Node {
        memory: Heap,
        history: History,
        scratch: Vec<u8>,
    }

    impl Node {
        fn new() -> Node {
            let (memory, history) = (Heap::new(region_bytes(RING)), History::new(RING, 7));
            Node { memory, history, scratch: Vec::new() }
        }

        fn append(&mut self, epoch: u32, key: &[u8]) -> Mark {
            self.append_part(epoch, key, false)
        }

        fn append_part(&mut self, epoch: u32, key: &[u8], goes_on: bool) -> Mark {
            let fields = Fields { key, goes_on, ..Fields::of(Operation::Delete) };
            let position = self.history.last().position.next(epoch).unwrap();
            let sum = self.history.sum(&fields);
            self.history.append(&self.memory, position, (&fields, sum), &mut self.scratch)
        }

        /// Takes the bytes from an offset on as they lie in another ring.
        fn copy_from(&mut self, other: &Node, from: u64) {
            let len = other.history.last().offset - from;
            for (at, len) in pieces(RING, from, len) {
                let mut bytes = vec![0; len as usize];
                other.memory.read(at, &mut bytes);
                self.memory.write(at, &bytes);
            }
            self.history.scan(&self.memory, u32::MAX, u64::MAX, &mut self.scratch);
        }
    }

    #[test]
    fn what_lies_in_the_ring_is_taken_up_over_many_laps() {
        let (mut primary, mut backup) = (Node::new(), Node::new());
        for lap in 0..100u32 {
            let from = primary.history.last().offset;
            primary.append(lap / 10, b"some key");
            primary.append(lap / 10, &vec![b'x'; lap as usize % 88]);
            backup.copy_from(&primary, from);
            assert_eq!(backup.history.last(), primary.history.last(), "lap {lap}");
        }
        assert_eq!(primary.history.first_offset(), primary.history.last().offset - RING * 3 / 4);
    }

    #[test]
    fn histories_part_at_the_last_record_that_both_have() {
        let (mut one, mut two) = (Node::new(), Node::new());
        assert_eq!(one.history.common(&[]), Mark::default());
        one.append(1, b"a");
        let shared = one.append(1, b"b");
        two.copy_from(&one, 0);
        one.append(1, b"c");
        two.append(2, b"d");
        let ends = |node: &Node| node.history.ends().collect::<Vec<_>>();
        assert_eq!(one.history.common(&ends(&two)), shared);
        assert_eq!(two.history.common(&ends(&one)), shared);
        assert_eq!(two.history.ends_until(shared), [shared]);
        let lost = one.history.last().position;
        assert!(one.history.has(lost) && two.history.has(shared.position));
        assert!(!two.history.has(lost), "a later epoch's records are in its place");
    }

    /// A record that was taken back must not come back behind a new one of its own length, even
    /// when it is of a later epoch.
    #[test]
    fn records_that_were_forgotten_do_not_come_back() {
        let mut node = Node::new();
        let kept = node.append(1, b"a");
        node.append(3, b"b");
        node.append(3, b"c");
        node.history.truncate(&node.memory, kept, kept);
        let mut other = Node::new();
        other.append(1, b"a");
        let new = other.append(2, b"n");
        node.copy_from(&other, kept.offset);
        assert_eq!(node.history.last(), new);
    }

    #[test]
    fn half_a_record_and_one_of_a_later_epoch_are_not_taken_up() {
        let (mut one, mut two) = (Node::new(), Node::new());
        let end = one.append(4, b"a key of some length");
        let mut bytes = Vec::new();
        one.history.copy(&one.memory, 0, end.offset, &mut bytes);
        for cut in (0..bytes.len()).step_by(8) {
            let (at, _) = pieces(RING, 0, 1).next().unwrap();
            two.memory.write(at, &bytes[..cut]);
            two.history.scan(&two.memory, 9, u64::MAX, &mut two.scratch);
            assert_eq!(two.history.last(), Mark::default(), "cut at {cut}");
        }
        let (at, _) = pieces(RING, 0, 1).next().unwrap();
        two.memory.write(at, &bytes);
        two.history.scan(&two.memory, 3, u64::MAX, &mut two.scratch);
        assert_eq!(two.history.last(), Mark::default());
        two.history.scan(&two.memory, 4, end.offset - 1, &mut two.scratch);
        assert_eq!(two.history.last(), Mark::default(), "it ends behind what was asked for");
        two.history.scan(&two.memory, 4, u64::MAX, &mut two.scratch);
        assert_eq!(two.history.last(), end);
    }

    #[test]
    fn a_transaction_that_is_cut_has_no_end() {
        let mut node = Node::new();
        let before = node.append(1, b"a");
        let part = node.append_part(1, b"b", true);
        let whole = node.append(1, b"c");
        assert_eq!(node.history.unfinished(), None);
        for (mark, expected) in [(whole, None), (part, Some(before)), (before, None)] {
            let Node { memory, history, scratch } = &mut node;
            let until = history.whole_until(memory, Mark::default(), mark, scratch);
            history.truncate(memory, mark, until);
            assert_eq!(history.unfinished(), expected, "{mark:?}");
        }
    }

    /// A READ of another node's ring overwrites what lay in its place, and may end half-way.
    #[test]
    fn what_is_about_to_be_overwritten_is_not_offered() {
        let (mut one, mut two) = (Node::new(), Node::new());
        while one.history.last().offset < RING {
            one.append(1, b"");
        }
        two.copy_from(&one, 0);
        let (sure, last) = (two.history.first_offset(), one.history.last().offset);
        two.history.expect(last + RING / 2);
        assert_eq!(two.history.first_offset(), last - RING / 2);
        assert!(two.history.first_offset() > sure);
    }

    /// Two READs that both end half-way must not become one history.
    #[test]
    fn what_was_read_for_nothing_is_cleared() {
        let (mut node, mut three, mut two) = (Node::new(), Node::new(), Node::new());
        three.append(2, b"a");
        three.append(3, b"b");
        three.append(4, b"c");
        let last = three.history.last().offset;
        node.history.expect(last);
        let mut tail = Vec::new();
        three.history.copy(&three.memory, last * 2 / 3, last / 3, &mut tail);
        let (at, _) = pieces(RING, last * 2 / 3, 1).next().unwrap();
        node.memory.write(at, &tail);
        two.append(2, b"a");
        let end = two.append(2, b"d");
        node.history.truncate(&node.memory, Mark::default(), Mark::default());
        node.copy_from(&two, 0);
        assert_eq!(node.history.last(), end, "not the third record of another history");
    }

    /// Packets of a WRITE need not come in order: records lie behind a gap when their writer ends.
    #[test]
    fn records_behind_a_gap_do_not_follow_another_primary_s() {
        let (mut node, mut one, mut two) = (Node::new(), Node::new(), Node::new());
        let begin = one.append(5, b"a");
        two.copy_from(&one, 0);
        node.copy_from(&one, 0);
        let gap = one.append(5, b"b");
        two.copy_from(&one, begin.offset);
        one.append(5, b"c");
        // The node has the third one, and not the second.
        node.copy_from(&one, gap.offset);
        assert_eq!(node.history.last(), begin);
        node.history.clear_ahead(&node.memory, begin.offset + node.history.window());
        // Another primary has the second one, and goes on from there.
        node.copy_from(&two, begin.offset);
        assert_eq!(node.history.last(), gap);
        let end = two.append(7, b"d");
        node.copy_from(&two, gap.offset);
        assert_eq!(node.history.last(), end);
    }

    #[test]
    fn a_mark_is_one_only_at_a_record_s_end() {
        let mut node = Node::new();
        let marks = [1, 1, 2].map(|epoch| node.append(epoch, b"some key"));
        let Node { memory, history, mut scratch } = node;
        let mut has = |from, mark| history.has_mark(&memory, from, mark, &mut scratch);
        assert!(marks.iter().all(|mark| has(Mark::default(), *mark)));
        assert!(has(marks[1], marks[1]) && !has(marks[1], marks[0]));
        for offset in [marks[1].offset - 8, marks[1].offset + 8, 1 << 60] {
            assert!(!has(Mark::default(), Mark { offset, ..marks[1] }), "{offset}");
        }
        assert!(!has(Mark::default(), Mark { position: Position::new(2, 2), ..marks[1] }));
    }
}
