//! The log as the threads that change the store see it: they append records, and wait until these
//! are as safe as [`Fsync`] asks. `commit` writes them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::batch::{Batch, LONG};
use super::options::{Fsync, Options};
use super::record::HEADER;
use super::stats::LogStats;
use super::work::{Cut, Group, Wake, Work};
use super::{Fields, Operation, Position};
use crate::journal::Prepared;

/// How many buffers are kept to be used again, and how large they may be.
const SPARES: usize = 4;
const SPARE_BYTES: usize = 4 << 20;

/// Why a change is not taken, or is not known to be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk refused; until it does not, the store can only be read.
    #[error("the store can only be read at the moment: {0}")]
    ReadOnly(Arc<str>),
    /// The disk is slower than the changes.
    #[error("the disk does not keep up: {waiting_bytes} bytes of changes wait for it; try again")]
    Behind {
        /// How much waits.
        waiting_bytes: usize,
    },
    /// The log is not open: not yet, or not any more.
    #[error("the store's log is not open: the store is starting, or ending")]
    Closed,
    /// The record is longer than any may be.
    #[error("a key of {key_bytes} or a value of {value_bytes} bytes is longer than the log takes")]
    TooLong {
        /// The key's length.
        key_bytes: usize,
        /// The value's length.
        value_bytes: usize,
    },
    /// All positions are taken.
    #[error("the log has no position left; save, and start with an empty log")]
    Exhausted,
}

/// The log. Clones are the same log.
///
/// Records are appended in memory, in the order of their positions, and a
/// [`Committer`](super::Committer) writes them in groups.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    state: Mutex<Appending>,
    /// The numbers of the last position that is on the disk, and of the last one that the system
    /// has.
    durable: AtomicU64,
    written: AtomicU64,
    /// The numbers of the last position that was given, and of the last change of an expiry.
    last: AtomicU64,
    touched: AtomicU64,
    /// There is work for the committer, which sleeps.
    work: Condvar,
    /// Something became durable, or cannot.
    news: Condvar,
    listeners: Mutex<Vec<Listener>>,
}

type Listener = Box<dyn Fn() + Send + Sync>;

struct Appending {
    mode: Mode,
    /// The last position that was given.
    last: Position,
    epoch: u32,
    /// The records that nobody has written yet, if there are any.
    waiting: Batch,
    waiting_first: Position,
    waiting_records: usize,
    /// How many transactions are under way, and whether one goes on behind the last record: then
    /// what waits is not written, so that a transaction is never in two groups.
    together: usize,
    goes_on: bool,
    /// What the committer does before it takes those: cuts, and what was appended before them.
    sealed: VecDeque<Work>,
    /// How many cuts there have been.
    cuts: u64,
    /// Buffers to use again.
    spare: VecDeque<Vec<u8>>,
    /// The last flush of each tablespace that had one.
    flushes: BTreeMap<u16, Position>,
    /// Keys that went while a record was repeated.
    evicted: BTreeSet<(u16, Vec<u8>)>,
    /// Somebody waits for a sync up to here, whatever the policy is.
    hurry: Position,
    /// Threads that wait.
    waiters: usize,
    /// What the committer sleeps for, while it does.
    sleeps_for: Option<Wake>,
    /// An errand has ended, and the committer has not looked since.
    returned: bool,
    stats: LogStats,
}

impl Appending {
    fn has(&self, wake: Wake, durable: Position) -> bool {
        let is_cut = !self.sealed.is_empty();
        match wake {
            Wake::Nothing => false,
            Wake::Returned => self.returned,
            Wake::More if self.returned => true,
            _ if is_cut => true,
            _ if self.goes_on => false,
            Wake::Any => self.hurry > durable || self.waiting_records > 0,
            Wake::Haste => self.hurry > durable,
            Wake::More => self.waiting_records > 0,
            Wake::Crowd { records, waiters } => {
                (1..=self.waiters).contains(&waiters) || self.waiting_records >= records
            }
        }
    }
}

enum Mode {
    /// It is being read back.
    Opening,
    /// It is being read back, and the record at this position is made again as it was made first.
    Repeating(Position),
    Open,
    ReadOnly(Arc<str>),
    /// Nothing more is taken; the committer writes what there is.
    Closing,
    Closed,
}

