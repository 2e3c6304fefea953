//! Writing the log: groups of records, in segments, synced as asked. `append` has the wait for it.
//!
//! A group is what was appended while the group before was written: the more clients, the larger
//! the groups, and one sync serves them all.
//!
//! After an error of the disk nothing is known of what was written since the last sync, and Linux
//! tells of an error only once. So groups stay in memory until they are synced, and after an error
//! they are written again, to a new segment that begins where the synced part of the old one ends.
//! Until that succeeds the log takes no records: the store can be read, and what was acknowledged
//! is on the disk.

use std::io;
use std::sync::Arc;

use super::append::{Cut, Group, Work};
use super::record::HEADER;
use super::segment::{LOG_MAGIC, SEGMENT_HEADER, SegmentHeader, TEMPORARY, segment_name};
use super::trim::remove_after;
use super::{Fields, Fsync, Log};
use crate::disk::{Disk, File};
use crate::snapshot::adopt;

/// How long what is appended may be unsynced where a second is asked for.
const EVERY_MS: u64 = 1000;
/// Under [`Fsync::Always`] zeros are written so far ahead of the records, in bytes: to sync bytes
/// of a file that does not grow takes half as long, since its length need not be written.
const AHEAD: u64 = 1 << 20;
/// For groups beyond this many bytes that does not pay.
const AHEAD_FOR: usize = 128 << 10;

/// Writes a [`Log`] to a disk. It has no thread and no clock of its own: see
/// [`CommitThread`](super::CommitThread).
pub struct Committer<D: Disk> {
    disk: Arc<D>,
    log: Log,
    segment: Option<Segment<D::File>>,
    /// The segment before that one; or the last one that was written, where there is none now.
    before: Option<Segment<D::File>>,
    /// That one was no longer in its place, or its directory was not.
    is_lost: bool,
    /// What is not on the disk for sure, oldest first.
    unsynced: Vec<Group>,
    unsynced_bytes: usize,
    /// A cut that is to be made before more is taken.
    cut: Option<(u64, Cut)>,
    synced_ms: u64,
    /// After an error: when to try again.
    retry_ms: Option<u64>,
}

/// A segment that is written to, or was.
pub(super) struct Segment<F> {
    pub(super) file: F,
    pub(super) name: String,
    /// Where its records' checksums begin.
    pub(super) salt: u64,
    /// Where the next group goes.
    pub(super) end: u64,
    /// Where what is synced ends.
    pub(super) synced: u64,
    /// Up to where the file has zeros.
    pub(super) ahead: u64,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many records were written and synced; there may be more.
    Synced(usize),
    /// There is nothing to do before more is appended.
    Idle,
    /// There is nothing to do before this time, unless more is appended.
    Until(u64),
    /// The disk refuses; there is nothing to do before this time.
    Refused(u64),
}

impl<D: Disk> Committer<D> {
    /// What writes to a log that was read back, whose last segment is `before`.
    pub(super) fn new(disk: Arc<D>, log: Log, before: Option<Segment<D::File>>) -> Committer<D> {
        Committer {
            disk,
            log,
            segment: None,
            before,
            is_lost: false,
            unsynced: Vec::new(),
            unsynced_bytes: 0,
            cut: None,
            synced_ms: 0,
            retry_ms: None,
        }
    }

    /// The log that this writes.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Writes what was appended, and syncs it where that is due. `now_ms` is in ms of Unix time,
    /// and never goes back.
    pub fn turn(&mut self, now_ms: u64) -> Turn {
        self.turn_with(now_ms, false)
    }

    /// Writes and syncs all that was appended, whatever the time is, and a mark that says so: a
    /// last turn. After it, damage to any record is seen.
    pub fn finish(&mut self, now_ms: u64) -> Turn {
        self.retry_ms = self.retry_ms.map(|at| at.min(now_ms));
        let mut turn = self.turn_with(now_ms, true);
        // (A transaction that has begun ends first. It is short, and waits for nothing.)
        while self.log.has_work() && !matches!(turn, Turn::Refused(_)) {
            turn = self.turn_with(now_ms, true);
        }
        let Some(segment) = &mut self.segment else { return turn };
        let marked = segment.mark(&self.log);
        marked.map_or_else(|error| self.refuse(now_ms, &error), |()| turn)
    }

