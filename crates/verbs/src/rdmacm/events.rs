//! Events as a program takes them, and what the library does before the program sees one.
//!
//! `sink` makes them, with their status, of what the card and the peer say.

use core::ffi::{c_char, c_int, c_void};
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use remora::nic::cm::message::RejectReason;
use remora::raw::Sleep;

use super::connection::{end_connection, establish, refuse};
use super::objects::{EventChannel, Id, News, Param, Stage};
use super::watch::follow;
use super::{
    EINVAL, EIO, ENOMEM, Errno, Result, Step, call_that_sleeps, groups, manager, queue_pair, status,
};
use crate::abi::newer::{
    RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_USER,
};
use crate::abi::rdma_cma::*;
use crate::handles::{self, Kind, Object};

/// How long a call for events of a destroyed channel waits before it fails. A thread may still be
/// on its way into the call while another destroys the channel and is about to end the process: had
/// it come a moment earlier, it would sleep until the end. An immediate failure would make the
/// program end with an error, as rping does on a busy machine (linux-rdma/rdma-core#1622).
const GRACE: Duration = Duration::from_secs(1);

/// The object of an event's handle.
pub(crate) struct CmEvent {
    /// The id whose count of events includes this one.
    owner: Arc<Id>,
    /// The memory to which `private_data` points.
    _private_data: Box<[u8]>,
}

impl Object for CmEvent {
    type C = rdma_cm_event;
    const KIND: Kind = Kind::CmEvent;
}

/// Fetches the next event that the program is to see. `None`: there is none yet, and the program
/// wants to wait for it.
fn next_event(channel: &EventChannel) -> Result<Option<*mut rdma_cm_event>> {
    while let Some(news) = channel.pop() {
        let owner = news.owner().clone();
        let told = before_delivery(news).map(deliver);
        match told {
            Some(Ok(event)) => return Ok(Some(event)),
            Some(Err(error)) => {
                owner.uncount_event();
                return Err(error);
            }
            None => owner.uncount_event(),
        }
    }
    channel.check_blocking()?;
    Ok(None)
}

/// Whose event a call waits for, and where it comes.
pub(super) struct Awaited {
    /// The listener, if a call waits for its next request.
    pub(super) listener: Option<Arc<Id>>,
    pub(super) channel: Arc<EventChannel>,
}

thread_local! {
    /// What keeps the objects of the calling thread's call while it sleeps: the frames of the call
    /// own nothing then, so that the thread can be cancelled.
    static ASLEEP: Cell<Option<(Awaited, Sleep)>> = const { Cell::new(None) };
}

