//! Completions, the completion queues that they wait in, and when the owner of a queue is notified
//! (armed for the next entry or the next solicited one, and moderated). `push` says what a full
//! queue loses.

use core::time::Duration;
use std::collections::VecDeque;

use bitflags::bitflags;
use thiserror::Error;

use crate::memory::key::Pd;
use crate::time::Time;
use crate::timers::Timer;

/// How a work request ended (the verbs' completion statuses).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Status {
    /// The request was carried out.
    #[error("success")]
    Success,
    /// A message longer than the queue pair or the receive element takes.
    #[error("local length error: the message does not fit the posted buffer or the MTU")]
    LocalLength,
    /// The element itself is wrong, or the queue pair cannot carry it out.
    #[error("local queue pair operation error: the work request is malformed")]
    LocalQpOperation,
    /// A local key, its bounds or its permissions are wrong.
    #[error("local protection error: a local key does not open the given memory")]
    LocalProtection,
    /// The queue pair went to the error state before this request was carried out.
    #[error("flushed: the queue pair went to the error state")]
    Flushed,
    /// The peer's answer does not fit the request.
    #[error("bad response: the peer's answer does not fit the request")]
    BadResponse,
    /// The peer's queue pair cannot carry out such a request.
    #[error("remote invalid request: the peer's queue pair does not take such a request")]
    RemoteInvalidRequest,
    /// The peer refused the key, the bounds or the permission.
    #[error("remote access error: the peer refused the key, the bounds or the permission")]
    RemoteAccess,
    /// The peer failed to carry out the request.
    #[error("remote operational error: the peer failed to carry out the request")]
    RemoteOperation,
    /// The peer did not answer after all retries.
    #[error("transport retry counter exceeded: the peer did not answer")]
    RetryExceeded,
    /// The peer still had no receive element after all retries.
    #[error("RNR retry counter exceeded: the peer posts no receive requests")]
    RnrRetryExceeded,
    /// A memory window could not be bound, or a key could not be invalidated.
    #[error("memory window error: the window cannot be bound so, or the key not be invalidated")]
    MwBind,
}

/// What kind of work a completion reports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WorkKind {
    /// A send request, by its operation. (Binding a window or invalidating a key is one, too.)
    Send(super::Opcode),
    /// A receive request that a SEND filled.
    Recv,
    /// A receive request that a WRITE with immediate took.
    RecvWriteImm,
    /// A send element that was flushed unread, so that its operation is not known.
    Unread,
}

impl WorkKind {
    /// Is this a receive request, and not a send request?
    pub const fn is_receive(self) -> bool {
        matches!(self, WorkKind::Recv | WorkKind::RecvWriteImm)
    }
}

bitflags! {
    /// Further properties of a completion.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct CompletionFlags: u8 {
        /// `imm_or_key` is immediate data.
        const IMM = 1 << 0;
        /// `imm_or_key` is the key that was invalidated.
        const INVALIDATED = 1 << 1;
        /// The buffer begins with a 40-byte GRH.
        const GRH = 1 << 2;
        /// The sender asked for a solicited event.
        const SOLICITED = 1 << 3;
    }
}

/// A completion-queue entry.
///
/// ```
/// use remora_nic::queue::{Completion, Status};
///
/// let done = Completion { wr_id: 7, len: 64, ..Completion::default() };
/// assert_eq!(done.ok().map(|done| done.len), Ok(64));
/// let failed = Completion { status: Status::RemoteAccess, ..done };
/// assert_eq!(failed.ok().unwrap_err().wr_id, 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The id from the work request.
    pub wr_id: u64,
    /// How the request ended. If not [`Status::Success`], only `wr_id`, `qpn` and `status` mean
    /// anything.
    pub status: Status,
    /// The kind of request.
    pub kind: WorkKind,
    /// The number of this card's queue pair.
    pub qpn: u32,
    /// Bytes moved (for UD receives: GRH included).
    pub len: u32,
    /// Immediate data or invalidated key: see `flags`.
    pub imm_or_key: u32,
    /// The sending queue pair of a datagram.
    pub src_qp: u32,
    /// Further properties.
    pub flags: CompletionFlags,
    /// When the card wrote the entry, by the driver's clock.
    pub at: Time,
}

impl Completion {
    /// Is its owner notified who waits for solicited completions only? An error counts as one.
    #[inline]
    pub fn is_solicited(&self) -> bool {
        self.flags.contains(CompletionFlags::SOLICITED) || self.status != Status::Success
    }

    /// This completion if the request succeeded; otherwise an error that can be returned.
    ///
    /// # Errors
    /// If the request failed: the status says how.
    pub const fn ok(self) -> Result<Completion, CompletionError> {
        match self.status {
            Status::Success => Ok(self),
            status => Err(CompletionError { wr_id: self.wr_id, qpn: self.qpn, status }),
        }
    }

