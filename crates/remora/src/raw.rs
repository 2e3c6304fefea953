//! The card itself, for other interfaces to the live device: verbs in C.
//!
//! The rest of this crate gives each object of the card an owner that destroys it. An interface
//! with owners of its own locks the card, and gives it commands directly.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::MutexGuard;
use std::time::Duration;

use remora_nic::PostError;
use remora_nic::queue::{Completion, PollCqError, RecvRequest, SendRequest};

use crate::background::signals::UNSENT_FOR;
pub use crate::commands::{
    Bytes, CardCounters, Change, Commands, DM_COPY_MAX, Place, QpMade, SrqMade,
};
use crate::device::Device;
use crate::either::Driver;
pub use crate::event_queue::{EventQueue, Sleep};
use crate::live::Live;
use crate::multicast::JoinError;
use crate::news::Concerned;
pub use crate::news::{CmSink, EventSink};
use crate::socket::GROUP_MAX;

/// Posts in a row that are sent one by one, so that a program that posts a message or two and then
/// waits does not wait longer.
const PROMPT_POSTS: u32 = 2;
/// How long an event loop's posts are kept back while it deals with other events. Meanwhile the
/// peers of the first ones have nothing to do.
const LOOP_KEEPS_FOR: Duration = Duration::from_micros(20);
/// The most posts that are kept back.
const UNSENT_MAX: u32 = 64;

/// A device's card, locked.
pub struct LockedCard<'a> {
    live: &'a Live,
    driver: MutexGuard<'a, Driver>,
}

impl Device {
    /// Locks the card. No other thread drives or commands it meanwhile: drop the guard soon.
    ///
    /// # Safety
    /// The card reaches rings and registered regions by the addresses that its commands are given.
    /// That memory must stay mapped, and be reached by raw pointers and atomics only, until the
    /// queue or region is destroyed on the card.
    pub unsafe fn card(&self) -> LockedCard<'_> {
        LockedCard { live: &self.live, driver: self.live.lock() }
    }

    /// As [`Device::card`], for a caller that must not wait: `None` if a thread has the card.
    ///
    /// # Safety
    /// As for [`Device::card`].
    pub unsafe fn try_card(&self) -> Option<LockedCard<'_>> {
        Some(LockedCard { live: &self.live, driver: self.live.try_lock()? })
    }

    /// Takes an event of `events`, which had none at the last look: `note` sees it under the
    /// queue's lock. Call it where the program has made the queue's descriptor non-blocking. The
    /// calling thread may drive the card here.
    pub fn look_for<E, R>(&self, events: &EventQueue<E>, note: impl FnOnce(E) -> R) -> Option<R> {
        self.live.look_for(events, note)
    }

    /// Waits for an event of `events`: `note` sees it under the queue's lock.
    ///
    /// # Errors
    /// Those of [`EventQueue::wait`].
    pub fn wait_for<E, R>(&self, events: &EventQueue<E>, note: impl Fn(E) -> R) -> io::Result<R> {
        self.live.wait_for(events, note)
    }

    /// A poll has found nothing, and the card is unlocked again: the calling thread gives its core
    /// away, if another thread that polls has none.
    #[inline]
    pub fn found_nothing(&self) {
        self.live.found_nothing();
    }

    /// Hands all events of connection management to `sink` from now on. This crate's listeners and
    /// connections get none from then on.
    pub fn set_cm_sink(&self, sink: CmSink) {
        self.live.lock().news().cm_sink = Some(sink);
    }

    /// Hands all other events of the card to `sink` from now on. Completion channels and
    /// [`Device::events`] get none from then on.
    pub fn set_event_sink(&self, sink: EventSink) {
        self.live.lock().news().event_sink = Some(sink);
    }
}

