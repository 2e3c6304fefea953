//! Multicast groups: `rdma_join_multicast` and its relatives.
//!
//! On RoCE v2 a group is an IP multicast address, and joining takes no message to any other host:
//! the card receives what is sent to the address, for the queue pairs that are attached.

use core::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

use libc::sockaddr;

use super::groups::{detach, gid};
use super::objects::{Group, Id, Param};
use super::{EINVAL, Errno, Result, c_address, events, manager, queue_pair, status};
use crate::abi::rdma_cma::*;

/// The queue pair number to which datagrams to groups are sent.
const GROUP_QPN: u32 = 0xff_ffff;

fn join(id: &Arc<Id>, address: SocketAddr, receives: bool, context: *mut c_void) -> Result<()> {
    let ip = address.ip().to_canonical();
    if !ip.is_multicast() || !id.is_datagram() || id.get(|c| c.verbs).is_null() {
        return Err(EINVAL);
    }
    let mut state = id.lock();
    if state.groups.iter().any(|group| group.address.ip() == address.ip()) {
        return Err(Errno(libc::EADDRINUSE));
    }
    state.groups.push(Group { address, receives, attached: 0 });
    let tos = state.tos;
    drop(state);
    let mut param = rdma_ud_param::zeroed();
    param.ah_attr = queue_pair::address_vector(ip, tos);
    param.qp_num = GROUP_QPN;
    param.qkey = RDMA_UDP_QKEY;
    manager::push(id, RDMA_CM_EVENT_MULTICAST_JOIN, |news| {
        news.param = Param::Datagram(param);
        news.context = context as usize;
    });
    events::complete(id)
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives an address.
        let address = unsafe { c_address::from_c(addr) }?.ok_or(EINVAL)?;
        join(&id, address, true, context)
    })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives attributes, or a null pointer.
        let attr = unsafe { mc_join_attr.as_ref() }.ok_or(EINVAL)?;
        let known = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
        if attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_ADDRESS == 0 || attr.comp_mask & !known != 0 {
            return Err(EINVAL);
        }
        let receives = match attr.comp_mask & RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS {
            0 => true,
            _ => match attr.join_flags {
                RDMA_MC_JOIN_FLAG_FULLMEMBER => true,
                RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER => false,
                _ => return Err(EINVAL),
            },
        };
        // SAFETY: the caller gives an address.
        let address = unsafe { c_address::from_c(attr.addr) }?.ok_or(EINVAL)?;
        join(&id, address, receives, context)
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives an address.
        let address = unsafe { c_address::from_c(addr) }?.ok_or(EINVAL)?;
        let mut state = id.lock();
        let at = state.groups.iter().position(|group| group.address.ip() == address.ip());
        let group = state.groups.remove(at.ok_or(Errno(libc::EADDRNOTAVAIL))?);
        drop(state);
        // If the program has not fetched the event of the join, the event is withdrawn.
        if let Some(channel) = id.channel() {
            channel.take(|news| {
                let kind = news.kind == RDMA_CM_EVENT_MULTICAST_JOIN;
                let Param::Datagram(param) = &news.param else { return false };
                // SAFETY: GIDs are plain bytes.
                let of = unsafe { param.ah_attr.grh.dgid.raw };
                kind && Arc::ptr_eq(&news.id, &id) && of == gid(group.address)
            });
        }
        detach(&id, &group);
        Ok(())
    })
}
