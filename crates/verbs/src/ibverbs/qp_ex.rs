//! Posting by functions in the queue pair: `ibv_wr_start` to `ibv_wr_complete`.
//!
//! Between these two calls, requests gather in a batch, which goes to the card at the end: all of
//! it or nothing. The functions in between return no errors; `ibv_wr_complete` returns the first.

use std::ffi::{c_int, c_uint, c_void};

use remora::nic::queue::{FlushKind, MAX_INLINE, MAX_SGE, RemoteAddress, SendOp, Sge};
use remora::raw;

use super::objects::{Batch, Qp, Work};
use super::post::{self, Room, destination, send, takes_inline};
use super::qp_attr::Service;
use super::recv::copy_sges;
use super::{EINVAL, Errno, Result, mw};
use crate::abi::newer::*;
use crate::abi::*;
use crate::handles::{self, Slot};

/// Set in a queue pair's operations if it was created with a set of operations, even an empty one.
pub(crate) const IS_EXTENDED: u64 = 1 << 63;

const SENDS: u64 = (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM) as u64;
const WRITES: u64 = (IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) as u64;
const RELIABLE: u64 = (IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV) as u64;
const WINDOWS: u64 = (IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV) as u64;
const PLACES: u64 = (IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_FLUSH) as u64;

impl Service {
    /// The requests that the service supports.
    pub(crate) fn send_ops(self) -> u64 {
        match self {
            Service::Rc => SENDS | WRITES | RELIABLE | WINDOWS | PLACES,
            Service::XrcSend => SENDS | WRITES | RELIABLE | WINDOWS,
            Service::Uc => SENDS | WRITES | WINDOWS,
            Service::Ud => SENDS,
            Service::XrcRecv => 0,
        }
    }
}

/// The functions of a queue pair created for `ops`, in an otherwise empty object.
pub(crate) fn functions(ops: u64) -> ibv_qp_ex_v46 {
    let mut whole = ibv_qp_ex_v46 { base: ibv_qp_ex::zeroed(), wr_flush: None };
    if ops & IS_EXTENDED == 0 {
        return whole;
    }
    let c = &mut whole.base;
    let wants = |op: ibv_qp_create_send_ops_flags| ops & u64::from(op) != 0;
    macro_rules! set {
        ($($field:ident if $op:ident;)*) => {
            $(if wants($op) { c.$field = Some($field); })*
        };
    }
    set! {
        wr_atomic_cmp_swp if IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
        wr_atomic_fetch_add if IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
        wr_rdma_read if IBV_QP_EX_WITH_RDMA_READ;
        wr_rdma_write if IBV_QP_EX_WITH_RDMA_WRITE;
        wr_rdma_write_imm if IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
        wr_send if IBV_QP_EX_WITH_SEND;
        wr_send_imm if IBV_QP_EX_WITH_SEND_WITH_IMM;
        wr_send_inv if IBV_QP_EX_WITH_SEND_WITH_INV;
        wr_bind_mw if IBV_QP_EX_WITH_BIND_MW;
        wr_local_inv if IBV_QP_EX_WITH_LOCAL_INV;
        wr_atomic_write if IBV_QP_EX_WITH_ATOMIC_WRITE;
    }
    c.wr_set_ud_addr = Some(wr_set_ud_addr);
    c.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    c.wr_set_inline_data = Some(wr_set_inline_data);
    c.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    c.wr_set_sge = Some(wr_set_sge);
    c.wr_set_sge_list = Some(wr_set_sge_list);
    c.wr_start = Some(wr_start);
    c.wr_complete = Some(wr_complete);
    c.wr_abort = Some(wr_abort);
    if wants(IBV_QP_EX_WITH_FLUSH) {
        whole.wr_flush = Some(wr_flush);
    }
    whole
}