impl LockedCard<'_> {
    /// The card's slow commands.
    pub fn commands(&mut self) -> &mut dyn Commands {
        self.driver.commands()
    }

    /// Posts a send request; `srqn` names the shared receive queue of an XRC peer.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_send(
        &mut self,
        qpn: u32,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        self.driver.post_send(qpn, srqn, request)
    }

    /// Would as many more send requests be taken now, if each is in order? Nothing is asked of
    /// another process, if that has the card.
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn check_sends(&self, qpn: u32, count: usize) -> Result<(), PostError> {
        self.driver.check_sends(qpn, count)
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_recv(&mut self, qpn: u32, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.driver.post_recv(qpn, request)
    }

    /// Posts a receive request to a shared receive queue.
    ///
    /// # Errors
    /// See [`PostError`]; nothing was posted then.
    #[inline]
    pub fn post_srq_recv(&mut self, srq: u32, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.driver.post_srq_recv(srq, request)
    }

    /// Takes completions that are in the queue.
    ///
    /// # Errors
    /// See [`PollCqError`].
    #[inline]
    pub fn poll_cq(&mut self, cq: u32, out: &mut [Completion]) -> Result<usize, PollCqError> {
        self.driver.poll_cq(cq, out)
    }

    /// Arms a completion queue. [`LockedCard::armed`] is to follow.
    ///
    /// # Errors
    /// See [`PollCqError`].
    #[inline]
    pub fn req_notify_cq(&mut self, cq: u32, solicited_only: bool) -> Result<(), PollCqError> {
        self.driver.req_notify_cq(cq, solicited_only)
    }

    /// Does the card want to send?
    #[inline]
    pub fn wants_transmit(&self) -> bool {
        self.driver.wants_transmit()
    }

    /// Sends what became due by commands, and tells the background thread of what is left or comes
    /// due later. Call it after commands that make work: posting, changing states, connecting.
    pub fn kick(&mut self) {
        self.live.after_command(&mut self.driver);
    }

    /// Notes that `requests` requests, which move `bytes` bytes, were posted to a send queue. They
    /// are sent at once if the program posts now and then. If it posts many times in a row, posts
    /// are kept back until the program polls, there is a batch of them, or 100 µs have passed. So
    /// packets of many posts, and of many queue pairs, leave in one system call. (A long message is
    /// a batch by itself: keeping it back would save nothing, and the background thread would look
    /// in every 100 µs, and displace the program where both have one core.)
    pub fn posted(&mut self, requests: u32, bytes: u64) {
        let Some(own) = self.driver.as_own() else { return self.kick() };
        let unsent = &mut own.unsent;
        unsent.streak = unsent.streak.saturating_add(1);
        unsent.bytes = unsent.bytes.saturating_add(bytes);
        let batch = unsent.posts + requests >= UNSENT_MAX || unsent.bytes >= GROUP_MAX as u64;
        let expects_more = own.event_loop.expects_more();
        if batch || unsent.streak <= PROMPT_POSTS && !expects_more {
            return self.live.after_command_of(own);
        }
        let first = unsent.posts == 0;
        unsent.posts += requests;
        if first {
            own.unsent.since = own.now();
        } else if expects_more && own.now() >= own.unsent.since + LOOP_KEEPS_FOR {
            return self.live.after_command_of(own);
        }
        match own.event_loop.alarm() {
            _ if expects_more => {}
            Some(alarm) => alarm.ring(),
            None if first => self.live.background.keep_back(own.unsent.since + UNSENT_FOR),
            None => {}
        }
    }

    /// Sends what [`LockedCard::posted`] kept back, before a poll. An event loop's posts may wait
    /// until the poll has found nothing.
    #[inline]
    pub fn flush(&mut self) {
        if let Some(own) = self.driver.as_own()
            && own.unsent.posts > 0
            && !own.event_loop.drives()
        {
            self.live.after_command_of(own);
        }
    }

    /// A poll has taken entries from completion queue `cq`.
    #[inline]
    pub fn found(&mut self, cq: u32) {
        self.live.found(&mut self.driver, cq);
    }

    /// A completion queue was armed: sends what was kept back, if the program is about to sleep.
    pub fn armed(&mut self) {
        self.live.armed(&mut self.driver);
    }

    /// Sends all that is owed, including acknowledges that have stayed behind. Call it before a
    /// queue pair is destroyed or reset, since what the queue pair owes is lost then.
    pub fn settle(&mut self) {
        Commands::settle(&mut *self.driver);
    }

    /// Call this when the process ends without dropping the device: packets that are ready leave,
    /// and the capture file is completed.
    pub fn finish(&mut self) {
        self.driver.finish();
    }

    /// Drives the device one step, after a poll that found nothing; returns whether there was
    /// anything to do.
    pub fn progress(&mut self) -> bool {
        self.live.progress_for_poll(&mut self.driver)
    }

    /// Call this before a thread sleeps until the card has an event: the background thread then
    /// works at once.
    pub fn take_over(&self) {
        self.live.background.take_over();
    }
}

impl LockedCard<'_> {
    pub(crate) fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Is the card in another process?
    pub(crate) fn is_attached(&self) -> bool {
        matches!(&*self.driver, Driver::Attached(_))
    }
}

impl fmt::Debug for LockedCard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedCard").field("driver", &*self.driver).finish_non_exhaustive()
    }
}

/// Multicast.
impl LockedCard<'_> {
    /// Has a UD queue pair receive the datagrams to a multicast group.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn attach_mcast(&mut self, qpn: u32, gid: IpAddr) -> Result<(), JoinError> {
        let attached = self.driver.attach_mcast(qpn, gid);
        self.kick();
        attached
    }
}
