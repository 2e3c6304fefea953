//! Memory windows.
//!
//! Windows of type 1 are bound by `ibv_bind_mw`, those of type 2 by a work request; to the card,
//! both are requests in a send queue.

use core::ffi::c_int;

use remora::nic::Access;
use remora::nic::memory::window::{MwBinding, MwType};
use remora::nic::queue::SendOp;

use super::context;
use super::mr;
use super::objects::Pd;
use super::pd;
use super::{EINVAL, ENOMEM, Result, number, or_null};
use crate::abi::*;
use crate::handles::{self, Object, Slot};

/// A memory window.
#[derive(Debug)]
pub struct Mw {
    /// Its protection domain.
    pub pd: &'static Slot<Pd>,
    /// The key that it was created with; later keys differ in the low 8 bits only.
    key: u32,
    /// Its type.
    pub kind: MwType,
}

impl Object for Mw {
    type C = ibv_mw;
    const KIND: handles::Kind = handles::Kind::Mw;
}

/// Looks up a window.
pub fn find(mw: *const ibv_mw) -> Result<&'static Slot<Mw>> {
    Ok(handles::get::<Mw>(mw)?)
}

/// `ibv_context_ops.alloc_mw`.
pub extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    or_null((|| {
        let pd = pd::find(pd)?;
        let mw = match kind {
            IBV_MW_TYPE_1 => MwType::Type1,
            IBV_MW_TYPE_2 => MwType::Type2,
            _ => return Err(EINVAL),
        };
        let key = pd.context.card.lock().commands().alloc_mw(pd.pd, mw)?;
        let context = context::inner(pd.context);
        let c = ibv_mw { context, pd: pd.c(), rkey: key, handle: key >> 8, r#type: kind };
        let Some(slot) = handles::create(c, Mw { pd, key, kind: mw }) else {
            pd.context.card.lock().commands().dealloc_mw(key).ok();
            return Err(ENOMEM);
        };
        pd.enter();
        pd.context.enter();
        Ok(slot.c())
    })())
}

/// `ibv_context_ops.dealloc_mw`.
pub extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    number((|| {
        let Mw { pd, key, .. } = handles::destroy::<Mw>(mw)?;
        pd.context.card.lock().commands().dealloc_mw(key)?;
        pd.leave();
        pd.context.leave();
        Ok(())
    })())
}

/// The window that a work request is to bind, which must be of type 2.
pub(crate) fn find_for_type_2(mw: *const ibv_mw) -> Result<&'static Slot<Mw>> {
    let mw = find(mw)?;
    if mw.kind == MwType::Type2 { Ok(mw) } else { Err(EINVAL) }
}

/// The request that binds a window, so that `key` opens it.
pub(crate) fn request(mw: &Slot<Mw>, key: u32, info: &ibv_mw_bind_info) -> Result<SendOp> {
    // Local writing needs no window, but programs pass the flag.
    let known = IBV_ACCESS_LOCAL_WRITE
        | IBV_ACCESS_REMOTE_WRITE
        | IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_ATOMIC
        | IBV_ACCESS_ZERO_BASED;
    if info.mw_access_flags & !known != 0 || key >> 8 != mw.key >> 8 {
        return Err(EINVAL);
    }
    let lkey = match info.mr.is_null() {
        true if info.length == 0 => 0,
        true => return Err(EINVAL),
        false => mr::find(info.mr)?.key,
    };
    let flags = info.mw_access_flags;
    let pairs = [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let access =
        pairs.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, access)| access).collect();
    let zero_based = flags & IBV_ACCESS_ZERO_BASED != 0;
    let to = MwBinding { lkey, addr: info.addr, len: info.length, access, zero_based };
    Ok(SendOp::BindMw { key, to })
}
