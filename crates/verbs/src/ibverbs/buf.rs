//! Buffers that the library allocates for a program: `ibv_alloc_buf` and its relatives, of v64.
//!
//! A device may want such memory to lie somewhere special. This one does not: the memory is the
//! process's own, as where a provider of rdma-core has no function of its own for it. [`super::mr`]
//! registers it.

use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use remora::memory::Buffer;

use super::objects::Pd;
use super::{EINVAL, ENOMEM, Errno, Result, or_minus_one, or_null, pd};
use crate::abi::newer::ibv_buf;
use crate::abi::*;
use crate::handles::{self, Object, Slot};

/// The memory is not that of a DMA-buf.
const ENODATA: Errno = Errno(libc::ENODATA);

/// A buffer. Regions in it keep its memory, even where a program frees it too early.
#[derive(Debug)]
pub struct Buf {
    pd: &'static Slot<Pd>,
    memory: Arc<Buffer>,
}

impl Object for Buf {
    type C = ibv_buf;
    const KIND: handles::Kind = handles::Kind::Buf;
}

/// `ibv_alloc_buf`.
///
/// # Safety
/// `buf` is null or has room for the handle.
pub unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    or_null((|| {
        let domain = pd::find(pd)?;
        if buf.is_null() {
            return Err(EINVAL);
        }
        let memory = Arc::new(Buffer::new(size.max(1)).map_err(|_| ENOMEM)?);
        let addr = memory.addr();
        let made = handles::create(ibv_buf { pd }, Buf { pd: domain, memory }).ok_or(ENOMEM)?;
        domain.enter();
        // SAFETY: by promise of the caller.
        unsafe { buf.write(made.c()) };
        Ok(ptr::with_exposed_provenance_mut(addr as usize))
    })())
}

/// `ibv_free_buf`.
pub extern "C" fn free_buf(buf: *mut ibv_buf) {
    match handles::destroy::<Buf>(buf) {
        Ok(Buf { pd, .. }) => pd.leave(),
        Err(_) => tracing::warn!("a program has freed a buffer that is none"),
    }
}

/// `ibv_export_buf_dmabuf_fd`.
pub extern "C" fn export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    or_minus_one(handles::get::<Buf>(buf).map_err(Errno::from).and(Err(ENODATA)))
}

/// The memory of a buffer that was allocated for `pd`, if the bytes to be registered lie in it.
pub(crate) fn memory(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: u64,
    len: u64,
) -> Result<Arc<Buffer>> {
    let buf = handles::get::<Buf>(buf)?;
    let memory = &buf.memory;
    let end = addr.checked_add(len).ok_or(EINVAL)?;
    let within = memory.addr() <= addr && end <= memory.addr() + memory.len() as u64;
    if !ptr::eq(buf.pd.c(), pd) || !within {
        return Err(EINVAL);
    }
    Ok(memory.clone())
}
