//! Opening a device, and the tables of functions that programs call inline. Which card a device
//! stands for is said in `cards`.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicUsize;

use super::objects::{Context, Events};
use super::{
    ENODEV, ENOMEM, Errno, Result, bind_mw, context, cq, cq_ex, device, device_attr, dm, mr, mw,
    or_null, parent_domain, poll, port, post, qp, recv, srq, xrc,
};
use crate::abi::*;
use crate::card::ListedCard;
use crate::handles;

/// `ibv_open_device`.
pub extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    or_null(open(device))
}

/// As [`open_device`]. A forked child that has its device of its parent opens its own.
pub fn open(device: *mut ibv_device) -> Result<*mut ibv_context> {
    let mut found = device::find(device)?;
    if handles::is_inherited(found) {
        found = *device::devices().get(found.card.index).ok_or(ENODEV)?;
    }
    open_on(found.c(), found.card, None).map_err(|(error, _)| error)
}

/// Makes a context of a card; `imported` is the descriptor that has led to it, which comes back
/// with an error.
pub(super) fn open_on(
    device: *mut ibv_device,
    card: &'static ListedCard,
    imported: Option<OwnedFd>,
) -> core::result::Result<*mut ibv_context, (Errno, Option<OwnedFd>)> {
    let events = match Events::new() {
        Ok(events) => events,
        Err(error) => return Err((error.into(), imported)),
    };
    let mut c = functions();
    c.context.device = device;
    c.context.async_fd = events.as_raw_fd();
    // The library writes no commands to it, but programs pass it to others, which import it.
    let letter = imported.as_ref().or(card.letter.as_ref());
    c.context.cmd_fd = letter.map_or(events.as_raw_fd(), AsRawFd::as_raw_fd);
    let context = Context { card, events, imported, users: AtomicUsize::new(0) };
    match handles::create_or_back(c, context) {
        Ok(slot) => Ok(context::inner(slot)),
        Err(Context { imported, .. }) => Err((ENOMEM, imported)),
    }
}

/// The tables, without a device. Programs' inline functions answer `EOPNOTSUPP` for functions that
/// are missing: work queues, flow steering, counters, rate limits.
fn functions() -> verbs_context {
    let mut c = verbs_context::zeroed();
    c.query_port = Some(port::query_port_sized);
    c.advise_mr = Some(mr::advise_mr);
    c.alloc_null_mr = Some(mr::alloc_null_mr);
    c.reg_dm_mr = Some(mr::reg_dm_mr);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.alloc_parent_domain = Some(parent_domain::alloc_parent_domain);
    c.alloc_td = Some(parent_domain::alloc_td);
    c.dealloc_td = Some(parent_domain::dealloc_td);
    c.query_rt_values = Some(device_attr::query_rt_values);
    c.query_device_ex = Some(device_attr::query_device_ex);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.modify_cq = Some(cq::modify_cq);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.open_qp = Some(qp::open_qp);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.get_srq_num = Some(srq::get_srq_num);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.bind_mw = Some(bind_mw::bind_mw);
    c.context.ops.poll_cq = Some(poll::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(recv::post_recv);
    c.context.ops.post_srq_recv = Some(recv::post_srq_recv);
    c.sz = size_of::<verbs_context>();
    c.context.abi_compat = usize::MAX as *mut _;
    c.context.cmd_fd = -1;
    c.context.num_comp_vectors = 1;
    c
}
