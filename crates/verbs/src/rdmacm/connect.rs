//! Ids and their connections: creating, listening, connecting, accepting, disconnecting,
//! destroying.

use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use remora::nic::Psn;
use remora::nic::cm::message::{Rej, RejectReason, Rep, Req, SidrRep, SidrReq};
use remora::nic::cm::{AcceptParams, AddressScope, ConnectError, ListenError};
use remora::nic::qp::Mtu;

use super::address_list::Lookup;
use super::agreement::{ACK_TIMEOUT, param_of, random_psn, service, told};
use super::connection::{end_connection, establish, refuse, with_connection};
use super::events::{complete, drop_request, forget_event, leave_channel, move_to};
use super::objects::{Agreement, EventChannel, Id, Param, Request, Stage};
use super::watch::follow;
use super::{
    EADDRINUSE, EINVAL, EIO, ENOMEM, Errno, Result, call, manager, queue_pair, sidr, status,
};
use super::{address, groups, sink};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card::ListedCard;
use crate::process;

/// The most requests that may wait at a listener, also used where the program gives no backlog.
const BACKLOG_MAX: usize = 1024;

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Errno {
        match error {
            ConnectError::TooManyConnections => ENOMEM,
            ConnectError::Gone => EIO,
            _ => EINVAL,
        }
    }
}

/// The parameters of a call; `default` if the program gives none.
///
/// # Safety
/// `param` is null or points to parameters whose private data is as long as they say.
unsafe fn read_param(
    param: *const rdma_conn_param,
    default: rdma_conn_param,
    max_data: usize,
) -> Result<(rdma_conn_param, Vec<u8>)> {
    // SAFETY: by promise of the caller.
    let Some(param) = (unsafe { param.as_ref() }) else { return Ok((default, Vec::new())) };
    // SAFETY: as above.
    let data = unsafe { read_data(param.private_data, param.private_data_len, max_data) }?;
    Ok((*param, data))
}

/// Copies the private data that a program gives; `EINVAL` if it is longer than `max`.
///
/// # Safety
/// `data` is null or points to `len` bytes.
pub(crate) unsafe fn read_data(data: *const c_void, len: u8, max: usize) -> Result<Vec<u8>> {
    let len = usize::from(len);
    if len > max {
        return Err(EINVAL);
    }
    if data.is_null() || len == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: by promise of the caller.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec())
}

/// The type of queue pair of a port space.
fn default_type(space: rdma_port_space) -> ibv_qp_type {
    match space {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Makes an id, which is synchronous if there is no channel.
pub(super) fn create(
    channel: Option<Arc<EventChannel>>,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: Option<ibv_qp_type>,
) -> Result<Arc<Id>> {
    if !matches!(space, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IB | RDMA_PS_IPOIB) {
        return Err(EINVAL);
    }
    sink::start()?;
    let sync = channel.is_none();
    let channel = match channel {
        Some(channel) => channel,
        None => EventChannel::create()?,
    };
    let id = Id::create(channel, sync, space, qp_type.unwrap_or(default_type(space)))?;
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).context = context };
    });
    Ok(id)
}

/// The READs and atomics of the parameters. `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH` stand for
/// the most that the peer can take, which `asked` has; the card is the limit in any case.
fn bounded(param: &rdma_conn_param, asked: (u8, u8)) -> (u8, u8) {
    let most = remora::nic::qp::MAX_RD_ATOMIC;
    let one = |said: u8, asked: u8| most.min(if said == u8::MAX { asked } else { said });
    (one(param.responder_resources, asked.0), one(param.initiator_depth, asked.1))
}

