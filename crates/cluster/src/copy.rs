//! The store of one node, sent to another one that the log alone does not lead there.
//!
//! A copy is made while changes go on, as a snapshot on a disk is (`remora_store::snapshot`): every
//! change up to the position at its begin is in it, and of later ones some are. Those must not be
//! taken back, so the receiver is told of the copy only when all that may be in it is committed. It
//! carries out the log from the begin on: records have whole values, and to make a change twice
//! does no harm.
//!
//! The receiver keeps all of it until it is complete, and only then puts it in the place of what it
//! has: a copy that breaks off leaves the receiver as it was. That takes the memory twice.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use remora_store::journal::Record;
use remora_store::log::{Fields, NoRecord, Position};
use remora_store::memory::Memory;
use remora_store::replica::{NodeId, Snapshot, apply, with_fields};
use remora_store::scan::Cursor;
use remora_store::store::Store;
use remora_store::tablespace::TablespaceId;
use thiserror::Error;

use crate::group::Group;
use crate::journal::GroupLog;
use crate::link::LinkId;
use crate::wire::{Frame, PIECE};

/// The time at which a copy is made: what has expired goes with it, until the log has its deletion.
const NOTHING_EXPIRES: u64 = 0;
/// How many items a step has at most.
const STEP: usize = 256;
/// How long a sender waits for room at a time.
const WAIT: Duration = Duration::from_millis(100);
/// How long it waits for room in all: a receiver that takes nothing for as long is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a copy is not sent to its end. The receiver asks again.
#[derive(Debug, Error)]
pub(crate) enum Interrupted {
    #[error("the link is gone")]
    Link,
    #[error("the receiver takes nothing any more")]
    Stuck,
    #[error("what the copy may have is not committed")]
    Uncommitted,
}

/// A copy to one node, over one link: what is left of it makes no sense over the next one, where
/// another copy begins.
pub(crate) struct Sender {
    pub(crate) group: Arc<Group>,
    pub(crate) to: NodeId,
    pub(crate) link: LinkId,
    /// What goes with it, as of its begin.
    pub(crate) head: Snapshot,
    /// The last flush of each tablespace: it has its position before it is carried out.
    pub(crate) flushes: Vec<(u16, Position)>,
}

impl Sender {
    /// Sends a copy of the store.
    pub(crate) fn run<M: Memory>(mut self, store: &Store<M, GroupLog>) -> Result<(), Interrupted> {
        let mut bytes = Vec::new();
        let covered = self.head.ends.last().map_or(Position::NONE, |mark| mark.position);
        let spaces = store.tablespaces();
        for space in &spaces {
            let record = Record::Create { tablespace: space.id, options: &space.options };
            self.add(&record, covered, &mut bytes);
        }
        let is_there = |id: u16| spaces.iter().any(|space| space.id.0 == id);
        for (space, position) in self.flushes.iter().filter(|(space, _)| is_there(*space)) {
            let record = Record::Flush { tablespace: TablespaceId(*space) };
            self.add(&record, *position, &mut bytes);
        }
        for space in &spaces {
            self.walk(store, space.id, &mut bytes)?;
        }
        self.send_pieces(&mut bytes, 1, |piece| Frame::Records(piece))?;
        self.settle(covered)?;
        let mut head = postcard_of(&self.head);
        self.send_pieces(&mut head, 1, |piece| Frame::Head(piece))?;
        self.send(&Frame::End)
    }

    fn walk<M: Memory>(
        &self,
        store: &Store<M, GroupLog>,
        space: TablespaceId,
        bytes: &mut Vec<u8>,
    ) -> Result<(), Interrupted> {
        let mut cursor = Cursor::START;
        loop {
            cursor = store.scan(space, cursor, NOTHING_EXPIRES, STEP, &mut |item| {
                let record = Record::of_item(item);
                self.add(&record, Position::from_number(item.version), bytes);
                ControlFlow::Continue(())
            });
            self.send_pieces(bytes, PIECE, |piece| Frame::Records(piece))?;
            if cursor == Cursor::END {
                return Ok(());
            }
        }
    }

