//! Queue pairs of ids: made with the objects they need, and moved through their states.

use core::ffi::c_int;
use std::ptr;

use super::objects::{Agreement, Id, Stage};
use super::{EINVAL, Result, status, verbs};
use crate::abi::newer::IBV_ACCESS_FLUSH_GLOBAL;
use crate::abi::rdma_cma::*;
use crate::abi::*;
use crate::card;

/// A queue pair's number, and whether it uses a shared receive queue: of the id's queue pair, or as
/// the program says.
pub(super) fn number(id: &Id, param: &rdma_conn_param) -> (u32, bool) {
    match id.queue_pair() {
        qp if qp.is_null() => (param.qp_num, param.srq != 0),
        // SAFETY: the id's queue pair, which the program keeps alive while it is set.
        qp => unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) },
    }
}

/// The attributes and the mask that a state takes, by the agreement.
fn attributes(id: &Id, state: ibv_qp_state) -> Result<(ibv_qp_attr, c_int)> {
    let guard = id.lock();
    let (agreement, route) = (guard.agreement, guard.route);
    let connecting = guard.conn.is_some() && guard.stage != Stage::Idle;
    drop(guard);
    let mut attr = ibv_qp_attr { qp_state: state, ..ibv_qp_attr::zeroed() };
    let reliable = !matches!(id.qp_type, IBV_QPT_UC | IBV_QPT_UD);
    let mut mask = IBV_QP_STATE;
    match state {
        IBV_QPS_INIT => {
            attr.port_num = 1;
            mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
            if id.is_datagram() {
                attr.qkey = RDMA_UDP_QKEY;
                mask |= IBV_QP_QKEY;
            } else {
                attr.qp_access_flags = access(id, connecting, &agreement);
                mask |= IBV_QP_ACCESS_FLAGS;
            }
        }
        IBV_QPS_RTR if id.is_datagram() => {}
        IBV_QPS_RTR => {
            let route = route.ok_or(EINVAL)?;
            attr.ah_attr = address_vector(route.peer, agreement.traffic_class);
            attr.path_mtu = agreement.path_mtu.into();
            attr.dest_qp_num = agreement.remote_qpn;
            // In connection management the receiver chooses the first PSN of the sender.
            attr.rq_psn = agreement.local_psn;
            mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
            if reliable && id.qp_type != IBV_QPT_XRC_SEND {
                attr.max_dest_rd_atomic = agreement.responder_resources;
                // 0 would mean the longest wait, 0.66 s (`ibv_modify_qp(3)`); a program that is not
                // ready yet rarely needs that long.
                attr.min_rnr_timer = 12;
                mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
            }
        }
        IBV_QPS_RTS => {
            attr.sq_psn = agreement.remote_psn;
            mask |= IBV_QP_SQ_PSN;
            if reliable {
                attr.timeout = agreement.ack_timeout;
                mask |= IBV_QP_TIMEOUT;
            }
            // The target of an XRC connection sends nothing but responses.
            if reliable && id.qp_type != IBV_QPT_XRC_RECV {
                attr.max_rd_atomic = agreement.initiator_depth;
                attr.retry_cnt = agreement.retry_count.min(7);
                attr.rnr_retry = agreement.rnr_retry_count.min(7);
                mask |= IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
            }
        }
        _ => return Err(EINVAL),
    }
    Ok((attr, mask as c_int))
}

/// What the peer may do: nothing until there is a peer.
fn access(id: &Id, connecting: bool, agreement: &Agreement) -> u32 {
    if !connecting || id.is_datagram() {
        return 0;
    }
    // As the kernel does for devices that can flush: a FLUSH is answered as a READ is.
    let reads = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_FLUSH_GLOBAL;
    IBV_ACCESS_REMOTE_WRITE | if agreement.responder_resources > 0 { reads } else { 0 }
}