impl Appending {
    /// How far the log is when its records up to `last` are: what is to be cut off does not count,
    /// and nothing does before a cut of all.
    fn reached(&self, last: Position) -> Option<Position> {
        self.sealed.iter().try_fold(last, |last, work| match work {
            Work::Write(_) => Some(last),
            Work::Cut(_, Cut::After(to)) => Some(last.min(*to)),
            Work::Cut(_, Cut::All) => None,
        })
    }

    /// Takes what waits, if anything does.
    fn take_waiting(&mut self) -> Option<Group> {
        if self.waiting_records == 0 {
            return None;
        }
        let spare = Batch::reusing(self.spare.pop_front().unwrap_or_default());
        let batch = std::mem::replace(&mut self.waiting, spare);
        let records = std::mem::take(&mut self.waiting_records);
        Some(Group { batch, records, first: self.waiting_first, last: self.last })
    }

    /// Whether a record can be appended.
    fn check(&mut self, behind_bytes: usize) -> Result<(), LogError> {
        // A transaction that has begun is not refused half-way.
        if self.goes_on && !matches!(self.mode, Mode::Closed) {
            return Ok(());
        }
        match &self.mode {
            Mode::Open => {}
            Mode::ReadOnly(reason) => return Err(LogError::ReadOnly(Arc::clone(reason))),
            _ => return Err(LogError::Closed),
        }
        let waiting_bytes = self.waiting.len();
        if waiting_bytes >= behind_bytes {
            self.stats.behind += 1;
            return Err(LogError::Behind { waiting_bytes });
        }
        Ok(())
    }
}

impl Log {
    /// A log for [`open_log`](super::open_log), which reads it back and lets it begin.
    #[must_use]
    pub fn new(options: Options) -> Log {
        let state = Appending {
            mode: Mode::Opening,
            last: Position::NONE,
            epoch: options.epoch,
            waiting: Batch::default(),
            waiting_first: Position::NONE,
            waiting_records: 0,
            together: 0,
            goes_on: false,
            sealed: VecDeque::new(),
            cuts: 0,
            spare: VecDeque::new(),
            flushes: BTreeMap::new(),
            evicted: BTreeSet::new(),
            hurry: Position::NONE,
            waiters: 0,
            sleeps_for: None,
            returned: false,
            stats: LogStats::default(),
        };
        let shared = Shared {
            options,
            state: Mutex::new(state),
            durable: AtomicU64::new(0),
            written: AtomicU64::new(0),
            last: AtomicU64::new(0),
            touched: AtomicU64::new(0),
            work: Condvar::new(),
            news: Condvar::new(),
            listeners: Mutex::new(Vec::new()),
        };
        Log { shared: Arc::new(shared) }
    }

