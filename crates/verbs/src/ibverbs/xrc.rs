//! XRC: domains, and the receiving queue pairs that belong to a domain and to no protection domain.
//!
//! | place | function |
//! |---|---|
//! | `verbs_context.open_xrcd` | [`open_xrcd`] |
//! | `verbs_context.close_xrcd` | [`close_xrcd`] |
//! | `verbs_context.open_qp` | [`super::qp::open_qp`] |
//!
//! A domain may be named by a file. Each open of the same file in this process gives the same
//! domain, and so does one in another process of the user on the same `remora nic`. Where a process
//! has a card of its own, its domains are, too.

use std::collections::HashMap;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::message::{OpenXrcd, XrcdError};
use remora::nic;

use super::context;
use super::objects::{Context, Domain, File, Xrcd};
use super::{EBUSY, EINVAL, ENOMEM, Errno, Result, number, or_null};
use crate::abi::*;
use crate::handles::{self, Slot};
use crate::process;

/// The state that all handles of a process share.
#[derive(Default)]
struct Shared {
    named: Mutex<HashMap<(usize, File), Arc<Domain>>>,
    /// The handles of each receiving queue pair, by card and number. Locked after the card.
    targets: Mutex<HashMap<(usize, u32), Target>>,
}

/// A receiving queue pair.
struct Target {
    domain: Arc<Domain>,
    handles: usize,
}

fn shared() -> Arc<Shared> {
    process::current().shared::<Shared>()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks up a domain.
pub(crate) fn find(xrcd: *const ibv_xrcd) -> Result<&'static Slot<Xrcd>> {
    Ok(handles::get::<Xrcd>(xrcd)?)
}

/// `ibv_open_xrcd`.
///
/// # Safety
/// `attr` can be read.
pub unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    attr: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    // SAFETY: by promise of the caller.
    or_null(open(context, unsafe { &*attr }))
}

fn open(handle: *mut ibv_context, attr: &ibv_xrcd_init_attr) -> Result<*mut ibv_xrcd> {
    let context = context::find(handle)?;
    if attr.comp_mask != IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS
        || attr.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0
    {
        return Err(EINVAL);
    }
    let creates = attr.oflags & libc::O_CREAT != 0;
    let file = if attr.fd == -1 { None } else { Some(file_of(attr.fd)?) };
    let card = context.card.index;
    let shared = shared();
    let mut named = lock(&shared.named);
    let known = file.and_then(|file| named.get(&(card, file)).cloned());
    let domain = match known {
        Some(_) if creates && attr.oflags & libc::O_EXCL != 0 => return Err(Errno(libc::EEXIST)),
        Some(domain) => domain,
        None if !creates && file.is_none() => return Err(EINVAL),
        None if !creates && !context.card.is_attached => return Err(Errno(libc::ENOENT)),
        None => {
            let xrcd = named_by(context, attr)?;
            Arc::new(Domain { xrcd, card, file })
        }
    };
    let state = Xrcd { context, domain: domain.clone(), users: AtomicUsize::new(0) };
    let Some(made) = handles::create(ibv_xrcd { context: handle }, state) else {
        let last = Arc::try_unwrap(domain).map(|domain| domain.xrcd);
        if let Ok(xrcd) = last {
            context.card.lock().commands().dealloc_xrcd(xrcd).ok();
        }
        return Err(ENOMEM);
    };
    if let Some(file) = file {
        named.insert((card, file), domain);
    }
    context.enter();
    Ok(made.c())
}

/// A domain that is new to this process: that of the file, if there is one.
fn named_by(context: &Slot<Context>, attr: &ibv_xrcd_init_attr) -> Result<nic::Xrcd> {
    let mut card = context.card.lock();
    if attr.fd == -1 {
        return Ok(card.commands().alloc_xrcd()?);
    }
    let asks = |flag| attr.oflags & flag != 0;
    let how = OpenXrcd { creates: asks(libc::O_CREAT), exclusive: asks(libc::O_EXCL) };
    // SAFETY: the descriptor is open: the system has just told which file it is.
    let file = unsafe { BorrowedFd::borrow_raw(attr.fd) };
    card.open_xrcd(how, file).map_err(|error| match error {
        XrcdError::Exists => Errno(libc::EEXIST),
        XrcdError::Missing => Errno(libc::ENOENT),
        XrcdError::Full => ENOMEM,
        XrcdError::File => EINVAL,
        XrcdError::Gone => Errno(libc::EIO),
    })
}

fn file_of(fd: c_int) -> Result<File> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for the struct.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the call has succeeded, so it has filled the struct.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// `ibv_close_xrcd`.
pub extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    number(close(xrcd))
}

fn close(handle: *mut ibv_xrcd) -> Result<()> {
    let xrcd = find(handle)?;
    if xrcd.users.load(Ordering::Acquire) > 0 {
        return Err(EBUSY);
    }
    let shared = shared();
    let mut named = lock(&shared.named);
    let Xrcd { context, domain, .. } = handles::destroy::<Xrcd>(handle)?;
    // References other than this one and the table's.
    let others = Arc::strong_count(&domain) - 1 - usize::from(domain.file.is_some());
    if others == 0 {
        if let Some(file) = domain.file {
            named.remove(&(domain.card, file));
        }
        if let Err(error) = context.card.lock().commands().dealloc_xrcd(domain.xrcd) {
            tracing::error!(%error, "an XRC domain was closed while in use");
        }
    }
    context.leave();
    Ok(())
}

/// Makes a receiving queue pair on the card, with one handle.
pub(crate) fn make_target(xrcd: &Slot<Xrcd>) -> Result<u32> {
    let card = xrcd.context.card;
    let number = card.lock().commands().create_xrc_target(xrcd.domain.xrcd)?;
    let target = Target { domain: xrcd.domain.clone(), handles: 1 };
    lock(&shared().targets).insert((card.index, number), target);
    Ok(number)
}

/// Counts another handle of a receiving queue pair of the domain.
pub(crate) fn join_target(xrcd: &Slot<Xrcd>, card: usize, number: u32) -> Result<()> {
    let shared = shared();
    // Before the handles, as where a queue pair is destroyed.
    let mut locked = xrcd.context.card.lock();
    let mut targets = lock(&shared.targets);
    let Some(target) = targets.get_mut(&(card, number)) else {
        // That of another process, if this is one.
        let xrc = xrcd.domain.xrcd;
        locked.commands().open_xrc_target(xrc, number).map_err(|_| EINVAL)?;
        targets.insert((card, number), Target { domain: xrcd.domain.clone(), handles: 1 });
        return Ok(());
    };
    if !Arc::ptr_eq(&target.domain, &xrcd.domain) {
        return Err(EINVAL);
    }
    target.handles += 1;
    Ok(())
}

/// Counts a handle of a receiving queue pair as gone: was it the last?
pub(crate) fn leave_target(card: usize, number: u32) -> bool {
    let shared = shared();
    let mut targets = lock(&shared.targets);
    let Some(target) = targets.get_mut(&(card, number)) else { return true };
    target.handles -= 1;
    let last = target.handles == 0;
    if last {
        targets.remove(&(card, number));
    }
    last
}
