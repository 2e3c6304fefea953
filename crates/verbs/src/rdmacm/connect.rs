//! Ids, and connections: listen, connect, accept, part.

use core::ffi::{c_int, c_void};
use std::net::{IpAddr, SocketAddr};
use std::ptr;
use std::sync::Arc;

use remora::nic::cm::message::{RejectReason, TransportService};
use remora::nic::cm::service::{CmaHeader, PortSpace, ServiceId};
use remora::nic::cm::{
    AcceptParams, CommandError, ConnId, ConnectError, ConnectRequest, ListenError,
};
use remora::nic::qp::Mtu;
use remora::nic::{Psn, Time, cm};

use super::channel::{self, Channel, News, Param};
use super::id::{Agreement, Id, Stage};
use super::{EADDRINUSE, EINVAL, ENOMEM, Errno, Result, call, manager, queue_pair, sidr, status};
use super::{address, multicast, watch};
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card::Card;
use crate::process;

/// How long a queue pair waits for an acknowledge if nobody says: 4.096 µs · 2^16, 0.27 s.
pub(super) const ACK_TIMEOUT: u8 = 16;
/// Requests that may wait at a listener, at most, and if nobody says.
const BACKLOG_MAX: usize = 1024;
/// Private data that fits a request, a reply, a refusal.
const REQUEST_DATA: usize = 56;
const REPLY_DATA: usize = 196;
const REJECT_DATA: usize = 148;

/// A request for a connection, for when it has to be made again.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    remote: IpAddr,
    service: ServiceId,
    told: CmaHeader,
    transport: TransportService,
    qpn: u32,
    flow_control: bool,
    agreement: Agreement,
    private_data: Vec<u8>,
}

impl Request {
    /// What the card is asked, with packets of this size.
    pub(super) fn with_mtu(&self, mtu: Mtu) -> ConnectRequest<'_> {
        ConnectRequest {
            remote: self.remote,
            service: self.service,
            local_port: self.told.source.port(),
            told: Some(self.told),
            transport: self.transport,
            local_qpn: self.qpn,
            starting_psn: Psn::new(self.agreement.local_psn),
            responder_resources: self.agreement.responder_resources,
            initiator_depth: self.agreement.initiator_depth,
            retry_count: self.agreement.retry_count.min(7),
            rnr_retry_count: self.agreement.rnr_retry_count.min(7),
            srq: self.agreement.srq,
            flow_control: self.flow_control,
            path_mtu: mtu.code(),
            ack_timeout: self.agreement.ack_timeout,
            traffic_class: self.agreement.traffic_class,
            private_data: &self.private_data,
        }
    }
}

impl From<CommandError> for Errno {
    fn from(_: CommandError) -> Errno {
        EINVAL
    }
}

impl From<ConnectError> for Errno {
    fn from(error: ConnectError) -> Errno {
        match error {
            ConnectError::TooManyConnections => ENOMEM,
            _ => EINVAL,
        }
    }
}

/// The port space's number in service ids. That of IPoIB has no services of its own.
pub(super) fn service(space: rdma_port_space, port: u16) -> ServiceId {
    let space = match space {
        RDMA_PS_TCP => PortSpace::Tcp,
        RDMA_PS_IB => PortSpace::Ib,
        _ => PortSpace::Udp,
    };
    space.service_id(port)
}

/// A first packet number that a late packet of another connection will not have.
pub(super) fn random_psn() -> u32 {
    let mut random = [0; 4];
    // Without randomness any will do.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    u32::from_ne_bytes(random) & 0xff_ffff
}

/// What a program is told of an agreement.
pub(super) fn param_of(agreement: &Agreement) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: agreement.responder_resources,
        initiator_depth: agreement.initiator_depth,
        retry_count: agreement.retry_count,
        rnr_retry_count: agreement.rnr_retry_count,
        srq: agreement.srq.into(),
        qp_num: agreement.remote_qpn,
        ..rdma_conn_param::zeroed()
    }
}

/// The addresses that the peer is told.
pub(super) fn told(id: &Id) -> Result<CmaHeader> {
    let state = id.lock();
    let (source, remote) = (state.local.ok_or(EINVAL)?, state.remote.ok_or(EINVAL)?);
    Ok(CmaHeader { source: canonical(source), destination: remote.ip().to_canonical() })
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The parameters of a call, with defaults where there are none.
///
/// # Safety
/// `param` is null or points to parameters, whose private data is as long as they say.
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

/// Private data that a program gives.
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

/// What the library does on its own before a program sees an event. `None`: the program is not to
/// see it.
pub(super) fn before_delivery(mut news: News) -> Option<News> {
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
                    news.kind = RDMA_CM_EVENT_CONNECT_ERROR;
                    news.status = -error.0;
                }
            }
        }
        RDMA_CM_EVENT_REJECTED | RDMA_CM_EVENT_UNREACHABLE | RDMA_CM_EVENT_CONNECT_ERROR => {
            queue_pair::fail(&id);
        }
        RDMA_CM_EVENT_ESTABLISHED => follow(&id),
        RDMA_CM_EVENT_MULTICAST_JOIN => multicast::before_delivery(&id, &mut news),
        _ => {}
    }
    Some(news)
}

