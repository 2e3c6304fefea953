//! Reading the log back, of transactions the whole ones.
//!
//! A transaction's records are given to the caller when its last one is read. Where the log ends
//! amid one, it ends before it: a transaction is written in one group, so nobody was told of
//! anything that is behind its beginning.

use super::replay::{Read, ReplayError, Replayed, Torn, read_records};
use super::{Fields, Position};
use crate::disk::Disk;

/// So many bytes of a transaction are kept until its last record is read. Of a longer one, the log
/// is read ahead for that.
const KEPT_MAX: usize = 1 << 20;

/// Which records a replay gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// Those of whole transactions: the log ends before one that has no end.
    Whole,
    /// All that are there. Of a group's log, others know how it goes on.
    All,
}

/// Gives `visit` every record after `from` that `parts` asks for, in order. `from` is
/// [`Position::NONE`], or the position up to which a snapshot has everything.
///
/// # Errors
///
/// [`ReplayError`]; the text of an error that `visit` answers becomes [`ReplayError::Apply`].
pub fn replay<D: Disk>(
    disk: &D,
    from: Position,
    parts: Parts,
    visit: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
) -> Result<Replayed, ReplayError> {
    let mut visit = |position, fields: &Fields<'_>| {
        visit(position, fields).map_err(|reason| (position, reason))
    };
    let replayed = match parts {
        Parts::All => read_records(disk, from, &mut |read| match read.is_new {
            true => visit(read.position, read.fields),
            false => Ok(()),
        })?,
        Parts::Whole => {
            let mut unfinished = Unfinished::default();
            let take = &mut |read: &Read<'_>| unfinished.take(disk, read, &mut visit);
            let read = read_records(disk, from, take);
            if let Some(error) = unfinished.unreadable.take() {
                return Err(error);
            }
            let mut replayed = read?;
            if let Some((records, before, file, offset)) = unfinished.left() {
                let reason = "the transaction that begins there has no end";
                (replayed.last, replayed.torn) = (before, Some(Torn { file, offset, reason }));
                replayed.end = offset;
                replayed.records -= records;
            }
            // (A group's log may have been cut between two segments, and a copy of another node's
            // store has none.)
            if replayed.segments == 0 && from > Position::NONE {
                let (place, to) = (disk.place(), Position::new(from.epoch(), from.counter() + 1));
                return Err(ReplayError::Missing { place, from, to });
            }
            if replayed.marked > replayed.last {
                let (place, last, expected) = (disk.place(), replayed.last, replayed.marked);
                return Err(ReplayError::TooShort { place, last, expected });
            }
            replayed
        }
    };
    if replayed.last.counter() < from.counter() {
        let (place, last) = (disk.place(), replayed.last);
        return Err(ReplayError::TooShort { place, last, expected: from });
    }
    Ok(replayed)
}

/// What a log that is read back has of a transaction, if it is amid one.
#[derive(Default)]
pub(super) struct Unfinished {
    records: Vec<Kept>,
    bytes: usize,
    /// The record before the first one, and in which file and where in it that is.
    begun: Option<(Position, String, u64)>,
    /// How many of its records the caller lacks.
    count: u64,
    /// Of one that is too long to be kept: whether it has a last record.
    has_end: Option<bool>,
    /// Why nobody can tell.
    unreadable: Option<ReplayError>,
}

struct Kept {
    position: Position,
    fields: Fields<'static>,
    key: Vec<u8>,
    value: Vec<u8>,
}

type Visit<'v> = dyn FnMut(Position, &Fields<'_>) -> Result<(), (Position, String)> + 'v;

impl Unfinished {
    /// Takes the next record of the log; `visit` gets those of which it is certain that they count.
    ///
    /// # Errors
    ///
    /// What `visit` answers; or nothing of use, where the log cannot be read (`unreadable`).
    pub(super) fn take<D: Disk>(
        &mut self,
        disk: &D,
        read: &Read<'_>,
        visit: &mut Visit<'_>,
    ) -> Result<(), (Position, String)> {
        let Read { position, fields, is_new, .. } = *read;
        if !fields.goes_on {
            self.give(visit)?;
            *self = Unfinished::default();
            return if is_new { visit(position, fields) } else { Ok(()) };
        }
        let begins = || (read.before, read.file.to_owned(), read.offset);
        self.begun.get_or_insert_with(begins);
        if !is_new {
            return Ok(());
        }
        self.count += 1;
        match self.has_end {
            Some(true) => return visit(position, fields),
            Some(false) => return Ok(()),
            None => self.keep(position, fields),
        }
        if self.bytes > KEPT_MAX {
            let has_end = has_end(disk, position).map_err(|error| {
                self.unreadable = Some(error);
                (position, String::new())
            })?;
            self.has_end = Some(has_end);
            if has_end {
                self.give(visit)?;
            }
            self.records = Vec::new();
        }
        Ok(())
    }

    fn keep(&mut self, position: Position, fields: &Fields<'_>) {
        let (key, value) = (fields.key.to_vec(), fields.value.to_vec());
        let fields = Fields { key: &[], value: &[], ..*fields };
        self.bytes += fields.length() + key.len() + value.len();
        self.records.push(Kept { position, fields, key, value });
    }

    /// Gives `visit` what is kept.
    fn give(&mut self, visit: &mut Visit<'_>) -> Result<(), (Position, String)> {
        for Kept { position, fields, key, value } in self.records.drain(..) {
            visit(position, &Fields { key: &key, value: &value, ..fields })?;
        }
        Ok(())
    }

    /// How many records there are of a transaction that has no end, after which record it begins,
    /// and in which file and where in it.
    pub(super) fn left(self) -> Option<(u64, Position, String, u64)> {
        let count = self.count;
        self.begun.map(|(before, file, offset)| (count, before, file, offset))
    }
}

/// Whether the transaction of the record at a position has a last record.
///
/// # Errors
///
/// The log cannot be read so far.
fn has_end<D: Disk>(disk: &D, position: Position) -> Result<bool, ReplayError> {
    let mut is_found = false;
    let read = read_records(disk, position, &mut |read| {
        is_found = read.is_new && !read.fields.goes_on;
        // (What is behind it is of no interest.)
        if is_found { Err((read.position, String::new())) } else { Ok(()) }
    });
    if is_found { Ok(true) } else { read.map(|_| false) }
}
