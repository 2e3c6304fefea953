//! The answers about an open device: its limits and its clock.

use core::ffi::c_int;

use remora::nic::queue::MAX_SGE;

use super::device::copy_name;
use super::port::answer;
use super::{EINVAL, context, dm, number};
use crate::abi::newer::*;
use crate::abi::*;
use crate::card::{FIRMWARE, ListedCard};

/// The READs and atomics that a queue pair may have outstanding, each way.
const MAX_READS: c_int = 16;
/// The longest work queue.
const MAX_WORK: c_int = 1 << 16;
/// The longest region, in bytes: as long as the address space of a process.
pub(crate) const MAX_REGION: u64 = 1 << 47;

/// A limit, capped to a C `int`.
fn int(limit: usize) -> c_int {
    c_int::try_from(limit).unwrap_or(c_int::MAX)
}

/// A card's attributes.
pub(crate) fn device_of(card: &ListedCard) -> ibv_device_attr {
    let limits = card.device.limits();
    let mut attr = ibv_device_attr::zeroed();
    copy_name(&mut attr.fw_ver, FIRMWARE);
    attr.node_guid = card.guid.to_be();
    attr.sys_image_guid = card.guid.to_be();
    // The number that soft-RoCE gives: no vendor's, and not 0, which some programs take for
    // "unknown".
    attr.vendor_id = 0xff_ffff;
    attr.max_mr_size = MAX_REGION;
    attr.page_size_cap = 0xffff_f000;
    attr.max_qp = int(limits.max_qps);
    attr.max_qp_wr = MAX_WORK;
    attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    attr.max_sge = int(MAX_SGE);
    attr.max_sge_rd = int(MAX_SGE);
    attr.max_cq = int(limits.max_cqs);
    attr.max_cqe = int(limits.max_cqe);
    attr.max_mr = int(limits.max_mrs);
    attr.max_pd = int(limits.max_pds);
    attr.max_qp_rd_atom = MAX_READS;
    attr.max_res_rd_atom = int(limits.max_qps.saturating_mul(MAX_READS as usize));
    attr.max_qp_init_rd_atom = MAX_READS;
    // The processor's own atomics are used: atomic towards every access to the memory.
    // A daemon's atomics on memory that it reaches by system calls are so among its own only.
    attr.atomic_cap = if card.is_attached { IBV_ATOMIC_HCA } else { IBV_ATOMIC_GLOB };
    attr.max_mw = int(limits.max_mws);
    // The card limits groups, and members of each.
    attr.max_mcast_grp = int(limits.max_mcast);
    attr.max_mcast_qp_attach = int(limits.max_mcast);
    attr.max_total_mcast_qp_attach = int(limits.max_mcast.saturating_mul(limits.max_mcast));
    attr.max_ah = int(limits.max_ahs);
    attr.max_srq = int(limits.max_srqs);
    attr.max_srq_wr = MAX_WORK;
    attr.max_srq_sge = int(MAX_SGE);
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    attr
}

/// `ibv_query_device`.
///
/// # Safety
/// `attr` is null or has room for the struct.
pub unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    number((|| {
        let context = context::find(context)?;
        // SAFETY: by promise of the caller.
        unsafe { answer(&device_of(context.card), attr, size_of::<ibv_device_attr>()) }
    })())
}

/// `verbs_context.query_device_ex`.
///
/// # Safety
/// `input` is null or points to the struct; `attr` has room for `len` bytes.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    len: usize,
) -> c_int {
    number((|| {
        let card = context::find(context)?.card;
        // SAFETY: by promise of the caller.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0)
            || len < size_of::<ibv_device_attr>()
        {
            return Err(EINVAL);
        }
        let mut all = ibv_device_attr_ex::zeroed();
        all.orig_attr = device_of(card);
        let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
        all.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
        let caps = &mut all.odp_caps.per_transport_caps;
        caps.ud_odp_caps = messages;
        caps.uc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE;
        let answered = IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
        all.xrc_odp_caps = caps.uc_odp_caps | answered;
        let newer = IBV_ODP_SUPPORT_FLUSH | IBV_ODP_SUPPORT_ATOMIC_WRITE;
        caps.rc_odp_caps = caps.uc_odp_caps | answered | newer;
        // The card's clock counts nanoseconds; this field is in kHz.
        all.completion_timestamp_mask = u64::MAX;
        all.hca_core_clock = 1_000_000;
        all.device_cap_flags_ex = u64::from(all.orig_attr.device_cap_flags)
            | IBV_DEVICE_FLUSH_GLOBAL
            | IBV_DEVICE_ATOMIC_WRITE;
        all.cq_mod_caps =
            ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
        all.max_dm_size = dm::most(card);
        all.phys_port_cnt_ex = 1;
        // SAFETY: by promise of the caller.
        unsafe { answer(&all, attr, len) }
    })())
}

/// `verbs_context.query_rt_values`: the clock that completions are stamped by.
///
/// # Safety
/// `values` is null or points to the struct.
pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    number((|| {
        let context = context::find(context)?;
        // SAFETY: by promise of the caller.
        let values = unsafe { values.as_mut() }.ok_or(EINVAL)?;
        if values.comp_mask & IBV_VALUES_MASK_RAW_CLOCK != 0 {
            let now = context.card.device.now().0;
            // As mlx5 does: `tv_nsec` holds the counter's whole value.
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec: now as i64 };
        }
        values.comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        Ok(())
    })())
}
