//! Reading the log back.
//!
//! Segments are read in the order of positions. What counts in a segment is what lies before the
//! first position of the next one: a segment is only begun when all before it is on the disk, or
//! when what is not is written again at its beginning (see `commit.rs`).
//!
//! So a record that cannot be read is one of two things. In the last segment, with nothing behind
//! it that says it was on the disk, it is a *torn tail*: a crash came while it was written, nobody
//! was told of it, and the log ends before it. Anywhere else it is *corruption*, and reading stops
//! with an error: to go on would be to lose, in silence, what was acknowledged.

use std::io;

use super::segment::{LOG_MAGIC, Next, NoSegment, Reader, segment_first, segment_name};
use super::{Fields, Operation, Position};
use crate::disk::Disk;

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The position of the last record; what the caller began after where there was none.
    pub last: Position,
    /// How many records were given to the caller.
    pub records: u64,
    /// How many segments were read.
    pub segments: u64,
    /// How many bytes of them were records.
    pub bytes: u64,
    /// Where the log was cut off, if it did not end cleanly.
    pub torn: Option<Torn>,
    /// From which byte of the last segment on nothing says that its records are on the disk.
    pub unsure: u64,
    /// Where its records end, in bytes.
    pub end: u64,
    /// The last position that a mark in it names.
    pub marked: Position,
}

/// A torn tail: what a crash left of a write that nobody was told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The file.
    pub file: String,
    /// Where in it, in bytes.
    pub offset: u64,
    /// What is wrong with the bytes there.
    pub reason: &'static str,
}

/// Why the log or a snapshot cannot be read back.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The operating system refuses.
    #[error("cannot read {place}/{file}: {source}; the store needs it to start")]
    Io {
        /// The directory.
        place: String,
        /// The file, or `.` for the directory.
        file: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("{place}/{file} is damaged: {reason}; restore it from a copy")]
    NoSegment {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// What is wrong.
        reason: NoSegment,
    },
    /// A record that was on the disk cannot be read.
    #[error(
        "{place}/{file} is damaged at byte {offset}, in the record after position {after}: \
         {reason}. Later records were written, so this is no torn end. Restore the file from a \
         copy; or give up all changes from there on: truncate -s {offset} {place}/{file}, and move \
         later log files elsewhere"
    )]
    Corrupt {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// The last record that could be read.
        after: Position,
        /// What is wrong with the bytes there.
        reason: &'static str,
    },
    /// A record that was on the disk cannot be read, and a snapshot needs those behind it.
    #[error(
        "{place}/{file} is damaged at byte {offset}, in the record after position {after}: \
         {reason}. A snapshot there needs the log up to position {end}, so the store cannot start \
         with what comes before: restore the file from a copy; or serve what comes before \
         (remora store serve --damaged), and load its dump into a new store"
    )]
    Needed {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// The last record that could be read.
        after: Position,
        /// What is wrong with the bytes there.
        reason: &'static str,
        /// The last record that the snapshot needs.
        end: Position,
    },
    /// A segment is missing.
    #[error(
        "{place} lacks the log from position {from} to {to}: a file was removed; restore the files \
         named log-… from a copy"
    )]
    Missing {
        /// The directory.
        place: String,
        /// The position before the first that is missing.
        from: Position,
        /// The first position that is there.
        to: Position,
    },
    /// The log ends before something that only a later log explains.
    #[error(
        "the log in {place} ends at position {last}, but its other files know of changes up to \
         {expected}: its last ones are missing or cut; restore them from a copy"
    )]
    TooShort {
        /// The directory.
        place: String,
        /// The last record that could be read.
        last: Position,
        /// The last record that must be there.
        expected: Position,
    },
    /// A snapshot is damaged.
    #[error(
        "{place}/{file} is damaged at byte {offset}: {reason}; restore it from a copy. The log \
         before a snapshot is removed, so the store cannot start without it"
    )]
    Snapshot {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong with the bytes there.
        reason: String,
    },
    /// A record cannot be applied.
    #[error("the record at position {position} in {place}/{file} cannot be applied: {reason}")]
    Apply {
        /// The directory.
        place: String,
        /// The file.
        file: String,
        /// The record.
        position: Position,
        /// Why not.
        reason: String,
    },
}

