//! `libibverbs.so.1`: rdma-core's verbs, each as a C function, and how they report errors.
//!
//! [`objects`] holds the state behind handles. Most other modules hold the calls of one kind of
//! object, named as in verbs without `ibv_`. They are `extern "C"` functions: programs call them
//! through `symbols` or through the tables that `open` fills, and `rdmacm` calls them directly.
//!
//! - Devices: `device`, `open`, `context`, `device_attr` (limits and clock), `port`,
//!   `gid`, `parent_domain`, `pd`, `import`, `fork`.
//! - Memory: `buf`, `mr`, `mw`, `bind_mw`, `dm`. Addresses: `ah`, `mcast`.
//! - Queue pairs: `qp`, `qp_attr`, `srq`, `xrc`. Posting: `post`, `recv`, `qp_ex`.
//! - Completions: `cq`, `cq_ex`, `poll`, `channel`. Events: `routes` finds whom one is for;
//!   `async_event`, `acknowledge`. (`EventQueue` of `remora::raw` is behind channels and contexts.)
//!   `gate` is the lock from one call to the next.
//! - Beside the verbs: `strings`, `copy`, `sysfs_calls`, `private` and `private_symbols`.
//!
//! Each call reports errors as its manual page says. Most that return a pointer set `errno` and
//! return null; most that return an integer return the error number itself, and not -1.

use core::ffi::c_int;
use std::io;
use std::ptr;

use remora::nic::{CreateError, DestroyError, PostError, RegMrError};

use crate::handles::BadHandle;

mod acknowledge;
pub mod ah;
pub mod async_event;
pub mod bind_mw;
pub mod buf;
pub mod channel;
pub mod context;
mod copy;
pub mod cq;
pub mod cq_ex;
pub mod device;
pub mod device_attr;
pub mod dm;
mod fork;
mod gate;
pub mod gid;
mod import;
pub mod mcast;
pub mod mr;
pub mod mw;
pub mod objects;
pub mod open;
pub mod parent_domain;
pub mod pd;
pub mod poll;
pub mod port;
pub mod post;
mod private;
mod private_symbols;
pub mod qp;
mod qp_attr;
pub mod qp_ex;
pub mod recv;
mod routes;
pub mod srq;
mod strings;
mod symbols;
mod sysfs_calls;
pub mod xrc;

/// Why a call failed: a number of `errno.h`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

/// The result of a call before it is translated to C.
pub type Result<T> = core::result::Result<T, Errno>;

/// An argument or attribute is bad.
pub const EINVAL: Errno = Errno(libc::EINVAL);
/// The program has no right to this.
pub const EPERM: Errno = Errno(libc::EPERM);
/// This library does not do that.
pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
/// There is no such device.
pub const ENODEV: Errno = Errno(libc::ENODEV);
/// No memory, or no room on the card.
pub const ENOMEM: Errno = Errno(libc::ENOMEM);
/// Other objects still use it.
pub const EBUSY: Errno = Errno(libc::EBUSY);
/// The process that has the card has ended.
pub const EIO: Errno = Errno(libc::EIO);

impl From<BadHandle> for Errno {
    fn from(_: BadHandle) -> Errno {
        EINVAL
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<CreateError> for Errno {
    fn from(error: CreateError) -> Errno {
        match error {
            CreateError::Full { .. } | CreateError::NoMemory { .. } => ENOMEM,
            CreateError::Gone => EIO,
            _ => EINVAL,
        }
    }
}

impl From<DestroyError> for Errno {
    fn from(error: DestroyError) -> Errno {
        match error {
            DestroyError::Unknown => EINVAL,
            DestroyError::Busy { .. } => EBUSY,
            DestroyError::Gone => EIO,
        }
    }
}

impl From<RegMrError> for Errno {
    fn from(error: RegMrError) -> Errno {
        match error {
            RegMrError::Full { .. } | RegMrError::TranslationFull { .. } => ENOMEM,
            RegMrError::Place => EOPNOTSUPP,
            RegMrError::Gone => EIO,
            _ => EINVAL,
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Errno {
        match error {
            PostError::Full => ENOMEM,
            PostError::Gone => EIO,
            _ => EINVAL,
        }
    }
}

/// Sets `errno`.
pub fn set_errno(Errno(number): Errno) {
    // SAFETY: it is the C library's variable of this thread.
    unsafe { *libc::__errno_location() = number };
}

/// The C result of a call that returns a pointer: on failure null, with `errno` set.
pub fn or_null<T>(result: Result<*mut T>) -> *mut T {
    result.unwrap_or_else(|error| {
        set_errno(error);
        ptr::null_mut()
    })
}

/// The C result of a call that returns an error number; zero is success. `errno` is set too, for
/// programs that read it.
pub fn number(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error.0
        }
    }
}

/// The C result of a call that returns -1 on failure, with the reason in `errno`.
pub fn or_minus_one(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        set_errno(error);
        -1
    })
}