/// The address vector of a card. The service level follows from the traffic class, as the upper
/// bits of its differentiated services code point, which cards for Ethernet schedule by.
pub(crate) fn address_vector(peer: std::net::IpAddr, traffic_class: u8) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: card::gid_of(peer) },
            flow_label: 0,
            sgid_index: verbs::GID_INDEX,
            hop_limit: 64,
            traffic_class,
        },
        is_global: 1,
        port_num: 1,
        sl: traffic_class >> 5,
        ..ibv_ah_attr::zeroed()
    }
}

/// Binds an id to a card without an address, for a program that only wants a queue pair on the
/// card.
pub(crate) fn bind_to_card(id: *mut rdma_cm_id, card: usize) -> Result<()> {
    Id::find(id)?.attach(card)
}

/// Moves the queue pair of an id to a state.
fn go(id: &Id, state: ibv_qp_state) -> Result<()> {
    let (mut attr, mask) = attributes(id, state)?;
    verbs::modify_qp(id.queue_pair(), &mut attr, mask)
}

/// Makes a connected queue pair ready to receive, then to send.
pub(super) fn make_ready(id: &Id) -> Result<()> {
    // The peer's rights are known only now.
    go(id, IBV_QPS_INIT)?;
    go(id, IBV_QPS_RTR)?;
    go(id, IBV_QPS_RTS)
}

/// Puts the id's queue pair, if there is one, into the error state.
pub(super) fn fail(id: &Id) {
    let qp = id.queue_pair();
    if qp.is_null() || id.is_datagram() {
        return;
    }
    let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::zeroed() };
    if let Err(error) = verbs::modify_qp(qp, &mut attr, IBV_QP_STATE as c_int) {
        tracing::debug!(?error, "a queue pair was gone before its connection");
    }
}

/// Makes the completion queues that the program does not provide.
fn make_queues(id: &Id, send: u32, recv: u32) -> Result<()> {
    let context = id.get(|c| c.verbs);
    if recv > 0 && id.get(|c| c.recv_cq).is_null() {
        let (cq, channel) = verbs::make_cq(context, recv, id.c().cast())?;
        id.set(|c| {
            // SAFETY: `set` gives the C struct, and these are plain fields of it.
            unsafe { ((*c).recv_cq, (*c).recv_cq_channel) = (cq, channel) };
        });
        id.lock().own_recv_cq = true;
    }
    if send > 0 && id.get(|c| c.send_cq).is_null() {
        let (cq, channel) = verbs::make_cq(context, send, id.c().cast())?;
        id.set(|c| {
            // SAFETY: as above.
            unsafe { ((*c).send_cq, (*c).send_cq_channel) = (cq, channel) };
        });
        id.lock().own_send_cq = true;
    }
    Ok(())
}

/// Destroys the completion queues that the library made for the program.
fn drop_queues(id: &Id) {
    let (own_send, own_recv) = {
        let mut state = id.lock();
        (std::mem::take(&mut state.own_send_cq), std::mem::take(&mut state.own_recv_cq))
    };
    let (send, recv) = id.get(|c| ((c.send_cq, c.send_cq_channel), (c.recv_cq, c.recv_cq_channel)));
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and these are plain fields of it.
        unsafe {
            if own_send {
                ((*c).send_cq, (*c).send_cq_channel) = (ptr::null_mut(), ptr::null_mut());
            }
            if own_recv {
                ((*c).recv_cq, (*c).recv_cq_channel) = (ptr::null_mut(), ptr::null_mut());
            }
        }
    });
    for (own, (cq, channel)) in [(own_send, send), (own_recv, recv)] {
        if own {
            verbs::drop_cq(cq, channel);
        }
    }
}