/// A call that returns 0 or -1: waits for the next event of what `find` names, and hands it to
/// `act`. A thread may be cancelled while it waits. So neither these two nor the frames that call
/// this may own anything.
pub(super) fn await_event(
    mut find: impl FnMut() -> Result<Awaited>,
    mut act: impl FnMut(&Awaited, *mut rdma_cm_event) -> Result<()>,
) -> c_int {
    call_that_sleeps(-1, |slept| {
        let awaited = match slept {
            None => find()?,
            Some(slept) => {
                let (awaited, sleep) = ASLEEP.take().ok_or(EIO)?;
                slept?;
                awaited.channel.end_sleep(sleep);
                awaited
            }
        };
        if let Some(event) = next_event(&awaited.channel)? {
            return act(&awaited, event).map(|()| Step::Done(0));
        }
        let sleep = awaited.channel.begin_sleep();
        ASLEEP.set(Some((awaited, sleep)));
        Ok(Step::Sleep(sleep.bell))
    })
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
        // SAFETY: C has the argument at the beginning of the union, which is larger.
        Param::Arg(arg) => unsafe { ptr::from_mut(&mut param).cast::<u64>().write(arg) },
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

/// Acknowledges an event.
pub(crate) fn acknowledge(event: *mut rdma_cm_event) -> Result<()> {
    handles::destroy::<CmEvent>(event)?.owner.uncount_event();
    Ok(())
}

/// Does the library's part before a program sees an event. `None`: the program is not to see it.
fn before_delivery(mut news: News) -> Option<News> {
    let id = news.id.clone();
    match news.kind {
        RDMA_CM_EVENT_CONNECT_REQUEST => {
            if let Err(error) = welcome(&news) {
                tracing::error!(?error, "a connection request is lost");
                drop_request(&id);
                return None;
            }
        }
        RDMA_CM_EVENT_CONNECT_RESPONSE if !id.queue_pair().is_null() => {
            match queue_pair::make_ready(&id).and_then(|()| establish(&id)) {
                Ok(()) => {
                    news.kind = RDMA_CM_EVENT_ESTABLISHED;
                    follow(&id);
                }
                Err(error) => {
                    let refused = refuse(&id, RejectReason::CONSUMER_DEFINED, &[]);
                    tracing::error!(?error, ?refused, "a queue pair cannot be connected");
                    queue_pair::fail(&id);
                    has_failed(&id);
                    news.kind = RDMA_CM_EVENT_CONNECT_ERROR;
                    news.status = -error.0;
                }
            }
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR => {
            queue_pair::fail(&id);
        }
        RDMA_CM_EVENT_MULTICAST_JOIN => groups::before_delivery(&id, &mut news),
        _ => {}
    }
    Some(news)
}

/// The program is told of one failure of a connection: what the peer has said of it meanwhile, or
/// will say, is not told.
fn has_failed(id: &Id) {
    const ENDS: [rdma_cm_event_type; 3] =
        [RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_DISCONNECTED];
    let mut state = id.lock();
    state.stage = Stage::Disconnected;
    if let Some(channel) = &state.channel {
        channel.take(|news| ptr::eq(&*news.id, id) && ENDS.contains(&news.kind));
    }
}

/// Makes the id of a request usable for a program.
fn welcome(request: &News) -> Result<()> {
    let id = &request.id;
    if let Some(listener) = &request.listener {
        listener.admitted();
    }
    let card = id.lock().card.ok_or(EINVAL)?;
    id.attach(card)?;
    id.show_addresses();
    if request.listener.as_ref().is_some_and(|listener| listener.lock().sync) {
        // The connections of a synchronous listener are synchronous, each with a channel of its
        // own.
        move_to(id, &EventChannel::create()?)?;
        id.lock().sync = true;
    }
    Ok(())
}

/// Destroys the id of a request that the program never saw, with what has happened to it since.
pub(super) fn drop_request(id: &Arc<Id>) {
    end_connection(id);
    forget_request(id);
}

/// Destroys the id of a request that has ended, and that the program never saw.
pub(super) fn forget_request(id: &Arc<Id>) {
    leave_channel(id);
    if id.end_handle().is_err() {
        tracing::debug!("the id of a request was destroyed before the request");
    }
}

/// Ends a synchronous call: waits for its event, which the program then finds on the id.
pub(super) fn complete(id: &Arc<Id>) -> Result<()> {
    if !id.lock().sync {
        return Ok(());
    }
    forget_event(id);
    let channel = id.channel().ok_or(EINVAL)?;
    let event = loop {
        match next_event(&channel)? {
            Some(event) => break event,
            // What the call has asked for cannot be asked for again, so it sees it through.
            None => channel.sleep_through_signals()?,
        }
    };
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).event = event };
    });
    // SAFETY: the event was just made, and no other thread knows it yet.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// Acknowledges the event that a synchronous id holds.
pub(super) fn forget_event(id: &Id) {
    let event = id.get(|c| c.event);
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).event = ptr::null_mut() };
    });
    if !event.is_null() && acknowledge(event).is_err() {
        tracing::debug!(
            "a program has acknowledged an event of a synchronous id, which belongs to the library"
        );
    }
}

/// Takes an id off its channel; returns this, and the events that have waited there: the id's, and
/// a listener's requests. No more come.
pub(super) fn leave_channel(id: &Id) -> Option<(Arc<EventChannel>, Vec<News>)> {
    // Locked throughout, so that no event comes behind those that wait.
    let mut state = id.lock();
    let channel = state.channel.take()?;
    let waiting = withdraw(id, &channel);
    Some((channel, waiting))
}

