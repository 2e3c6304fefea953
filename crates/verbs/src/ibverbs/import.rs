//! Sharing objects between processes: one passes the command descriptor of its context (over a Unix
//! socket, or by fork) and the handles of its objects, and the other imports them.
//!
//! | symbol | function |
//! |---|---|
//! | `ibv_import_device@@IBVERBS_1.10` | [`import_device`] |
//! | `ibv_import_pd@@IBVERBS_1.10`, `ibv_unimport_pd` | [`import_pd`], [`unimport_pd`] |
//! | `ibv_import_mr@@IBVERBS_1.10`, `ibv_unimport_mr` | [`import_mr`], [`unimport_mr`] |
//! | `ibv_import_dm@@IBVERBS_1.13`, `ibv_unimport_dm` | [`import_dm`], [`unimport_dm`] |
//!
//! Both processes use the card of one `remora nic`: a card in a process is nobody else's. The
//! objects are the same for both: a process that destroys one destroys it for all. They last until
//! the last of the processes has closed the device.

use core::ffi::c_int;
use std::os::fd::{AsFd, FromRawFd, IntoRawFd, OwnedFd};

use remora::device_sharing::{ImportError, Imported};
use remora::nic::Pd as CardPd;

use super::context;
use super::mr::{self, Mr};
use super::objects::Pd;
use super::{EINVAL, ENODEV, EOPNOTSUPP, Errno, Result, device, dm, open, or_null, pd};
use crate::abi::*;
use crate::{handles, process};

/// `ibv_import_device`. As in rdma-core, the descriptor is the context's from here on, and is
/// closed with it.
pub(super) extern "C" fn import_device(fd: c_int) -> *mut ibv_context {
    or_null(import(fd))
}

fn import(fd: c_int) -> Result<*mut ibv_context> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program gives the descriptor away, or keeps it if this call fails.
    let letter = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut why = ENODEV;
    for device in device::devices() {
        let card = match device.card.device.import(letter.as_fd()) {
            Ok(Imported::Same) => device.card,
            Ok(Imported::Guest(guest)) => process::current().keep_guest(device.card.guest(guest)),
            Err(error) => {
                tracing::error!(%error, "a device is not imported");
                why = match error {
                    ImportError::Foreign(_) => EINVAL,
                    ImportError::Embedded => EOPNOTSUPP,
                    ImportError::OtherCard | ImportError::Open(_) => ENODEV,
                };
                continue;
            }
        };
        return open::open_on(device.c(), card, Some(letter)).map_err(|(error, letter)| {
            process::current().end_guest(card);
            // The program keeps its descriptor.
            letter.map(IntoRawFd::into_raw_fd);
            error
        });
    }
    let _ = letter.into_raw_fd();
    Err(why)
}

/// `ibv_import_pd`.
pub(super) extern "C" fn import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd {
    or_null((|| {
        let found = context::find(context)?;
        let pd = CardPd::numbered(handle);
        if !found.card.lock().commands().has_pd(pd) {
            return Err(EINVAL);
        }
        pd::keep(context, found, pd)
    })())
}

/// `ibv_unimport_pd`.
pub(super) extern "C" fn unimport_pd(pd: *mut ibv_pd) {
    if let Ok(Pd { context, .. }) = handles::destroy::<Pd>(pd) {
        context.leave();
    }
}

/// `ibv_import_mr`: as in rdma-core, the address is null.
pub(super) extern "C" fn import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    or_null(pd::find(pd).and_then(|pd| {
        let range = pd.context.card.lock().commands().mr_range(pd.pd, handle);
        mr::keep_imported(pd, handle, range.ok_or(EINVAL)?)
    }))
}

/// `ibv_unimport_mr`.
pub(super) extern "C" fn unimport_mr(mr: *mut ibv_mr) {
    if let Ok(gone) = handles::destroy::<Mr>(mr) {
        let pd = gone.now().pd;
        pd.leave();
        pd.context.leave();
    }
}

/// `ibv_import_dm`.
pub(super) extern "C" fn import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm {
    or_null(dm::import(context, handle))
}

/// `ibv_unimport_dm`.
pub(super) extern "C" fn unimport_dm(dm: *mut ibv_dm) {
    if let Ok(gone) = handles::destroy::<dm::Dm>(dm) {
        gone.context.leave();
    }
}
