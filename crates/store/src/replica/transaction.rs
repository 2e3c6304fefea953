//! Transactions: records that are committed together, or never.
//!
//! All records of one but its last say that it goes on. What is committed never ends amid one, so
//! nobody carries out a part; a primary that finds one without an end in what it takes over cuts
//! it off ([`Replica::open`]). It was never committed: nobody was told of it.
//!
//! The primary that orders a transaction carries it out record by record. So it does not hear of a
//! later epoch before the last record is there: what its store has is always what its log has.

use super::member::Replica;
use super::message::Message;
use super::primary::AppendError;
use super::role::{Postponed, Role, Span};
use crate::log::{Fields, HEADER, Operation};
use crate::memory::Memory;

/// Bytes of a transaction's last record, which has no contents.
const DONE: u64 = HEADER as u64;

impl Replica {
    /// From now on all that is logged is one transaction, until as many have ended as were begun.
    pub fn begin_together(&mut self) {
        self.together += 1;
    }

    /// Says whether what is logged next is of none of the transactions that are under way, as
    /// somebody else changes it. Amid one it is committed with it nevertheless.
    pub fn set_apart(&mut self, is_apart: bool) {
        self.is_apart = is_apart;
    }

    /// A transaction ends. What was heard of later epochs meanwhile counts from now on.
    ///
    /// # Panics
    /// If none was begun.
    pub fn end_together<M: Memory>(&mut self, memory: &M) {
        self.together = self.together.checked_sub(1).expect("a transaction that was begun");
        if self.together > 0 {
            return;
        }
        self.finish(memory);
        let Postponed { entry, hello } = std::mem::take(&mut self.postponed);
        if let Some((entry, heard_ns)) = entry {
            self.learn(memory, entry, heard_ns);
        }
        if let Some((from, configuration)) = hello {
            self.handle_message(memory, from, Message::Epoch(configuration));
        }
    }

    /// Whether this primary has logged a part of a transaction, and not its end.
    #[must_use]
    pub fn is_amid_transaction(&self) -> bool {
        let Role::Primary(primary) = &self.role else { return false };
        primary.spans.back().is_some_and(|span| span.done.is_none())
    }

    /// Whether its store is as the group's was at some time. A copy is not, before what changed
    /// while it was made is carried out; nor is what a former primary has, before what it has
    /// carried out by itself is decided.
    #[must_use]
    pub fn is_of_one_time(&self) -> bool {
        (self.copied_until..=self.committed).contains(&self.applied.position)
    }

    /// Logs that the transaction is whole, if it has changed anything. There is room for that.
    fn finish<M: Memory>(&mut self, memory: &M) {
        let Role::Primary(primary) = &mut self.role else { return };
        let Some(span) = primary.open_span() else { return };
        let Some(position) = self.history.last().position.next(self.epoch) else { return };
        span.done = Some(position);
        self.leave_behind(DONE);
        let done = Fields::of(Operation::Done);
        let sum = self.history.sum(&done);
        let scratch = &mut self.aside.scratch;
        self.applied = self.history.append(memory, position, (&done, sum), scratch);
        self.advance(memory);
    }

    /// Whether what is logged next is a transaction's own.
    pub(super) fn is_of_transaction(&self) -> bool {
        self.together > 0 && !self.is_apart
    }

    /// Sees to it that there is room for `len` bytes more. A transaction's first change sees to it
    /// that a majority has room for all of it, so that none of its changes is refused because
    /// backups are slow. Nobody is left behind for room that is not taken yet.
    pub(super) fn reserve(&mut self, len: u64) -> Result<(), AppendError> {
        let (before, window) = (self.history.last(), self.history.window());
        let is_own = self.is_of_transaction();
        let Role::Primary(primary) = &mut self.role else {
            return Err(AppendError::NotPrimary(None));
        };
        let begun = primary.open_span().map(|span| span.until);
        let until = begun.unwrap_or(before.offset + window);
        if is_own && before.offset + len + DONE > until {
            return Err(AppendError::Transaction { most: window });
        }
        match (begun, is_own) {
            (Some(_), true) => {}
            (None, true) => self.look_for_room(window)?,
            // Amid one, what is not its own takes nothing of its room.
            (Some(until), false) => {
                self.look_for_room(until.saturating_sub(before.offset) + len)?
            }
            (None, false) => self.look_for_room(len)?,
        }
        self.leave_behind(len);
        if let Role::Primary(primary) = &mut self.role {
            match primary.open_span() {
                Some(span) if !is_own => span.until += len,
                None if is_own => primary.spans.push_back(Span { before, until, done: None }),
                _ => {}
            }
        }
        Ok(())
    }
}
