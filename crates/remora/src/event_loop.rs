//! Which event loop of the application drives the card.
//!
//! A program with an event loop sleeps on the descriptors of its completion channels, which it has
//! made non-blocking, and takes events until there are none. If the
//! [background thread](crate::background) received for it, each packet would wake two threads, which
//! then compete for the card. So the loop is given the card: its sockets stand behind the
//! [alarm](crate::alarm) of one channel, a packet wakes the loop itself, and the thread that looks
//! for events there takes steps of the driver. The background thread leaves the card to it as to a
//! thread that polls.
//!
//! A blocking descriptor has no sockets behind it: a program that polls it and then takes an event
//! must find one.
//!
//! # One loop, one alarm
//! Sockets behind the alarms of several channels would wake all their threads, or one thread for
//! all of them. So one alarm has the sockets: the one at which the loop looked last, since that is
//! the one that it sleeps on. The turns of its thread ring the bells of the others. If a second
//! thread looks for events, or sleeps in the library until one comes, none is given the card.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Weak};

use crate::alarm::Alarm;

/// How often in a row the same thread has to look for events before it is given the card.
const LOOKS: u32 = 8;

thread_local! {
    /// Its address tells threads apart.
    static MARK: u8 = const { 0 };
}

/// The event loop of the application, as far as the card knows it.
#[derive(Debug, Default)]
pub(crate) struct EventLoop {
    /// The thread that looked for events last, and how often in a row.
    thread: usize,
    looks: u32,
    /// Threads that sleep in the library until an event comes.
    sleepers: u32,
    /// The alarm that has the sockets behind it, if the loop drives the card.
    alarm: Option<Weak<Alarm>>,
    /// Events that were announced in the last turn of the loop and in this one, to queues that were
    /// not armed again yet. (A program may leave an event alone, so it is not counted for longer.)
    announced: [u32; 2],
    /// The last turn has found an event for the alarm that it was taken at.
    found_own: bool,
    /// The poll that looked last has left entries in its queue.
    entries_left: bool,
    /// Polls in a row that found nothing.
    empty_polls: u32,
}

/// What a thread that looks for events is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// To drive the card.
    Drive,
    /// To go on: there is nothing until an alarm is readable.
    GoOn,
    /// To leave the card to the background thread.
    Leave,
}