/// The queue pair and its batch, if a batch is open.
///
/// # Safety
/// The program took the function from the object, so the handle was once valid; the caller's thread
/// has begun the batch.
#[inline]
unsafe fn open<'a>(qp: *mut ibv_qp_ex) -> Option<(&'static Slot<Qp>, &'a mut Batch)> {
    // SAFETY: by promise of the caller: its thread holds the gate, so it has the batch alone.
    unsafe {
        let qp = handles::get_fast::<Qp>(qp.cast()).ok()?;
        qp.gate.is_held().then(|| (qp, &mut *qp.batch.get()))
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: the program took this function from the object, so the handle was once valid.
    let Ok(qp) = (unsafe { handles::get_fast::<Qp>(qp.cast()) }) else { return };
    let was_left = qp.gate.enter();
    // SAFETY: the gate is held. What the parent of a forked child has left half done is not looked
    // at, nor freed.
    unsafe {
        match was_left {
            true => qp.batch.get().write(Batch::default()),
            false => (*qp.batch.get()).clear(),
        }
    };
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the program took this function from the object, and calls it after `wr_start`.
    if let Some((qp, _)) = unsafe { open(qp) } {
        qp.gate.leave();
    }
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the program took this function from the object, and calls it after `wr_start`.
    let Some((qp, batch)) = (unsafe { open(qp) }) else { return libc::EINVAL };
    let outcome = match batch.error {
        Some(error) => Err(error),
        None if batch.works.is_empty() => Ok(()),
        None => commit(&mut qp.context.card.lock(), qp, batch),
    };
    qp.gate.leave();
    outcome.map_or_else(|Errno(errno)| errno, |()| 0)
}

/// Posts a whole batch, or none of it.
fn commit(card: &mut raw::LockedCard<'_>, qp: &Slot<Qp>, batch: &Batch) -> Result<()> {
    for work in &batch.works {
        if matches!(work.op, SendOp::Send { to: None, .. }) && qp.service == Service::Ud {
            return Err(EINVAL);
        }
    }
    if batch.works.len() > 1 {
        // After the first is posted the others must not fail, so room is checked before.
        card.check_sends(qp.number, batch.works.len())?;
    }
    let mut bytes = 0;
    for work in &batch.works {
        bytes += send(card, qp, work.srqn, &batch.request(work))?;
    }
    card.posted(batch.works.len() as u32, bytes);
    Ok(())
}

/// Begins a request.
///
/// # Safety
/// As for [`open`].
#[inline]
unsafe fn begin(handle: *mut ibv_qp_ex, op: SendOp) {
    // SAFETY: by promise of the caller; the program has written both fields.
    let (opened, wr_id, wr_flags): (_, u64, c_uint) =
        unsafe { (open(handle), (*handle).wr_id, (*handle).wr_flags) };
    let Some((qp, batch)) = opened else { return };
    // The functions that set the data decide about inline.
    match post::flags(qp, wr_flags & !IBV_SEND_INLINE, op) {
        Ok(flags) => {
            let start = batch.sges.len();
            batch.works.push(Work { wr_id, op, flags, inline: false, srqn: 0, start, len: 0 });
        }
        Err(error) => {
            batch.error.get_or_insert(error);
        }
    }
}