/// Makes a queue pair on an id: `rdma_create_qp_ex`.
pub(super) fn create(id: &Id, init: &mut ibv_qp_init_attr_ex) -> Result<()> {
    let (context, there, pd) = id.get(|c| (c.verbs, c.qp, c.pd));
    if context.is_null() || !there.is_null() {
        return Err(EINVAL);
    }
    if init.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= IBV_QP_INIT_ATTR_PD;
        init.pd = pd;
    }
    let has_domain = init.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0 && !init.xrcd.is_null();
    if init.qp_type == IBV_QPT_XRC_RECV && !has_domain {
        init.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = verbs::default_xrcd(id.card()?.index)?;
    }
    let (send_cq, recv_cq, srq) = id.get(|c| (c.send_cq, c.recv_cq, c.srq));
    let differs = |ours: *mut ibv_cq, theirs: *mut ibv_cq| {
        !ours.is_null() && !theirs.is_null() && ours != theirs
    };
    if differs(send_cq, init.send_cq) || differs(recv_cq, init.recv_cq) {
        return Err(EINVAL);
    }
    let send = if init.send_cq.is_null() { init.cap.max_send_wr } else { 0 };
    let recv = if init.recv_cq.is_null() { init.cap.max_recv_wr } else { 0 };
    make_queues(id, send, recv)?;
    let (send_cq, recv_cq) = id.get(|c| (c.send_cq, c.recv_cq));
    if init.send_cq.is_null() {
        init.send_cq = send_cq;
    }
    if init.recv_cq.is_null() {
        init.recv_cq = recv_cq;
    }
    if !srq.is_null() && init.srq.is_null() {
        init.srq = srq;
    }
    let made = verbs::create_qp_ex(context, init);
    let qp = match made {
        Ok(qp) => qp,
        Err(error) => {
            drop_queues(id);
            return Err(error);
        }
    };
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and these are plain fields of it.
        unsafe { ((*c).qp, (*c).pd) = (qp, init.pd) };
    });
    let states: &[ibv_qp_state] = match id.is_datagram() {
        true => &[IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS],
        false => &[IBV_QPS_INIT],
    };
    let ready = states.iter().try_for_each(|state| go(id, *state));
    if ready.is_err() {
        destroy(id);
    }
    ready
}

/// Destroys the queue pair of an id, and the objects made for it.
pub(super) fn destroy(id: &Id) {
    let qp = id.queue_pair();
    if qp.is_null() {
        return;
    }
    verbs::destroy_qp(qp);
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).qp = ptr::null_mut() };
    });
    drop_queues(id);
}

/// Makes a queue pair from the older attributes, and writes the resulting sizes back.
pub(super) fn create_old(id: &Id, pd: *mut ibv_pd, init: &mut ibv_qp_init_attr) -> Result<()> {
    let mut attr = ibv_qp_init_attr_ex {
        qp_context: init.qp_context,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        cap: init.cap,
        qp_type: init.qp_type,
        sq_sig_all: init.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd: if pd.is_null() { id.get(|c| c.pd) } else { pd },
        ..ibv_qp_init_attr_ex::zeroed()
    };
    create(id, &mut attr)?;
    *init = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
    };
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    qp_init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives attributes, which no other thread accesses meanwhile.
        create_old(&id, pd, unsafe { qp_init_attr.as_mut() }.ok_or(EINVAL)?)
    })
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(
    id: *mut rdma_cm_id,
    qp_init_attr: *mut ibv_qp_init_attr_ex,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives attributes, which no other thread accesses meanwhile.
        create(&id, unsafe { qp_init_attr.as_mut() }.ok_or(EINVAL)?)
    })
}

pub(crate) extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    status(|| {
        destroy(&*Id::find(id)?);
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    qp_attr: *mut ibv_qp_attr,
    qp_attr_mask: *mut c_int,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        if qp_attr.is_null() || qp_attr_mask.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives attributes whose state is set.
        let state = unsafe { (*qp_attr).qp_state };
        let (attr, mask) = attributes(&id, state)?;
        // SAFETY: the caller gives places for both.
        unsafe {
            qp_attr.write(attr);
            qp_attr_mask.write(mask);
        }
        Ok(())
    })
}

