//! Event channels: queues of events, with a descriptor that is readable while there are any.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora::raw::{EventQueue, Sleep};

use super::objects::{EventChannel, Id, News, Param};
use super::{ENOMEM, Errno, Result, Table};
use crate::abi::rdma_cma::*;
use crate::handles::{self, Kind, Object};
use crate::sleep::{OnSignal, readable, sleep, take_over_cards};

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
        // The descriptor starts blocking, as in rdma-core; programs may make it non-blocking.
        let events = EventQueue::new()?;
        let fd = events.as_raw_fd();
        let channel = Arc::new(EventChannel { c: AtomicUsize::new(0), events });
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
        self.events.is_empty()
    }

    /// Adds an event.
    pub(crate) fn push(&self, news: News) {
        self.events.push(news);
    }

    /// Removes and returns the events that `which` selects.
    pub(crate) fn take(&self, which: impl Fn(&News) -> bool) -> Vec<News> {
        self.events.withdraw(which)
    }

    /// Takes the next event, if there is one.
    pub(super) fn pop(&self) -> Option<News> {
        self.events.pop(|news| {
            news.owner().count_event();
            news
        })
    }

    /// Fails with `EAGAIN` if the program has made the descriptor non-blocking.
    pub(super) fn check_blocking(&self) -> Result<()> {
        if self.events.is_nonblocking()? { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
    }

    /// Begins a sleep until there may be an event: the caller reads from the sleep's descriptor.
    pub(super) fn begin_sleep(&self) -> Sleep {
        take_over_cards();
        self.events.begin_sleep()
    }

    /// Ends a sleep whose read has succeeded.
    pub(super) fn end_sleep(&self, sleep: Sleep) {
        self.events.end_sleep(sleep);
    }

    /// Sleeps until there may be an event, for calls that cannot be made again: signals do not end
    /// it.
    pub(super) fn sleep_through_signals(&self) -> Result<()> {
        sleep(vec![readable(self.events.as_raw_fd())], -1, OnSignal::GoOn).map(drop)
    }
}
