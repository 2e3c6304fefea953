//! Posting receive requests.
//!
//! | place | function |
//! |---|---|
//! | `ibv_context_ops.post_recv` | [`post_recv`] |
//! | `ibv_context_ops.post_srq_recv` | [`post_srq_recv`] |

use std::ffi::c_int;

use remora::nic::PostError;
use remora::nic::queue::{MAX_SGE, RecvRequest, Sge};

use super::objects::{Qp, Srq};
use super::{EINVAL, Errno, Result};
use crate::abi::*;
use crate::handles;

/// Copies a program's scatter/gather list into `room`, and returns the number of entries.
///
/// # Safety
/// `list` is null or has `count` entries.
#[inline]
pub(crate) unsafe fn copy_sges(
    list: *const ibv_sge,
    count: usize,
    most: u32,
    room: &mut [Sge; MAX_SGE],
) -> Result<usize> {
    if count > most as usize || count > MAX_SGE || list.is_null() && count > 0 {
        return Err(EINVAL);
    }
    for (at, to) in room.iter_mut().take(count).enumerate() {
        // SAFETY: by promise of the caller.
        let sge = unsafe { list.add(at).read() };
        *to = Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey };
    }
    Ok(count)
}

/// Posts a list of requests, each by `post`; returns 0, or the error of the first refused request,
/// to which `bad` then points.
///
/// # Safety
/// The list and its entries can be read; `bad` is null or can be written.
#[inline]
unsafe fn post_list(
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    most_sges: u32,
    mut post: impl FnMut(&RecvRequest<'_>) -> core::result::Result<(), PostError>,
) -> c_int {
    let mut sges = [Sge::default(); MAX_SGE];
    // SAFETY: by promise of the caller, here and below.
    while let Some(request) = unsafe { wr.as_ref() } {
        let posted = usize::try_from(request.num_sge).map_err(|_| EINVAL).and_then(|count| {
            // SAFETY: as above.
            let count = unsafe { copy_sges(request.sg_list, count, most_sges, &mut sges) }?;
            let request = RecvRequest { wr_id: request.wr_id, sges: &sges[..count] };
            post(&request).map_err(Errno::from)
        });
        if let Err(Errno(errno)) = posted {
            if !bad.is_null() {
                // SAFETY: as above.
                unsafe { bad.write(wr) };
            }
            return errno;
        }
        wr = request.next;
    }
    0
}

/// The result of a call whose handle is bad: the first request is refused.
///
/// # Safety
/// `bad` is null or can be written.
pub(crate) unsafe fn refuse<W>(wr: *mut W, bad: *mut *mut W) -> c_int {
    if !bad.is_null() {
        // SAFETY: by promise of the caller.
        unsafe { bad.write(wr) };
    }
    libc::EINVAL
}

/// `ibv_post_recv`.
///
/// # Safety
/// The handle was once one of a queue pair; the list can be read; `bad_wr` is null or can be
/// written.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by promise of the caller, here and below.
    let Ok(qp) = (unsafe { handles::get_fast::<Qp>(qp.cast()) }) else {
        // SAFETY: as above.
        return unsafe { refuse(wr, bad_wr) };
    };
    if qp.takes_no_receives {
        // SAFETY: as above.
        return unsafe { refuse(wr, bad_wr) };
    }
    let mut card = qp.context.card.lock();
    let busy = card.wants_transmit();
    // SAFETY: as above.
    let outcome = unsafe {
        post_list(wr, bad_wr, qp.cap.max_recv_sge, |request| card.post_recv(qp.number, request))
    };
    if !busy && card.wants_transmit() {
        // The queue pair is in ERROR, so the card must flush the requests. (If the card was busy
        // before, the thread that made it so drives it already.)
        card.kick();
    }
    outcome
}

/// `ibv_post_srq_recv`.
///
/// # Safety
/// The handle was once one of a shared receive queue; the list can be read; `bad_wr` is null or can
/// be written.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: by promise of the caller, here and below.
    let Ok(srq) = (unsafe { handles::get_fast::<Srq>(srq) }) else {
        // SAFETY: as above.
        return unsafe { refuse(wr, bad_wr) };
    };
    let mut card = srq.context.card.lock();
    // SAFETY: as above.
    unsafe { post_list(wr, bad_wr, srq.max_sge, |request| card.post_srq_recv(srq.number, request)) }
}
