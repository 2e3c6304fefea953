//! The driver of a device: that of a card of its own ([`Own`](crate::driver::Own)), or of the card
//! of another process, to which it is attached. All that differs between the two is behind
//! [`Driver`].

use std::fs::File;

use remora_nic::kernel::KernelIo;
use remora_nic::queue::{Completion, RecvRequest, SendRequest};
use remora_nic::{PostError, Queue, Time};

use crate::attach::Attached;
use crate::commands::words::*;
use crate::commands::*;
use crate::driver::Own;
use crate::kernel::Executor;
use crate::memory::{Buffer, FileError};
use crate::news::{Concerned, News};

/// A device's driver.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is one for a device, and the first is the fast one"
)]
pub(crate) enum Driver {
    /// That of the process's own card.
    Own(Own),
    /// That of another process's card.
    Attached(Box<Attached>),
}

impl Driver {
    /// The card's commands.
    pub(crate) fn commands(&mut self) -> &mut dyn Commands {
        match self {
            Driver::Own(own) => own,
            Driver::Attached(attached) => &mut **attached,
        }
    }

    /// The driver of the process's own card, for what only that has.
    ///
    /// # Panics
    /// If the device is attached.
    #[inline]
    pub(crate) fn own(&mut self) -> &mut Own {
        match self {
            Driver::Own(own) => own,
            Driver::Attached(_) => unreachable!("only a card of this process is driven here"),
        }
    }

    /// The process's own card, if the device has one.
    #[inline]
    pub(crate) fn as_own(&mut self) -> Option<&mut Own> {
        match self {
            Driver::Own(own) => Some(own),
            Driver::Attached(_) => None,
        }
    }

    /// The client's end of another process's card, if the device is attached to one.
    pub(crate) fn attached(&self) -> Option<&Attached> {
        match self {
            Driver::Own(_) => None,
            Driver::Attached(attached) => Some(attached),
        }
    }

    /// The same, to change.
    pub(crate) fn attached_mut(&mut self) -> Option<&mut Attached> {
        match self {
            Driver::Own(_) => None,
            Driver::Attached(attached) => Some(attached),
        }
    }

    /// Is the card another process's, and was it told that this process has ended?
    pub(crate) fn is_lost(&self) -> bool {
        self.attached().is_some_and(Attached::is_lost)
    }

    /// The card's time.
    pub(crate) fn now(&self) -> Time {
        match self {
            Driver::Own(own) => own.now(),
            Driver::Attached(attached) => attached.now(),
        }
    }

    /// Posts a send request; `srqn` names the shared receive queue of an XRC peer.
    #[inline]
    pub(crate) fn post_send(
        &mut self,
        qpn: u32,
        srqn: u32,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        match self {
            Driver::Own(own) => own.post_xrc_send(qpn, srqn, request),
            Driver::Attached(attached) => attached.post_send(qpn, srqn, request),
        }
    }

    /// Would as many more send requests be taken now?
    pub(crate) fn check_sends(&self, qpn: u32, count: usize) -> Result<(), PostError> {
        match self {
            Driver::Own(own) => own.check_sends(qpn, count),
            Driver::Attached(attached) => attached.check_sends(qpn, count),
        }
    }

