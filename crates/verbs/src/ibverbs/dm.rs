//! Device memory: pieces of the card's own memory.

use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use remora::nic::MemoryFault;
use remora::raw::DM_COPY_MAX;

use super::context;
use super::objects::Context;
use super::{EBUSY, EINVAL, ENOMEM, Errno, Result, number, or_null};
use crate::abi::*;
use crate::card::ListedCard;
use crate::handles::{self, Object, Slot};

/// A piece of device memory.
#[derive(Debug)]
pub struct Dm {
    /// The context on which it was allocated.
    pub context: &'static Slot<Context>,
    /// The bus address that the card gave out, for freeing it; `addr` is the same, aligned.
    given: u64,
    addr: u64,
    len: u64,
    /// The number of regions in it.
    pub regions: AtomicUsize,
}

impl Object for Dm {
    type C = ibv_dm;
    const KIND: handles::Kind = handles::Kind::Dm;
}

impl Dm {
    /// The bus address of `len` bytes from `offset` on.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.addr + offset),
            _ => Err(EINVAL),
        }
    }
}

/// Looks up a piece of device memory.
pub fn find(dm: *const ibv_dm) -> Result<&'static Slot<Dm>> {
    Ok(handles::get::<Dm>(dm)?)
}

/// The alignment of the memory that the card gives out.
const GRANULE: u64 = 64;

/// `verbs_context.alloc_dm`.
///
/// # Safety
/// `attr` is null or points to the struct.
pub unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    // SAFETY: by promise of the caller.
    or_null(unsafe { attr.as_ref() }.ok_or(EINVAL).and_then(|attr| alloc(context, attr)))
}

fn alloc(handle: *mut ibv_context, attr: &ibv_alloc_dm_attr) -> Result<*mut ibv_dm> {
    let context = context::find(handle)?;
    let len = attr.length as u64;
    if attr.comp_mask != 0 || len == 0 {
        return Err(EINVAL);
    }
    // A daemon's sessions have more altogether, but no program expects a piece beyond what the
    // device says of itself.
    if len > most(context.card) {
        return Err(ENOMEM);
    }
    let align = 1u64.checked_shl(attr.log_align_req).ok_or(EINVAL)?;
    let wanted = match align <= GRANULE {
        true => len,
        false => len.checked_add(align).ok_or(ENOMEM)?,
    };
    let given = context.card.lock().commands().alloc_dm(wanted).map_err(|_| ENOMEM)?;
    let addr = given.next_multiple_of(align);
    let dm = Dm { context, given, addr, len, regions: AtomicUsize::new(0) };
    keep(handle, dm).inspect_err(|_| {
        context.card.lock().commands().free_dm(given).ok();
    })
}

/// The longest piece, in bytes: `max_dm_size` of the device.
pub(super) fn most(card: &ListedCard) -> u64 {
    let memory = card.device.limits().device_memory;
    memory.end - memory.start
}

/// `ibv_import_dm`.
pub(super) fn import(handle: *mut ibv_context, number: u32) -> Result<*mut ibv_dm> {
    let context = context::find(handle)?;
    let mut found = None;
    if context.card.is_attached {
        let addr = u64::from(number) * GRANULE;
        let piece = context.card.lock().commands().dm_piece(addr);
        found = piece.map(|(given, len)| (given, addr, given + len - addr));
    } else {
        handles::for_each::<Dm>(|dm| {
            if dm.context.card.index == context.card.index && number_of(dm.addr) == number {
                found = Some((dm.given, dm.addr, dm.len));
            }
        });
    }
    let (given, addr, len) = found.ok_or(EINVAL)?;
    keep(handle, Dm { context, given, addr, len, regions: AtomicUsize::new(0) })
}

/// The number by which programs tell other processes of the piece at `addr`.
fn number_of(addr: u64) -> u32 {
    ((addr / GRANULE) & u64::from(u32::MAX)) as u32
}

/// Makes the handle of a piece.
fn keep(handle: *mut ibv_context, dm: Dm) -> Result<*mut ibv_dm> {
    let context = dm.context;
    let c = ibv_dm {
        context: handle,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: IBV_DM_MASK_HANDLE,
        handle: number_of(dm.addr),
    };
    let slot = handles::create(c, dm).ok_or(ENOMEM)?;
    context.enter();
    Ok(slot.c())
}

/// `verbs_context.free_dm`.
pub extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    number((|| {
        let slot = find(dm)?;
        if slot.regions.load(Ordering::Acquire) > 0 {
            return Err(EBUSY);
        }
        // The card knows of users in other processes: one that refuses leaves the handle.
        let mut card = slot.context.card.lock();
        card.commands().free_dm(slot.given)?;
        let Dm { context, .. } = handles::destroy::<Dm>(dm)?;
        drop(card);
        context.leave();
        Ok(())
    })())
}

/// Offsets and lengths of copies must be multiples of this.
const WORD: u64 = 4;
/// No program has memory below this address.
const LOWEST_ADDR: u64 = 4096;

/// `ibv_dm.memcpy_to_dm`.
///
/// # Safety
/// `len` bytes can be read at `host`.
unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host: *const c_void,
    len: usize,
) -> c_int {
    number(copy(dm, offset, host as u64, len, true))
}

/// `ibv_dm.memcpy_from_dm`.
///
/// # Safety
/// `len` bytes can be written at `host`.
unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
) -> c_int {
    number(copy(dm, offset, host as u64, len, false))
}

/// Copies between the program's memory and the card's, of which the card makes its half.
fn copy(dm: *mut ibv_dm, offset: u64, host: u64, len: usize, to_device: bool) -> Result<()> {
    let dm = find(dm)?;
    // The rule of hardware, so that a program that breaks it fails here too.
    if !offset.is_multiple_of(WORD) || !(len as u64).is_multiple_of(WORD) {
        return Err(EINVAL);
    }
    let device = dm.place(offset, len as u64)?;
    let fault = |_: MemoryFault| Errno(libc::EFAULT);
    if host < LOWEST_ADDR && len > 0 {
        return Err(Errno(libc::EFAULT));
    }
    let mut chunk = [0; DM_COPY_MAX];
    for at in (0..len).step_by(DM_COPY_MAX) {
        let chunk = &mut chunk[..DM_COPY_MAX.min(len - at)];
        let (host, device) = (host as usize + at, device + at as u64);
        let mut card = dm.context.card.lock();
        if to_device {
            // SAFETY: by the promise of the program, the bytes can be read.
            unsafe { ptr::copy_nonoverlapping(host as *const u8, chunk.as_mut_ptr(), chunk.len()) };
            card.commands().write_dm(device, chunk).map_err(fault)?;
        } else {
            let read = card.commands().read_dm(device, chunk.len()).map_err(fault)?;
            // SAFETY: by the promise of the program, the bytes can be written.
            unsafe { ptr::copy_nonoverlapping(read.as_ptr(), host as *mut u8, read.len()) };
        }
    }
    Ok(())
}