/// Makes a shared receive queue on an id.
fn create_srq(id: &Id, init: &mut ibv_srq_init_attr_ex) -> Result<()> {
    let (context, there, pd) = id.get(|c| (c.verbs, c.srq, c.pd));
    if context.is_null() || !there.is_null() {
        return Err(EINVAL);
    }
    if init.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || init.pd.is_null() {
        init.comp_mask |= IBV_SRQ_INIT_ATTR_PD;
        init.pd = pd;
    }
    let extended = init.comp_mask & IBV_SRQ_INIT_ATTR_TYPE != 0 && init.srq_type == IBV_SRQT_XRC;
    if extended {
        if init.comp_mask & IBV_SRQ_INIT_ATTR_XRCD == 0 || init.xrcd.is_null() {
            init.xrcd = verbs::default_xrcd(id.card()?.index)?;
            init.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD;
        }
        if init.comp_mask & IBV_SRQ_INIT_ATTR_CQ == 0 || init.cq.is_null() {
            make_queues(id, 0, init.attr.max_wr)?;
            init.cq = id.get(|c| c.recv_cq);
            init.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
        }
    }
    let srq = verbs::create_srq_ex(context, init).inspect_err(|_| drop_queues(id))?;
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and these are plain fields of it.
        unsafe { ((*c).srq, (*c).pd) = (srq, init.pd) };
    });
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives attributes, which no other thread accesses meanwhile.
        let attr = unsafe { attr.as_mut() }.ok_or(EINVAL)?;
        let mut init = ibv_srq_init_attr_ex {
            srq_context: attr.srq_context,
            attr: attr.attr,
            comp_mask: IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
            // The old attributes have no type; the id's type decides.
            srq_type: match id.qp_type {
                IBV_QPT_XRC_RECV => IBV_SRQT_XRC,
                _ => IBV_SRQT_BASIC,
            },
            pd,
            ..ibv_srq_init_attr_ex::zeroed()
        };
        create_srq(&id, &mut init)?;
        attr.attr = init.attr;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut rdma_cm_id,
    attr: *mut ibv_srq_init_attr_ex,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        // SAFETY: the caller gives attributes, which no other thread accesses meanwhile.
        create_srq(&id, unsafe { attr.as_mut() }.ok_or(EINVAL)?)
    })
}

pub(crate) extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    status(|| {
        let id = Id::find(id)?;
        destroy_srq(&id);
        Ok(())
    });
}

pub(super) fn destroy_srq(id: &Id) {
    let srq = id.get(|c| c.srq);
    if srq.is_null() {
        return;
    }
    verbs::destroy_srq(srq);
    id.set(|c| {
        // SAFETY: `set` gives the C struct, and this is a plain field of it.
        unsafe { (*c).srq = ptr::null_mut() };
    });
    if id.queue_pair().is_null() {
        drop_queues(id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::objects::{EventChannel, Route};
    use super::*;

    #[test]
    fn each_side_sends_from_the_psn_that_the_peer_has_chosen() {
        // As Linux does. Two ends that both had it the other way round would work with each other,
        // but with no standard peer.
        let id =
            Id::create(EventChannel::create().unwrap(), false, RDMA_PS_TCP, IBV_QPT_RC).unwrap();
        let mut state = id.lock();
        state.route = Some(Route { peer: [127, 0, 0, 1].into(), mtu: 5 });
        (state.agreement.local_psn, state.agreement.remote_psn) = (11, 22);
        drop(state);
        let of = |state| attributes(&id, state).unwrap();
        let (rtr, rts) = (of(IBV_QPS_RTR), of(IBV_QPS_RTS));
        assert_eq!((rtr.0.rq_psn, rtr.1 & IBV_QP_RQ_PSN as c_int), (11, IBV_QP_RQ_PSN as c_int));
        assert_eq!((rts.0.sq_psn, rts.1 & IBV_QP_SQ_PSN as c_int), (22, IBV_QP_SQ_PSN as c_int));
        id.end_handle().unwrap();
    }
}
