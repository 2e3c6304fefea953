//! The GID and P_Key tables.

use core::ffi::c_int;

use super::port;
use super::{EINVAL, EOPNOTSUPP, Errno, Result, context, number, or_minus_one, set_errno};
use crate::abi::*;
use crate::card::GID_TABLE_LEN;
use crate::card::ListedCard;

/// The one entry of the P_Key table: the default partition, as a full member.
const PKEY: u16 = 0xffff;

/// The table's entry at `index`.
fn entry(card: &ListedCard, port: u32, index: u32) -> Result<ibv_gid_entry> {
    port::check(port)?;
    if index >= GID_TABLE_LEN {
        return Err(EINVAL);
    }
    Ok(ibv_gid_entry {
        gid: ibv_gid { raw: card.gid() },
        gid_index: index,
        port_num: port,
        gid_type: IBV_GID_TYPE_ROCE_V2,
        ndev_ifindex: card.ifindex,
    })
}

/// `ibv_query_gid`: -1 on failure.
///
/// # Safety
/// `gid` is null or has room for a GID.
pub unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    or_minus_one((|| {
        let context = context::find(context)?;
        let index = u32::try_from(index).map_err(|_| EINVAL)?;
        let entry = entry(context.card, u32::from(port), index)?;
        // SAFETY: by promise of the caller.
        *unsafe { gid.as_mut() }.ok_or(EINVAL)? = entry.gid;
        Ok(0)
    })())
}

/// `_ibv_query_gid_ex`.
///
/// # Safety
/// `to` has room for `size` bytes.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    to: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    number((|| {
        let context = context::find(context)?;
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let entry = entry(context.card, port, index)?;
        // SAFETY: by promise of the caller.
        unsafe { port::answer(&entry, to, size) }
    })())
}

/// `_ibv_query_gid_table`: the number of entries, or the negative error number.
///
/// # Safety
/// `to` has room for `max` entries of `size` bytes.
pub unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    to: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let table = || {
        let context = context::find(context)?;
        if flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if max < GID_TABLE_LEN as usize || size < size_of::<ibv_gid_entry>() {
            return Err(EINVAL);
        }
        for index in 0..GID_TABLE_LEN {
            let place = to.wrapping_byte_add(index as usize * size);
            // SAFETY: the place is one of the entries that there is room for, by promise of the
            // caller.
            unsafe { port::answer(&entry(context.card, 1, index)?, place, size) }?;
        }
        Ok(GID_TABLE_LEN as isize)
    };
    table().unwrap_or_else(|error: Errno| {
        set_errno(error);
        -(error.0 as isize)
    })
}

/// `ibv_query_gid_type`, of the private version node: 0 is InfiniBand and RoCE v1, 1 is RoCE v2.
///
/// # Safety
/// `kind` is null or has room for the enum.
pub unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    or_minus_one((|| {
        let context = context::find(context)?;
        entry(context.card, u32::from(port), index)?;
        // SAFETY: by promise of the caller.
        *unsafe { kind.as_mut() }.ok_or(EINVAL)? = 1;
        Ok(0)
    })())
}

/// `ibv_query_pkey`: -1 on failure.
///
/// # Safety
/// `pkey` is null or has room for a P_Key.
pub unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    or_minus_one((|| {
        context::find(context)?;
        port::check(u32::from(port))?;
        if index != 0 {
            return Err(EINVAL);
        }
        // SAFETY: by promise of the caller.
        *unsafe { pkey.as_mut() }.ok_or(EINVAL)? = PKEY.to_be();
        Ok(0)
    })())
}

/// `ibv_get_pkey_index`: -1 on failure. The P_Key of a limited member names the same partition.
pub extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    or_minus_one((|| {
        context::find(context)?;
        port::check(u32::from(port))?;
        if u16::from_be(pkey) == PKEY { Ok(0) } else { Err(EINVAL) }
    })())
}
