//! A backup's part: it takes up what the primary writes into its ring, and says so.

use super::configuration::NodeId;
use super::member::Replica;
use super::message::{Message, Output};
use super::region::ack_at;
use super::role::{Backup, Role};
use crate::log::Position;
use crate::memory::Memory;

/// Bytes of an answer: what is held, as a position and as an offset, and up to which offset the
/// ring may be overwritten.
const ANSWER: u64 = 24;

impl Replica {
    /// Does what the primary of this epoch orders.
    pub(super) fn handle_order<M: Memory>(&mut self, memory: &M, from: NodeId, order: &Message) {
        let is_ours = self.primary() == Some(from);
        // What is committed is never forgotten, nor is what the store has carried out.
        let (history, scratch) = (&self.history, &mut self.aside.scratch);
        let mut may_forget = |mark| history.has_mark(memory, self.applied, mark, scratch);
        let Role::Backup(backup) = &mut self.role else {
            self.aside.counters.refused += 1;
            return;
        };
        match *order {
            Message::Fetch { .. } if is_ours => {
                self.aside.counters.snapshots += 1;
                self.outputs.push_back(Output::Snapshot { to: from });
            }
            Message::Sync { from: mark, slot, epoch } if is_ours && may_forget(mark) => {
                backup.slot = Some(slot);
                self.truncate(memory, mark);
                let in_memory = !self.options.waits_for_disk;
                let message = Message::Synced { epoch, in_memory };
                self.outputs.push_back(Output::Send { to: from, message });
            }
            _ => self.aside.counters.refused += 1,
        }
    }

    /// Takes up what the primary has written, and tells it.
    pub(super) fn follow<M: Memory>(&mut self, memory: &M) {
        if matches!(&self.role, Role::Backup(backup) if backup.is_live()) {
            self.take_up(memory);
            self.tell(memory);
        }
    }

    /// Tells the primary what is held here, and what of the ring is free, if that is news.
    pub(super) fn tell<M: Memory>(&mut self, memory: &M) {
        let Role::Backup(Backup { slot: Some(slot), told }) = self.role else { return };
        let (held, window) = (self.held(), self.history.window());
        let free_until = self.free_until();
        // What may be overwritten is told with what is held, or when half a window has come free.
        // Where the primary knows of less room than is left to the first records of epochs, it may
        // wait for any: what is held here may be more, as of one that was a primary.
        let is_short = told.1 + self.options.ring_bytes < self.history.last().offset + window;
        let least = if is_short { 1 } else { window / 2 };
        if held == told.0 && free_until < told.1 + least {
            return;
        }
        let Some(primary) = self.primary() else { return };
        self.role = Role::Backup(Backup { slot: Some(slot), told: (held, free_until) });
        let at = ack_at(slot);
        memory.store(at, held.position.number());
        memory.store(at + 8, held.offset);
        memory.store(at + 16, free_until);
        let (len, until, wakes) = (ANSWER, None, true);
        self.outputs.push_back(Output::Write { to: primary, at, len, until, wakes });
    }
}

/// A backup's answer, as it lies in the primary's region: what it holds, as a position and as an
/// offset, and up to which offset its ring may be overwritten.
pub(super) fn heard<M: Memory>(memory: &M, slot: u8) -> (Position, u64, u64) {
    let at = ack_at(slot);
    (Position::from_number(memory.load(at)), memory.load(at + 8), memory.load(at + 16))
}

/// Forgets what lies in the places for answers: it is of an earlier epoch.
pub(super) fn forget_answers<M: Memory>(memory: &M, slot: u8) {
    let at = ack_at(slot);
    (0..ANSWER / 8).for_each(|word| memory.store(at + word * 8, 0));
}