fn connect(id: &Arc<Id>, param: &rdma_conn_param, private_data: &[u8]) -> Result<()> {
    if id.lock().stage != Stage::RouteResolved {
        return Err(EINVAL);
    }
    let card = id.card()?;
    let (responder_resources, initiator_depth) = bounded(param, (u8::MAX, u8::MAX));
    let (qpn, srq) = queue_pair::number(id, param);
    let told = told(id)?;
    let Some(route) = address::look_again(id)? else { return no_listener(id) };
    let mut state = id.lock();
    let agreement = Agreement {
        local_psn: random_psn(),
        responder_resources,
        initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        ack_timeout: state.ack_timeout.unwrap_or(ACK_TIMEOUT),
        path_mtu: route.mtu,
        traffic_class: state.tos,
        srq,
        ..Agreement::default()
    };
    let port = state.remote.map_or(0, |remote| remote.port());
    let request = Request {
        remote: route.peer,
        service: service(id.space, port),
        told,
        transport: manager::transport(id.qp_type),
        qpn,
        flow_control: param.flow_control != 0,
        agreement,
        private_data: [&state.connect_data, private_data].concat(),
    };
    state.agreement = agreement;
    state.request = Some(request.clone());
    drop(state);
    let mtu = Mtu::from_code(route.mtu).ok_or(EINVAL)?;
    let mut locked = card.lock();
    let conn = locked.commands().connect(request.with_mtu(mtu))?;
    let mut state = id.lock();
    state.conn = Some(conn);
    state.stage = Stage::Connecting;
    drop(state);
    manager::current().tables().connections.insert((card.index, conn), id.clone());
    locked.kick();
    drop(locked);
    follow(id);
    tracing::debug!(peer = %route.peer, service = ?request.service, "asks for a connection");
    Ok(())
}