    /// The immediate data that came with the message, if it had any.
    pub const fn imm(&self) -> Option<u32> {
        if self.flags.contains(CompletionFlags::IMM) { Some(self.imm_or_key) } else { None }
    }
}

/// A work request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("work request {wr_id} of queue pair {qpn:#x} failed: {status}")]
pub struct CompletionError {
    /// The id from the work request.
    pub wr_id: u64,
    /// The number of the queue pair.
    pub qpn: u32,
    /// How the request ended: never [`Status::Success`].
    #[source]
    pub status: Status,
}

/// How often the owner of an armed queue is notified (`ibv_modify_cq`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Moderation {
    /// How many entries cause one notification; 0 and 1 mean that each entry does.
    pub count: u16,
    /// The longest time after an entry until its owner is notified, even if there are fewer than
    /// `count`. Zero: there is no such limit, so that fewer entries cause no notification.
    pub period: Duration,
}

/// Why a completion queue could not be resized. Everything is as before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum ResizeCqError {
    /// No such queue.
    #[error("no such completion queue")]
    UnknownCq,
    /// A size of zero or above the card's limit.
    #[error("the size is zero or above the card's limit of {limit}")]
    Size {
        /// The limit.
        limit: usize,
    },
    /// More entries wait than would fit into the new size.
    #[error("{waiting} entries wait in the queue: poll them first")]
    Waiting {
        /// How many entries wait.
        waiting: usize,
    },
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Why a completion queue cannot be polled.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum PollCqError {
    /// No such queue.
    #[error("no such completion queue")]
    UnknownCq,
    /// The queue overflowed: completions were lost.
    #[error("the completion queue overflowed: create it with more entries than work in flight")]
    Overrun,
    /// The card is another process's, and that process has ended.
    #[error("the process that has the card has ended: attach again")]
    Gone,
}

/// Which entries a queue's owner wants to be notified of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// The consequence of adding a completion to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pushed {
    Quietly,
    Notify,
    /// The owner is notified when this period is over.
    NotifyLater(Duration),
    /// The queue was full: this is the first entry that is lost.
    Overflow,
    /// The queue has overflowed before: this entry is lost, too.
    Lost,
}

/// The protection domain of the queue pairs that report to a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reporters {
    None,
    One(Pd),
    Several,
}

/// Is the card to name a queue that has got entries (an *exported* one)?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Export {
    No,
    /// It is exported, and has got no entries since it was named last.
    Quiet,
    /// It is exported, and in the list of queues to be named.
    Listed,
}

#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: VecDeque<Completion>,
    capacity: usize,
    armed: Armed,
    overrun: bool,
    export: Export,
    moderation: Moderation,
    /// How many entries that the owner wants to be notified of have come since the queue was armed.
    untold: u16,
    /// Runs out when the owner has not been notified of an entry for the period.
    pub(crate) timer: Timer,
    /// How many queue pairs and XRC shared receive queues report here.
    users: u32,
    domain: Reporters,
    /// Successful completions are only counted; failed ones are kept.
    counts_only: bool,
    /// How many successful completions have come since the queue was made.
    count: u64,
    /// The queue pairs with a send queue that a WAIT holds until more have come.
    waiting: Vec<u32>,
    /// The least count that one of them waits for.
    wake_at: u64,
    /// How many times the waiting queues were woken, so that none waits here twice.
    wakes: u32,
}

impl CompletionQueue {
    /// How many entries it has room for.
    pub(crate) fn allocated(&self) -> usize {
        self.ring.capacity()
    }

    pub(crate) fn new(capacity: usize) -> CompletionQueue {
        CompletionQueue {
            ring: VecDeque::with_capacity(capacity),
            capacity,
            armed: Armed::No,
            overrun: false,
            export: Export::No,
            moderation: Moderation::default(),
            untold: 0,
            timer: Timer::IDLE,
            users: 0,
            domain: Reporters::None,
            counts_only: false,
            count: 0,
            waiting: Vec::new(),
            wake_at: u64::MAX,
            wakes: 0,
        }
    }

    /// A queue that keeps errors only, for chains that are not polled.
    pub(crate) fn counting(capacity: usize) -> CompletionQueue {
        CompletionQueue { counts_only: true, ..CompletionQueue::new(capacity) }
    }

    /// A queue that the card names when it has got entries.
    pub(crate) fn exported(capacity: usize) -> CompletionQueue {
        CompletionQueue::new(capacity).export()
    }

    /// The same queue; the card names it when it has got entries.
    pub(crate) fn export(self) -> CompletionQueue {
        CompletionQueue { export: Export::Quiet, ..self }
    }

    /// Notes that the queue has got an entry. Must it be added to the list of queues to be named?
    #[inline]
    pub(crate) fn list(&mut self) -> bool {
        let lists = self.export == Export::Quiet;
        if lists {
            self.export = Export::Listed;
        }
        lists
    }