    fn turn_with(&mut self, now_ms: u64, finish: bool) -> Turn {
        if let Some(at) = self.retry_ms.filter(|at| now_ms < *at) {
            return Turn::Refused(at);
        }
        let fresh = self.take();
        let done = if let Some(cut) = self.cut {
            self.make(cut, now_ms)
        } else if self.retry_ms.is_some() {
            self.begin_segment(now_ms)
        } else if fresh {
            self.write(now_ms)
        } else {
            Ok(0)
        };
        let done = done.and_then(|records| {
            let due = !self.unsynced.is_empty() && (finish || self.due(now_ms));
            if due { Ok(records + self.sync(now_ms)?) } else { Ok(records) }
        });
        match done {
            Ok(0) if self.unsynced.is_empty() || !self.timed() => Turn::Idle,
            Ok(0) => Turn::Until(self.synced_ms + EVERY_MS),
            Ok(records) => Turn::Synced(records),
            Err(error) => self.refuse(now_ms, &error),
        }
    }

    /// Takes what there is to do; whether it is something to write.
    fn take(&mut self) -> bool {
        // What comes after a cut waits for it.
        let work = if self.cut.is_none() { self.log.take() } else { None };
        match work {
            Some(Work::Write(group)) => {
                self.unsynced_bytes += group.batch.len();
                self.unsynced.push(group);
                true
            }
            Some(Work::Cut(number, cut)) => {
                self.cut = Some((number, cut));
                false
            }
            None => false,
        }
    }

    /// Makes a cut; answers how many records are done with. What is appended next begins a segment,
    /// which counts from its first position on.
    fn make(&mut self, (number, cut): (u64, Cut), now_ms: u64) -> io::Result<usize> {
        let mut records = self.unsynced.iter().map(|group| group.records).sum();
        match cut {
            Cut::After(to) => {
                // A part of it stays.
                if !self.unsynced.is_empty() {
                    records = match self.retry_ms {
                        Some(_) => self.begin_segment(now_ms)?,
                        None => self.sync(now_ms)?,
                    };
                }
                (self.segment, self.before) = (None, None);
                remove_after(&*self.disk, to)?;
            }
            Cut::All => {
                (self.segment, self.before, self.unsynced_bytes) = (None, None, 0);
                self.unsynced.clear();
                adopt(&*self.disk)?;
            }
        }
        (self.cut, self.retry_ms) = (None, None);
        self.log.made_cut(number);
        Ok(records + 1)
    }

    fn timed(&self) -> bool {
        self.log.options().fsync == Fsync::EverySecond
    }

    fn due(&self, now_ms: u64) -> bool {
        let options = self.log.options();
        let due = match options.fsync {
            Fsync::Always => true,
            Fsync::EverySecond => now_ms >= self.synced_ms + EVERY_MS,
            Fsync::No => false,
        };
        due || self.unsynced_bytes >= options.unsynced_bytes || self.log.is_hurried()
    }

    /// Writes the last group; answers how many records that made durable.
    fn write(&mut self, now_ms: u64) -> io::Result<usize> {
        let Some(group) = self.unsynced.last_mut() else { return Ok(0) };
        let salt = self.log.options().salt;
        group.batch.set_mark(&mark(&self.log, salt));
        let length = group.batch.len() as u64;
        let limit = self.log.options().segment_bytes;
        let Some(segment) = self.segment.as_mut().filter(|s| s.end + length <= limit) else {
            return self.next_segment(now_ms);
        };
        group.batch.write_to(&mut segment.file, segment.end)?;
        segment.end += length;
        self.log.made_written(group.last);
        self.log.count(|stats| stats.commits += 1);
        if self.log.options().fsync == Fsync::Always && group.batch.len() <= AHEAD_FOR {
            segment.write_ahead(limit)?;
        }
        Ok(0)
    }

    /// Ends the segment, if there is one, and begins another with the last group; answers how many
    /// records that made durable.
    fn next_segment(&mut self, now_ms: u64) -> io::Result<usize> {
        let mut records = 0;
        if self.segment.is_some()
            && self.unsynced.len() > 1
            && let Some(group) = self.unsynced.pop()
        {
            // All of a segment is on the disk before the next one begins.
            let synced = self.sync(now_ms);
            self.unsynced_bytes += group.batch.len();
            self.unsynced.push(group);
            records = synced?;
        }
        Ok(records + self.begin_segment(now_ms)?)
    }

