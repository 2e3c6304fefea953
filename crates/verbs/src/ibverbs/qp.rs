//! Queue pairs: creating, modifying, querying and destroying them.
//!
//! | symbol or place | function |
//! |---|---|
//! | `ibv_create_qp@@IBVERBS_1.1` | [`create_qp`] |
//! | `ibv_modify_qp@@IBVERBS_1.1` | [`modify_qp`] |
//! | `ibv_query_qp@@IBVERBS_1.1` | [`query_qp`] |
//! | `ibv_destroy_qp@@IBVERBS_1.1` | [`destroy_qp`] |
//! | `ibv_qp_to_qp_ex@@IBVERBS_1.6` | [`qp_to_qp_ex`] |
//! | `ibv_query_ece@@IBVERBS_1.10` | [`query_ece`] |
//! | `ibv_set_ece@@IBVERBS_1.10` | [`set_ece`] |
//! | `ibv_query_qp_data_in_order@@IBVERBS_1.14` | [`query_qp_data_in_order`] |
//! | `verbs_context.create_qp_ex` | [`create_qp_ex`] |
//! | `verbs_context.open_qp` | [`open_qp`] |

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{self, addr_of_mut};
use std::sync::atomic::Ordering;

use remora::nic::QpInit;
use remora::nic::qp::ModifyQpError;
use remora::nic::queue::{MAX_INLINE, MAX_SGE, RingInit};
use remora::nic::wire::Transport;

use super::context;
use super::objects::{Context, Qp, Subject, Xrcd};
use super::pd;
use super::qp_attr::{self, MAX_WR, Service};
use super::qp_ex;
use super::routes::routes;
use super::xrc;
use super::{
    EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, EPERM, Result, acknowledge, ah, cq, number, or_null, srq,
};
use crate::abi::*;
use crate::handles::{self, Slot};

/// Looks up a queue pair.
pub fn find(qp: *const ibv_qp) -> Result<&'static Slot<Qp>> {
    Ok(handles::get::<Qp>(qp.cast())?)
}

/// `ibv_create_qp`.
///
/// # Safety
/// `init` can be read and written.
pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: by promise of the caller.
    let init = unsafe { &mut *init };
    or_null(create(pd, init, 0).map(Slot::handle))
}

/// `ibv_create_qp_ex`.
///
/// # Safety
/// `init` can be read and written.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: by promise of the caller.
    or_null(create_ex(context, unsafe { &mut *init }).map(Slot::handle))
}

fn create_ex(
    context: *mut ibv_context,
    init: &mut ibv_qp_init_attr_ex,
) -> Result<&'static Slot<Qp>> {
    context::find(context)?;
    let given = |bit| init.comp_mask & bit != 0;
    let known = IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_XRCD
        | IBV_QP_INIT_ATTR_CREATE_FLAGS
        | IBV_QP_INIT_ATTR_MAX_TSO_HEADER
        | IBV_QP_INIT_ATTR_IND_TABLE
        | IBV_QP_INIT_ATTR_RX_HASH
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let service = Service::of(init.qp_type).ok_or(EOPNOTSUPP)?;
    let owner = match service {
        Service::XrcRecv => IBV_QP_INIT_ATTR_XRCD,
        _ => IBV_QP_INIT_ATTR_PD,
    };
    if init.comp_mask & !known != 0 || !given(owner) {
        return Err(EINVAL);
    }
    // The only flag that concerns this card is the one against delivering a datagram to its
    // sender's own groups; the others are for Ethernet frames.
    let flags = if given(IBV_QP_INIT_ATTR_CREATE_FLAGS) { init.create_flags } else { 0 };
    let segments = given(IBV_QP_INIT_ATTR_MAX_TSO_HEADER) && init.max_tso_header > 0;
    let spreads = given(IBV_QP_INIT_ATTR_IND_TABLE) && !init.rwq_ind_tbl.is_null()
        || given(IBV_QP_INIT_ATTR_RX_HASH);
    if flags & !IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 || segments || spreads {
        return Err(EOPNOTSUPP);
    }
    let ops = if given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) { Some(init.send_ops_flags) } else { None };
    if service == Service::XrcRecv {
        let xrcd = xrc::find(init.xrcd)?;
        let number = xrc::make_target(xrcd)?;
        init.cap = ibv_qp_cap::zeroed();
        return adopt_target(context, xrcd, number, init.qp_context).inspect_err(|_| {
            if xrc::leave_target(xrcd.context.card.index, number) {
                xrcd.context.card.lock().commands().destroy_qp(number).ok();
            }
        });
    }
    if ops.unwrap_or(0) & !service.send_ops() != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut plain = ibv_qp_init_attr {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
    };
    let made = create(init.pd, &mut plain, ops.map_or(0, |ops| ops | qp_ex::IS_EXTENDED))?;
    init.cap = plain.cap;
    Ok(made)
}

