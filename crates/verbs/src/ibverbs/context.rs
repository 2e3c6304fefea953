//! Opening a device, and the tables of functions that programs call inline.

use core::ffi::c_int;
use core::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::async_event::Events;
use super::{
    EINVAL, Result, cq, cq_ex, device, dm, mr, mw, number, or_null, parent_domain, poll, port,
    post, qp, recv, srq, xrc,
};
use crate::abi::*;
use crate::handles::{self, BadHandle, Object, Slot};
use crate::process::Card;

/// An open device.
#[derive(Debug)]
pub struct Context {
    /// The card.
    pub card: &'static Card,
    /// What `async_fd` stands for.
    pub events: Events,
    /// How many objects belong to it, and [`CLOSED`].
    users: AtomicUsize,
}

/// Added to the number of users when the program has closed the context.
const CLOSED: usize = 1 << 62;

impl Object for Context {
    type C = verbs_context;
    const KIND: handles::Kind = handles::Kind::Context;
}

/// The handle that a program has of a context: the last part of the larger struct.
pub fn inner(slot: &Slot<Context>) -> *mut ibv_context {
    // SAFETY: in bounds.
    unsafe { ptr::addr_of_mut!((*slot.c()).context) }
}

/// The larger struct of a program's handle.
fn outer(context: *const ibv_context) -> *const verbs_context {
    context.wrapping_byte_sub(offset_of!(verbs_context, context)).cast()
}

/// The context behind a program's handle.
pub fn find(context: *const ibv_context) -> Result<&'static Slot<Context>> {
    let slot = handles::get::<Context>(outer(context))?;
    if slot.users.load(Ordering::Acquire) >= CLOSED {
        return Err(EINVAL);
    }
    Ok(slot)
}

impl Slot<Context> {
    /// An object was made on the context: it keeps the context's state alive.
    pub fn enter(&self) {
        self.users.fetch_add(1, Ordering::AcqRel);
    }

    /// An object of the context is gone.
    pub fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == CLOSED + 1 {
            handles::destroy::<Context>(self.c()).ok();
        }
    }
}

/// The context behind a handle, on the data path.
///
/// # Safety
/// The handle is that of a context, open or closed.
pub unsafe fn find_fast(
    context: *const ibv_context,
) -> core::result::Result<&'static Slot<Context>, BadHandle> {
    // SAFETY: by promise of the caller.
    unsafe { handles::get_fast::<Context>(outer(context)) }
}

/// `ibv_open_device`.
pub extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    or_null(open(device))
}

/// As [`open_device`].
pub fn open(device: *mut ibv_device) -> Result<*mut ibv_context> {
    let card = device::find(device)?.card;
    let events = Events::new()?;
    let mut c = functions();
    c.context.device = device;
    c.context.async_fd = events.fd();
    // There are no commands to write to it, but programs duplicate it.
    c.context.cmd_fd = events.fd();
    let slot = handles::create(c, Context { card, events, users: AtomicUsize::new(0) });
    Ok(inner(slot.ok_or(super::ENOMEM)?))
}

/// `ibv_close_device`.
pub extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    number(close(context))
}

/// As the manual says, this does not end what was made on the context: such objects live on, and
/// the context with them, unreachable.
fn close(context: *mut ibv_context) -> Result<()> {
    let slot = find(context)?;
    match slot.users.fetch_add(CLOSED, Ordering::AcqRel) {
        0 => {
            handles::destroy::<Context>(slot.c())?;
            Ok(())
        }
        users if users >= CLOSED => Err(EINVAL),
        _ => Ok(()),
    }
}

/// The tables, without a device. What is missing in them, callers' inline functions answer with
/// `EOPNOTSUPP`: work queues, flow steering, counters, rate limits.
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
    c.query_rt_values = Some(port::query_rt_values);
    c.query_device_ex = Some(port::query_device_ex);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.modify_cq = Some(cq::modify_cq);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.open_qp = Some(xrc::open_qp);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.get_srq_num = Some(srq::get_srq_num);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.bind_mw = Some(mw::bind_mw);
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