impl ReplayError {
    /// Whether the files are not as the store left them, so that what comes before that place can
    /// be read.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        match self {
            ReplayError::NoSegment { .. }
            | ReplayError::Corrupt { .. }
            | ReplayError::Needed { .. }
            | ReplayError::Missing { .. }
            | ReplayError::TooShort { .. }
            | ReplayError::Snapshot { .. } => true,
            ReplayError::Io { .. } | ReplayError::Apply { .. } => false,
        }
    }

    /// Whether the system cannot read a file, which ends there for those who only look.
    pub(super) fn is_unreadable(&self) -> bool {
        match self {
            ReplayError::Io { file, source, .. } => file != "." && source.raw_os_error().is_some(),
            _ => false,
        }
    }

    /// The same, where a snapshot needs the log up to `end`: a log that is cut off before that is
    /// of no use.
    pub(super) fn needed_by(self, end: Position) -> ReplayError {
        match self {
            ReplayError::Corrupt { place, file, offset, after, reason } if after < end => {
                ReplayError::Needed { place, file, offset, after, reason, end }
            }
            other => other,
        }
    }
}

/// A record as it is read.
pub(super) struct Read<'r> {
    pub(super) position: Position,
    pub(super) fields: &'r Fields<'r>,
    /// Whether the caller lacks it.
    pub(super) is_new: bool,
    /// The position before it.
    pub(super) before: Position,
    /// In which file it is, and where.
    pub(super) file: &'r str,
    pub(super) offset: u64,
}

/// What is done with records that are read; or of which one that cannot be, and why.
pub(super) type Visit<'v> = dyn FnMut(&Read<'_>) -> Result<(), (Position, String)> + 'v;

/// Gives `visit` every record of the segments that have some after `from`.
///
/// # Errors
///
/// As of [`replay`].
pub(super) fn read_records<D: Disk>(
    disk: &D,
    from: Position,
    visit: &mut Visit<'_>,
) -> Result<Replayed, ReplayError> {
    let segments = segments(disk)?;
    let needed = segments.iter().rposition(|first| first.counter() <= from.counter() + 1);
    let Some(begin) = needed else {
        return match segments.first() {
            None => Ok(Replayed { last: from, ..Replayed::default() }),
            Some(to) => Err(ReplayError::Missing { place: disk.place(), from, to: *to }),
        };
    };
    let mut replayed = Replayed::default();
    for (index, first) in segments.iter().enumerate().skip(begin) {
        let mut segment = OneSegment {
            disk,
            file: segment_name(*first),
            first: *first,
            limit: segments.get(index + 1).copied(),
            from,
        };
        segment.replay(&mut replayed, visit)?;
    }
    Ok(replayed)
}

/// The first positions of all segments, in order.
///
/// # Errors
///
/// [`ReplayError::Io`].
pub(crate) fn segments<D: Disk>(disk: &D) -> Result<Vec<Position>, ReplayError> {
    let names = disk.list().map_err(|source| ReplayError::Io {
        place: disk.place(),
        file: ".".to_owned(),
        source,
    })?;
    let mut firsts: Vec<_> = names.iter().filter_map(|name| segment_first(name)).collect();
    firsts.sort_unstable_by_key(|first| (first.counter(), first.epoch()));
    Ok(firsts)
}

/// One segment's part of a replay.
struct OneSegment<'a, D> {
    disk: &'a D,
    file: String,
    first: Position,
    /// Where the next segment begins.
    limit: Option<Position>,
    from: Position,
}

