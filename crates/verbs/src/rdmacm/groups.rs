//! The multicast groups of an id: attaching its queue pair when the program sees the join, and
//! leaving.

use std::net::SocketAddr;

use super::objects::{Group, Id, News, Param};
use super::verbs;
use crate::abi::rdma_cma::*;
use crate::card;

pub(super) fn gid(address: SocketAddr) -> [u8; 16] {
    card::gid_of(address.ip().to_canonical())
}

/// Attaches the queue pair when the program sees the event of the join.
pub(super) fn before_delivery(id: &Id, news: &mut News) {
    let Param::Datagram(param) = &news.param else { return };
    // SAFETY: GIDs are plain bytes.
    let joined = unsafe { param.ah_attr.grh.dgid.raw };
    let qp = id.queue_pair();
    let mut state = id.lock();
    let group = state.groups.iter_mut().find(|group| gid(group.address) == joined);
    let Some(group) = group.filter(|group| group.receives && !qp.is_null()) else { return };
    group.attached = qp as usize;
    drop(state);
    if let Err(error) = verbs::attach_mcast(qp, joined) {
        news.kind = RDMA_CM_EVENT_MULTICAST_ERROR;
        news.status = -error.0;
    }
}

pub(super) fn detach(id: &Id, group: &Group) {
    let qp = id.queue_pair();
    if group.attached != 0
        && group.attached == qp as usize
        && let Err(error) = verbs::detach_mcast(qp, gid(group.address))
    {
        tracing::debug!(?error, "cannot detach a queue pair from a multicast group");
    }
}

/// Leaves all groups of an id that is being destroyed.
pub(super) fn leave_all(id: &Id) {
    let groups = std::mem::take(&mut id.lock().groups);
    groups.iter().for_each(|group| detach(id, group));
}