/// Makes the id of a request one that a program can use.
fn welcome(request: &News) -> Result<()> {
    let id = &request.id;
    if let Some(listener) = &request.listener {
        listener.admitted();
    }
    let card = id.lock().card.ok_or(EINVAL)?;
    id.attach(card)?;
    id.show_addresses();
    if request.listener.as_ref().is_some_and(|listener| listener.lock().sync) {
        // A synchronous listener's connections are synchronous, each with a channel.
        show_channel(id, &Channel::create()?);
        id.lock().sync = true;
    }
    Ok(())
}

/// Ends a request that the program never saw.
fn drop_request(id: &Arc<Id>) {
    end_connection(id);
    if id.end_handle().is_err() {
        tracing::debug!("the id of a request was gone before it");
    }
}

/// A synchronous call waits for its event, which the program then finds on the id.
pub(super) fn complete(id: &Arc<Id>) -> Result<()> {
    if !id.lock().sync {
        return Ok(());
    }
    forget_event(id);
    let channel = id.channel().ok_or(EINVAL)?;
    let event = channel::next_event(&channel)?;
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).event = event };
    });
    // SAFETY: the event was just made, and nobody else knows it yet.
    let (kind, status) = unsafe { ((*event).event, (*event).status) };
    match (kind, status) {
        (_, 0) => Ok(()),
        (RDMA_CM_EVENT_REJECTED, _) => Err(Errno(libc::ECONNREFUSED)),
        (_, status) => Err(Errno(status.abs())),
    }
}

/// Acknowledges the event that a synchronous id shows.
pub(super) fn forget_event(id: &Id) {
    let event = id.get(|c| c.event);
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).event = ptr::null_mut() };
    });
    if !event.is_null() && channel::acknowledge(event).is_err() {
        tracing::debug!("a program has acknowledged an event that was not its own");
    }
}

fn show_channel(id: &Id, channel: &Arc<Channel>) {
    id.lock().channel = Some(channel.clone());
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).channel = channel.c() };
    });
}

/// The type of queue pair that a port space is for.
fn default_type(space: rdma_port_space) -> ibv_qp_type {
    match space {
        RDMA_PS_UDP | RDMA_PS_IPOIB => IBV_QPT_UD,
        _ => IBV_QPT_RC,
    }
}

/// Makes an id; without a channel, a synchronous one.
pub(super) fn create(
    channel: Option<Arc<Channel>>,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: Option<ibv_qp_type>,
) -> Result<Arc<Id>> {
    if !matches!(space, RDMA_PS_TCP | RDMA_PS_UDP | RDMA_PS_IB | RDMA_PS_IPOIB) {
        return Err(EINVAL);
    }
    manager::start()?;
    let sync = channel.is_none();
    let channel = match channel {
        Some(channel) => channel,
        None => Channel::create()?,
    };
    let id = Id::create(channel, sync, space, qp_type.unwrap_or(default_type(space)))?;
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).context = context };
    });
    Ok(id)
}

/// Does something with the connection of an id, under the card's lock.
fn with_connection<R>(
    id: &Arc<Id>,
    act: impl FnOnce(&mut cm::Cm, Time, ConnId) -> core::result::Result<R, CommandError>,
) -> Result<R> {
    let card = id.card()?;
    let mut locked = card.lock();
    let conn = id.lock().conn.ok_or(EINVAL)?;
    let (nic, _, now) = locked.parts();
    let done = act(nic.cm_mut(), now, conn)?;
    locked.kick();
    Ok(done)
}

fn establish(id: &Arc<Id>) -> Result<()> {
    with_connection(id, |cm, now, conn| cm.establish(now, conn, &[]))?;
    id.lock().stage = Stage::Connected;
    manager::has_answered(id);
    Ok(())
}

/// Refuses; the card forgets the connection.
fn refuse(id: &Arc<Id>, reason: RejectReason, data: &[u8]) -> Result<()> {
    let conn = id.lock().conn;
    with_connection(id, |cm, now, conn| cm.reject(now, conn, reason, data))?;
    let card = id.card()?;
    id.lock().conn = None;
    if let Some(conn) = conn {
        manager::current().tables().connections.remove(&(card.index, conn));
    }
    Ok(())
}

