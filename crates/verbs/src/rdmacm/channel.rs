//! Event channels: queues of events, with a descriptor that is readable while there are any.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::event::Event as Wake;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use super::objects::{EventChannel, Id, News, Param};
use super::{ENOMEM, Errno, Result, Table};
use crate::abi::rdma_cma::*;
use crate::handles::{self, Kind, Object};
use crate::process;

/// The memory of a channel's handle.
pub(crate) struct CmChannel;

impl Object for CmChannel {
    type C = rdma_event_channel;
    const KIND: Kind = Kind::CmChannel;
}

impl News {
    pub(crate) fn new(id: &Arc<Id>, kind: rdma_cm_event_type) -> News {
        News {
            id: id.clone(),
            listener: None,
            kind,
            status: 0,
            param: Param::None,
            private_data: Vec::new(),
            context: 0,
        }
    }

    /// The id whose count of events includes this one: a request counts for the listener until it
    /// is acknowledged.
    pub(super) fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

impl EventChannel {
    /// Makes a channel and its handle.
    pub(crate) fn create() -> Result<Arc<EventChannel>> {
        let ready = Wake::new()?;
        let flags = rustix::fs::fcntl_getfl(&ready)?;
        // The descriptor starts blocking, as in rdma-core; programs may make it non-blocking.
        rustix::fs::fcntl_setfl(&ready, flags - OFlags::NONBLOCK)?;
        let fd = ready.as_fd().as_raw_fd();
        let channel =
            Arc::new(EventChannel { c: AtomicUsize::new(0), ready, queue: Mutex::default() });
        let slot = handles::create(rdma_event_channel { fd }, CmChannel).ok_or(ENOMEM)?;
        channel.c.store(slot.c() as usize, Ordering::Release);
        Table::insert(slot.c() as usize, channel.clone());
        Ok(channel)
    }

    pub(crate) fn find(handle: *mut rdma_event_channel) -> Result<Arc<EventChannel>> {
        Table::find(handle as usize)
    }

    pub(crate) fn end_handle(&self) -> Result<()> {
        let handle = self.c();
        Table::<EventChannel>::remove(handle as usize)?;
        self.c.store(0, Ordering::Release);
        handles::destroy::<CmChannel>(handle)?;
        Ok(())
    }

    pub(crate) fn c(&self) -> *mut rdma_event_channel {
        self.c.load(Ordering::Acquire) as *mut rdma_event_channel
    }

    /// Is the queue empty?
    pub(crate) fn is_empty(&self) -> bool {
        self.queue().is_empty()
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<News>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event.
    pub(crate) fn push(&self, news: News) {
        let mut queue = self.queue();
        queue.push_back(news);
        if queue.len() == 1
            && let Err(error) = self.ready.notify()
        {
            tracing::error!(%error, "cannot signal an event channel");
        }
    }

    /// Removes and returns the events that `which` selects.
    pub(crate) fn take(&self, which: impl Fn(&News) -> bool) -> Vec<News> {
        let mut queue = self.queue();
        let all = std::mem::take(&mut *queue);
        let (taken, left): (Vec<News>, Vec<News>) = all.into_iter().partition(which);
        *queue = left.into();
        self.settle(&queue);
        taken
    }

    /// Makes the descriptor readable if there are events, else unreadable.
    fn settle(&self, queue: &VecDeque<News>) {
        if queue.is_empty() {
            self.drain();
        }
    }

    /// Makes the descriptor unreadable. The descriptor may be blocking, so it is polled before it
    /// is read.
    fn drain(&self) {
        let mut fds = [PollFd::new(&self.ready, PollFlags::IN)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if matches!(poll(&mut fds, Some(&at_once)), Ok(1))
            && let Err(error) = self.ready.drain()
        {
            tracing::error!(%error, "cannot reset the descriptor of an event channel");
        }
    }

    pub(super) fn pop(&self) -> Option<News> {
        let mut queue = self.queue();
        let news = queue.pop_front()?;
        news.owner().count_event();
        self.settle(&queue);
        Some(news)
    }

    /// Takes the next event. Like a read of the descriptor, this waits if the descriptor is
    /// blocking, and a signal interrupts it.
    pub(super) fn wait(&self) -> Result<News> {
        loop {
            if let Some(news) = self.pop() {
                return Ok(news);
            }
            if rustix::fs::fcntl_getfl(&self.ready)?.contains(OFlags::NONBLOCK) {
                return Err(Errno(libc::EAGAIN));
            }
            // While this thread sleeps, perhaps no other polls the cards.
            for card in process::current().cards() {
                card.lock().take_over();
            }
            poll(&mut [PollFd::new(&self.ready, PollFlags::IN)], None)?;
        }
    }
}
