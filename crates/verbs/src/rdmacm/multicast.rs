//! Multicast groups.

use core::ffi::{c_int, c_void};

use libc::sockaddr;

use super::channel::News;
use super::id::Id;
use super::{Errno, status};
use crate::abi::rdma_cma::*;

/// A group that an id has joined.
#[derive(Debug)]
pub(crate) struct Group;

pub(super) fn before_delivery(_id: &Id, _news: &mut News) {}

pub(super) fn leave_all(id: &Id) {
    id.lock().groups.clear();
}

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
    _context: *mut c_void,
) -> c_int {
    status(|| {
        Id::find(id)?;
        Err(Errno(libc::EOPNOTSUPP))
    })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    _mc_join_attr: *mut rdma_cm_join_mc_attr_ex,
    _context: *mut c_void,
) -> c_int {
    status(|| {
        Id::find(id)?;
        Err(Errno(libc::EOPNOTSUPP))
    })
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(
    id: *mut rdma_cm_id,
    _addr: *mut sockaddr,
) -> c_int {
    status(|| {
        Id::find(id)?;
        Err(Errno(libc::EOPNOTSUPP))
    })
}