/// Parameters as the card can have them.
fn bounded(param: &rdma_conn_param) -> (u8, u8) {
    let most = remora::nic::qp::MAX_RD_ATOMIC;
    (param.responder_resources.min(most), param.initiator_depth.min(most))
}

fn connect(id: &Arc<Id>, param: &rdma_conn_param, private_data: &[u8]) -> Result<()> {
    if id.lock().stage != Stage::RouteResolved {
        return Err(EINVAL);
    }
    let card = id.card()?;
    let (responder_resources, initiator_depth) = bounded(param);
    let (qpn, srq) = queue_pair::number(id, param);
    let told = told(id)?;
    let Some(route) = address::look_again(id)? else { return nobody_listens(id) };
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
    let (nic, _, now) = locked.parts();
    let conn = nic.cm_mut().connect(now, &request.with_mtu(mtu))?;
    let mut state = id.lock();
    state.conn = Some(conn);
    state.stage = Stage::Connecting;
    drop(state);
    manager::current().tables().connections.insert((card.index, conn), id.clone());
    locked.kick();
    drop(locked);
    tracing::debug!(peer = %route.peer, service = ?request.service, "asks for a connection");
    follow(id);
    Ok(())
}

/// Has the peer's process watched; it may be gone already.
fn follow(id: &Id) {
    let route = id.lock().route;
    if let Some(route) = route
        && watch::follow(id)
    {
        peer_is_gone(route.peer);
    }
}

/// On this machine, nobody listens and no card would say so: the answer a card would give.
fn nobody_listens(id: &Arc<Id>) -> Result<()> {
    id.lock().stage = Stage::Connecting;
    manager::push(id, RDMA_CM_EVENT_REJECTED, |news| {
        news.status = i32::from(RejectReason::INVALID_SERVICE_ID.0);
        news.param = Param::Conn(rdma_conn_param::zeroed());
        news.private_data = vec![0; REJECT_DATA];
    });
    Ok(())
}

fn listen(id: &Arc<Id>, backlog: c_int) -> Result<()> {
    address::bind_if_idle(id)?;
    let port = id.lock().local.map_or(0, |local| local.port());
    let cards = match id.lock().card {
        Some(index) => process::current().cards().get(index..=index),
        None => process::current().cards().get(..),
    };
    let cards: Vec<&Card> = cards.ok_or(EINVAL)?.iter().collect();
    let mut state = id.lock();
    state.backlog = match usize::try_from(backlog) {
        Ok(wanted @ 1..=BACKLOG_MAX) => wanted,
        _ => BACKLOG_MAX,
    };
    state.stage = Stage::Listening;
    drop(state);
    // Who finds it announced finds it listening.
    let listening = cards.iter().try_for_each(|card| listen_on(id, card, port));
    listening.and_then(|()| address::announce(id, &cards)).inspect_err(|_| {
        stop_listening(id);
        id.lock().stage = Stage::Bound;
    })
}

fn listen_on(id: &Arc<Id>, card: &Card, port: u16) -> Result<()> {
    let mut locked = card.lock();
    let listener =
        locked.nic().cm_mut().listen(service(id.space, port)).map_err(|error| match error {
            ListenError::InUse(_) => EADDRINUSE,
            ListenError::TooMany => ENOMEM,
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
            card.lock().nic().cm_mut().unlisten(listener);
        }
        manager::current().tables().listeners.remove(&(index, listener));
    }
}

fn accept(id: &Arc<Id>, param: Option<(rdma_conn_param, Vec<u8>)>) -> Result<()> {
    let stage = id.lock().stage;
    match (stage, &param) {
        (Stage::Connecting, _) => {}
        // The active side of a connection without a queue pair here.
        (Stage::Replied, None) => return establish(id),
        _ => return Err(EINVAL),
    }
    let agreement = id.lock().agreement;
    let (param, data) = param.unwrap_or_else(|| (param_of(&agreement), Vec::new()));
    let (responder_resources, initiator_depth) = bounded(&param);
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
    with_connection(id, |cm, now, conn| cm.accept(now, conn, &answer))
}