impl EventLoop {
    /// The calling thread looks for events behind `alarm`. Gives it the card, with its `sockets`,
    /// if it has looked often enough and no other thread has.
    pub(crate) fn look<'a>(
        &mut self,
        alarm: &Arc<Alarm>,
        sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone,
    ) -> Look {
        let thread = MARK.with(|mark| ptr::from_ref(mark).addr());
        if self.thread != thread {
            self.end(sockets.clone());
            (self.thread, self.looks) = (thread, 0);
        }
        self.looks = self.looks.saturating_add(1);
        match self.alarm() {
            Some(own) if Arc::ptr_eq(&own, alarm) => match std::mem::take(&mut self.found_own) {
                // The loop has dealt with that event, and looks whether there is another. If it
                // took another turn, its peer might have answered already, and it would never go
                // on.
                true => Look::GoOn,
                false => Look::Drive,
            },
            // It is on its way through the alarms whose bells were rung.
            Some(_) if self.expects_more() => Look::GoOn,
            _ if self.looks >= LOOKS && self.sleepers == 0 => {
                self.end(sockets.clone());
                self.begin(alarm, sockets)
            }
            _ => Look::Leave,
        }
    }

    fn begin<'a>(
        &mut self,
        alarm: &Arc<Alarm>,
        sockets: impl Iterator<Item = BorrowedFd<'a>> + Clone,
    ) -> Look {
        self.alarm = Some(Arc::downgrade(alarm));
        let all = sockets.clone().try_for_each(|socket| alarm.put_behind(socket));
        if let Err(error) = all {
            tracing::debug!(%error, "an event loop cannot wait for packets itself");
            self.end(sockets);
            self.looks = 0;
            return Look::Leave;
        }
        Look::Drive
    }

    /// A thread is about to sleep until an event comes, other than on an alarm. A thread that
    /// drives the card meanwhile must not be busy elsewhere. [`EventLoop::wakes`] ends it.
    pub(crate) fn sleeps<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) {
        self.sleepers += 1;
        self.end(sockets);
    }

    /// A thread that [slept](EventLoop::sleeps) is awake.
    pub(crate) fn wakes(&mut self) {
        self.sleepers -= 1;
    }

    /// Takes the card, with its `sockets`, from the loop. The caller wakes the background thread.
    pub(crate) fn end<'a>(&mut self, sockets: impl Iterator<Item = BorrowedFd<'a>>) {
        if let Some(alarm) = self.alarm() {
            sockets.for_each(|socket| alarm.take_away(socket));
        }
        self.alarm = None;
        (self.announced, self.found_own) = ([0; 2], false);
        (self.entries_left, self.empty_polls) = (false, 0);
    }

    /// Does the loop drive the card?
    #[inline]
    pub(crate) fn drives(&self) -> bool {
        self.alarm.is_some()
    }

    /// The alarm that has the sockets behind it.
    pub(crate) fn alarm(&self) -> Option<Arc<Alarm>> {
        self.alarm.as_ref().and_then(Weak::upgrade)
    }

    /// The loop drives the card next.
    pub(crate) fn begin_turn(&mut self) {
        self.announced = [self.announced[1], 0];
        (self.entries_left, self.empty_polls) = (false, 0);
    }

    /// The turn ends; `own` says that there is an event for the alarm that it was taken at.
    pub(crate) fn end_turn(&mut self, own: bool) {
        self.found_own = own;
    }

    /// An event was announced.
    #[inline]
    pub(crate) fn announced(&mut self) {
        if self.drives() {
            self.announced[1] += 1;
        }
    }

    /// A queue was armed (again), since its event was taken.
    pub(crate) fn armed(&mut self) {
        if let Some(announced) = self.announced.iter_mut().find(|count| **count > 0) {
            *announced -= 1;
        }
        self.empty_polls = 0;
    }

    /// A poll took entries, and left some.
    pub(crate) fn found(&mut self, entries_left: bool) {
        (self.entries_left, self.empty_polls) = (entries_left, 0);
    }

    /// A poll found nothing. Should it leave the socket alone? The loop has just received what
    /// there was, so this holds for the first such poll. A second one may be by a program that
    /// polls until something comes, whatever else was announced.
    #[inline]
    pub(crate) fn found_nothing(&mut self) -> bool {
        if !self.drives() {
            return false;
        }
        self.empty_polls = self.empty_polls.saturating_add(1);
        self.entries_left = false;
        if self.empty_polls > 1 {
            self.announced = [0; 2];
        }
        self.empty_polls == 1
    }

    /// Will the loop come back to the card without being woken? It has been told of more than it
    /// has dealt with.
    #[inline]
    pub(crate) fn expects_more(&self) -> bool {
        self.announced != [0; 2] || self.entries_left
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    /// A socket with a packet in it.
    fn socket() -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[1], socket.local_addr().unwrap()).unwrap();
        socket
    }

    fn is_readable(alarm: &Alarm) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(alarm, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    #[test]
    fn a_thread_that_looks_often_enough_is_given_the_card_at_one_alarm() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let alarms = [(); 2].map(|()| Arc::new(Alarm::new().unwrap()));
        let mut look = |alarm: &Arc<Alarm>| loop_.look(alarm, [socket.as_fd()].into_iter());
        for _ in 1..LOOKS {
            assert_eq!(look(&alarms[0]), Look::Leave);
        }
        assert!(!is_readable(&alarms[0]));
        assert_eq!(look(&alarms[1]), Look::Drive);
        assert!(!is_readable(&alarms[0]) && is_readable(&alarms[1]));
        assert_eq!(look(&alarms[0]), Look::Drive, "the loop may sleep on this alarm alone");
        assert!(is_readable(&alarms[0]) && !is_readable(&alarms[1]));
    }

    #[test]
    fn a_loop_goes_through_the_alarms_that_have_events_before_it_drives_again() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let alarms = [(); 2].map(|()| Arc::new(Alarm::new().unwrap()));
        let look = |loop_: &mut EventLoop, alarm| loop_.look(alarm, [socket.as_fd()].into_iter());
        for _ in 0..LOOKS {
            look(&mut loop_, &alarms[0]);
        }
        (0..2).for_each(|_| loop_.announced());
        loop_.end_turn(true);
        loop_.armed();
        assert_eq!(look(&mut loop_, &alarms[0]), Look::GoOn, "it has had its event");
        assert_eq!(look(&mut loop_, &alarms[1]), Look::GoOn);
        loop_.armed();
        assert_eq!(look(&mut loop_, &alarms[0]), Look::Drive);
    }

    #[test]
    fn no_loop_is_given_the_card_while_a_thread_sleeps() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let alarm = Arc::new(Alarm::new().unwrap());
        let look = |loop_: &mut EventLoop| loop_.look(&alarm, [socket.as_fd()].into_iter());
        for _ in 0..LOOKS {
            look(&mut loop_);
        }
        loop_.sleeps([socket.as_fd()].into_iter());
        assert!(!loop_.drives() && !is_readable(&alarm));
        assert_eq!(look(&mut loop_), Look::Leave);
        loop_.wakes();
        assert_eq!(look(&mut loop_), Look::Drive);
    }

    #[test]
    fn a_second_thread_ends_it() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let alarm = Arc::new(Alarm::new().unwrap());
        let look = |loop_: &mut EventLoop| loop_.look(&alarm, [socket.as_fd()].into_iter());
        for _ in 0..LOOKS {
            look(&mut loop_);
        }
        assert!(loop_.drives() && is_readable(&alarm));
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(look(&mut loop_), Look::Leave));
        });
        assert!(!loop_.drives() && !is_readable(&alarm));
        assert_eq!(look(&mut loop_), Look::Leave, "it begins anew");
    }

    #[test]
    fn a_channel_that_is_closed_ends_it() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let [alarm, other] = [(); 2].map(|()| Arc::new(Alarm::new().unwrap()));
        let look = |loop_: &mut EventLoop, alarm: &Arc<Alarm>| {
            loop_.look(alarm, [socket.as_fd()].into_iter())
        };
        for _ in 0..LOOKS {
            look(&mut loop_, &alarm);
        }
        drop(alarm);
        assert_eq!(look(&mut loop_, &other), Look::Drive);
        assert!(is_readable(&other));
    }

    #[test]
    fn the_first_empty_poll_leaves_the_socket_alone() {
        let (socket, mut loop_) = (socket(), EventLoop::default());
        let alarm = Arc::new(Alarm::new().unwrap());
        assert!(!loop_.found_nothing(), "the loop does not drive the card");
        for _ in 0..LOOKS {
            loop_.look(&alarm, [socket.as_fd()].into_iter());
        }
        loop_.announced();
        loop_.announced();
        loop_.armed();
        assert!(loop_.expects_more(), "one announced event was not dealt with");
        assert!(loop_.found_nothing() && loop_.expects_more());
        assert!(!loop_.found_nothing() && !loop_.expects_more(), "the program waits here");
        loop_.announced();
        loop_.begin_turn();
        assert!(loop_.expects_more(), "there was no time to take the event");
        loop_.begin_turn();
        assert!(!loop_.expects_more(), "the program leaves the event alone");
        loop_.found(true);
        assert!(loop_.expects_more());
        assert!(loop_.found_nothing() && !loop_.expects_more());
    }
}
