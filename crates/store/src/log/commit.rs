//! Writing the log: groups of records, in segments, synced as asked. `append` has the wait for it.
//!
//! A group is what was appended while the group before was written: the more clients, the larger
//! the groups, and one sync serves them all. Under policies by which nobody waits for a sync, syncs
//! may be done beside the writing, as [`Errand`]s, one at a time: such a sync makes durable what
//! was written before it began. Then a segment that is full is written to until the next one has
//! its name, and both get what comes meanwhile: whichever of them a crash leaves as the last has
//! all.
//!
//! After an error of the disk nothing is known of what was written since the last sync, and Linux
//! tells of an error only once. So groups stay in memory until they are synced, and after an error
//! they are written again, to a new segment that begins where the synced part of the old one ends.
//! Until that succeeds the log takes no records: the store can be read, and what was acknowledged
//! is on the disk.

use std::io;
use std::sync::Arc;

use super::batch::Batch;
use super::errand::{Errand, Outcome, Task, temporary};
use super::record::HEADER;
use super::segment::{LOG_MAGIC, SEGMENT_HEADER, SegmentHeader, segment_name};
use super::trim::remove_after;
use super::work::{Cut, Group, Work};
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
    /// The segment that is being begun, and has no name yet.
    next: Option<Segment<D::File>>,
    /// Whether errands are done beside the writing, one that nobody has taken yet, and what the one
    /// that has not ended is for.
    beside: bool,
    errand: Option<Errand<D>>,
    under_way: Option<UnderWay>,
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
    pub(super) file: Arc<F>,
    pub(super) name: Arc<str>,
    /// Where its records' checksums begin.
    pub(super) salt: u64,
    /// Where the next group goes.
    pub(super) end: u64,
    /// Where what is synced ends.
    pub(super) synced: u64,
    /// Up to where the file has zeros.
    pub(super) ahead: u64,
}

/// What an errand is for.
#[derive(Clone, Copy)]
struct UnderWay {
    task: Task,
    /// How many of the groups that are not synced it is for, and their bytes.
    groups: usize,
    bytes: usize,
    /// Up to where it syncs the segment.
    end: u64,
    began_ms: u64,
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
    /// An errand is under way; there is nothing to do before it ends, unless more is appended.
    Beside,
    /// There is nothing to do before the errand that is under way has ended.
    Waits,
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
            next: None,
            beside: false,
            errand: None,
            under_way: None,
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

    /// From now on syncs are done beside the writing: after each turn, [`Committer::errand`] may
    /// have something to be done, and [`Committer::ended`] is to be told when it is.
    pub fn sync_beside(&mut self) {
        self.beside = true;
    }

    /// What is to be done now beside the writing, if anything is.
    pub fn errand(&mut self) -> Option<Errand<D>> {
        self.errand.take()
    }

    /// Whether an errand that was given has not ended.
    #[must_use]
    pub fn awaits_errand(&self) -> bool {
        self.under_way.is_some() && self.errand.is_none()
    }

    /// The errand that was given has ended.
    pub fn ended(&mut self, outcome: Outcome, now_ms: u64) -> Turn {
        if let Some(at) = self.retry_ms {
            // All that was not known to be on the disk is written again, what it was for, too.
            (self.under_way, self.next) = (None, None);
            self.is_lost |= outcome.is_lost;
            return Turn::Refused(at);
        }
        let ended = self.end(outcome);
        ended.map_or_else(|error| self.refuse(now_ms, &error), Turn::Synced)
    }

    /// Writes and syncs all that was appended, whatever the time is, and a mark that says so: a
    /// last turn. After it, damage to any record is seen. An errand that was given has to end
    /// first; from now on all is done at once.
    pub fn finish(&mut self, now_ms: u64) -> Turn {
        self.beside = false;
        while let Some(errand) = self.errand.take() {
            _ = self.ended(errand.run(), now_ms);
        }
        self.retry_ms = self.retry_ms.map(|at| at.min(now_ms));
        let mut turn = self.turn_with(now_ms, true);
        // (A transaction that has begun ends first. It is short, and waits for nothing.)
        while self.log.has_work() && !matches!(turn, Turn::Refused(_) | Turn::Waits) {
            turn = self.turn_with(now_ms, true);
        }
        let Some(segment) = self.segment.as_mut().filter(|_| turn != Turn::Waits) else {
            return turn;
        };
        let marked = segment.mark(&self.log).and_then(|()| segment.file.sync());
        if let Err(error) = marked {
            return self.refuse(now_ms, &error);
        }
        segment.synced = segment.end;
        turn
    }

