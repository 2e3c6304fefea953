//! Extended completion queues: polled by functions in the object itself.
//!
//! The readers look at one completion, which `start_poll` or `next_poll` has taken from the card.
//! So a batch that ends early leaves the other completions in the queue, where `ibv_poll_cq` finds
//! them too.

use std::ffi::{c_int, c_uint};
use std::ptr::addr_of_mut;
use std::time::{SystemTime, UNIX_EPOCH};

use remora::nic::queue::Completion;

use super::cq::{self, CqInit};
use super::objects::Cq;
use super::poll::{self, look, take};
use super::{EINVAL, EOPNOTSUPP, Result, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};

/// The fields that a reader can be asked for. This card has no VLAN, flow tag or tag matching.
const WC_FLAGS: u64 = (IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) as u64;

/// `ibv_create_cq_ex`.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: by promise of the caller.
    or_null(create(context, unsafe { &*attr }))
}

fn create(context: *mut ibv_context, attr: &ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
    let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
    if attr.comp_mask & !known != 0 {
        return Err(EINVAL);
    }
    if attr.wc_flags & !WC_FLAGS != 0 {
        return Err(EOPNOTSUPP);
    }
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 { attr.flags } else { 0 };
    // A queue that overflows loses entries in any case, so ignoring overruns changes nothing.
    let known = IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    if flags & !known != 0 {
        return Err(EOPNOTSUPP);
    }
    if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 && !attr.parent_domain.is_null() {
        super::pd::find(attr.parent_domain)?;
    }
    let init = CqInit {
        context,
        entries: attr.cqe.into(),
        cq_context: attr.cq_context,
        channel: attr.channel,
        vector: attr.comp_vector.into(),
        single_threaded: flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0,
    };
    let wants = |flag: ibv_create_cq_wc_flags| attr.wc_flags & u64::from(flag) != 0;
    let mut c = ibv_cq_ex::zeroed();
    c.start_poll = Some(start_poll);
    c.next_poll = Some(next_poll);
    c.end_poll = Some(end_poll);
    c.read_opcode = Some(read_opcode);
    c.read_vendor_err = Some(read_vendor_err);
    c.read_wc_flags = Some(read_wc_flags);
    // The cheap readers are set even if not asked for: some programs do not ask.
    c.read_byte_len = Some(read_byte_len);
    c.read_imm_data = Some(read_imm_data);
    c.read_qp_num = Some(read_qp_num);
    c.read_src_qp = Some(read_src_qp);
    c.read_slid = Some(read_slid);
    c.read_sl = Some(read_sl);
    c.read_dlid_path_bits = Some(read_zero);
    if wants(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        c.read_completion_ts = Some(read_completion_ts);
    }
    if wants(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
        c.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
    Ok(cq::create(&init, c)?.c())
}

/// Makes `completion` the one that the readers see.
fn stand_at(cq: &Slot<Cq>, completion: Completion) {
    let c = cq.c();
    // SAFETY: the thread that polls holds the gate, or is the only one to poll; the slot is in use.
    unsafe {
        *cq.current.get() = completion;
        addr_of_mut!((*c).wr_id).write(completion.wr_id);
        addr_of_mut!((*c).status).write(poll::status(completion.status));
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program took this function from the object, so the handle was once valid; the
    // attributes are null or can be read.
    let (found, attr) = unsafe { (handles::get_fast::<Cq>(cq), attr.as_ref()) };
    let Ok(cq) = found else { return libc::EINVAL };
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    if !cq.single_threaded {
        cq.gate.enter();
    }
    let mut one = [Completion::default()];
    let looked = look(&mut cq.context.card.lock(), cq, &mut one);
    let outcome = match looked {
        Ok(1) => {
            stand_at(cq, one[0]);
            return 0;
        }
        Ok(_) => libc::ENOENT,
        Err(errno) => errno,
    };
    if !cq.single_threaded {
        cq.gate.leave();
    }
    if outcome == libc::ENOENT {
        cq.context.card.device.found_nothing();
    }
    outcome
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the program took this function from the object, so the handle was once valid.
    let Ok(cq) = (unsafe { handles::get_fast::<Cq>(cq) }) else { return libc::EINVAL };
    let mut one = [Completion::default()];
    let taken = take(&mut cq.context.card.lock(), cq, &mut one);
    match taken {
        Ok(1) => {
            stand_at(cq, one[0]);
            0
        }
        Ok(_) => libc::ENOENT,
        Err(errno) => errno,
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the program took this function from the object, so the handle was once valid.
    let Ok(cq) = (unsafe { handles::get_fast::<Cq>(cq) }) else { return };
    if !cq.single_threaded {
        cq.gate.leave();
    }
}

/// The completion at which the poll stands; an empty one if the handle is bad.
#[inline]
fn current(cq: *mut ibv_cq_ex) -> Completion {
    // SAFETY: the program took the reader from the object, so the handle was once valid; the
    // contract of `ibv_create_cq_ex(3)` is to read only between the start and the end of a poll.
    unsafe { handles::get_fast::<Cq>(cq).map(|cq| *cq.current.get()).unwrap_or_default() }
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    poll::opcode(current(cq).kind)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    poll::vendor_err(&current(cq))
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).len
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> u32 {
    poll::imm(&current(cq))
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).qpn
}

unsafe extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    current(cq).src_qp
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    poll::flags(current(cq).flags)
}

unsafe extern "C" fn read_slid(_: *mut ibv_cq_ex) -> u32 {
    0
}

unsafe extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: the program polls this queue, so the handle was once valid.
    unsafe { handles::get_fast::<Cq>(cq) }.map_or(0, |slot| poll::sl(slot, &current(cq)))
}

unsafe extern "C" fn read_zero(_: *mut ibv_cq_ex) -> u8 {
    0
}

/// In units of the card's clock, nanoseconds: see `hca_core_clock`.
unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    current(cq).at.0
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    let completion = current(cq);
    // SAFETY: as for the readers above.
    let Ok(cq) = (unsafe { handles::get_fast::<Cq>(cq) }) else { return 0 };
    let age = cq.context.card.device.now().since(completion.at);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(age).as_nanos() as u64
}