    /// Posts a receive request.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        qpn: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        match self {
            Driver::Own(own) => own.post_recv(qpn, request),
            Driver::Attached(attached) => attached.post_recv(qpn, request),
        }
    }

    /// Posts a receive request to a shared receive queue.
    #[inline]
    pub(crate) fn post_srq_recv(
        &mut self,
        srq: u32,
        request: &RecvRequest<'_>,
    ) -> Result<(), PostError> {
        match self {
            Driver::Own(own) => own.post_srq_recv(srq, request),
            Driver::Attached(attached) => attached.post_srq_recv(srq, request),
        }
    }

    /// Writes an element's bytes into the next slot of a ring; returns its index.
    pub(crate) fn post_element(
        &mut self,
        qpn: u32,
        queue: Queue,
        raw: &[u8],
    ) -> Result<u32, PostError> {
        match self {
            Driver::Own(own) => own.post_element(qpn, queue, raw),
            Driver::Attached(attached) => attached.post_element(qpn, queue, raw),
        }
    }

    /// The index of the element that is written next.
    pub(crate) fn next_index(&self, qpn: u32, queue: Queue) -> Option<u32> {
        match self {
            Driver::Own(own) => own.next_index(qpn, queue),
            Driver::Attached(attached) => attached.next_index(qpn, queue),
        }
    }

    /// Lets a queue run up to `index`.
    pub(crate) fn doorbell(&mut self, qpn: u32, queue: Queue, index: u32) -> Result<(), PostError> {
        match self {
            Driver::Own(own) => own.doorbell(qpn, queue, index),
            Driver::Attached(attached) => attached.doorbell(qpn, queue, index),
        }
    }

    /// Takes completions.
    #[inline]
    pub(crate) fn poll_cq(
        &mut self,
        cq: u32,
        out: &mut [Completion],
    ) -> Result<usize, PollCqError> {
        match self {
            Driver::Own(own) => own.poll_cq(cq, out),
            Driver::Attached(attached) => attached.poll_cq(cq, out),
        }
    }

    /// Has the next completion announced. The caller looks for completions once more behind this.
    #[inline]
    pub(crate) fn req_notify_cq(
        &mut self,
        cq: u32,
        solicited_only: bool,
    ) -> Result<(), PollCqError> {
        match self {
            Driver::Own(own) => own.req_notify_cq(cq, solicited_only),
            Driver::Attached(attached) => attached.req_notify_cq(cq, solicited_only),
        }
    }

    /// Does the card want to send, or to be told of what was posted?
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        match self {
            Driver::Own(own) => own.wants_transmit(),
            Driver::Attached(attached) => attached.wants_kick(),
        }
    }

    /// Hands the card's events to the tasks, threads and sinks that wait for them.
    #[inline]
    pub(crate) fn dispatch_events(&mut self) {
        match self {
            Driver::Own(own) => own.dispatch_events(),
            Driver::Attached(attached) => {
                attached.dispatch_events();
            }
        }
    }

    /// Gives the card's kernels a command. The kernels of another process's card are that
    /// process's: `None`.
    pub(crate) fn kernels<R>(
        &mut self,
        act: impl FnOnce(&mut Executor, &mut KernelIo<'_>) -> R,
    ) -> Option<R> {
        self.as_own().map(|own| own.kernels(act))
    }

    /// Makes a file reachable for the card, to be registered.
    pub(crate) fn add_file(&mut self, file: File) -> Result<Place, FileError> {
        match self {
            Driver::Own(own) => own.add_file(file),
            Driver::Attached(attached) => attached.add_file(file),
        }
    }

    /// Ends what [`Driver::add_file`] began.
    pub(crate) fn remove_file(&mut self, place: Place) {
        match self {
            Driver::Own(own) => own.remove_file(place),
            Driver::Attached(attached) => attached.remove_file(place),
        }
    }

    /// A view of a queue pair's ring, whose memory the card's owner keeps until the queue pair is
    /// destroyed; `None` if it is empty.
    ///
    /// # Safety
    /// The view is not used behind that.
    pub(crate) unsafe fn ring_view(&self, ring: RingInit) -> Option<Buffer> {
        // SAFETY: by promise of the caller. The addresses of rings are those of this process, also
        // where the memory is shared with the card's.
        unsafe { Buffer::view(ring.addr, ring.len()) }
    }

    /// For the end of the device or of the process.
    pub(crate) fn finish(&mut self) {
        match self {
            Driver::Own(own) => own.finish(),
            Driver::Attached(attached) => attached.finish(),
        }
    }
}

impl Concerned for Driver {
    fn news(&mut self) -> &mut News {
        match self {
            Driver::Own(own) => own.news(),
            Driver::Attached(attached) => attached.news(),
        }
    }
}

macro_rules! forward {
    ($(
        $(#[$doc:meta])+
        $name:ident = $variant:ident($($(#[$serde:meta])? $arg:ident: $type:ty),*) -> $result:ty;
    )+) => {
        #[allow(clippy::extra_unused_lifetimes, reason = "one form does for all commands")]
        impl Commands for Driver {
            $(
                fn $name<'a>(&mut self, $($arg: $type),*) -> $result {
                    self.commands().$name($($arg),*)
                }
            )+
        }
    };
}

for_each_command!(forward);