    /// Begins a segment with all that is not synced. It gets its name when it is on the disk, so
    /// that a segment with a name has all of its header and of these records. The one before says
    /// then that there is another. Answers how many records that made durable.
    fn begin_segment(&mut self, now_ms: u64) -> io::Result<usize> {
        self.leave_segment();
        let lost = self.before.as_ref().filter(|_| self.is_lost);
        self.disk.check(lost.map(|segment| (&*segment.name, &segment.file)))?;
        self.is_lost = false;
        let salt = self.log.options().salt;
        let Some(group) = self.unsynced.last_mut() else { return Ok(self.synced(now_ms)) };
        group.batch.set_mark(&mark(&self.log, salt));
        let first = self.unsynced[0].first;
        let name = segment_name(first);
        let temporary = format!("{name}{TEMPORARY}");
        let header = SegmentHeader { first, salt, created_ms: now_ms };
        let mut file = self.disk.create(&temporary)?;
        file.write_at(0, &header.encode(LOG_MAGIC))?;
        let mut end = SEGMENT_HEADER as u64;
        for group in &self.unsynced {
            group.batch.write_to(&mut file, end)?;
            end += group.batch.len() as u64;
        }
        file.sync()?;
        self.disk.rename(&temporary, &name)?;
        self.disk.sync()?;
        self.segment = Some(Segment { file, name, salt, end, synced: end, ahead: end });
        self.log.count(|stats| {
            stats.segments += 1;
            stats.commits += 1;
        });
        let records = self.synced(now_ms);
        if let Some(mut before) = self.before.take() {
            // All is kept without this mark, too: it tells when the new segment is missing.
            _ = before.mark(&self.log);
        }
        Ok(records)
    }

    fn leave_segment(&mut self) {
        self.before = self.segment.take().or(self.before.take());
    }

    /// Syncs all that was written, where the next process finds it; answers how many records that
    /// made durable.
    fn sync(&mut self, now_ms: u64) -> io::Result<usize> {
        if let Some(segment) = &mut self.segment {
            segment.file.sync()?;
            let is_there = self.disk.check(Some((&*segment.name, &segment.file)));
            self.is_lost = is_there.is_err();
            is_there?;
            segment.synced = segment.end;
        }
        Ok(self.synced(now_ms))
    }

    /// All that was written is on the disk: so many records.
    fn synced(&mut self, now_ms: u64) -> usize {
        self.synced_ms = now_ms;
        self.retry_ms = None;
        self.unsynced_bytes = 0;
        let records = self.unsynced.iter().map(|group| group.records).sum();
        let last = self.unsynced.last().map_or(self.log.durable(), |group| group.last);
        self.log.count(|stats| stats.syncs += 1);
        self.log.made_durable(last, &mut self.unsynced);
        records
    }

    /// The disk refuses: nobody may change the store until it does not.
    fn refuse(&mut self, now_ms: u64, error: &io::Error) -> Turn {
        // What was written since the last sync is written again elsewhere.
        self.leave_segment();
        if let Some(first) = self.unsynced.first().map(|group| group.first) {
            // A file that was begun in vain is removed at the next start, if it is not now.
            _ = self.disk.remove(&format!("{}{TEMPORARY}", segment_name(first)));
        }
        let advice = match error.kind() {
            _ if is_full(error) => "make room there; it is tried again by itself",
            io::ErrorKind::NotFound => {
                "put it back as it was, or copy the store (remora store dump) before it ends"
            }
            _ => "it is tried again by itself; look at the disk",
        };
        let place = self.disk.place();
        self.log.failed(&format!("cannot write the log in {place}: {error}; {advice}"));
        let at = now_ms + self.log.options().retry_ms;
        self.retry_ms = Some(at);
        Turn::Refused(at)
    }
}

/// Is there no room on the disk, or none for this user?
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The mark that says how far the log is synced, for a segment of this salt.
fn mark(log: &Log, salt: u64) -> Vec<u8> {
    let fields = Fields::synced();
    let mut bytes = Vec::with_capacity(HEADER);
    fields.encode(log.durable(), fields.checksum_contents(salt), &mut bytes);
    bytes
}

impl<F: File> Segment<F> {
    /// Writes behind what is synced how far the log is, and that no record follows: if one does, it
    /// is of a group that was not synced here, and is in the next segment.
    fn mark(&mut self, log: &Log) -> io::Result<()> {
        let mut bytes = mark(log, self.salt);
        self.end = self.synced + bytes.len() as u64;
        bytes.extend_from_slice(&[0; HEADER]);
        self.file.write_at(self.synced, &bytes)?;
        self.file.sync()?;
        self.synced = self.end;
        Ok(())
    }

    /// Writes zeros after the last group, if there are none.
    fn write_ahead(&mut self, limit: u64) -> io::Result<()> {
        if self.end <= self.ahead {
            return Ok(());
        }
        let to = (self.end + AHEAD).min(limit);
        self.ahead = to.max(self.end);
        if to <= self.end {
            return Ok(());
        }
        match self.file.write_at(self.end, &vec![0; (to - self.end) as usize]) {
            // There is no room for zeros, and may be for records.
            Err(error) if is_full(&error) => Ok(()),
            written => written,
        }
    }
}