    /// Notes that the queue has left the list of queues to be named.
    pub(crate) fn unlist(&mut self) {
        self.export = Export::Quiet;
    }

    /// Is the queue in the list of queues to be named?
    pub(crate) fn is_listed(&self) -> bool {
        self.export == Export::Listed
    }

    /// How many queue pairs and XRC shared receive queues report here.
    pub(crate) fn users(&self) -> u32 {
        self.users
    }

    /// Notes one more user, of protection domain `pd`.
    pub(crate) fn add_user(&mut self, pd: Pd) {
        self.users += 1;
        self.domain = match self.domain {
            Reporters::None => Reporters::One(pd),
            domain if domain == Reporters::One(pd) => domain,
            _ => Reporters::Several,
        };
    }

    /// Notes one user less.
    pub(crate) fn remove_user(&mut self) {
        self.users -= 1;
        if self.users == 0 {
            self.domain = Reporters::None;
        }
    }

    /// May a WAIT in protection domain `pd` learn this queue's count? Only if all users are of that
    /// protection domain.
    pub(crate) fn is_open_to(&self, pd: Pd) -> bool {
        self.domain == Reporters::One(pd)
    }

    /// How many successful completions have come since the queue was made, lost and polled ones
    /// included.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Does the queue keep errors only?
    pub(crate) fn counts_only(&self) -> bool {
        self.counts_only
    }

    /// How many times the waiting queues were woken.
    pub(crate) fn wakes(&self) -> u32 {
        self.wakes
    }

    /// Adds queue pair `qpn`, which does not wait here yet, to be woken at `count`.
    pub(crate) fn wait(&mut self, qpn: u32, count: u64) {
        self.waiting.push(qpn);
        self.wait_for(count);
    }

    /// Makes sure that a queue pair that waits here already is woken at `count` at the latest.
    pub(crate) fn wait_for(&mut self, count: u64) {
        self.wake_at = self.wake_at.min(count);
    }

    /// Removes queue pair `qpn` from those that wait.
    pub(crate) fn leave(&mut self, qpn: u32) {
        self.waiting.retain(|waiting| *waiting != qpn);
    }

    /// Counts successful completions. Returns whether it is time to wake the waiting queues.
    #[inline]
    pub(crate) fn count_more(&mut self, count: u64) -> bool {
        self.count = self.count.wrapping_add(count);
        self.count >= self.wake_at
    }

    /// Removes and returns the queue pairs that wait, to be woken.
    pub(crate) fn wake(&mut self) -> impl Iterator<Item = u32> {
        self.wake_at = u64::MAX;
        self.wakes = self.wakes.wrapping_add(1);
        self.waiting.drain(..)
    }

    /// Adds an entry. Returns whether and when its owner is notified. A full queue loses the entry
    /// and all further ones, and reports the overflow once. The queue pairs that report here go on:
    /// the event tells the application, which has to replace the queue.
    pub(crate) fn push(&mut self, entry: Completion) -> Pushed {
        if self.overrun || self.ring.len() >= self.capacity {
            let first = !self.overrun;
            self.overrun = true;
            return if first { Pushed::Overflow } else { Pushed::Lost };
        }
        self.ring.push_back(entry);
        let wanted = match self.armed {
            Armed::No => false,
            Armed::Solicited => entry.is_solicited(),
            Armed::Next => true,
        };
        if !wanted {
            return Pushed::Quietly;
        }
        self.untold = self.untold.saturating_add(1);
        // An error is notified at once, since no further entry may come.
        if self.untold < self.moderation.count && entry.status == Status::Success {
            let starts = self.untold == 1 && !self.moderation.period.is_zero();
            let period = self.moderation.period;
            return if starts { Pushed::NotifyLater(period) } else { Pushed::Quietly };
        }
        self.tell();
        Pushed::Notify
    }

    fn tell(&mut self) {
        self.armed = Armed::No;
        self.untold = 0;
        self.timer.disarm();
    }

    /// Notes that the period is over. Returns whether the owner must be notified.
    pub(crate) fn period_over(&mut self) -> bool {
        let waited = self.untold > 0;
        if waited {
            self.tell();
        }
        waited
    }

    /// Changes how often the owner is notified, from the next entry on.
    pub(crate) fn moderate(&mut self, moderation: Moderation) {
        self.moderation = moderation;
    }

    /// Changes the size to `capacity` entries. The waiting entries must fit.
    pub(crate) fn resize(&mut self, capacity: usize) -> Result<(), ResizeCqError> {
        let waiting = self.ring.len();
        if waiting > capacity {
            return Err(ResizeCqError::Waiting { waiting });
        }
        let mut ring = VecDeque::with_capacity(capacity);
        ring.extend(self.ring.drain(..));
        (self.ring, self.capacity) = (ring, capacity);
        Ok(())
    }

