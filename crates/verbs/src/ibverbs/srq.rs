//! Shared receive queues.
//!
//! | symbol or place | function |
//! |---|---|
//! | `ibv_create_srq@@IBVERBS_1.1` | [`create_srq`] |
//! | `ibv_modify_srq@@IBVERBS_1.1` | [`modify_srq`] |
//! | `ibv_query_srq@@IBVERBS_1.1` | [`query_srq`] |
//! | `ibv_destroy_srq@@IBVERBS_1.1` | [`destroy_srq`] |
//! | `ibv_context_ops.post_srq_recv` | [`super::recv::post_srq_recv`] |
//! | `verbs_context.create_srq_ex` | [`create_srq_ex`] |
//! | `verbs_context.get_srq_num` | [`get_srq_num`] |

use std::ffi::{c_int, c_void};
use std::ptr::{self, addr_of_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use remora::nic::nic::ResizeSrqError;
use remora::nic::queue::{MAX_SGE, RingInit};

use super::context;
use super::cq;
use super::objects::{Cq, Srq, Subject, Xrcd};
use super::pd;
use super::qp_attr::MAX_WR;
use super::routes::routes;
use super::xrc;
use super::{EINVAL, ENOMEM, EOPNOTSUPP, Result, acknowledge, number, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};

/// `ibv_create_srq`.
///
/// # Safety
/// `init` can be read and written.
pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: by promise of the caller.
    let init = unsafe { &mut *init };
    or_null(create(pd, init.srq_context, &mut init.attr, None))
}

/// `ibv_create_srq_ex`.
///
/// # Safety
/// `init` can be read and written.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    // SAFETY: by promise of the caller.
    or_null(create_ex(context, unsafe { &mut *init }))
}

fn create_ex(context: *mut ibv_context, init: &mut ibv_srq_init_attr_ex) -> Result<*mut ibv_srq> {
    context::find(context)?;
    let given = |bit| init.comp_mask & bit != 0;
    if !given(IBV_SRQ_INIT_ATTR_PD) {
        return Err(EINVAL);
    }
    let srq_type = if given(IBV_SRQ_INIT_ATTR_TYPE) { init.srq_type } else { IBV_SRQT_BASIC };
    match srq_type {
        IBV_SRQT_BASIC => create(init.pd, init.srq_context, &mut init.attr, None),
        IBV_SRQT_XRC => {
            if !given(IBV_SRQ_INIT_ATTR_XRCD) || !given(IBV_SRQ_INIT_ATTR_CQ) {
                return Err(EINVAL);
            }
            let xrc = (xrc::find(init.xrcd)?, cq::find(init.cq)?);
            create(init.pd, init.srq_context, &mut init.attr, Some(xrc))
        }
        _ => Err(EOPNOTSUPP),
    }
}

fn create(
    pd_handle: *mut ibv_pd,
    srq_context: *mut c_void,
    attr: &mut ibv_srq_attr,
    xrc: Option<(&'static Slot<Xrcd>, &'static Slot<Cq>)>,
) -> Result<*mut ibv_srq> {
    let pd = pd::find(pd_handle)?;
    let context = pd.context;
    if attr.max_wr == 0 || attr.max_wr > MAX_WR || attr.max_sge as usize > MAX_SGE {
        return Err(EINVAL);
    }
    let max_sge = attr.max_sge.max(1);
    let ring = ring(attr.max_wr, max_sge);
    let routes = routes(context.card);
    let mut card = context.card.lock();
    let commands = card.commands();
    let number = match xrc {
        None => commands.create_srq(pd.pd, ring)?.srq,
        Some((xrcd, cq)) => commands.create_xrc_srq(pd.pd, xrcd.domain.xrcd, cq.number, ring)?.srq,
    };
    let state = Srq {
        context,
        pd,
        xrcd: xrc.map(|(xrcd, _)| xrcd),
        number,
        max_sge,
        async_got: AtomicU32::new(0),
    };
    let mut c = ibv_srq::zeroed();
    // SAFETY: the handle is valid.
    c.context = unsafe { (*pd_handle).context };
    c.srq_context = srq_context;
    c.pd = pd_handle;
    c.handle = number;
    let Some(made) = handles::create(c, state) else {
        card.commands().destroy_srq(number).ok();
        return Err(ENOMEM);
    };
    routes.lock().srqs.insert(number, made);
    drop(card);
    pd.enter();
    context.enter();
    if let Some((xrcd, _)) = xrc {
        xrcd.enter();
    }
    (attr.max_wr, attr.max_sge) = (ring.depth, max_sge);
    Ok(made.c())
}