/// Changes the request that was begun last.
///
/// # Safety
/// As for [`open`].
#[inline]
unsafe fn change(
    qp: *mut ibv_qp_ex,
    change: impl FnOnce(&Qp, &mut Work, &mut Vec<Sge>, &mut Vec<u8>) -> Result<()>,
) {
    // SAFETY: by promise of the caller.
    let Some((qp, batch)) = (unsafe { open(qp) }) else { return };
    let changed = match batch.works.last_mut() {
        Some(work) => change(qp, work, &mut batch.sges, &mut batch.inline),
        None => Err(EINVAL),
    };
    if let Err(error) = changed {
        batch.error.get_or_insert(error);
    }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    compare: u64,
    swap: u64,
) {
    let at = RemoteAddress { addr: remote_addr, rkey };
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::CompareSwap { at, compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    add: u64,
) {
    let at = RemoteAddress { addr: remote_addr, rkey };
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::FetchAdd { at, add }) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::Read { from: RemoteAddress { addr: remote_addr, rkey } }) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
    let to = RemoteAddress { addr: remote_addr, rkey };
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::Write { to, imm: None }) };
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    imm_data: u32,
) {
    let to = RemoteAddress { addr: remote_addr, rkey };
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::Write { to, imm: Some(u32::from_be(imm_data)) }) };
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::Send { imm: None, to: None }) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, imm_data: u32) {
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::Send { imm: Some(u32::from_be(imm_data)), to: None }) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::SendInvalidate { rkey: invalidate_rkey }) };
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: the program took this function from the object.
    unsafe {
        change(qp, |qp, work, _, _| match &mut work.op {
            SendOp::Send { to, .. } if qp.service == Service::Ud => {
                *to = Some(destination(qp, ah, remote_qpn, remote_qkey)?);
                Ok(())
            }
            _ => Err(EINVAL),
        });
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the program took this function from the object.
    unsafe {
        change(qp, |_, work, _, _| {
            work.srqn = remote_srqn;
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    window: *mut ibv_mw,
    rkey: u32,
    bind_info: *const ibv_mw_bind_info,
) {
    // SAFETY: the program took this function from the object; the attributes can be read, if any.
    unsafe {
        let request = |found| mw::request(found, rkey, bind_info.as_ref().ok_or(EINVAL)?);
        match mw::find_for_type_2(window).and_then(request) {
            Ok(op) => begin(qp, op),
            Err(error) => fail(qp, error),
        }
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the program took this function from the object.
    unsafe { begin(qp, SendOp::LocalInvalidate { key: invalidate_rkey }) };
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    word: *const c_void,
) {
    let one = ibv_data_buf { addr: word.cast_mut(), length: 8 };
    // SAFETY: the program took this function from the object; the word can be read.
    unsafe {
        begin(qp, SendOp::AtomicWrite { to: RemoteAddress { addr: remote_addr, rkey } });
        put_inline(qp, 8, 1, &one);
    }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    remote_addr: u64,
    len: usize,
    kind: u8,
    level: u8,
) {
    let at = RemoteAddress { addr: remote_addr, rkey };
    let kind_of = FlushKind {
        global: kind & IBV_FLUSH_GLOBAL != 0,
        persistent: kind & IBV_FLUSH_PERSISTENT != 0,
        whole_region: level == IBV_FLUSH_MR,
    };
    let known = kind & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) == 0 && level <= IBV_FLUSH_MR;
    // SAFETY: the program took this function from the object.
    unsafe {
        match u32::try_from(len) {
            Ok(len) if known && kind != 0 => begin(qp, SendOp::Flush { at, len, kind: kind_of }),
            _ => fail(qp, EINVAL),
        }
    }
}

/// Records that a request was refused before it was begun.
///
/// # Safety
/// As for [`open`].
unsafe fn fail(qp: *mut ibv_qp_ex, error: Errno) {
    // SAFETY: by promise of the caller.
    if let Some((_, batch)) = unsafe { open(qp) } {
        batch.error.get_or_insert(error);
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr, length };
    // SAFETY: by promise of the caller, for a list of one.
    unsafe { wr_set_inline_data_list(qp, 1, &one) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: by promise of the caller.
    unsafe { put_inline(qp, 0, num_buf, buf_list) };
}

/// Copies inline data into the request that was begun last. It may have `at_least` bytes even if
/// the queue pair was created for fewer.
///
/// # Safety
/// As for [`open`]; the list has `count` entries, whose bytes can be read.
unsafe fn put_inline(
    qp: *mut ibv_qp_ex,
    at_least: usize,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: by promise of the caller.
    unsafe {
        change(qp, |qp, work, _, inline| {
            if !takes_inline(work.op) {
                return Err(EINVAL);
            }
            if buf_list.is_null() && num_buf > 0 {
                return Err(EINVAL);
            }
            let start = inline.len();
            inline.reserve(MAX_INLINE);
            let at = inline.as_mut_ptr().add(start);
            let mut room = Room { at, len: 0, most: qp.inline().max(at_least) };
            for buffer in 0..num_buf {
                let buffer = buf_list.add(buffer).read();
                room.copy(buffer.addr, buffer.length)?;
            }
            inline.set_len(start + room.len);
            (work.inline, work.start, work.len) = (true, start, room.len);
            Ok(())
        });
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one = ibv_sge { addr, length, lkey };
    // SAFETY: by promise of the caller, for a list of one.
    unsafe { wr_set_sge_list(qp, 1, &one) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, list: *const ibv_sge) {
    // SAFETY: the program took this function from the object; the list can be read.
    unsafe {
        change(qp, |qp, work, sges, _| {
            let mut copies = [Sge::default(); MAX_SGE];
            let count = copy_sges(list, num_sge, qp.cap.max_send_sge, &mut copies)?;
            (work.inline, work.start, work.len) = (false, sges.len(), count);
            sges.extend_from_slice(&copies[..count]);
            Ok(())
        });
    }
}