/// The card's transport of a service.
fn transport(service: Service) -> Result<Transport> {
    match service {
        Service::Rc => Ok(Transport::Rc),
        Service::Uc => Ok(Transport::Uc),
        Service::Ud => Ok(Transport::Ud),
        Service::XrcSend => Ok(Transport::Xrc),
        // `ibv_create_qp_ex` makes these, with an XRC domain.
        Service::XrcRecv => Err(EINVAL),
    }
}

/// A ring, which has no memory yet.
fn ring(depth: u32, sges: u32, inline: u32) -> RingInit {
    if depth == 0 {
        return RingInit::default();
    }
    let stride = RingInit::stride_for(sges as usize, inline as usize);
    RingInit { addr: 0, depth: depth.next_power_of_two(), stride }
}

/// Makes a queue pair, and writes its capabilities to `init`.
fn create(
    pd_handle: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    send_ops: u64,
) -> Result<&'static Slot<Qp>> {
    let pd = pd::find(pd_handle)?;
    let context = pd.context;
    let service = Service::of(init.qp_type).ok_or(EOPNOTSUPP)?;
    let transport = transport(service)?;
    let send_cq = cq::find(init.send_cq)?;
    let sends_only = service == Service::XrcSend;
    let recv_cq = if sends_only { send_cq } else { cq::find(init.recv_cq)? };
    let srq = if init.srq.is_null() { None } else { Some(srq::find(init.srq)?) };
    let cap = wanted_cap(init, srq.is_some() || sends_only);
    let foreign = |other: &Slot<Context>| other.card.index != context.card.index;
    let bad = foreign(send_cq.context)
        || foreign(recv_cq.context)
        || srq.is_some_and(|srq| foreign(srq.context) || service == Service::Uc || sends_only)
        || cap.max_send_wr.max(cap.max_recv_wr) > MAX_WR
        || cap.max_send_sge.max(cap.max_recv_sge) as usize > MAX_SGE
        || cap.max_inline_data as usize > MAX_INLINE;
    if bad {
        return Err(EINVAL);
    }
    let (sq, rq, granted) = rings(&cap);
    let routes = routes(context.card);
    let mut card = context.card.lock();
    let made = card.commands().create_qp(QpInit {
        pd: pd.pd,
        transport,
        send_cq: send_cq.number,
        recv_cq: recv_cq.number,
        srq: srq.map(|srq| srq.number),
        sq,
        rq,
        signal_all: init.sq_sig_all != 0,
        flags: remora::nic::QpFlags::empty(),
        client: 0,
    })?;
    let number = made.qpn;
    let state = Qp {
        pd: Some(pd),
        cap: granted,
        takes_no_receives: srq.is_some() || rq.depth == 0,
        signal_all: init.sq_sig_all != 0,
        send_ops,
        ..Qp::bare(context, number, service)
    };
    let c = shown(pd_handle, init, number, send_ops);
    let Some(made) = handles::create(c, state) else {
        card.commands().destroy_qp(number).ok();
        return Err(ENOMEM);
    };
    routes.lock().qps.insert(number, made);
    drop(card);
    pd.enter();
    context.enter();
    init.cap = granted;
    Ok(made)
}

/// The queue sizes that a program asks for. Receive sizes are ignored for a queue pair without a
/// receive queue, as `ibv_create_qp(3)` says.
fn wanted_cap(init: &ibv_qp_init_attr, without_receives: bool) -> ibv_qp_cap {
    match without_receives {
        true => ibv_qp_cap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap },
        false => init.cap,
    }
}

/// The shapes of both rings, and the sizes that fit.
fn rings(cap: &ibv_qp_cap) -> (RingInit, RingInit, ibv_qp_cap) {
    let (send_sge, recv_sge) = (cap.max_send_sge.max(1), cap.max_recv_sge.max(1));
    let sq = ring(cap.max_send_wr, send_sge, cap.max_inline_data);
    let rq = ring(cap.max_recv_wr, recv_sge, 0);
    let granted = ibv_qp_cap {
        max_send_wr: sq.depth,
        max_recv_wr: rq.depth,
        max_send_sge: if sq.depth > 0 { send_sge } else { 0 },
        max_recv_sge: if rq.depth > 0 { recv_sge } else { 0 },
        max_inline_data: if sq.is_empty() { 0 } else { sq.inline_room() as u32 },
    };
    (sq, rq, granted)
}

/// The struct that the program sees of a new queue pair. The domain's handle is valid.
fn shown(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    number: u32,
    send_ops: u64,
) -> newer::ibv_qp_ex_v46 {
    let mut c = qp_ex::functions(send_ops);
    let base = &mut c.base.qp_base;
    // SAFETY: the handle is valid.
    base.context = unsafe { (*pd).context };
    base.qp_context = init.qp_context;
    base.pd = pd;
    base.send_cq = init.send_cq;
    base.recv_cq = init.recv_cq;
    base.srq = init.srq;
    base.handle = number;
    base.qp_num = number;
    base.state = IBV_QPS_RESET;
    base.qp_type = init.qp_type;
    c
}

