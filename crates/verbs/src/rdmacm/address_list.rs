//! Lists of addresses, as `rdma_getaddrinfo` makes them: who owns one, and how it is freed.

use crate::abi::rdma_cma::*;

/// How far an id's look-up has come.
#[derive(Debug, Default)]
pub(crate) enum Lookup {
    #[default]
    None,
    /// A thread asks the resolver.
    UnderWay,
    /// The answer, which the program has not taken.
    Answered(List),
}

/// A list of addresses that is freed with its owner.
#[derive(Debug)]
pub(crate) struct List(pub(super) *mut rdma_addrinfo);

// SAFETY: the list is memory of the C library's allocator, which any thread may read and free.
unsafe impl Send for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list has this owner alone.
        unsafe { rdma_freeaddrinfo(self.0) };
    }
}

impl List {
    /// Gives the list to the program, which frees it.
    pub(super) fn release(self) -> *mut rdma_addrinfo {
        std::mem::ManuallyDrop::new(self).0
    }
}

pub(crate) unsafe extern "C" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) {
    let mut next = res;
    // SAFETY: the caller gives a list of `rdma_getaddrinfo`, each part of which is null or from the
    // C library's allocator.
    while let Some(info) = unsafe { next.as_ref() } {
        let info = *info;
        // SAFETY: as above; each part is freed once.
        unsafe {
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(info.ai_src_canonname.cast());
            libc::free(info.ai_dst_canonname.cast());
            libc::free(info.ai_route);
            libc::free(info.ai_connect);
            libc::free(next.cast());
        }
        next = info.ai_next;
    }
}
