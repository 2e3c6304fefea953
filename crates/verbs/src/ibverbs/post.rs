//! Posting send requests: `ibv_post_send`.
//!
//! | place | function |
//! |---|---|
//! | `ibv_context_ops.post_send` | [`post_send`] |
//!
//! `mod.rs` says which `errno` a refusal is. The other way to post, by functions in the queue pair,
//! is in [`super::qp_ex`].

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::{ptr, slice};

use remora::nic::queue::{
    Data, MAX_INLINE, MAX_SGE, RemoteAddress, SendFlags, SendOp, SendRequest, Sge, UdDestination,
};
use remora::raw;

use super::ah::Ah;
use super::objects::Qp;
use super::qp_attr::Service;
use super::recv::{copy_sges, refuse};
use super::{EINVAL, Errno, Result, mw};
use crate::abi::*;
use crate::handles::{self, Slot};

/// A Q_Key with this bit set in a datagram's request (`wr.ud.remote_qkey`, see `ibv_post_send(3)`)
/// stands for the Q_Key of the sending queue pair, as the InfiniBand specification has it.
const OWN_QKEY: u32 = 1 << 31;

/// `ibv_post_send`.
///
/// # Safety
/// The handle was once one of a queue pair; the list and its inline data can be read; `bad_wr` is
/// null or can be written.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by promise of the caller, here and below.
    let Ok(qp) = (unsafe { handles::get_fast::<Qp>(qp.cast()) }) else {
        // SAFETY: as above.
        return unsafe { refuse(wr, bad_wr) };
    };
    let mut card = qp.context.card.lock();
    let (mut posted, mut bytes) = (0, 0);
    let mut outcome = 0;
    // SAFETY: as above.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        match unsafe { post(&mut card, qp, request) } {
            Ok(long) => bytes += long,
            Err(Errno(errno)) => {
                if !bad_wr.is_null() {
                    // SAFETY: as above.
                    unsafe { bad_wr.write(wr) };
                }
                outcome = errno;
                break;
            }
        }
        posted += 1;
        wr = request.next;
    }
    if posted > 0 {
        card.posted(posted, bytes);
    }
    outcome
}

/// Posts one request; returns the number of bytes that it moves.
///
/// # Safety
/// The request's list and inline data can be read.
#[inline]
unsafe fn post(card: &mut raw::LockedCard<'_>, qp: &Slot<Qp>, wr: &ibv_send_wr) -> Result<u64> {
    // SAFETY: by promise of the caller: the op-code says which member of a union was written.
    let op = unsafe { operation(qp, wr) }?;
    let srqn = match qp.service {
        // SAFETY: for such a queue pair, the program has written that member.
        Service::XrcSend => unsafe { wr.qp_type.xrc.remote_srqn },
        _ => 0,
    };
    let flags = flags(qp, wr.send_flags, op)?;
    let count = usize::try_from(wr.num_sge).map_err(|_| EINVAL)?;
    if wr.send_flags & IBV_SEND_INLINE != 0 {
        if !takes_inline(op) || count > 0 && wr.sg_list.is_null() {
            return Err(EINVAL);
        }
        let mut bytes = MaybeUninit::<[u8; MAX_INLINE]>::uninit();
        let mut room = Room { at: bytes.as_mut_ptr().cast(), len: 0, most: qp.inline() };
        for at in 0..count {
            // SAFETY: by promise of the caller.
            unsafe {
                let sge = wr.sg_list.add(at).read();
                room.copy(sge.addr as usize as *const c_void, sge.length as usize)?;
            }
        }
        // SAFETY: that many bytes were written.
        let data = Data::Inline(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), room.len) });
        return send(card, qp, srqn, &SendRequest { wr_id: wr.wr_id, op, data, flags });
    }
    let mut sges = [Sge::default(); MAX_SGE];
    // SAFETY: by promise of the caller.
    let count = unsafe { copy_sges(wr.sg_list, count, qp.cap.max_send_sge, &mut sges) }?;
    let data = Data::Sges(&sges[..count]);
    send(card, qp, srqn, &SendRequest { wr_id: wr.wr_id, op, data, flags })
}

/// Writes a request into the ring; `srqn` names the shared receive queue of an XRC peer. Returns
/// the number of bytes that the request moves.
#[inline]
pub(crate) fn send(
    card: &mut raw::LockedCard<'_>,
    qp: &Slot<Qp>,
    srqn: u32,
    request: &SendRequest<'_>,
) -> Result<u64> {
    card.post_send(qp.number, srqn, request)?;
    Ok(match request.data {
        Data::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
        Data::Inline(bytes) => bytes.len() as u64,
    })
}

/// The place where inline data is gathered.
pub(crate) struct Room {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
    pub(crate) most: usize,
}

impl Room {
    /// Adds bytes of the program.
    ///
    /// # Safety
    /// `from` can be read; `at` has room for `most` bytes.
    pub(crate) unsafe fn copy(&mut self, from: *const c_void, len: usize) -> Result<()> {
        if len > self.most - self.len || from.is_null() && len > 0 {
            return Err(EINVAL);
        }
        // SAFETY: by promise of the caller; there is room left, and this call owns it.
        unsafe { ptr::copy_nonoverlapping(from.cast(), self.at.add(self.len), len) };
        self.len += len;
        Ok(())
    }
}