/// Makes another handle of a receiving XRC queue pair that is on the card already.
pub(crate) fn adopt_target(
    context_handle: *mut ibv_context,
    xrcd: &'static Slot<Xrcd>,
    number: u32,
    qp_context: *mut c_void,
) -> Result<&'static Slot<Qp>> {
    let context = context::find(context_handle)?;
    let state = Qp {
        xrcd: Some(xrcd),
        takes_no_receives: true,
        ..Qp::bare(context, number, Service::XrcRecv)
    };
    let mut c = qp_ex::functions(0);
    let base = &mut c.base.qp_base;
    (base.context, base.qp_context) = (context_handle, qp_context);
    (base.handle, base.qp_num, base.qp_type) = (number, number, IBV_QPT_XRC_RECV);
    let routes = routes(context.card);
    let mut card = context.card.lock();
    base.state =
        card.commands().query_qp(number).map_or(IBV_QPS_RESET, |i| qp_attr::state_of(i.state));
    let made = handles::create(c, state).ok_or(ENOMEM)?;
    routes.lock().qps.insert(number, made);
    drop(card);
    xrcd.enter();
    context.enter();
    Ok(made)
}

/// `ibv_modify_qp`.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: by promise of the caller.
    number(modify(qp, unsafe { &*attr }, mask as c_uint))
}

/// As [`modify_qp`].
pub fn modify(handle: *mut ibv_qp, attr: &ibv_qp_attr, mask: c_uint) -> Result<()> {
    let qp = find(handle)?;
    let card = qp.context.card;
    let path = match mask & IBV_QP_AV {
        0 => None,
        _ => Some(ah::path_of(card, &attr.ah_attr, qp.number)?),
    };
    // One thread modifies at a time, so the kept attributes are those that the card has.
    let mut locked = card.lock();
    let mut kept = qp.kept();
    let from = qp_attr::state_of(locked.commands().query_qp(qp.number).ok_or(EINVAL)?.state);
    let to = qp_attr::check_mask(qp.service, from, attr, mask)?;
    qp_attr::check_values(attr, mask, card.mtu)?;
    let changes = qp_attr::to_card(qp.service, (from, to), attr, mask, (path, card.mtu));
    locked.commands().modify_qp(qp.number, changes).map_err(|error| {
        tracing::debug!(qpn = qp.number, %error, "a queue pair was not modified");
        match error {
            ModifyQpError::PrivilegedQkey(_) => EPERM,
            _ => EINVAL,
        }
    })?;
    if mask & IBV_QP_EN_SQD_ASYNC_NOTIFY != 0 {
        qp.tells_drained.store(attr.en_sqd_async_notify != 0, Ordering::Relaxed);
    }
    locked.kick();
    if to == IBV_QPS_RESET {
        *kept = ibv_qp_attr::zeroed();
    }
    qp_attr::remember(&mut kept, attr, mask);
    qp.qkey.store(kept.qkey, Ordering::Relaxed);
    if mask & IBV_QP_STATE != 0 {
        // SAFETY: the slot's own struct.
        unsafe { (*qp.handle()).state = to };
    }
    Ok(())
}

/// `ibv_query_qp`: returns every attribute, whichever the mask asks for. The program's struct shows
/// the state that it has last asked for, or set: so the call updates it only if the mask asks for
/// the state.
///
/// # Safety
/// `attr` and `init` can be written.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    number(query(qp).map(|(asked, made)| {
        // SAFETY: by promise of the caller; the handle is valid, as the query has succeeded.
        unsafe {
            if mask as c_uint & IBV_QP_STATE != 0 {
                (*qp).state = asked.qp_state;
            }
            attr.write(asked);
            init.write(made);
        }
    }))
}

/// As [`query_qp`].
pub fn query(handle: *mut ibv_qp) -> Result<(ibv_qp_attr, ibv_qp_init_attr)> {
    let qp = find(handle)?;
    let (mut attr, info) = {
        let mut card = qp.context.card.lock();
        let info = card.commands().query_qp(qp.number).ok_or(EINVAL)?;
        (*qp.kept(), info)
    };
    attr.qp_state = qp_attr::state_of(info.state);
    attr.cur_qp_state = attr.qp_state;
    attr.cap = qp.cap;
    attr.path_mig_state = IBV_MIG_MIGRATED;
    let psn = |psn: Option<remora::nic::Psn>| psn.map_or(0, |psn| psn.value());
    (attr.rq_psn, attr.sq_psn) = (psn(info.attr.rq_psn), psn(info.attr.sq_psn));
    attr.sq_draining = u8::from(info.draining);
    if let (Service::Ud, Some(mtu)) = (qp.service, info.attr.path_mtu) {
        attr.path_mtu = mtu.code().into();
    }
    // SAFETY: the slot's own struct.
    let c = unsafe { &*qp.handle() };
    let init = ibv_qp_init_attr {
        qp_context: c.qp_context,
        send_cq: c.send_cq,
        recv_cq: c.recv_cq,
        srq: c.srq,
        cap: qp.cap,
        qp_type: c.qp_type,
        sq_sig_all: c_int::from(qp.signal_all),
    };
    Ok((attr, init))
}

