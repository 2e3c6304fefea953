//! Endpoints: an id with all that a simple program needs, and the ids that a listener returns.

use core::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use remora::nic::cm::message::Req;

use super::events::Awaited;
use super::objects::{Id, Template};
use super::{EINVAL, Errno, Result, address, connect, events, queue_pair, status};
use crate::abi::rdma_cma::*;
use crate::abi::*;

/// Makes an endpoint from a result of `rdma_getaddrinfo`.
///
/// # Safety
/// The addresses in `res` are as long as their families say, its other parts as long as it says.
unsafe fn create(
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<Arc<Id>> {
    let space = res.ai_port_space as rdma_port_space;
    let id = connect::create(None, ptr::null_mut(), space, Some(res.ai_qp_type as ibv_qp_type))?;
    // SAFETY: by promise of the caller.
    let filled = unsafe { fill(&id, res, pd, init) };
    match filled {
        Ok(()) => Ok(id),
        Err(error) => {
            queue_pair::destroy(&id);
            if connect::destroy(&id).is_err() {
                tracing::debug!("a half-made endpoint cannot be destroyed");
            }
            Err(error)
        }
    }
}

/// # Safety
/// As for [`create`].
unsafe fn fill(
    id: &Arc<Id>,
    res: &rdma_addrinfo,
    pd: *mut ibv_pd,
    init: Option<&mut ibv_qp_init_attr>,
) -> Result<()> {
    let passive = res.ai_flags & RAI_PASSIVE as c_int != 0;
    if passive {
        // SAFETY: by promise of the caller.
        Errno::check(unsafe { address::rdma_bind_addr(id.c(), res.ai_src_addr) })?;
    } else {
        let (from, to) = (res.ai_src_addr, res.ai_dst_addr);
        // SAFETY: by promise of the caller.
        Errno::check(unsafe { address::rdma_resolve_addr(id.c(), from, to, 2000) })?;
        Errno::check(address::rdma_resolve_route(id.c(), 2000))?;
    }
    if let Some(init) = init {
        init.qp_type = id.qp_type;
        match passive {
            true => {
                let given = if pd.is_null() { id.get(|c| c.pd) } else { pd };
                id.lock().template = Some(Template { pd: given, init: *init });
            }
            false => queue_pair::create_old(id, pd, init)?,
        }
    }
    if !pd.is_null() {
        id.set(|c| {
            // SAFETY: `set` gives the C struct, and this is a plain field of it.
            unsafe { (*c).pd = pd };
        });
    }
    if res.ai_connect_len > 0 && !res.ai_connect.is_null() {
        let len = u8::try_from(res.ai_connect_len).map_err(|_| EINVAL)?;
        // SAFETY: by promise of the caller.
        let data = unsafe { connect::read_data(res.ai_connect, len, Req::PRIVATE_DATA) }?;
        id.lock().connect_data = data;
    }
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    res: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        if id.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives a result of `rdma_getaddrinfo`, or an equivalent of its own.
        let res = unsafe { res.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: as above; the attributes are null or valid.
        let made = unsafe { create(res, pd, qp_init_attr.as_mut()) }?;
        // SAFETY: the caller gives a place for the id.
        unsafe { id.write(made.c()) };
        Ok(())
    })
}

pub(crate) extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    status(|| {
        let id = Id::find(id)?;
        queue_pair::destroy(&id);
        queue_pair::destroy_srq(&id);
        connect::destroy(&id)
    });
}

/// A listener that requests can be waited for, and the channel to which they come.
fn waiting_at(listener: *mut rdma_cm_id) -> Result<Awaited> {
    let listener = Id::find(listener)?;
    if !listener.lock().sync {
        return Err(EINVAL);
    }
    events::forget_event(&listener);
    let channel = listener.channel().ok_or(EINVAL)?;
    Ok(Awaited { listener: Some(listener), channel })
}

/// The id of a connection request that has come.
fn request(listener: &Arc<Id>, event: *mut rdma_cm_event) -> Result<Arc<Id>> {
    // SAFETY: the event was just made, and no other thread knows it yet.
    let (kind, status, id) = unsafe { ((*event).event, (*event).status, (*event).id) };
    if kind != RDMA_CM_EVENT_CONNECT_REQUEST || status != 0 {
        events::acknowledge(event)?;
        return Err(if status != 0 { Errno(status.abs()) } else { EINVAL });
    }
    let id = Id::find(id)?;
    let template = listener.lock().template;
    if let Some(mut template) = template {
        let pd = if template.pd.is_null() { id.get(|c| c.pd) } else { template.pd };
        if let Err(error) = queue_pair::create_old(&id, pd, &mut template.init) {
            events::acknowledge(event)?;
            connect::destroy(&id)?;
            return Err(error);
        }
    }
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).event = event };
    });
    Ok(id)
}

pub(crate) unsafe extern "C-unwind" fn rdma_get_request(
    listen: *mut rdma_cm_id,
    id: *mut *mut rdma_cm_id,
) -> c_int {
    let find = || if id.is_null() { Err(EINVAL) } else { waiting_at(listen) };
    events::await_event(find, |awaited, event| {
        let made = request(awaited.listener.as_ref().ok_or(EINVAL)?, event)?;
        // SAFETY: the caller gives a place for the id.
        unsafe { id.write(made.c()) };
        Ok(())
    })
}