    /// How many entries the queue can hold.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Removes the entries of a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.ring.retain(|entry| entry.qpn != qpn);
    }

    /// Asks for one notification at the next entry (or the next solicited one).
    pub(crate) fn arm(&mut self, solicited_only: bool) {
        match (self.armed, solicited_only) {
            (Armed::Next, true) => {}
            (_, true) => self.armed = Armed::Solicited,
            (_, false) => self.armed = Armed::Next,
        }
    }

    /// Moves entries to `out`, oldest first. Returns how many.
    pub(crate) fn poll(&mut self, out: &mut [Completion]) -> Result<usize, PollCqError> {
        // This case comes first because an application that waits polls an empty queue many times.
        if self.ring.is_empty() {
            return if self.overrun { Err(PollCqError::Overrun) } else { Ok(0) };
        }
        let n = out.len().min(self.ring.len());
        for slot in &mut out[..n] {
            let Some(entry) = self.ring.pop_front() else { break };
            *slot = entry;
        }
        Ok(n)
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }
}

impl Default for Completion {
    fn default() -> Completion {
        Completion {
            wr_id: 0,
            status: Status::Success,
            kind: WorkKind::Recv,
            qpn: 0,
            len: 0,
            imm_or_key: 0,
            src_qp: 0,
            flags: CompletionFlags::empty(),
            at: Time::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(wr_id: u64, flags: CompletionFlags) -> Completion {
        Completion { wr_id, flags, ..Completion::default() }
    }

    #[test]
    fn overflow_is_said_once_and_polled_as_an_error() {
        let mut cq = CompletionQueue::new(2);
        for i in 0..2 {
            assert_eq!(cq.push(entry(i, CompletionFlags::empty())), Pushed::Quietly);
        }
        assert_eq!(cq.push(entry(2, CompletionFlags::empty())), Pushed::Overflow);
        assert_eq!(cq.push(entry(3, CompletionFlags::empty())), Pushed::Lost);
        let mut out = [Completion::default(); 4];
        assert_eq!(cq.poll(&mut out), Ok(2));
        assert_eq!((out[0].wr_id, out[1].wr_id), (0, 1));
        assert_eq!(cq.poll(&mut out), Err(PollCqError::Overrun));
        let lost = cq.push(entry(4, CompletionFlags::empty()));
        assert_eq!(lost, Pushed::Lost, "room comes too late: entries would be missing in between");
        assert_eq!(cq.poll(&mut out), Err(PollCqError::Overrun));
    }

    #[test]
    fn arming_asks_for_one_notification() {
        let mut cq = CompletionQueue::new(8);
        cq.arm(true);
        assert_eq!(cq.push(entry(0, CompletionFlags::empty())), Pushed::Quietly);
        assert_eq!(cq.push(entry(1, CompletionFlags::SOLICITED)), Pushed::Notify);
        assert_eq!(cq.push(entry(2, CompletionFlags::SOLICITED)), Pushed::Quietly);
        cq.arm(false);
        cq.arm(true);
        assert_eq!(cq.push(entry(3, CompletionFlags::empty())), Pushed::Notify, "the wider wins");
    }

    #[test]
    fn a_notification_may_stand_for_several_entries() {
        let period = Duration::from_micros(5);
        let mut cq = CompletionQueue::new(8);
        cq.moderate(Moderation { count: 3, period });
        cq.arm(false);
        let plain = || entry(0, CompletionFlags::empty());
        assert_eq!(cq.push(plain()), Pushed::NotifyLater(period));
        assert_eq!(cq.push(plain()), Pushed::Quietly);
        assert_eq!(cq.push(plain()), Pushed::Notify);
        assert!(!cq.period_over());
        cq.arm(false);
        let failed = Completion { status: Status::Flushed, ..plain() };
        assert_eq!(cq.push(failed), Pushed::Notify, "errors do not wait");
    }

    #[test]
    fn a_queue_is_resized_around_what_waits_in_it() {
        let mut cq = CompletionQueue::new(4);
        for i in 0..3 {
            cq.push(entry(i, CompletionFlags::empty()));
        }
        assert_eq!(cq.resize(2), Err(ResizeCqError::Waiting { waiting: 3 }));
        assert_eq!(cq.resize(3), Ok(()));
        assert_eq!(cq.push(entry(3, CompletionFlags::empty())), Pushed::Overflow);
        let mut out = [Completion::default(); 4];
        assert_eq!(cq.poll(&mut out), Ok(3));
        assert_eq!(out[..3].iter().map(|c| c.wr_id).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn an_entry_stays_small() {
        assert!(size_of::<Completion>() <= 40, "{} bytes", size_of::<Completion>());
    }
}