/// On this machine no process listens for the service and no card would refuse the request: reports
/// the refusal that a card would send.
fn no_listener(id: &Arc<Id>) -> Result<()> {
    id.lock().stage = Stage::Connecting;
    manager::push(id, RDMA_CM_EVENT_REJECTED, |news| {
        news.status = i32::from(RejectReason::INVALID_SERVICE_ID.0);
        news.param = Param::Conn(rdma_conn_param::zeroed());
        news.private_data = vec![0; Rej::PRIVATE_DATA];
    });
    Ok(())
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<()> {
    address::bind_if_idle(id)?;
    let port = id.lock().local.map_or(0, |local| local.port());
    let scope = address::scope(id)?;
    let cards = match id.lock().card {
        Some(index) => process::current().cards().get(index..=index),
        None => process::current().cards().get(..),
    };
    let cards: Vec<&ListedCard> = cards.ok_or(EINVAL)?.iter().collect();
    let mut state = id.lock();
    state.backlog = match usize::try_from(backlog) {
        Ok(wanted @ 1..=BACKLOG_MAX) => wanted,
        _ => BACKLOG_MAX,
    };
    state.stage = Stage::Listening;
    drop(state);
    // The cards listen before the announcement, so that a client that finds it is served.
    let listening = cards.iter().try_for_each(|card| listen_on(id, card, port, scope));
    listening.and_then(|()| address::announce(id, &cards)).inspect_err(|_| {
        stop_listening(id);
        id.lock().stage = Stage::Bound;
    })
}

fn listen_on(id: &Arc<Id>, card: &ListedCard, port: u16, scope: AddressScope) -> Result<()> {
    let mut locked = card.lock();
    let listening = locked.commands().listen(service(id.space, port), scope);
    let listener = listening.map_err(|error| match error {
        ListenError::InUse(_) => EADDRINUSE,
        ListenError::TooMany => ENOMEM,
        ListenError::Gone => EIO,
    })?;
    manager::current().tables().listeners.insert((card.index, listener), id.clone());
    id.lock().listeners.push((card.index, listener));
    Ok(())
}

fn stop_listening(id: &Id) {
    let listeners = std::mem::take(&mut id.lock().listeners);
    id.lock().announcements.clear();
    for (index, listener) in listeners {
        if let Some(card) = process::current().cards().get(index) {
            card.lock().commands().unlisten(listener);
        }
        manager::current().tables().listeners.remove(&(index, listener));
    }
}

fn accept(id: &Arc<Id>, param: Option<(rdma_conn_param, Vec<u8>)>) -> Result<()> {
    let stage = id.lock().stage;
    match (stage, &param) {
        (Stage::Connecting, _) => {}
        // The active side of a connection whose queue pair the program keeps elsewhere.
        (Stage::Replied, None) => return establish(id),
        _ => return Err(EINVAL),
    }
    let agreement = id.lock().agreement;
    let (param, data) = param.unwrap_or_else(|| (param_of(&agreement), Vec::new()));
    let asked = (agreement.responder_resources, agreement.initiator_depth);
    let (responder_resources, initiator_depth) = bounded(&param, asked);
    let (qpn, srq) = queue_pair::number(id, &param);
    let mut state = id.lock();
    state.agreement.responder_resources = responder_resources;
    state.agreement.initiator_depth = initiator_depth;
    if let Some(timeout) = state.ack_timeout {
        state.agreement.ack_timeout = timeout;
    }
    let local_psn = state.agreement.local_psn;
    drop(state);
    if !id.queue_pair().is_null() {
        queue_pair::make_ready(id)?;
    }
    let answer = AcceptParams {
        qpn,
        starting_psn: Psn::new(local_psn),
        responder_resources,
        initiator_depth,
        target_ack_delay: 0,
        rnr_retry_count: param.rnr_retry_count.min(7),
        srq,
        flow_control: param.flow_control != 0,
        private_data: &data,
    };
    with_connection(id, |card, conn| card.accept(conn, answer))?;
    follow(id);
    tracing::debug!("accepts a connection");
    Ok(())
}

fn disconnect(id: &Arc<Id>) -> Result<()> {
    if id.is_datagram() || id.lock().conn.is_none() {
        return Err(EINVAL);
    }
    queue_pair::fail(id);
    match with_connection(id, |card, conn| card.disconnect(conn, &[])) {
        // The connection is over already, or never was: there is no peer to tell.
        Ok(()) | Err(EINVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Destroys an id: its events, its connection, its port.
pub(super) fn destroy(id: &Arc<Id>) -> Result<()> {
    // Before its events are dropped: a look-up that ends later tells nobody.
    id.lock().lookup = Lookup::None;
    groups::leave_all(id);
    stop_listening(id);
    end_connection(id);
    forget_event(id);
    let (channel, unseen) = leave_channel(id).unzip();
    for news in unseen.iter().flatten().filter(|news| !Arc::ptr_eq(&news.id, id)) {
        drop_request(&news.id);
    }
    id.await_acknowledges();
    let mut state = id.lock();
    let sync = state.sync;
    state.port_lock = None;
    state.request = None;
    state.path = None;
    drop(state);
    id.end_handle()?;
    match (sync, channel) {
        (true, Some(channel)) => channel.end_handle(),
        _ => Ok(()),
    }
}

pub(crate) unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: rdma_port_space,
) -> c_int {
    status(|| {
        let channel = match channel.is_null() {
            true => None,
            false => Some(EventChannel::find(channel)?),
        };
        if id.is_null() {
            return Err(EINVAL);
        }
        let made = create(channel, context, ps, None)?;
        // SAFETY: the caller gives a place for the id.
        unsafe { id.write(made.c()) };
        Ok(())
    })
}

pub(crate) extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    status(|| destroy(&Id::find(id)?))
}

pub(crate) extern "C" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    status(|| listen(&Id::find(id)?, backlog))
}

pub(crate) unsafe extern "C" fn rdma_connect(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        let default = rdma_conn_param {
            responder_resources: u8::MAX,
            initiator_depth: u8::MAX,
            retry_count: 7,
            rnr_retry_count: 7,
            ..rdma_conn_param::zeroed()
        };
        let before = id.lock().connect_data.len();
        let most = if id.is_datagram() { SidrReq::USER_DATA } else { Req::USER_DATA };
        let most = most.saturating_sub(before);
        // SAFETY: the caller gives parameters, or none.
        let (param, data) = unsafe { read_param(conn_param, default, most) }?;
        match id.is_datagram() {
            true => sidr::ask(&id, &data)?,
            false => connect(&id, &param, &data)?,
        }
        complete(&id)
    })
}

