//! The answers about the port of an open device.

use core::ffi::c_int;
use core::mem::offset_of;
use std::ptr;

use remora::nic::qp::Mtu;
use remora::nic::queue::MAX_MESSAGE;

use super::{EINVAL, Result, context, number};
use crate::abi::newer::*;
use crate::abi::*;
use crate::card::{CAPABILITIES, GID_TABLE_LEN, ListedCard};

/// Fails unless `port` is 1, the only port.
pub(crate) fn check(port: u32) -> Result<()> {
    if port == 1 { Ok(()) } else { Err(EINVAL) }
}

/// `ibv_mtu` of an MTU.
pub(crate) fn mtu_of(mtu: Mtu) -> ibv_mtu {
    match mtu.bytes() {
        0..512 => IBV_MTU_256,
        512..1024 => IBV_MTU_512,
        1024..2048 => IBV_MTU_1024,
        2048..4096 => IBV_MTU_2048,
        _ => IBV_MTU_4096,
    }
}

/// Copies as much of an answer as the caller has room for, and zeroes the room beyond it.
///
/// # Safety
/// `to` has room for `room` bytes.
pub(crate) unsafe fn answer<T: Copy>(from: &T, to: *mut T, room: usize) -> Result<()> {
    if to.is_null() {
        return Err(EINVAL);
    }
    let size = room.min(size_of::<T>());
    // SAFETY: by promise of the caller; `from` is as long as its type.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(from).cast::<u8>(), to.cast(), size);
        to.cast::<u8>().add(size).write_bytes(0, room - size);
    }
    Ok(())
}

/// A card's port.
fn port_of(card: &ListedCard) -> ibv_port_attr_v57 {
    let mut attr = ibv_port_attr::zeroed();
    attr.state = IBV_PORT_ACTIVE;
    attr.max_mtu = IBV_MTU_4096;
    attr.active_mtu = mtu_of(card.mtu);
    attr.gid_tbl_len = GID_TABLE_LEN as c_int;
    attr.port_cap_flags = CAPABILITIES;
    attr.max_msg_sz = MAX_MESSAGE;
    attr.pkey_tbl_len = 1;
    attr.lid = card.lid();
    attr.max_vl_num = 1;
    // Four lanes of 25 Gb/s, as codes of the InfiniBand specification.
    attr.active_width = 2;
    attr.active_speed = 32;
    attr.phys_state = 5;
    attr.link_layer = IBV_LINK_LAYER_ETHERNET as u8;
    ibv_port_attr_v57 { base: attr, active_speed_ex: 32 }
}

/// `verbs_context.query_port`.
///
/// # Safety
/// `attr` has room for `len` bytes.
pub unsafe extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    len: usize,
) -> c_int {
    number((|| {
        let context = context::find(context)?;
        check(u32::from(port))?;
        // SAFETY: by promise of the caller.
        unsafe { answer(&port_of(context.card), attr.cast(), len) }
    })())
}

/// `ibv_query_port`, the function that old programs call: they have room for the struct up to
/// `flags`.
///
/// # Safety
/// `attr` has room for those fields.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: by promise of the caller.
    unsafe { query_port_sized(context, port, attr, offset_of!(ibv_port_attr, port_cap_flags2)) }
}

/// `ibv_query_port_speed`: in units of 100 Mb/s.
///
/// # Safety
/// `speed` is null or has room for the number.
pub unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    number((|| {
        context::find(context)?;
        check(port)?;
        // SAFETY: by promise of the caller.
        *unsafe { speed.as_mut() }.ok_or(EINVAL)? = 1000;
        Ok(())
    })())
}
