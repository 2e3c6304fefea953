//! Event channels: queues of news, with a descriptor that is readable while there is any.

use core::ffi::{c_char, c_int, c_void};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use remora::event::Event as Wake;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;

use super::id::Id;
use super::{EINVAL, ENOMEM, Errno, Result, Table, call, connect, manager, status};
use crate::abi::rdma_cma::*;
use crate::handles::{self, Kind, Object};
use crate::process;

/// The memory of a channel's handle.
pub(crate) struct CmChannel;

impl Object for CmChannel {
    type C = rdma_event_channel;
    const KIND: Kind = Kind::CmChannel;
}

/// The object of an event's handle.
pub(crate) struct CmEvent {
    /// Whose events are to be acknowledged.
    owner: Arc<Id>,
    /// Where `private_data` points.
    _private_data: Box<[u8]>,
}

impl Object for CmEvent {
    type C = rdma_cm_event;
    const KIND: Kind = Kind::CmEvent;
}

/// An event channel.
#[derive(Debug)]
pub(crate) struct Channel {
    c: AtomicUsize,
    ready: Wake,
    queue: Mutex<VecDeque<News>>,
}

/// What an event says beside its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param {
    None,
    Conn(rdma_conn_param),
    Datagram(rdma_ud_param),
}

/// An event that the program has not fetched.
#[derive(Debug)]
pub(crate) struct News {
    /// Whom it is about.
    pub(crate) id: Arc<Id>,
    /// Who listened, for requests.
    pub(crate) listener: Option<Arc<Id>>,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: Param,
    pub(crate) private_data: Vec<u8>,
    /// What the program gave with a multicast group: it stands where private data would.
    pub(crate) context: usize,
}

// SAFETY: the pointers within `param` are null until the event is delivered.
unsafe impl Send for News {}

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

    /// Whose events are counted: a request is the listener's until it is acknowledged.
    fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

impl Channel {
    /// Makes a channel and its handle.
    pub(crate) fn create() -> Result<Arc<Channel>> {
        let ready = Wake::new()?;
        let flags = rustix::fs::fcntl_getfl(&ready)?;
        // Programs may make it non-blocking; it begins blocking.
        rustix::fs::fcntl_setfl(&ready, flags - OFlags::NONBLOCK)?;
        let fd = ready.as_fd().as_raw_fd();
        let channel = Arc::new(Channel { c: AtomicUsize::new(0), ready, queue: Mutex::default() });
        let slot = handles::create(rdma_event_channel { fd }, CmChannel).ok_or(ENOMEM)?;
        channel.c.store(slot.c() as usize, Ordering::Release);
        Table::insert(slot.c() as usize, channel.clone());
        Ok(channel)
    }

    pub(crate) fn find(handle: *mut rdma_event_channel) -> Result<Arc<Channel>> {
        Table::find(handle as usize)
    }

    pub(crate) fn end_handle(&self) -> Result<()> {
        let handle = self.c();
        Table::<Channel>::remove(handle as usize)?;
        self.c.store(0, Ordering::Release);
        handles::destroy::<CmChannel>(handle)?;
        Ok(())
    }

    pub(crate) fn c(&self) -> *mut rdma_event_channel {
        self.c.load(Ordering::Acquire) as *mut rdma_event_channel
    }

    /// Has it no events?
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

    /// Takes the events that `which` names out.
    pub(crate) fn take(&self, which: impl Fn(&News) -> bool) -> Vec<News> {
        let mut queue = self.queue();
        let all = std::mem::take(&mut *queue);
        let (taken, left): (Vec<News>, Vec<News>) = all.into_iter().partition(which);
        *queue = left.into();
        self.settle(&queue);
        taken
    }

    /// Makes the descriptor say whether there is anything.
    fn settle(&self, queue: &VecDeque<News>) {
        if queue.is_empty() {
            self.drain();
        }
    }

    /// Makes the descriptor unreadable. It may be a blocking one, so it is asked first.
    fn drain(&self) {
        let mut fds = [PollFd::new(&self.ready, PollFlags::IN)];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        if matches!(poll(&mut fds, Some(&at_once)), Ok(1))
            && let Err(error) = self.ready.drain()
        {
            tracing::error!(%error, "cannot reset the descriptor of an event channel");
        }
    }

    fn pop(&self) -> Option<News> {
        let mut queue = self.queue();
        let news = queue.pop_front()?;
        news.owner().count_event();
        self.settle(&queue);
        Some(news)
    }

    /// The next event. As a read of the descriptor would, it waits if that is blocking, and is
    /// interrupted by signals.
    fn wait(&self) -> Result<News> {
        loop {
            if let Some(news) = self.pop() {
                return Ok(news);
            }
            if rustix::fs::fcntl_getfl(&self.ready)?.contains(OFlags::NONBLOCK) {
                return Err(Errno(libc::EAGAIN));
            }
            // Nobody may poll the cards while this thread sleeps.
            for card in process::current().cards() {
                card.lock().take_over();
            }
            poll(&mut [PollFd::new(&self.ready, PollFlags::IN)], None)?;
        }
    }
}