fn disconnect(id: &Arc<Id>) -> Result<()> {
    if id.is_datagram() || id.lock().conn.is_none() {
        return Err(EINVAL);
    }
    queue_pair::fail(id);
    match with_connection(id, |cm, now, conn| cm.disconnect(now, conn, &[])) {
        // It is over already, or never was: there is nobody to tell.
        Ok(()) | Err(EINVAL) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Ends an id: its events, its connection, its port.
pub(super) fn destroy(id: &Arc<Id>) -> Result<()> {
    multicast::leave_all(id);
    stop_listening(id);
    end_connection(id);
    forget_event(id);
    let channel = id.channel();
    let unseen = channel.as_ref().map_or_else(Vec::new, |channel| {
        channel.take(|news| {
            Arc::ptr_eq(&news.id, id)
                || news.listener.as_ref().is_some_and(|listener| Arc::ptr_eq(listener, id))
        })
    });
    for news in unseen.iter().filter(|news| !Arc::ptr_eq(&news.id, id)) {
        drop_request(&news.id);
    }
    id.await_acknowledges();
    let mut state = id.lock();
    let sync = state.sync;
    state.channel = None;
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

/// The card's part of [`destroy`].
fn end_connection(id: &Arc<Id>) {
    let Ok(card) = id.card() else { return };
    let mut locked = card.lock();
    let mut state = id.lock();
    let (conn, question) = (state.conn.take(), state.sidr.take());
    drop(state);
    let manager = manager::current();
    let (nic, _, now) = locked.parts();
    if let Some(conn) = conn {
        manager.tables().connections.remove(&(card.index, conn));
        if let Err(error) = nic.cm_mut().destroy(now, conn) {
            tracing::debug!(%error, "a connection was gone before its id");
        }
    }
    if let Some(question) = question {
        manager.tables().questions.remove(&(card.index, question));
        sidr::drop_question(nic.cm_mut(), now, question);
    }
    locked.kick();
}

/// The peer's card is gone, with its process: its connections end as if it had said so, and those
/// that were asked for will not come about.
pub(super) fn peer_is_gone(peer: IpAddr) {
    let manager = manager::current();
    let ids: Vec<Arc<Id>> = manager.tables().connections.values().cloned().collect();
    for id in ids {
        let mut state = id.lock();
        if state.route.is_none_or(|route| route.peer != peer) {
            continue;
        }
        match state.stage {
            Stage::Connected => {
                state.stage = Stage::Disconnected;
                drop(state);
                tracing::warn!(%peer, "the process at the other end of a connection is gone");
                manager::push(&id, RDMA_CM_EVENT_DISCONNECTED, |_| ());
            }
            // The side that asks.
            Stage::Connecting if state.request.is_some() => {
                drop(state);
                end_connection(&id);
                tracing::warn!(%peer, "the process that was asked for a connection is gone");
                manager::push(&id, RDMA_CM_EVENT_UNREACHABLE, |news| {
                    news.status = -libc::ETIMEDOUT;
                });
            }
            _ => {}
        }
    }
}

/// Tells all peers that this process ends.
pub(super) fn end_all() {
    let manager = manager::current();
    let ids: Vec<Arc<Id>> = manager.tables().connections.values().cloned().collect();
    for id in ids {
        end_connection(&id);
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
            false => Some(Channel::find(channel)?),
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
        let most = if id.is_datagram() { sidr::QUESTION_DATA } else { REQUEST_DATA };
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
        let most = if id.is_datagram() { sidr::ANSWER_DATA } else { REPLY_DATA };
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
        let data = unsafe { read_data(private_data, private_data_len, REJECT_DATA) }?;
        match id.is_datagram() {
            true => sidr::reject(&id, &data),
            false => refuse(&id, RejectReason::CONSUMER_DEFINED, &data),
        }
    })
}

/// As [`rdma_reject`], with the reason that the vendors' options do not agree.
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
        let data = unsafe { read_data(private_data, private_data_len, REJECT_DATA) }?;
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
        with_connection(&id, |cm, now, conn| cm.notify_established(now, conn))
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
            true => Channel::create()?,
            false => Channel::find(channel)?,
        };
        let was_sync = std::mem::replace(&mut id.lock().sync, sync);
        let from = id.channel().ok_or(EINVAL)?;
        if was_sync {
            forget_event(&id);
        }
        show_channel(&id, &to);
        let waiting = from.take(|news| Arc::ptr_eq(&news.id, &id));
        waiting.into_iter().for_each(|news| to.push(news));
        id.await_acknowledges();
        if was_sync { from.end_handle() } else { Ok(()) }
    })
}

pub(crate) unsafe extern "C" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context {
    call(ptr::null_mut(), || {
        manager::start()?;
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
        // SAFETY: room for all of them, which `rdma_free_devices` gives back.
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
    // SAFETY: the list is one of `rdma_get_devices`, or null.
    unsafe { libc::free(list.cast()) };
}