/// `ibv_destroy_qp`: waits until all its events are acknowledged.
pub extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    number(destroy(qp))
}

/// As [`destroy_qp`].
pub fn destroy(handle: *mut ibv_qp) -> Result<()> {
    let qp = find(handle)?;
    if qp.groups.load(Ordering::Acquire) > 0 {
        return Err(EBUSY);
    }
    let routes = routes(qp.context.card);
    let mut card = qp.context.card.lock();
    let shared = qp.xrcd.is_some() && !xrc::leave_target(qp.context.card.index, qp.number);
    if !shared {
        card.commands().destroy_qp(qp.number)?;
    }
    // If other handles share the queue pair, one of them receives its events from here on.
    let mut heir = None;
    if shared {
        handles::for_each::<Qp>(|other| {
            if other.number == qp.number && !ptr::eq(other, qp) {
                heir = Some(other);
            }
        });
    }
    match heir {
        Some(other) => routes.lock().qps.insert(qp.number, other),
        None => routes.lock().qps.remove(&qp.number),
    };
    drop(card);
    qp.context
        .events
        .withdraw(|e| matches!(e.subject, Subject::Qp(other) if ptr::eq(other.c(), qp.c())));
    let c = qp.handle();
    // SAFETY: the fields are within the struct of a slot, which is in use until the end of this
    // function.
    unsafe {
        acknowledge::AckCounter {
            mutex: addr_of_mut!((*c).mutex),
            cond: addr_of_mut!((*c).cond),
            completed: addr_of_mut!((*c).events_completed),
        }
        .wait(qp.async_got.load(Ordering::Relaxed));
    }
    let Qp { context, pd, xrcd, .. } = handles::destroy::<Qp>(handle.cast())?;
    if let Some(pd) = pd {
        pd.leave();
    }
    if let Some(xrcd) = xrcd {
        xrcd.leave();
    }
    context.leave();
    Ok(())
}

/// `ibv_qp_to_qp_ex`: null for a queue pair that was created without functions to post with.
pub extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    or_null(find(qp).and_then(|qp| match qp.send_ops & qp_ex::IS_EXTENDED {
        0 => Err(EOPNOTSUPP),
        _ => Ok(qp.c().cast()),
    }))
}

/// `ibv_query_ece`: this card has no enhanced connection options.
///
/// # Safety
/// `ece` can be written.
pub unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    number(find(qp).map(|_| {
        // SAFETY: by promise of the caller.
        unsafe { ece.write(ibv_ece::zeroed()) }
    }))
}

/// `ibv_set_ece`: accepts empty options only.
///
/// # Safety
/// `ece` can be read.
pub unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    // SAFETY: by promise of the caller.
    number(find(qp).and_then(|_| match unsafe { (*ece).vendor_id } {
        0 => Ok(()),
        _ => Err(EOPNOTSUPP),
    }))
}

/// `ibv_query_qp_data_in_order`: the order in which bytes of a message become visible is not
/// guaranteed.
pub extern "C" fn query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}

/// `ibv_open_qp`: another handle of a receiving XRC queue pair.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    // SAFETY: by promise of the caller.
    or_null(open_target(context, unsafe { &*attr }).map(Slot::handle))
}

fn open_target(context: *mut ibv_context, attr: &ibv_qp_open_attr) -> Result<&'static Slot<Qp>> {
    let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let known = needed | IBV_QP_OPEN_ATTR_CONTEXT;
    if attr.comp_mask & needed != needed || attr.comp_mask & !known != 0 {
        return Err(EINVAL);
    }
    if Service::of(attr.qp_type) != Some(Service::XrcRecv) {
        return Err(EOPNOTSUPP);
    }
    let found = context::find(context)?;
    let xrcd = xrc::find(attr.xrcd)?;
    xrc::join_target(xrcd, found.card.index, attr.qp_num)?;
    let has_context = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
    let qp_context = if has_context { attr.qp_context } else { std::ptr::null_mut() };
    adopt_target(context, xrcd, attr.qp_num, qp_context).inspect_err(|_| {
        xrc::leave_target(found.card.index, attr.qp_num);
    })
}