/// Does the operation send data of this side?
pub(crate) fn takes_inline(op: SendOp) -> bool {
    matches!(
        op,
        SendOp::Send { .. }
            | SendOp::SendInvalidate { .. }
            | SendOp::Write { .. }
            | SendOp::AtomicWrite { .. }
    )
}

/// The flags that the operation takes.
#[inline]
pub(crate) fn flags(qp: &Qp, flags: c_uint, op: SendOp) -> Result<SendFlags> {
    let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    if flags & !known != 0 {
        // Checksum offload is for Ethernet queue pairs.
        return Err(EINVAL);
    }
    let mut all = SendFlags::empty();
    all.set(SendFlags::SIGNALED, flags & IBV_SEND_SIGNALED != 0);
    all.set(SendFlags::FENCE, flags & IBV_SEND_FENCE != 0 && qp.service.is_reliable());
    let tells = !matches!(op, SendOp::Read { .. } | SendOp::Write { imm: None, .. });
    all.set(SendFlags::SOLICITED, flags & IBV_SEND_SOLICITED != 0 && tells);
    Ok(all)
}

/// The operation of a work request, if the service supports it.
///
/// # Safety
/// The op-code says which member of a union was written.
#[inline]
unsafe fn operation(qp: &Qp, wr: &ibv_send_wr) -> Result<SendOp> {
    // SAFETY: by promise of the caller, here and below.
    let imm = || Some(u32::from_be(unsafe { wr.imm.imm_data }));
    // SAFETY: as above.
    let rdma = || unsafe { RemoteAddress { addr: wr.wr.rdma.remote_addr, rkey: wr.wr.rdma.rkey } };
    // SAFETY: as above.
    let atomic = || unsafe { wr.wr.atomic };
    let word = || RemoteAddress { addr: atomic().remote_addr, rkey: atomic().rkey };
    let to = || match qp.service {
        Service::Ud => {
            // SAFETY: as above.
            let ud = unsafe { wr.wr.ud };
            destination(qp, ud.ah, ud.remote_qpn, ud.remote_qkey).map(Some)
        }
        _ => Ok(None),
    };
    let op = match wr.opcode {
        IBV_WR_SEND => SendOp::Send { imm: None, to: to()? },
        IBV_WR_SEND_WITH_IMM => SendOp::Send { imm: imm(), to: to()? },
        IBV_WR_RDMA_WRITE => SendOp::Write { to: rdma(), imm: None },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::Write { to: rdma(), imm: imm() },
        IBV_WR_RDMA_READ => SendOp::Read { from: rdma() },
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { at: word(), compare: atomic().compare_add, swap: atomic().swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { at: word(), add: atomic().compare_add },
        // SAFETY: as above.
        IBV_WR_SEND_WITH_INV => SendOp::SendInvalidate { rkey: unsafe { wr.imm.invalidate_rkey } },
        // SAFETY: as above.
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { key: unsafe { wr.imm.invalidate_rkey } },
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { to: rdma() },
        IBV_WR_BIND_MW => {
            // SAFETY: as above.
            let bind = unsafe { wr.extra.bind_mw };
            mw::request(mw::find_for_type_2(bind.mw)?, bind.rkey, &bind.bind_info)?
        }
        _ => return Err(EINVAL),
    };
    if qp.service.does(op) { Ok(op) } else { Err(EINVAL) }
}

/// The address handle of a datagram, which may be any pointer.
fn look_up(qp: &Qp, ah: *mut ibv_ah) -> Result<&'static Slot<Ah>> {
    let found = handles::get::<Ah>(ah)?;
    qp.last_ah.store(ah, Ordering::Relaxed);
    Ok(found)
}

/// The destination of a datagram.
#[inline]
pub(crate) fn destination(qp: &Qp, ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<UdDestination> {
    let ah = match qp.last_ah.load(Ordering::Relaxed) == ah {
        // SAFETY: it was a handle, and its memory stays one's.
        true => unsafe { handles::get_fast::<Ah>(ah) }?,
        false => look_up(qp, ah)?,
    };
    let qkey = if qkey & OWN_QKEY != 0 { qp.qkey() } else { qkey };
    Ok(UdDestination { ah: ah.number, qpn: qpn & 0xFF_FFFF, qkey })
}

impl Service {
    /// Does the service acknowledge requests?
    pub(crate) fn is_reliable(self) -> bool {
        !matches!(self, Service::Uc | Service::Ud)
    }

    /// Can the service carry this request?
    #[inline]
    pub(crate) fn does(self, op: SendOp) -> bool {
        match self {
            Service::Rc => true,
            Service::XrcSend => !matches!(op, SendOp::AtomicWrite { .. } | SendOp::Flush { .. }),
            Service::Uc => {
                let local = matches!(op, SendOp::BindMw { .. } | SendOp::LocalInvalidate { .. });
                local || matches!(op, SendOp::Send { .. } | SendOp::Write { .. })
            }
            Service::Ud => matches!(op, SendOp::Send { .. }),
            Service::XrcRecv => false,
        }
    }
}