    fn turn_with(&mut self, now_ms: u64, finish: bool) -> Turn {
        if let Some(at) = self.retry_ms.filter(|at| now_ms < *at) {
            return Turn::Refused(at);
        }
        if self.is_held_up(finish) {
            return Turn::Waits;
        }
        let fresh = self.take();
        let done = if let Some(cut) = self.cut {
            if self.under_way.is_some() {
                return Turn::Waits;
            }
            self.make(cut, now_ms)
        } else if self.retry_ms.is_some() {
            self.begin_segment(now_ms)
        } else if fresh {
            self.write(now_ms)
        } else {
            Ok(0)
        };
        let done = done.and_then(|records| Ok(records + self.sync_if_due(now_ms, finish)?));
        match done {
            Ok(0) if self.under_way.is_some() => Turn::Beside,
            Ok(0) if self.unsynced.is_empty() || !self.timed() => Turn::Idle,
            Ok(0) => Turn::Until(self.synced_ms + EVERY_MS),
            Ok(records) => Turn::Synced(records),
            Err(error) => self.refuse(now_ms, &error),
        }
    }

    /// Whether the errand that is under way has to end before anything is done. Beside a sync as
    /// much is written as may be unsynced without one: all of it is kept in memory.
    fn is_held_up(&self, finish: bool) -> bool {
        let Some(under_way) = self.under_way else { return false };
        let since = self.unsynced_bytes - under_way.bytes;
        let is_alone = finish || self.retry_ms.is_some() || self.segment.is_none();
        is_alone || since >= self.log.options().unsynced_bytes
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
                        None => self.sync(self.unsynced.len(), now_ms)?,
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
        let is_full = |segment: &Segment<D::File>| segment.end > options.segment_bytes;
        due || self.unsynced_bytes >= options.unsynced_bytes
            || self.log.is_hurried()
            || (self.beside && self.segment.as_ref().is_some_and(is_full))
    }

    /// Writes the last group; answers how many records that made durable.
    fn write(&mut self, now_ms: u64) -> io::Result<usize> {
        let Some(group) = self.unsynced.last_mut() else { return Ok(0) };
        let salt = self.log.options().salt;
        group.batch.set_mark(&mark(&self.log, salt));
        let length = group.batch.len() as u64;
        let limit = self.log.options().segment_bytes;
        let fits = |segment: &&mut Segment<_>| self.beside || segment.end + length <= limit;
        let Some(segment) = self.segment.as_mut().filter(fits) else {
            return self.next_segment(now_ms);
        };
        segment.write(&group.batch)?;
        if let Some(next) = &mut self.next {
            next.write(&group.batch)?;
        }
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
        let before = self.unsynced.len() - 1;
        let mut records = 0;
        if self.segment.is_some() && before > 0 {
            // All of a segment is on the disk before the next one begins.
            records = self.sync(before, now_ms)?;
        }
        Ok(records + self.begin_segment(now_ms)?)
    }

    /// Begins a segment with all that is not synced; answers how many records that made durable.
    fn begin_segment(&mut self, now_ms: u64) -> io::Result<usize> {
        self.leave_segment();
        match self.prepare_segment(now_ms)? {
            Some(errand) => {
                self.log.count(|stats| stats.commits += 1);
                self.end(errand.run())
            }
            None => Ok(self.synced(0, now_ms)),
        }
    }

    /// Writes all that is not synced, if anything is, to a file that is to be the next segment. It
    /// gets its name when it is on the disk, so that a segment with a name has all of its header
    /// and of these records.
    fn prepare_segment(&mut self, now_ms: u64) -> io::Result<Option<Errand<D>>> {
        let lost = self.before.as_ref().filter(|_| self.is_lost);
        self.disk.check(lost.map(|segment| (&*segment.name, &*segment.file)))?;
        self.is_lost = false;
        let salt = self.log.options().salt;
        let Some(group) = self.unsynced.last_mut() else { return Ok(None) };
        group.batch.set_mark(&mark(&self.log, salt));
        let first = self.unsynced[0].first;
        let name = segment_name(first);
        let file = Arc::new(self.disk.create(&temporary(&name))?);
        let header = SegmentHeader { first, salt, created_ms: now_ms };
        file.write_at(0, &header.encode(LOG_MAGIC))?;
        let end = SEGMENT_HEADER as u64;
        let mut next = Segment { file, name: name.into(), salt, end, synced: 0, ahead: 0 };
        for group in &self.unsynced {
            next.write(&group.batch)?;
        }
        next.ahead = next.end;
        self.next = Some(next);
        Ok(self.begin(Task::Name, self.unsynced.len(), now_ms))
    }

    fn leave_segment(&mut self) {
        self.before = self.segment.take().or(self.before.take());
    }

    /// Syncs what was written if that is due, or has it done beside; answers how many records that
    /// made durable.
    fn sync_if_due(&mut self, now_ms: u64, finish: bool) -> io::Result<usize> {
        let is_due = !self.unsynced.is_empty() && (finish || self.due(now_ms));
        if !is_due || self.under_way.is_some() {
            return Ok(0);
        }
        let groups = self.unsynced.len();
        if !self.beside {
            return self.sync(groups, now_ms);
        }
        // The next segment begins with what came while the end of a full one was synced.
        let limit = self.log.options().segment_bytes;
        let is_ended = self.segment.as_ref().is_some_and(|segment| segment.synced > limit);
        self.errand = if is_ended {
            self.prepare_segment(now_ms)?
        } else {
            self.begin(Task::Sync, groups, now_ms)
        };
        Ok(0)
    }