/// The events of an id that wait, and a listener's requests.
fn withdraw(id: &Id, channel: &EventChannel) -> Vec<News> {
    channel.take(|news| ptr::eq(&*news.id, id) || ptr::eq(&**news.owner(), id))
}

/// Has an id on another channel, with its events that wait, and those of a listener with its
/// requests that wait; returns the channel that it was on.
pub(super) fn move_to(id: &Id, to: &Arc<EventChannel>) -> Result<Arc<EventChannel>> {
    // Locked throughout, so that later events come behind those that wait.
    let mut state = id.lock();
    let from = id.change_channel(&mut state, to).ok_or(EINVAL)?;
    for news in withdraw(id, &from) {
        match ptr::eq(&*news.id, id) {
            true => to.push(news),
            false => move_request(news, &from, to),
        }
    }
    Ok(from)
}

/// Moves a request, with the id that it has made and what has happened to that id since.
fn move_request(request: News, from: &EventChannel, to: &Arc<EventChannel>) {
    let child = request.id.clone();
    let mut state = child.lock();
    child.change_channel(&mut state, to);
    to.push(request);
    from.take(|news| Arc::ptr_eq(&news.id, &child)).into_iter().for_each(|news| to.push(news));
}

pub(crate) unsafe extern "C-unwind" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    let find = || {
        let channel = EventChannel::find(channel).inspect_err(|_| thread::sleep(GRACE))?;
        if event.is_null() { Err(EINVAL) } else { Ok(Awaited { listener: None, channel }) }
    };
    await_event(find, |_, next| {
        // SAFETY: the caller gives a place for the event.
        unsafe { event.write(next) };
        Ok(())
    })
}

pub(crate) extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    status(|| acknowledge(event))
}

/// `rdma_write_cm_event`, of v60: an event of the program's own.
pub(crate) extern "C" fn rdma_write_cm_event(
    id: *mut rdma_cm_id,
    event: rdma_cm_event_type,
    status: c_int,
    arg: u64,
) -> c_int {
    super::status(|| {
        let id = Id::find(id)?;
        if event != RDMA_CM_EVENT_USER {
            return Err(EINVAL);
        }
        manager::push(&id, event, |news| {
            news.status = status;
            news.param = Param::Arg(arg);
        });
        Ok(())
    })
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
        RDMA_CM_EVENT_ADDRINFO_RESOLVED => c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
        RDMA_CM_EVENT_ADDRINFO_ERROR => c"RDMA_CM_EVENT_ADDRINFO_ERROR",
        RDMA_CM_EVENT_USER => c"RDMA_CM_EVENT_USER",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::IBV_QPT_RC;

    /// Otherwise the id could be destroyed between the two steps, and the program would get an
    /// event of an id that no longer exists.
    #[test]
    fn an_event_that_leaves_the_queue_is_counted_at_once() {
        let channel = EventChannel::create().unwrap();
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

    /// A thread pushes events of an id, which another moves from channel to channel.
    #[test]
    fn events_move_with_their_id_and_stay_in_order() {
        const COUNT: i32 = 2000;
        let channels = [(); 2].map(|()| EventChannel::create().unwrap());
        let id = Id::create(channels[0].clone(), false, RDMA_PS_TCP, IBV_QPT_RC).unwrap();
        let mut moves = 0;
        thread::scope(|threads| {
            let pushes = threads.spawn(|| {
                for number in 0..COUNT {
                    manager::push(&id, RDMA_CM_EVENT_USER, |news| news.status = number);
                }
            });
            while !pushes.is_finished() {
                moves += 1;
                move_to(&id, &channels[moves % 2]).unwrap();
                thread::yield_now();
            }
        });
        let came = channels[moves % 2].take(|_| true);
        let numbers: Vec<_> = came.iter().map(|news| news.status).collect();
        assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>());
        assert!(channels.iter().all(|channel| channel.is_empty()));
        id.end_handle().unwrap();
        channels.iter().for_each(|channel| channel.end_handle().unwrap());
    }
}
