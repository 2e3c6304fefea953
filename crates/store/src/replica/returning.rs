//! A node that comes back with what its disk has kept: its store, and the end of the log. What it
//! lacks it gets from the primary: `sync` in [`primary`](super::primary) decides how.

use super::configuration::NodeId;
use super::member::{Options, Replica};
use super::message::Snapshot;
use crate::log::{Fields, Operation, Position};
use crate::memory::Memory;

impl Replica {
    /// A node that comes back with what its disk has kept: its store and the requests up to where
    /// `ends` end, then the records in `memory` that follow. It votes under its old number. If it
    /// was the primary, it asks for a new epoch first.
    #[must_use]
    pub fn recovered<M: Memory>(
        me: NodeId,
        options: Options,
        snapshot: &Snapshot,
        memory: &M,
    ) -> Replica {
        let mut replica = Replica::new(me, options);
        replica.history.resume(&snapshot.ends);
        let scratch = &mut replica.aside.scratch;
        replica.history.scan(memory, Position::MAX_EPOCH, u64::MAX, scratch);
        replica.comes_back = true;
        replica.applied = snapshot.ends.last().copied().unwrap_or_default();
        replica.requests = snapshot.requests.clone();
        replica.members = snapshot.members.clone();
        replica.committed = snapshot.committed;
        // The store may be a copy that was made while changes went on up to there.
        replica.copied_until = snapshot.committed;
        replica.kept = replica.history.last();
        replica
    }

    /// The next record of the log on the disk of a node that comes back. `carry_out` gets what is
    /// certain to be committed: a primary orders nothing before all but the last three quarters of
    /// a ring is, and the first records of epochs come besides.
    ///
    /// # Errors
    /// Why it is not the next record, in words; else what `carry_out` says.
    pub fn read_back<M: Memory>(
        &mut self,
        memory: &M,
        position: Position,
        fields: &Fields<'_>,
        carry_out: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        let (last, ring) = (self.history.last(), self.options.ring_bytes);
        if !position.follows(last.position) {
            return Err(format!("it does not follow {}", last.position));
        }
        let (length, window) = (fields.length() as u64, self.history.window());
        let end = last.offset + length;
        if fields.operation != Operation::Epoch && length <= window {
            self.trust(memory, end.saturating_sub(ring - window));
            self.carry_out_committed(memory, carry_out)?;
        }
        if length > window || end > self.applied.offset + ring {
            return Err(format!("a ring of {ring} bytes has no room for what is not decided"));
        }
        let record = (fields, self.history.sum(fields));
        self.kept = self.history.append(memory, position, record, &mut self.aside.scratch);
        Ok(())
    }

    /// All is read back, and what the store has is committed up to `committed`.
    ///
    /// # Errors
    /// What `carry_out` says.
    pub fn end_reading_back<M: Memory>(
        &mut self,
        memory: &M,
        committed: Position,
        carry_out: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        self.committed = self.committed.max(committed);
        self.carry_out_committed(memory, carry_out)
    }

    fn carry_out_committed<M: Memory>(
        &mut self,
        memory: &M,
        carry_out: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
    ) -> Result<(), String> {
        while let Some((position, fields)) = self.poll_apply(memory) {
            carry_out(position, &fields)?;
        }
        Ok(())
    }

    /// What ends at `offset` or before is committed; a transaction is that as a whole.
    fn trust<M: Memory>(&mut self, memory: &M, offset: u64) {
        let (mut at, mut whole) = (self.applied, self.applied);
        while let Some((next, fields)) = self.history.after(memory, at, &mut self.aside.scratch)
            && (next.offset <= offset || at != whole)
        {
            at = next;
            whole = if fields.goes_on { whole } else { at };
        }
        self.committed = self.committed.max(whole.position);
    }
}