    /// Syncs the first of the groups, which are all that was written; answers how many records that
    /// made durable.
    fn sync(&mut self, groups: usize, now_ms: u64) -> io::Result<usize> {
        let errand = self.begin(Task::Sync, groups, now_ms);
        errand.map_or(Ok(0), |errand| self.end(errand.run()))
    }

    /// Begins an errand for the first of the groups.
    fn begin(&mut self, task: Task, groups: usize, now_ms: u64) -> Option<Errand<D>> {
        let segment = match task {
            Task::Sync => self.segment.as_ref()?,
            Task::Name => self.next.as_ref()?,
            Task::Mark => self.before.as_ref()?,
        };
        let bytes = bytes(&self.unsynced[..groups]);
        let end = segment.end;
        self.under_way = Some(UnderWay { task, groups, bytes, end, began_ms: now_ms });
        let (disk, file) = (Arc::clone(&self.disk), Arc::clone(&segment.file));
        Some(Errand { disk, file, name: Arc::clone(&segment.name), task })
    }

    /// Ends the errand that is under way; answers how many records it made durable.
    fn end(&mut self, outcome: Outcome) -> io::Result<usize> {
        let Some(UnderWay { task, groups, end, began_ms, .. }) = self.under_way.take() else {
            return Ok(0);
        };
        match task {
            Task::Sync => {
                self.is_lost = outcome.is_lost;
                outcome.done?;
                if let Some(segment) = &mut self.segment {
                    segment.synced = end;
                }
                Ok(self.synced(groups, began_ms))
            }
            Task::Name => {
                let next = self.next.take();
                outcome.done?;
                self.leave_segment();
                self.segment = next.map(|next| Segment { synced: end, ..next });
                self.log.count(|stats| stats.segments += 1);
                let records = self.synced(groups, began_ms);
                self.mark_before(began_ms);
                Ok(records)
            }
            Task::Mark => {
                self.before = None;
                Ok(0)
            }
        }
    }

    /// Lets the segment before say that there is another. All is kept without this mark, too: it
    /// tells when the new segment is missing.
    fn mark_before(&mut self, now_ms: u64) {
        let is_marked = self.before.as_mut().is_some_and(|before| before.mark(&self.log).is_ok());
        let errand = if is_marked { self.begin(Task::Mark, 0, now_ms) } else { None };
        match errand {
            Some(errand) if self.beside => self.errand = Some(errand),
            Some(errand) => _ = self.end(errand.run()),
            None => self.before = None,
        }
    }

    /// The first of the groups are on the disk: so many records.
    fn synced(&mut self, groups: usize, began_ms: u64) -> usize {
        self.synced_ms = began_ms;
        self.retry_ms = None;
        let done = &self.unsynced[..groups];
        self.unsynced_bytes -= bytes(done);
        let records = done.iter().map(|group| group.records).sum();
        let last = done.last().map_or(self.log.durable(), |group| group.last);
        self.log.count(|stats| stats.syncs += 1);
        self.log.made_durable(last, &mut self.unsynced, groups);
        records
    }

    /// The disk refuses: nobody may change the store until it does not.
    fn refuse(&mut self, now_ms: u64, error: &io::Error) -> Turn {
        // What was written since the last sync is written again elsewhere.
        self.leave_segment();
        if let Some(group) = self.unsynced.first().filter(|_| self.under_way.is_none()) {
            // A file that was begun in vain is removed at the next start, if it is not now.
            _ = self.disk.remove(&temporary(&segment_name(group.first)));
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

fn bytes(groups: &[Group]) -> usize {
    groups.iter().map(|group| group.batch.len()).sum()
}

/// The mark that says how far the log is synced, for a segment of this salt.
fn mark(log: &Log, salt: u64) -> Vec<u8> {
    let fields = Fields::synced();
    let mut bytes = Vec::with_capacity(HEADER);
    fields.encode(log.durable(), fields.checksum_contents(salt), &mut bytes);
    bytes
}

impl<F: File> Segment<F> {
    /// Writes a group behind the last one.
    fn write(&mut self, batch: &Batch) -> io::Result<()> {
        batch.write_to(&*self.file, self.end)?;
        self.end += batch.len() as u64;
        Ok(())
    }

    /// Writes behind what is synced how far the log is, and that no record follows: if one does, it
    /// is of a group that was not synced here, and is in the next segment.
    fn mark(&mut self, log: &Log) -> io::Result<()> {
        let mut bytes = mark(log, self.salt);
        self.end = self.synced + bytes.len() as u64;
        bytes.extend_from_slice(&[0; HEADER]);
        self.file.write_at(self.synced, &bytes)
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