/// Fetches the next event, with all that the library does on its own before a program sees it.
pub(crate) fn next_event(channel: &Channel) -> Result<*mut rdma_cm_event> {
    loop {
        let news = channel.wait()?;
        let owner = news.owner().clone();
        let told = connect::before_delivery(news).map(deliver);
        match told {
            Some(Ok(event)) => return Ok(event),
            Some(Err(error)) => {
                owner.uncount_event();
                return Err(error);
            }
            None => owner.uncount_event(),
        }
    }
}

fn deliver(news: News) -> Result<*mut rdma_cm_event> {
    let data = news.private_data.clone().into_boxed_slice();
    let (at, len) = match (data.len(), news.context) {
        (_, context) if context != 0 => (context as *const c_void, 0),
        (0, _) => (ptr::null(), 0),
        (len, _) => (data.as_ptr().cast(), u8::try_from(len).unwrap_or(u8::MAX)),
    };
    let mut param = rdma_cm_event_param::zeroed();
    match news.param {
        Param::Datagram(ud) => {
            param.ud = rdma_ud_param { private_data: at, private_data_len: len, ..ud };
        }
        Param::Conn(conn) => {
            param.conn = rdma_conn_param { private_data: at, private_data_len: len, ..conn };
        }
        Param::None => {
            param.conn.private_data = at;
            param.conn.private_data_len = len;
        }
    }
    let event = rdma_cm_event {
        id: news.id.c(),
        listen_id: news.listener.as_ref().map_or(ptr::null_mut(), |id| id.c()),
        event: news.kind,
        status: news.status,
        param,
    };
    let owner = news.owner().clone();
    let object = CmEvent { owner, _private_data: data };
    Ok(handles::create(event, object).ok_or(ENOMEM)?.c())
}

/// Gives an event back.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    handles::destroy::<CmEvent>(event)?.owner.uncount_event();
    Ok(())
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    call(ptr::null_mut(), || {
        manager::start()?;
        Ok(Channel::create()?.c())
    })
}

pub(crate) extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    status(|| Channel::find(channel)?.end_handle());
}

/// How long who asks for events of a channel that is gone waits to be told so. A thread may still
/// be on its way here when another destroys the channel and is about to end the process: had it
/// come a moment earlier, it would sleep until then. Told at once, it ends the process with an
/// error, as rping does on a busy machine (linux-rdma/rdma-core#1622).
const GRACE: Duration = Duration::from_secs(1);

pub(crate) unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    status(|| {
        let channel = Channel::find(channel).inspect_err(|_| thread::sleep(GRACE))?;
        if event.is_null() {
            return Err(EINVAL);
        }
        let next = next_event(&channel)?;
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(next) };
        Ok(())
    })
}

pub(crate) extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    status(|| acknowledge(event))
}

pub(crate) extern "C" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char {
    let name = match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        RDMA_CM_EVENT_ADDR_ERROR => c"RDMA_CM_EVENT_ADDR_ERROR",
        RDMA_CM_EVENT_ROUTE_RESOLVED => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        RDMA_CM_EVENT_ROUTE_ERROR => c"RDMA_CM_EVENT_ROUTE_ERROR",
        RDMA_CM_EVENT_CONNECT_REQUEST => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        RDMA_CM_EVENT_CONNECT_RESPONSE => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        RDMA_CM_EVENT_CONNECT_ERROR => c"RDMA_CM_EVENT_CONNECT_ERROR",
        RDMA_CM_EVENT_UNREACHABLE => c"RDMA_CM_EVENT_UNREACHABLE",
        RDMA_CM_EVENT_REJECTED => c"RDMA_CM_EVENT_REJECTED",
        RDMA_CM_EVENT_ESTABLISHED => c"RDMA_CM_EVENT_ESTABLISHED",
        RDMA_CM_EVENT_DISCONNECTED => c"RDMA_CM_EVENT_DISCONNECTED",
        RDMA_CM_EVENT_DEVICE_REMOVAL => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        RDMA_CM_EVENT_MULTICAST_JOIN => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        RDMA_CM_EVENT_MULTICAST_ERROR => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        RDMA_CM_EVENT_ADDR_CHANGE => c"RDMA_CM_EVENT_ADDR_CHANGE",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_QPT_RC;

    /// Or the id could be destroyed between the two, and the program get an event of nobody.
    #[test]
    fn an_event_that_leaves_the_queue_is_counted_at_once() {
        let channel = Channel::create().unwrap();
        let id = Id::create(channel.clone(), false, RDMA_PS_TCP, IBV_QPT_RC).unwrap();
        channel.push(News::new(&id, RDMA_CM_EVENT_DISCONNECTED));
        assert_eq!(id.unacknowledged(), 0);
        let news = channel.pop().unwrap();
        assert_eq!(id.unacknowledged(), 1);
        let event = deliver(news).unwrap();
        acknowledge(event).unwrap();
        assert_eq!(id.unacknowledged(), 0);
        id.await_acknowledges();
        id.end_handle().unwrap();
        channel.end_handle().unwrap();
    }
}
