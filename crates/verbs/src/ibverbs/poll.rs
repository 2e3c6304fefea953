//! Taking completions: `ibv_poll_cq`.
//!
//! Polling drives the card: the card sends what was kept back, and if the queue is empty, it
//! receives what has arrived, and the queue is looked at again.

use std::ffi::c_int;

use remora::nic::queue::{Completion, CompletionFlags, Opcode, PollCqError, Status, WorkKind};
use remora::raw;

use super::objects::Cq;
use crate::abi::*;
use crate::handles::{self, Slot};

/// Completions taken at a time.
const BATCH: usize = 16;

/// `ibv_poll_cq`: the number of completions found; negative if the handle is bad or the queue has
/// overflowed.
///
/// # Safety
/// The handle was once one of a completion queue; `wc` has room for `entries`.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: by promise of the caller.
    let Ok(cq) = (unsafe { handles::get_fast::<Cq>(cq.cast()) }) else { return -libc::EINVAL };
    let Ok(entries) = usize::try_from(entries) else { return -libc::EINVAL };
    // SAFETY: by promise of the caller.
    let found = unsafe { poll(cq, entries, wc) };
    if found == 0 {
        cq.context.card.device.found_nothing();
    }
    found
}

/// As [`poll_cq`].
///
/// # Safety
/// `wc` has room for `entries`.
#[inline]
unsafe fn poll(cq: &Slot<Cq>, entries: usize, wc: *mut ibv_wc) -> c_int {
    let mut card = cq.context.card.lock();
    let mut found = 0;
    if entries == 1 {
        // Most programs poll for one completion at a time.
        let mut one = [Completion::default()];
        match look(&mut card, cq, &mut one) {
            // SAFETY: by promise of the caller, there is room for one.
            Ok(1) => unsafe { wc.write(to_wc(cq, &one[0])) },
            Ok(_) => return 0,
            Err(errno) => return -errno,
        }
        return 1;
    }
    let mut some = [Completion::default(); BATCH];
    while found < entries {
        let most = BATCH.min(entries - found);
        let taken = match found {
            0 => look(&mut card, cq, &mut some[..most]),
            _ => take(&mut card, cq, &mut some[..most]),
        };
        let taken = match taken {
            Ok(taken) => taken,
            Err(_) if found > 0 => break,
            Err(errno) => return -errno,
        };
        for completion in &some[..taken] {
            // SAFETY: by promise of the caller, there is room for `entries`.
            unsafe { wc.add(found).write(to_wc(cq, completion)) };
            found += 1;
        }
        if taken < most {
            break;
        }
    }
    found as c_int
}

/// Takes completions; drives the card a step if there are none.
#[inline]
pub(crate) fn look(
    card: &mut raw::LockedCard<'_>,
    cq: &Slot<Cq>,
    out: &mut [Completion],
) -> Result<usize, i32> {
    card.flush();
    let found = take(card, cq, out)?;
    if found > 0 {
        card.found(cq.number);
        return Ok(found);
    }
    card.progress();
    take(card, cq, out)
}

/// Takes completions that are in the queue. A queue that has overflowed is an error once it is
/// empty.
#[inline]
pub(crate) fn take(
    card: &mut raw::LockedCard<'_>,
    cq: &Slot<Cq>,
    out: &mut [Completion],
) -> Result<usize, i32> {
    card.poll_cq(cq.number, out).map_err(|error| match error {
        PollCqError::Gone => libc::EIO,
        _ => libc::EOVERFLOW,
    })
}

/// A completion as verbs report it.
#[inline]
fn to_wc(cq: &Cq, completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: status(completion.status),
        opcode: opcode(completion.kind),
        vendor_err: vendor_err(completion),
        byte_len: completion.len,
        imm: ibv_wc_imm { imm_data: imm(completion) },
        qp_num: completion.qpn,
        src_qp: completion.src_qp,
        wc_flags: flags(completion.flags),
        pkey_index: 0,
        slid: 0,
        sl: sl(cq, completion),
        dlid_path_bits: 0,
    }
}

/// The service level of a completion. It has no meaning on Ethernet; for a datagram, RoCE v2
/// devices report the kind of its GRH here: 1 an IPv6 header, 2 an IPv4 header in the second half.
/// UCX reads it.
#[inline]
pub(crate) fn sl(cq: &Cq, completion: &Completion) -> u8 {
    match completion.flags.contains(CompletionFlags::GRH) {
        true if cq.context.card.address.is_ipv4() => 2,
        true => 1,
        false => 0,
    }
}

pub(crate) fn status(status: Status) -> ibv_wc_status {
    match status {
        Status::Success => IBV_WC_SUCCESS,
        Status::LocalLength => IBV_WC_LOC_LEN_ERR,
        Status::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        Status::LocalProtection => IBV_WC_LOC_PROT_ERR,
        Status::Flushed => IBV_WC_WR_FLUSH_ERR,
        Status::BadResponse => IBV_WC_BAD_RESP_ERR,
        Status::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        Status::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        Status::RemoteOperation => IBV_WC_REM_OP_ERR,
        Status::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        Status::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
        Status::MwBind => IBV_WC_MW_BIND_ERR,
    }
}

pub(crate) fn opcode(kind: WorkKind) -> ibv_wc_opcode {
    match kind {
        WorkKind::Recv => IBV_WC_RECV,
        WorkKind::RecvWriteImm => IBV_WC_RECV_RDMA_WITH_IMM,
        WorkKind::Send(Opcode::Write | Opcode::WriteImm) => IBV_WC_RDMA_WRITE,
        WorkKind::Send(Opcode::Read) => IBV_WC_RDMA_READ,
        WorkKind::Send(Opcode::CompareSwap) => IBV_WC_COMP_SWAP,
        WorkKind::Send(Opcode::FetchAdd) => IBV_WC_FETCH_ADD,
        WorkKind::Send(Opcode::BindMw) => IBV_WC_BIND_MW,
        WorkKind::Send(Opcode::LocalInvalidate) => IBV_WC_LOCAL_INV,
        WorkKind::Send(Opcode::AtomicWrite) => IBV_WC_ATOMIC_WRITE,
        WorkKind::Send(Opcode::Flush) => newer::IBV_WC_FLUSH,
        // For a request that was flushed unread, its operation is not known and has no meaning.
        WorkKind::Send(_) | WorkKind::Unread => IBV_WC_SEND,
    }
}

/// The vendor's error code of a failed request: Remora's status as a number. The log has the
/// details.
pub(crate) fn vendor_err(completion: &Completion) -> u32 {
    match completion.status {
        Status::Success => 0,
        other => 0x100 | other as u32,
    }
}

/// Immediate data in network byte order, or the key that was invalidated.
pub(crate) fn imm(completion: &Completion) -> u32 {
    if completion.flags.contains(CompletionFlags::IMM) {
        completion.imm_or_key.to_be()
    } else {
        completion.imm_or_key
    }
}

pub(crate) fn flags(flags: CompletionFlags) -> u32 {
    [
        (CompletionFlags::GRH, IBV_WC_GRH),
        (CompletionFlags::IMM, IBV_WC_WITH_IMM),
        (CompletionFlags::INVALIDATED, IBV_WC_WITH_INV),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .fold(0, |all, (_, wc)| all | wc)
}