pub(crate) unsafe extern "C" fn rdma_accept(
    id: *mut rdma_cm_id,
    conn_param: *mut rdma_conn_param,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        let most = if id.is_datagram() { SidrRep::PRIVATE_DATA } else { Rep::PRIVATE_DATA };
        // SAFETY: the caller gives parameters, or none.
        let (param, data) = unsafe { read_param(conn_param, rdma_conn_param::zeroed(), most) }?;
        if id.is_datagram() {
            return sidr::accept(&id, &param, &data);
        }
        accept(&id, (!conn_param.is_null()).then_some((param, data)))?;
        complete(&id)
    })
}

pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives as many bytes as it says.
        let data = unsafe { read_data(private_data, private_data_len, Rej::PRIVATE_DATA) }?;
        match id.is_datagram() {
            true => sidr::reject(&id, &data),
            false => refuse(&id, RejectReason::CONSUMER_DEFINED, &data),
        }
    })
}

/// As [`rdma_reject`], with the reason that the vendor options do not match.
pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut rdma_cm_id,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    /// "Vendor option is not supported".
    const OPTION_NOT_SUPPORTED: RejectReason = RejectReason(35);
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives as many bytes as it says.
        let data = unsafe { read_data(private_data, private_data_len, Rej::PRIVATE_DATA) }?;
        refuse(&id, OPTION_NOT_SUPPORTED, &data)
    })
}

pub(crate) extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        if !id.queue_pair().is_null() || id.lock().stage != Stage::Replied {
            return Err(EINVAL);
        }
        establish(&id)
    })
}

pub(crate) extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        if event != IBV_EVENT_COMM_EST {
            return Err(EINVAL);
        }
        with_connection(&id, |card, conn| card.notify_established(conn))
    })
}

pub(crate) extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        let before = id.lock().stage;
        disconnect(&id)?;
        match before {
            Stage::Connected => complete(&id),
            _ => Ok(()),
        }
    })
}

pub(crate) extern "C" fn rdma_migrate_id(
    id: *mut rdma_cm_id,
    channel: *mut rdma_event_channel,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        let sync = channel.is_null();
        if sync && id.lock().sync {
            return Err(EINVAL);
        }
        let to = match sync {
            true => EventChannel::create()?,
            false => EventChannel::find(channel)?,
        };
        let was_sync = std::mem::replace(&mut id.lock().sync, sync);
        if was_sync {
            forget_event(&id);
        }
        let from = move_to(&id, &to)?;
        id.await_acknowledges();
        if was_sync { from.end_handle() } else { Ok(()) }
    })
}

pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    call(ptr::null_mut(), || {
        sink::start()?;
        let cards = process::current().cards().len();
        let mut contexts = Vec::with_capacity(cards + 1);
        for card in 0..cards {
            contexts.push(super::verbs::context(card)?);
        }
        if !num_devices.is_null() {
            // SAFETY: the caller gives a place for the number.
            unsafe { num_devices.write(c_int::try_from(cards).unwrap_or(c_int::MAX)) };
        }
        contexts.push(ptr::null_mut());
        // SAFETY: the list has room for all of them; `rdma_free_devices` frees it.
        unsafe {
            let list = libc::calloc(contexts.len(), size_of::<*mut ibv_context>());
            let list = list.cast::<*mut ibv_context>();
            if list.is_null() {
                return Err(ENOMEM);
            }
            ptr::copy_nonoverlapping(contexts.as_ptr(), list, contexts.len());
            Ok(list)
        }
    })
}

pub(crate) unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: the list is null or from `rdma_get_devices`.
    unsafe { libc::free(list.cast()) };
}

pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    call(ptr::null_mut(), || {
        sink::start()?;
        Ok(EventChannel::create()?.c())
    })
}

pub(crate) extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    status(|| EventChannel::find(channel)?.end_handle());
}