    fn add(&self, record: &Record<'_>, position: Position, bytes: &mut Vec<u8>) {
        with_fields(record, |fields| {
            let contents = fields.checksum_contents(self.group.options.salt);
            fields.encode(position, contents, bytes);
        });
    }

    /// Sends the bytes while there are `least`, and keeps the rest.
    fn send_pieces(
        &self,
        bytes: &mut Vec<u8>,
        least: usize,
        frame: impl Fn(&[u8]) -> Frame<'_>,
    ) -> Result<(), Interrupted> {
        let mut sent = 0;
        while bytes.len() - sent >= least {
            let end = bytes.len().min(sent + PIECE);
            self.send(&frame(&bytes[sent..end]))?;
            sent = end;
        }
        bytes.drain(..sent);
        Ok(())
    }

    fn send(&self, frame: &Frame<'_>) -> Result<(), Interrupted> {
        let frame = frame.encode().expect("pieces fit a frame");
        let (mut state, start) = (self.group.lock(), Instant::now());
        loop {
            let link = state.link(self.to, self.link).ok_or(Interrupted::Link)?;
            if link.has_room() {
                link.send(frame);
                state.carry_out(&self.group);
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                return Err(Interrupted::Stuck);
            }
            state = self.group.sleep(state, WAIT);
        }
    }

    /// Waits until all that the copy may have is committed. That is what the store has carried out,
    /// and not all of the log: a primary that begins may need the receiver for its first record.
    fn settle(&mut self, covered: Position) -> Result<(), Interrupted> {
        // On a backup, the rest may never be committed.
        let end = self.group.lock_at_rest().replica.applied().position;
        if end != covered {
            self.group.wait(end).map_err(|_| Interrupted::Uncommitted)?;
            self.head.committed = self.head.committed.max(end);
        }
        Ok(())
    }
}

fn postcard_of(head: &Snapshot) -> Vec<u8> {
    postcard::to_allocvec(head).expect("a vector has room for any snapshot")
}

/// Puts a copy's records in the place of all that the store has.
///
/// # Errors
/// Why it cannot be, in words. The store has less than it should then.
pub(crate) fn replace<M: Memory>(
    store: &Store<M, GroupLog>,
    mut records: &[u8],
    salt: u64,
) -> Result<(), String> {
    for space in store.tablespaces() {
        let drop = Record::Drop { tablespace: space.id };
        store.replay(0, &drop).map_err(|error| error.to_string())?;
    }
    while !records.is_empty() {
        let (position, fields, length) = Fields::decode(records, salt).map_err(no_record)?;
        apply(store, position, &fields)?;
        records = &records[length..];
    }
    Ok(())
}

fn no_record(why: NoRecord) -> String {
    format!("a copy of the store has what is no record: {why:?}")
}

#[cfg(test)]
mod tests {
    use remora::Device;
    use remora_store::replica::Snapshot;

    use super::*;
    use crate::group::GroupOptions;
    use crate::link::{Link, parts};

    /// Its last frames would end another copy, of which some has come: that one would be taken for
    /// whole.
    #[test]
    fn a_copy_does_not_go_on_over_the_next_link() {
        let device = Device::open().unwrap();
        let options = GroupOptions::of_a_test(7490);
        let group = Group::new(&device, options).unwrap();
        let link = || {
            let parts = parts(&group.domain, &group.queues).unwrap();
            let link = Link::new(1, parts, group.remote());
            let id = link.id;
            group.lock().links.insert(NodeId(2), link);
            id
        };
        let (first, second) = (link(), link());
        let head = Snapshot {
            epoch: 1,
            ends: Vec::new(),
            committed: Position::NONE,
            requests: Default::default(),
            members: Vec::new(),
        };
        let sender =
            Sender { group: group.clone(), to: NodeId(2), link: first, head, flushes: Vec::new() };
        let sent = sender.send(&Frame::End);
        assert!(matches!(sent, Err(Interrupted::Link)), "{sent:?}");
        assert!(group.lock().link(NodeId(2), second).is_some());
    }
}
