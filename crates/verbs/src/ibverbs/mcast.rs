//! Attaching datagram queue pairs to multicast groups.

use core::ffi::c_int;
use std::net::IpAddr;

use remora::multicast::JoinError;
use remora::nic::nic::McastError;

use super::{EINVAL, ENOMEM, Errno, Result, number, qp};
use crate::abi::*;

/// `ibv_attach_mcast`. The LID has no meaning on Ethernet.
///
/// # Safety
/// `gid` can be read.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: by promise of the caller.
    let attached = unsafe { group(gid) }.and_then(|group| {
        let qp = qp::find(qp)?;
        let mut card = qp.context.card.lock();
        card.attach_mcast(qp.number, group).map_err(|error| {
            tracing::info!(%error, %group, "not attached");
            match error {
                JoinError::Card(McastError::Full { .. }) => ENOMEM,
                JoinError::Card(_) => EINVAL,
                JoinError::System { source, .. } => Errno::from(source),
            }
        })
    });
    number(attached)
}

/// `ibv_detach_mcast`.
///
/// # Safety
/// `gid` can be read.
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    // SAFETY: by promise of the caller.
    let detached = unsafe { group(gid) }.and_then(|group| {
        let qp = qp::find(qp)?;
        qp.context.card.lock().commands().detach_mcast(qp.number, group).map_err(|_| EINVAL)
    });
    number(detached)
}

/// # Safety
/// `gid` is null or can be read.
unsafe fn group(gid: *const ibv_gid) -> Result<IpAddr> {
    // SAFETY: by promise of the caller; `raw` covers every byte of the union.
    let gid = unsafe { gid.as_ref().ok_or(EINVAL)?.raw };
    Ok(IpAddr::from(gid))
}
