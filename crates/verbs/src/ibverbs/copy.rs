//! `ibv_copy_*`: between the kernel's structs and the library's.

use crate::abi::kernel::*;
use crate::abi::*;

/// A GID with these bytes.
fn gid(raw: [u8; 16]) -> ibv_gid {
    ibv_gid { raw }
}

fn ah_attr(from: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    let mut to = ibv_ah_attr::zeroed();
    to.grh.dgid = gid(from.grh.dgid);
    to.grh.flow_label = from.grh.flow_label;
    to.grh.sgid_index = from.grh.sgid_index;
    to.grh.hop_limit = from.grh.hop_limit;
    to.grh.traffic_class = from.grh.traffic_class;
    to.dlid = from.dlid;
    to.sl = from.sl;
    to.src_path_bits = from.src_path_bits;
    to.static_rate = from.static_rate;
    to.is_global = from.is_global;
    to.port_num = from.port_num;
    to
}

/// `ibv_copy_ah_attr_from_kern`.
///
/// # Safety
/// The pointers are null or point to their structs.
pub(super) unsafe extern "C" fn ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: by promise of the caller.
    if let (Some(to), Some(from)) = unsafe { (to.as_mut(), from.as_ref()) } {
        *to = ah_attr(from);
    }
}

/// `ibv_copy_qp_attr_from_kern`.
///
/// # Safety
/// The pointers are null or point to their structs.
pub(super) unsafe extern "C" fn qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: by promise of the caller.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    to.cur_qp_state = from.cur_qp_state;
    to.path_mtu = from.path_mtu;
    to.path_mig_state = from.path_mig_state;
    to.qkey = from.qkey;
    to.rq_psn = from.rq_psn;
    to.sq_psn = from.sq_psn;
    to.dest_qp_num = from.dest_qp_num;
    to.qp_access_flags = from.qp_access_flags;
    to.cap = ibv_qp_cap {
        max_send_wr: from.max_send_wr,
        max_recv_wr: from.max_recv_wr,
        max_send_sge: from.max_send_sge,
        max_recv_sge: from.max_recv_sge,
        max_inline_data: from.max_inline_data,
    };
    to.ah_attr = ah_attr(&from.ah_attr);
    to.alt_ah_attr = ah_attr(&from.alt_ah_attr);
    to.pkey_index = from.pkey_index;
    to.alt_pkey_index = from.alt_pkey_index;
    to.en_sqd_async_notify = from.en_sqd_async_notify;
    to.sq_draining = from.sq_draining;
    to.max_rd_atomic = from.max_rd_atomic;
    to.max_dest_rd_atomic = from.max_dest_rd_atomic;
    to.min_rnr_timer = from.min_rnr_timer;
    to.port_num = from.port_num;
    to.timeout = from.timeout;
    to.retry_cnt = from.retry_cnt;
    to.rnr_retry = from.rnr_retry;
    to.alt_port_num = from.alt_port_num;
    to.alt_timeout = from.alt_timeout;
}

/// `ibv_copy_path_rec_from_kern`.
///
/// # Safety
/// The pointers are null or point to their structs.
pub(super) unsafe extern "C" fn path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: by promise of the caller.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    *to = ibv_sa_path_rec {
        dgid: gid(from.dgid),
        sgid: gid(from.sgid),
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as _,
        flow_label: from.flow_label,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        reversible: from.reversible as _,
        numb_path: from.numb_path,
        pkey: from.pkey,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        mtu: from.mtu as _,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}

/// `ibv_copy_path_rec_to_kern`.
///
/// # Safety
/// The pointers are null or point to their structs.
pub(super) unsafe extern "C" fn path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: by promise of the caller; both members of a GID are 16 bytes of any value.
    let (Some(to), Some(from)) = (unsafe { (to.as_mut(), from.as_ref()) }) else { return };
    // SAFETY: as above.
    let (dgid, sgid) = unsafe { (from.dgid.raw, from.sgid.raw) };
    *to = ib_user_path_rec {
        dgid,
        sgid,
        dlid: from.dlid,
        slid: from.slid,
        raw_traffic: from.raw_traffic as _,
        flow_label: from.flow_label,
        reversible: from.reversible as _,
        mtu: from.mtu as _,
        pkey: from.pkey,
        hop_limit: from.hop_limit,
        traffic_class: from.traffic_class,
        numb_path: from.numb_path,
        sl: from.sl,
        mtu_selector: from.mtu_selector,
        rate_selector: from.rate_selector,
        rate: from.rate,
        packet_life_time_selector: from.packet_life_time_selector,
        packet_life_time: from.packet_life_time,
        preference: from.preference,
    };
}
