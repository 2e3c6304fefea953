//! The list of devices, and the calls on a device that is not open. (What an open one can do is in
//! `device_attr`.)

use core::ffi::{c_char, c_int};
use core::mem::offset_of;
use std::ptr;

use super::{EINVAL, ENOMEM, Result, or_null, set_errno};
use crate::abi::*;
use crate::card::ListedCard;
use crate::handles::{self, Object, Slot};
use crate::process;
use crate::sysfs;

/// A device: a card of this process. Each has one handle, which is never freed.
#[derive(Debug)]
pub struct Device {
    /// The card.
    pub card: &'static ListedCard,
}

impl Object for Device {
    type C = ibv_device;
    const KIND: handles::Kind = handles::Kind::Device;
}

/// The handle of each device, in the order of the cards.
#[derive(Debug, Default)]
struct Devices(std::sync::OnceLock<Vec<&'static Slot<Device>>>);

/// The handles of this process's devices.
pub fn devices() -> Vec<&'static Slot<Device>> {
    let process = process::current();
    let devices = process.shared::<Devices>();
    let made = devices.0.get_or_init(|| process.cards().iter().filter_map(describe).collect());
    made.clone()
}

fn describe(card: &'static ListedCard) -> Option<&'static Slot<Device>> {
    let mut c = ibv_device::zeroed();
    c.node_type = IBV_NODE_CA;
    c.transport_type = IBV_TRANSPORT_IB;
    copy_name(&mut c.name, &card.name);
    copy_name(&mut c.dev_name, &format!("uverbs{}", card.index));
    copy_name(&mut c.dev_path, &sysfs::verbs_path(card));
    copy_name(&mut c.ibdev_path, &card.directory);
    handles::create(c, Device { card })
}

/// Copies as much as fits, and a zero byte at the end.
pub(crate) fn copy_name(to: &mut [c_char], from: &str) {
    let Some((last, room)) = to.split_last_mut() else { return };
    room.fill(0);
    for (to, from) in room.iter_mut().zip(from.bytes()) {
        *to = from as c_char;
    }
    *last = 0;
}

/// `ibv_get_device_list`.
///
/// # Safety
/// `count` is null or has room for a number.
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices = devices();
    // SAFETY: by promise of the caller.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = devices.len() as c_int;
    }
    // SAFETY: allocates the list and a null at its end; no pointers are passed.
    let list = unsafe { libc::calloc(devices.len() + 1, size_of::<*mut ibv_device>()) };
    let list = list.cast::<*mut ibv_device>();
    if list.is_null() {
        return or_null(Err(ENOMEM));
    }
    for (at, device) in devices.iter().enumerate() {
        // SAFETY: within the list that was just allocated.
        unsafe { list.add(at).write(device.c()) };
    }
    list
}

/// `ibv_free_device_list`. The devices stay valid, open or not.
///
/// # Safety
/// `list` is null or from [`get_device_list`].
pub unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: by promise of the caller.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`: the name in the struct, which may be a program's copy of it.
pub extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        set_errno(EINVAL);
        return ptr::null();
    }
    device.wrapping_byte_add(offset_of!(ibv_device, name)).cast()
}

/// `ibv_get_device_index`: a device's number in the kernel's rdma netlink. The kernel knows no such
/// device, and -1 says so.
pub extern "C" fn get_device_index(_device: *mut ibv_device) -> c_int {
    -1
}

/// `ibv_get_device_guid`: in network byte order.
pub extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    handles::get::<Device>(device).map_or_else(
        |error| {
            set_errno(error.into());
            0
        },
        |device| device.card.guid.to_be(),
    )
}

/// The device behind a handle.
pub(crate) fn find(device: *const ibv_device) -> Result<&'static Slot<Device>> {
    handles::get::<Device>(device).map_err(|_| EINVAL)
}