/// A ring that holds at least `max_wr` requests, and has no memory yet.
fn ring(max_wr: u32, max_sge: u32) -> RingInit {
    let stride = RingInit::stride_for(max_sge as usize, 0);
    RingInit { addr: 0, depth: max_wr.next_power_of_two(), stride }
}

/// Looks up a shared receive queue.
pub fn find(srq: *const ibv_srq) -> Result<&'static Slot<Srq>> {
    Ok(handles::get::<Srq>(srq)?)
}

/// `ibv_modify_srq`.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: by promise of the caller.
    number(find(srq).and_then(|srq| modify(srq, unsafe { &*attr }, mask as u32)))
}

fn modify(srq: &Slot<Srq>, attr: &ibv_srq_attr, mask: u32) -> Result<()> {
    let given = |bit| mask & bit != 0;
    if mask & !(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT) != 0 {
        return Err(EINVAL);
    }
    if given(IBV_SRQ_MAX_WR) && !(1..=MAX_WR).contains(&attr.max_wr) {
        return Err(EINVAL);
    }
    let mut card = srq.context.card.lock();
    let card = card.commands();
    let depth = match given(IBV_SRQ_MAX_WR) {
        true => attr.max_wr.next_power_of_two(),
        false => card.query_srq(srq.number).ok_or(EINVAL)?.depth,
    };
    if given(IBV_SRQ_LIMIT) && attr.srq_limit > depth {
        return Err(EINVAL);
    }
    if given(IBV_SRQ_MAX_WR) {
        card.resize_srq(srq.number, ring(attr.max_wr, srq.max_sge)).map_err(
            |error| match error {
                ResizeSrqError::NoMemory { .. } => ENOMEM,
                _ => EINVAL,
            },
        )?;
    }
    if given(IBV_SRQ_LIMIT) {
        card.arm_srq(srq.number, attr.srq_limit)?;
    }
    Ok(())
}

/// `ibv_query_srq`: a limit of zero also means that the event of the limit has been sent.
///
/// # Safety
/// `attr` can be written.
pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: by promise of the caller.
    number(query(srq).map(|asked| unsafe { attr.write(asked) }))
}

fn query(handle: *mut ibv_srq) -> Result<ibv_srq_attr> {
    let srq = find(handle)?;
    let info = srq.context.card.lock().commands().query_srq(srq.number).ok_or(EINVAL)?;
    Ok(ibv_srq_attr { max_wr: info.depth, max_sge: srq.max_sge, srq_limit: info.limit })
}

/// `ibv_get_srq_num`: the number by which an XRC peer names the queue.
///
/// # Safety
/// `srq_num` can be written.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int {
    number(find(srq).and_then(|srq| {
        let told = srq.context.card.lock().commands().srq_number(srq.number).ok_or(EOPNOTSUPP)?;
        // SAFETY: by promise of the caller.
        unsafe { srq_num.write(told) };
        Ok(())
    }))
}

/// `ibv_destroy_srq`: waits until all its events are acknowledged.
pub extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    number(destroy(srq))
}

fn destroy(handle: *mut ibv_srq) -> Result<()> {
    let srq = find(handle)?;
    let routes = routes(srq.context.card);
    let mut card = srq.context.card.lock();
    card.commands().destroy_srq(srq.number)?;
    routes.lock().srqs.remove(&srq.number);
    drop(card);
    srq.context
        .events
        .withdraw(|e| matches!(e.subject, Subject::Srq(other) if ptr::eq(other.c(), srq.c())));
    let c = srq.c();
    // SAFETY: the fields are within the struct of a slot, which is in use until the end of this
    // function.
    unsafe {
        acknowledge::AckCounter {
            mutex: addr_of_mut!((*c).mutex),
            cond: addr_of_mut!((*c).cond),
            completed: addr_of_mut!((*c).events_completed),
        }
        .wait(srq.async_got.load(Ordering::Relaxed));
    }
    let Srq { context, pd, xrcd, .. } = handles::destroy::<Srq>(handle)?;
    if let Some(xrcd) = xrcd {
        xrcd.leave();
    }
    pd.leave();
    context.leave();
    Ok(())
}