    /// While `repeat` makes the change of the record at `position` again as a client would, the log
    /// answers that position, and notes which keys are evicted for it.
    pub(crate) fn repeating<T>(&self, position: Position, repeat: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.lock().mode, Mode::Repeating(position));
        let repeated = repeat();
        self.lock().mode = before;
        repeated
    }

    /// The keys that were evicted while records were repeated.
    pub(crate) fn take_evicted(&self) -> BTreeSet<(u16, Vec<u8>)> {
        std::mem::take(&mut self.lock().evicted)
    }

    /// All is read back; what is appended from now on comes after `last`.
    pub(crate) fn begin(&self, last: Position) {
        let mut state = self.lock();
        state.mode = Mode::Open;
        state.last = last;
        state.epoch = state.epoch.max(last.epoch());
        self.reach(last, last);
    }

    /// The log is on the disk up to `durable`, and goes on after `last`.
    fn reach(&self, durable: Position, last: Position) {
        self.shared.durable.store(durable.number(), Ordering::Release);
        self.shared.written.store(durable.number(), Ordering::Release);
        self.shared.last.store(last.number(), Ordering::Release);
    }

    /// Does the part of an append that needs no position, and so no lock.
    pub(crate) fn prepare(&self, fields: &Fields<'_>) -> Prepared {
        let sum = fields.checksum_contents(self.shared.options.salt);
        let mut contents = Vec::new();
        let len = fields.length() - HEADER;
        if len >= LONG && fields.fits() {
            contents.reserve_exact(len);
            fields.append_contents(&mut contents);
        }
        Prepared { sum, contents }
    }

    /// Appends a record, and answers its position. It is on the disk once [`Log::durable`] is as
    /// far.
    ///
    /// # Errors
    ///
    /// [`LogError`]: the record is not in the log, and will not be.
    pub fn append(&self, fields: &Fields<'_>) -> Result<Position, LogError> {
        self.append_prepared(fields, self.prepare(fields))
    }

    /// Appends a record that was prepared ([`Log::prepare`]).
    pub(crate) fn append_prepared(
        &self,
        fields: &Fields<'_>,
        Prepared { sum, contents }: Prepared,
    ) -> Result<Position, LogError> {
        if !fields.fits() {
            let (key_bytes, value_bytes) = (fields.key.len(), fields.value.len());
            return Err(LogError::TooLong { key_bytes, value_bytes });
        }
        let mut state = self.lock();
        if let Mode::Repeating(position) = state.mode {
            if fields.operation == Operation::Delete {
                state.evicted.insert((fields.tablespace, fields.key.to_vec()));
            }
            return Ok(position);
        }
        state.check(self.shared.options.behind_bytes)?;
        let position = state.last.next(state.epoch).ok_or(LogError::Exhausted)?;
        if state.together > 0 && position.counter() == Position::MAX_COUNTER {
            return Err(LogError::Exhausted); // The last one is for the transaction's end.
        }
        if fields.operation == Operation::Touch {
            self.shared.touched.store(position.number(), Ordering::Release);
        }
        if fields.operation == Operation::Flush {
            state.flushes.insert(fields.tablespace, position);
        }
        let fields = &Fields { goes_on: state.together > 0, ..*fields };
        state.goes_on = fields.goes_on;
        self.add(&mut state, position, fields.length(), |waiting| {
            if contents.is_empty() {
                fields.encode(position, sum, &mut waiting.short);
            } else {
                waiting.short.extend_from_slice(&fields.encode_header(position, sum));
                waiting.push_long(contents);
            }
        });
        Ok(position)
    }

    /// Appends a record as its bytes are, with the log's salt in its checksum and the position that
    /// others have given it, as the primary of a group has.
    ///
    /// # Errors
    ///
    /// [`LogError`]: the record is not in the log, and may be appended later.
    ///
    /// # Panics
    ///
    /// If the position does not follow the last one.
    pub fn append_at(&self, position: Position, record: &[u8]) -> Result<(), LogError> {
        let mut state = self.lock();
        state.check(self.shared.options.behind_bytes)?;
        assert!(position.follows(state.last), "{position} is appended after {}", state.last);
        // The group's primary waits, not a thread of this process.
        if self.shared.options.fsync == Fsync::Always {
            state.hurry = position;
        }
        self.add(&mut state, position, record.len(), |waiting| {
            waiting.short.extend_from_slice(record);
        });
        Ok(())
    }

    /// After a crash, all changes that are logged while `act` runs are there, or none: they are one
    /// transaction, with what others log meanwhile. It is to be short, and must not wait for the
    /// log, which writes nothing until then.
    pub fn together<T>(&self, act: impl FnOnce() -> T) -> T {
        self.lock().together += 1;
        let _together = Together(self);
        act()
    }

    /// Ends a transaction; the last one that is under way says in the log that all are whole.
    fn end_together(&self) {
        let mut state = self.lock();
        state.together -= 1;
        if state.together > 0 || !std::mem::take(&mut state.goes_on) {
            return;
        }
        let done = Fields::of(Operation::Done);
        let sum = done.checksum_contents(self.shared.options.salt);
        let Some(position) = state.last.next(state.epoch) else { return };
        self.add(&mut state, position, done.length(), |waiting| {
            done.encode(position, sum, &mut waiting.short);
        });
    }

    /// Puts a record of so many bytes behind those that wait.
    fn add(
        &self,
        state: &mut Appending,
        position: Position,
        length: usize,
        put: impl FnOnce(&mut Batch),
    ) {
        if state.waiting_records == 0 {
            state.waiting.begin();
            state.waiting_first = position;
        }
        put(&mut state.waiting);
        state.last = position;
        self.shared.last.store(position.number(), Ordering::Release);
        state.waiting_records += 1;
        state.stats.records += 1;
        state.stats.bytes += length as u64;
        self.wake_committer(state);
    }

    /// Cuts off the records after `to`, as the primary of a group orders: the next one that is
    /// appended follows it. At once nothing after it counts as kept any more.
    pub fn truncate(&self, to: Position) {
        let mut state = self.lock();
        if to >= state.last {
            return;
        }
        let group = state.take_waiting();
        state.sealed.extend(group.map(Work::Write));
        state.cuts += 1;
        let cut = Work::Cut(state.cuts, Cut::After(to));
        state.sealed.push_back(cut);
        (state.last, state.goes_on) = (to, false);
        state.hurry = state.hurry.min(to);
        self.shared.last.store(to.number(), Ordering::Release);
        for reached in [&self.shared.durable, &self.shared.written] {
            reached.fetch_min(to.number(), Ordering::AcqRel);
        }
        self.shared.work.notify_one();
    }

    /// Begins anew after a copy of another store, which has all up to `at` and lies on the disk
    /// under a name of its own: the committer puts it in the place of all that is there.
    pub fn begin_anew(&self, at: Position) {
        let mut state = self.lock();
        // What waits belongs to the history that is gone.
        state.take_waiting();
        state.cuts += 1;
        state.sealed = VecDeque::from([Work::Cut(state.cuts, Cut::All)]);
        state.flushes.clear();
        (state.last, state.hurry) = (at, Position::NONE);
        self.reach(at, at);
        self.shared.work.notify_one();
    }

    /// The last position that is on the disk: it and all before it outlive a crash.
    #[must_use]
    pub fn durable(&self) -> Position {
        Position::from_number(self.shared.durable.load(Ordering::Acquire))
    }

    /// The last position that is kept as [`Fsync`] asks: on the disk under [`Fsync::Always`], else
    /// with the system, so that the end of this process takes nothing of it along.
    #[must_use]
    pub fn kept(&self) -> Position {
        match self.shared.options.fsync {
            Fsync::Always => self.durable(),
            Fsync::EverySecond | Fsync::No => {
                Position::from_number(self.shared.written.load(Ordering::Acquire))
            }
        }
    }

    /// The last position that was given.
    #[must_use]
    pub fn last(&self) -> Position {
        Position::from_number(self.shared.last.load(Ordering::Acquire))
    }

    /// What has to be durable before somebody may be told of an item of this version; or without
    /// one, of anything else that there is or is not. An item's expiry may be younger than it.
    #[must_use]
    pub fn seen(&self, version: Option<Position>) -> Position {
        let touched = || Position::from_number(self.shared.touched.load(Ordering::Acquire));
        version.map_or_else(|| self.last(), |version| version.max(touched()))
    }

    /// How the log is kept.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Waits until the record at `position` is on the disk: under [`Fsync::Always`] it is synced
    /// now, with all that others have appended; under the other policies as long as that takes; see
    /// [`Log::sync`].
    ///
    /// # Errors
    ///
    /// [`LogError::ReadOnly`] and [`LogError::Closed`]: whether the record will be there after a
    /// crash is not known. The log still has it, and writes it once the disk takes it.
    pub fn wait(&self, position: Position) -> Result<(), LogError> {
        let mut state = self.lock();
        state.waiters += 1;
        if self.shared.options.fsync == Fsync::Always {
            self.hasten(&mut state, position);
        }
        let kept = loop {
            match self.judge(&state, position) {
                Ok(false) => state = wait(&self.shared.news, state),
                judged => break judged.map(drop),
            }
        };
        state.waiters -= 1;
        kept
    }

    /// Whether the record at `position` is on the disk. [`Log::listen`] tells when to ask again.
    ///
    /// # Errors
    /// As [`Log::wait`].
    pub fn is_durable(&self, position: Position) -> Result<bool, LogError> {
        if self.durable() >= position { Ok(true) } else { self.judge(&self.lock(), position) }
    }

    fn judge(&self, state: &Appending, position: Position) -> Result<bool, LogError> {
        if self.durable() >= position {
            return Ok(true);
        }
        match &state.mode {
            Mode::ReadOnly(reason) => Err(LogError::ReadOnly(Arc::clone(reason))),
            Mode::Closed => Err(LogError::Closed),
            Mode::Opening | Mode::Repeating(_) | Mode::Open | Mode::Closing => Ok(false),
        }
    }

    /// Lets the record at `position` be synced now, whatever the policy is, and waits for it.
    ///
    /// # Errors
    /// As [`Log::wait`].
    pub fn sync(&self, position: Position) -> Result<(), LogError> {
        self.hurry(position);
        self.wait(position)
    }

    /// Lets the record at `position` be synced at the committer's next turn.
    pub fn hurry(&self, position: Position) {
        self.hasten(&mut self.lock(), position);
    }

    fn hasten(&self, state: &mut Appending, position: Position) {
        state.hurry = state.hurry.max(position.min(state.last));
        self.wake_committer(state);
    }

    /// Wakes the committer if it sleeps for what there is now.
    fn wake_committer(&self, state: &mut Appending) {
        if state.sleeps_for.is_some_and(|wake| state.has(wake, self.durable())) {
            state.sleeps_for = None;
            self.shared.work.notify_one();
        }
    }

    /// The last position that was given, and the last flush of each tablespace up to there.
    pub(crate) fn last_and_flushes(&self) -> (Position, Vec<(u16, Position)>) {
        let state = self.lock();
        (state.last, state.flushes.iter().map(|(space, at)| (*space, *at)).collect())
    }

    /// Whether somebody waits for a sync.
    pub(crate) fn is_hurried(&self) -> bool {
        self.lock().hurry > self.durable()
    }

    /// Why the store can only be read, if that is so.
    #[must_use]
    pub fn read_only(&self) -> Option<Arc<str>> {
        match &self.lock().mode {
            Mode::ReadOnly(reason) => Some(Arc::clone(reason)),
            _ => None,
        }
    }

    /// Calls `listener` on the committer's thread whenever [`Log::kept`], [`Log::durable`] or
    /// [`Log::read_only`] has changed: for those who sleep on something else than [`Log::wait`].
    pub fn listen(&self, listener: impl Fn() + Send + Sync + 'static) {
        let mut listeners = unpoisoned(self.shared.listeners.lock());
        listeners.push(Box::new(listener));
    }

    /// What the log has done.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.lock().stats
    }

    /// What `INFO persistence` says of it, as names and values.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, String)> {
        let stats = self.stats();
        let writes = if self.read_only().is_none() { "ok" } else { "err" };
        vec![
            ("aof_enabled", "1".to_owned()),
            ("aof_last_write_status", writes.to_owned()),
            ("log_fsync", self.options().fsync.to_string()),
            ("log_position", self.last().to_string()),
            ("log_durable", self.durable().to_string()),
            ("log_records", stats.records.to_string()),
            ("log_bytes", stats.bytes.to_string()),
            ("log_syncs", stats.syncs.to_string()),
            ("log_errors", stats.errors.to_string()),
        ]
    }

    /// Takes no more records; those that were appended are still written.
    pub fn close(&self) {
        {
            let mut state = self.lock();
            if !matches!(state.mode, Mode::Closed) {
                state.mode = Mode::Closing;
            }
        }
        self.shared.work.notify_all();
        self.shared.news.notify_all();
    }

    /// Nobody writes this log any more: a thread that waits for it waits in vain.
    pub(crate) fn closed(&self) {
        self.lock().mode = Mode::Closed;
        self.tell();
    }

    /// Waits until nobody writes this log any more; whether that is so before nothing was kept for
    /// the patience.
    pub(crate) fn closes_within(&self, patience: Duration) -> bool {
        let (mut state, mut in_time) = (self.lock(), true);
        while in_time && !matches!(state.mode, Mode::Closed) {
            let (next, waited) = unpoisoned(self.shared.news.wait_timeout(state, patience));
            (state, in_time) = (next, !waited.timed_out());
        }
        in_time
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.lock().mode, Mode::Closing | Mode::Closed)
    }

    /// What is to be done next: what was appended since the last call, if anything was. A cut stays
    /// until it is made ([`Log::made_cut`]): until then, nothing behind it counts as kept.
    pub(crate) fn take(&self) -> Option<Work> {
        let mut state = self.lock();
        match state.sealed.front() {
            Some(Work::Cut(number, cut)) => Some(Work::Cut(*number, *cut)),
            Some(Work::Write(_)) => state.sealed.pop_front(),
            None if state.goes_on => None,
            None => state.take_waiting().map(Work::Write),
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        let state = self.lock();
        !state.sealed.is_empty() || state.waiting_records > 0
    }

    /// The cut of this number is made: the disk takes what comes.
    pub(crate) fn made_cut(&self, number: u64) {
        let mut state = self.lock();
        // (Another one may have come in its place.)
        if matches!(state.sealed.front(), Some(Work::Cut(next, _)) if *next == number) {
            state.sealed.pop_front();
        }
        if matches!(state.mode, Mode::ReadOnly(_)) {
            state.mode = Mode::Open;
        }
        drop(state);
        self.tell();
    }

    /// The system has all up to `last`.
    pub(crate) fn made_written(&self, last: Position) {
        let state = self.lock();
        if let Some(last) = state.reached(last) {
            self.shared.written.store(last.number(), Ordering::Release);
        }
        drop(state);
        if self.shared.options.fsync != Fsync::Always {
            self.tell();
        }
    }

    /// All up to `last` is on the disk, and the first `done` of the groups need not be kept.
    pub(crate) fn made_durable(&self, last: Position, groups: &mut Vec<Group>, done: usize) {
        {
            let mut state = self.lock();
            for Group { batch, .. } in &mut groups[..done] {
                // A buffer that many records made large goes back to the allocator.
                if state.spare.len() < SPARES && batch.short.capacity() <= SPARE_BYTES {
                    let mut spare = std::mem::take(&mut batch.short);
                    spare.clear();
                    state.spare.push_back(spare);
                }
            }
            if let Some(last) = state.reached(last) {
                self.shared.durable.store(last.number(), Ordering::Release);
                self.shared.written.fetch_max(last.number(), Ordering::AcqRel);
            }
            if matches!(state.mode, Mode::ReadOnly(_)) {
                state.mode = Mode::Open;
            }
        }
        // To give back much memory takes time, and nobody waits for it here.
        groups.drain(..done);
        self.tell();
    }

    /// The disk refuses, for this reason.
    pub(crate) fn failed(&self, reason: &str) {
        {
            let mut state = self.lock();
            state.stats.errors += 1;
            if matches!(state.mode, Mode::Open | Mode::ReadOnly(_)) {
                state.mode = Mode::ReadOnly(reason.into());
            }
        }
        self.tell();
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut LogStats)) {
        count(&mut self.lock().stats);
    }

    /// Wakes all who wait.
    pub(crate) fn tell(&self) {
        self.shared.news.notify_all();
        for listener in &*unpoisoned(self.shared.listeners.lock()) {
            listener();
        }
    }

    /// How many records, and how many threads, wait for a sync.
    pub(crate) fn crowd(&self) -> (usize, usize) {
        let state = self.lock();
        (state.waiting_records, state.waiters)
    }

    /// Sleeps until there is work of this kind, the log is closed, or `limit` is over.
    pub(crate) fn wait_for_work(&self, wake: Wake, limit: Option<Duration>) {
        let mut state = self.lock();
        let is_closing = matches!(state.mode, Mode::Closing | Mode::Closed);
        if !is_closing && !state.has(wake, self.durable()) {
            state.sleeps_for = Some(wake);
            state = match limit {
                None => wait(&self.shared.work, state),
                Some(limit) => unpoisoned(self.shared.work.wait_timeout(state, limit)).0,
            };
        }
        (state.sleeps_for, state.returned) = (None, false);
    }

    /// The errand that was under way has ended.
    pub(crate) fn returned(&self) {
        let mut state = self.lock();
        state.returned = true;
        self.wake_committer(&mut state);
    }

    #[cfg(test)]
    pub(super) fn has(&self, wake: Wake) -> bool {
        self.lock().has(wake, self.durable())
    }

    fn lock(&self) -> MutexGuard<'_, Appending> {
        unpoisoned(self.shared.state.lock())
    }
}

/// A transaction that is under way; it ends even if what it runs panics.
struct Together<'a>(&'a Log);

impl Drop for Together<'_> {
    fn drop(&mut self) {
        self.0.end_together();
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let durable = self.durable();
        f.debug_struct("Log").field("durable", &durable).finish_non_exhaustive()
    }
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, Appending>) -> MutexGuard<'a, Appending> {
    unpoisoned(condition.wait(state))
}

/// A thread that panicked while it had the lock did so between whole records, and its panic is
/// seen elsewhere.
fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
