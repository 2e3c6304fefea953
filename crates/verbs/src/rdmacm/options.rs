//! Options of ids, and the vendor options (ECE) of connections.

use core::ffi::{c_int, c_void};

use super::objects::{Id, Stage};
use super::{EINVAL, Errno, Result, address, events, status};
use crate::abi::rdma_cma::*;
use crate::abi::*;

/// Reads the value of an option.
///
/// # Safety
/// `value` points to `len` bytes.
unsafe fn read<T: Copy>(value: *const c_void, len: usize) -> Result<T> {
    if len != size_of::<T>() || value.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: by promise of the caller; callers ask for integers only.
    Ok(unsafe { value.cast::<T>().read_unaligned() })
}

pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: usize,
) -> c_int {
    status(|| {
        let id = Id::find(id)?;
        let (level, name) = (level as rdma_option_levels, optname as rdma_options);
        if level == RDMA_OPTION_IB && name == RDMA_OPTION_IB_PATH {
            let whole = optlen >= size_of::<ibv_path_data>();
            if !whole || !optlen.is_multiple_of(size_of::<ibv_path_data>()) || optval.is_null() {
                return Err(EINVAL);
            }
            // On Ethernet a path record adds nothing to the addresses.
            address::route_given(&id)?;
            return events::complete(&id);
        }
        if level != RDMA_OPTION_ID {
            return Err(Errno(libc::ENOSYS));
        }
        // SAFETY: the caller gives as many bytes as it says.
        unsafe {
            match name {
                RDMA_OPTION_ID_TOS => id.lock().tos = read(optval, optlen)?,
                RDMA_OPTION_ID_REUSEADDR => {
                    let on: c_int = read(optval, optlen)?;
                    let mut state = id.lock();
                    // As in Linux. A port that is bound stays as it was bound.
                    match state.stage {
                        Stage::Idle => state.reuse = on != 0,
                        Stage::Listening => return Err(EINVAL),
                        _ if on == 0 => return Err(EINVAL),
                        _ => state.reuse = true,
                    }
                }
                RDMA_OPTION_ID_AFONLY => {
                    let on: c_int = read(optval, optlen)?;
                    let mut state = id.lock();
                    if state.stage != Stage::Idle {
                        return Err(EINVAL);
                    }
                    state.v6_only = on != 0;
                }
                RDMA_OPTION_ID_ACK_TIMEOUT => {
                    let timeout: u8 = read(optval, optlen)?;
                    if timeout > 31 {
                        return Err(EINVAL);
                    }
                    id.lock().ack_timeout = Some(timeout);
                }
                _ => return Err(Errno(libc::ENOSYS)),
            }
        }
        Ok(())
    })
}

/// This card has no vendor options: those that a program sets are ignored, and a peer's are empty.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    status(|| {
        Id::find(id)?;
        // SAFETY: the caller gives options, or a null pointer.
        let ece = unsafe { ece.as_ref() }.ok_or(EINVAL)?;
        if ece.comp_mask != 0 { Err(EINVAL) } else { Ok(()) }
    })
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(
    id: *mut rdma_cm_id,
    ece: *mut ibv_ece,
) -> c_int {
    status(|| {
        Id::find(id)?;
        if ece.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: the caller gives a place for them.
        unsafe { ece.write(ibv_ece::zeroed()) };
        Ok(())
    })
}