impl<D: Disk> OneSegment<'_, D> {
    fn replay(
        &mut self,
        replayed: &mut Replayed,
        visit: &mut Visit<'_>,
    ) -> Result<(), ReplayError> {
        let mut reader = self.open(replayed)?;
        replayed.segments += 1;
        (replayed.unsure, replayed.marked) = (reader.offset(), Position::NONE);
        loop {
            let at = reader.offset();
            match reader.next().map_err(|source| self.io(source))? {
                Next::Record(synced, fields) if fields.operation == Operation::Synced => {
                    replayed.marked = replayed.marked.max(synced);
                    if synced >= replayed.last {
                        replayed.unsure = at;
                    }
                }
                Next::Record(position, _) if self.superseded(position) => {
                    return self.complete(replayed, at, "the next segment begins later");
                }
                Next::Record(position, _) if !position.follows(replayed.last) => {
                    let reason = "its position does not follow the one before";
                    return self.end(&mut reader, replayed, at, Some(reason));
                }
                Next::Record(position, fields) => {
                    let is_new = position.counter() > self.from.counter();
                    let (fields, before, file) = (&fields, replayed.last, &self.file);
                    let read = Read { position, fields, is_new, before, file, offset: at };
                    visit(&read).map_err(|refused| self.refused(refused))?;
                    replayed.records += u64::from(is_new);
                    replayed.bytes += fields.length() as u64;
                    replayed.last = position;
                }
                Next::End(at, reason) => return self.end(&mut reader, replayed, at, reason),
            }
        }
    }

    fn open(&self, replayed: &mut Replayed) -> Result<Reader<D::File>, ReplayError> {
        let file = self.disk.open_to_read(&self.file).map_err(|source| self.io(source))?;
        let reader = match Reader::open(file, LOG_MAGIC).map_err(|source| self.io(source))? {
            Ok(reader) if reader.header().first == self.first => reader,
            Ok(_) => return Err(self.no_segment(NoSegment::Name)),
            Err(reason) => return Err(self.no_segment(reason)),
        };
        if replayed.segments == 0 {
            // Whatever epoch the record before the first segment had, it was no later.
            let before = self.first.counter().saturating_sub(1);
            let known = before == self.from.counter();
            replayed.last = if known { self.from } else { Position::new(0, before) };
        }
        Ok(reader)
    }

    /// Whether the next segment has this record, or something else in its place.
    fn superseded(&self, position: Position) -> bool {
        self.limit.is_some_and(|limit| position.counter() >= limit.counter())
    }

    /// The segment has no more records that can be read.
    fn end(
        &self,
        reader: &mut Reader<D::File>,
        replayed: &mut Replayed,
        at: u64,
        reason: Option<&'static str>,
    ) -> Result<(), ReplayError> {
        replayed.end = at;
        if self.limit.is_some() {
            return self.complete(replayed, at, reason.unwrap_or("it is missing"));
        }
        let mark = reader.last_mark_from(at).map_err(|source| self.io(source))?;
        if mark.is_some_and(|mark| mark > replayed.last) {
            return Err(self.corrupt(replayed, at, reason.unwrap_or("zeros are in its place")));
        }
        if let Some(reason) = reason {
            replayed.torn = Some(Torn { file: self.file.clone(), offset: at, reason });
        }
        Ok(())
    }

    /// Nothing may lack before the next segment.
    fn complete(
        &self,
        replayed: &Replayed,
        at: u64,
        reason: &'static str,
    ) -> Result<(), ReplayError> {
        let complete = self.limit.is_none_or(|limit| limit.follows(replayed.last));
        if complete { Ok(()) } else { Err(self.corrupt(replayed, at, reason)) }
    }

    fn corrupt(&self, replayed: &Replayed, offset: u64, reason: &'static str) -> ReplayError {
        let (place, file, after) = (self.disk.place(), self.file.clone(), replayed.last);
        ReplayError::Corrupt { place, file, offset, after, reason }
    }

    fn no_segment(&self, reason: NoSegment) -> ReplayError {
        ReplayError::NoSegment { place: self.disk.place(), file: self.file.clone(), reason }
    }

    fn refused(&self, (position, reason): (Position, String)) -> ReplayError {
        let (place, file) = (self.disk.place(), self.file.clone());
        ReplayError::Apply { place, file, position, reason }
    }

    fn io(&self, source: io::Error) -> ReplayError {
        ReplayError::Io { place: self.disk.place(), file: self.file.clone(), source }
    }
}
