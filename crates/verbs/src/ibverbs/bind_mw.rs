//! Binding memory windows of type 1.

use core::ffi::c_int;

use remora::nic::memory::window::{MwType, next_key};
use remora::nic::queue::{Data, SendRequest};

use super::mw::{find, request};
use super::{EINVAL, number, post, qp};
use crate::abi::*;

/// `ibv_context_ops.bind_mw`, for windows of type 1: `mw` has its new key when this returns.
///
/// # Safety
/// `bind` is null or points to the struct.
pub unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    number((|| {
        let (queue, slot) = (qp::find(qp)?, find(mw)?);
        // SAFETY: by promise of the caller.
        let bind = unsafe { bind.as_ref() }.ok_or(EINVAL)?;
        if slot.kind != MwType::Type1 {
            return Err(EINVAL);
        }
        // SAFETY: the slot's own struct.
        let key = next_key(unsafe { (*slot.c()).rkey });
        let op = request(slot, key, &bind.bind_info)?;
        let flags = post::flags(queue, bind.send_flags & !IBV_SEND_INLINE, op)?;
        let request = SendRequest { wr_id: bind.wr_id, op, data: Data::Sges(&[]), flags };
        let mut card = queue.context.card.lock();
        post::send(&mut card, queue, 0, &request)?;
        card.posted(1, 0);
        drop(card);
        // SAFETY: as above; a program binds a window from one thread at a time.
        unsafe { (*slot.c()).rkey = key };
        Ok(())
    })())
}
