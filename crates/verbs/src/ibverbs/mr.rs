//! Memory regions.
//!
//! Memory is not pinned: the card is in this process and reaches memory by the program's own
//! addresses. But a registration fails with `EFAULT` where pinning would fail, and faults the pages
//! in. Regions on demand are accessed by checked copies, so that an access to a missing page fails
//! without ending the process.

use core::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::memory::Buffer;
use remora::nic::{Access, Key};
use remora::raw;

use super::buf;
use super::device_attr::MAX_REGION;
use super::objects::{Context, Pd};
use super::pd;
use super::{EINVAL, ENOMEM, EOPNOTSUPP, EPERM, Errno, Result, number, or_null};
use crate::abi::newer::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_REG_MR_MASK_ADDR,
    IBV_REG_MR_MASK_BUF, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
    ibv_buf, ibv_mr_init_attr,
};
use crate::abi::*;
use crate::handles::{self, Object, Slot};

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    /// The card's key; zero if a re-registration has failed.
    pub key: Key,
    /// On which it was registered.
    context: &'static Slot<Context>,
    /// The part that `ibv_rereg_mr` changes. It is locked only by a thread that has the card, so
    /// that a forked child finds it open.
    changing: Mutex<Changing>,
    backing: Backing,
}

/// The part that `ibv_rereg_mr` changes.
#[derive(Clone, Copy, Debug)]
pub struct Changing {
    /// Its protection domain.
    pub pd: &'static Slot<Pd>,
    /// The address of its first byte in this process.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// `ibv_access_flags`.
    pub access: u32,
}

/// The memory behind a region.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Memory of the program.
    Program,
    /// None: a null region.
    Null,
    /// That of another process, or of another handle of this one's.
    Imported,
    /// Device memory.
    Device(&'static Slot<super::dm::Dm>),
    /// Memory that this library allocated for the program.
    Buffer(Arc<Buffer>),
    /// A mapping that this library made of a descriptor's memory.
    Mapping { start: usize, len: usize },
}

impl Object for Mr {
    type C = ibv_mr;
    const KIND: handles::Kind = handles::Kind::Mr;
}

impl Mr {
    /// The current values of the part that may change. The caller has neither the card nor the
    /// table of regions locked.
    pub fn now(&self) -> Changing {
        let _card = self.context.card.lock();
        *self.changing()
    }

    /// As [`Mr::now`], to change them, for a caller that has the card.
    fn changing(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Part of the range is not mapped.
const EFAULT: Errno = Errno(libc::EFAULT);

/// Looks up a region.
pub fn find(mr: *const ibv_mr) -> Result<&'static Slot<Mr>> {
    Ok(handles::get::<Mr>(mr)?)
}

/// The access flags that this library knows.
const KNOWN: u32 = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ZERO_BASED
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | IBV_ACCESS_FLUSH_GLOBAL;

/// Flags that let the memory itself be written.
const WRITES: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

/// Translates access flags for the card, and refuses combinations that are not allowed. Flags of
/// the optional range are ignored, as `ibv_reg_mr(3)` permits.
pub(crate) fn access_of(flags: u32) -> Result<Access> {
    let flags = flags & !IBV_ACCESS_OPTIONAL_RANGE;
    // Whether memory survives a loss of power is not known, and the device does not claim it.
    if flags & IBV_ACCESS_FLUSH_PERSISTENT != 0 {
        return Err(EOPNOTSUPP);
    }
    let remote_writes = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
    if flags & !KNOWN != 0 || flags & remote_writes != 0 && flags & IBV_ACCESS_LOCAL_WRITE == 0 {
        return Err(EINVAL);
    }
    let pairs = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::MW_BIND),
        (IBV_ACCESS_FLUSH_GLOBAL, Access::FLUSH_GLOBAL),
    ];
    Ok(pairs.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, access)| access).collect())
}

/// The bytes to be registered, and the address by which peers name them.
#[derive(Clone, Copy, Debug)]
struct MemoryRange {
    addr: u64,
    len: u64,
    iova: u64,
}

/// The range as the card takes it.
fn bytes(range: MemoryRange, access: u32) -> Result<raw::Bytes> {
    let end = range.addr.checked_add(range.len).ok_or(EINVAL)?;
    if end > MAX_REGION {
        return Err(EFAULT);
    }
    range.iova.checked_add(end - range.addr).ok_or(EINVAL)?;
    let place = match access & IBV_ACCESS_ON_DEMAND {
        0 => raw::Place::Process(range.addr),
        _ => raw::Place::Checked(range.addr),
    };
    Ok(raw::Bytes { place, iova: range.iova, len: range.len })
}

/// Is this a request for an implicit region: everything that the process maps or will map?
fn is_implicit(range: MemoryRange, access: u32) -> bool {
    access & IBV_ACCESS_ON_DEMAND != 0 && range.addr == 0 && range.len >= MAX_REGION
}

/// Checks a range as pinning would, and faults its pages in.
fn bring_in(range: MemoryRange, access: u32) -> Result<()> {
    if access & IBV_ACCESS_ON_DEMAND != 0 {
        return Ok(());
    }
    populate(range.addr, range.len, access & WRITES != 0)
}

/// Faults pages in. Fails with `EFAULT` if the processor's access would fault.
pub(crate) fn populate(addr: u64, len: u64, write: bool) -> Result<()> {
    // SAFETY: passes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let start = addr & !(page - 1);
    let end = addr.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    let len = end.ok_or(EINVAL)? - start;
    if len == 0 {
        return Ok(());
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    loop {
        // SAFETY: the call changes no bytes, and the system refuses ranges that are not mapped.
        if unsafe { libc::madvise(start as *mut c_void, len as usize, advice) } == 0 {
            return Ok(());
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) => {}
            // The access is not permitted, or the mapping is a device's, or the kernel is older
            // than 5.14.
            Some(libc::EINVAL) => break,
            _ => return Err(EFAULT),
        }
    }
    if maps_permit(start, start + len, write) { Ok(()) } else { Err(EFAULT) }
}

/// Do the system's list of mappings and their permissions allow access to all bytes from `start` to
/// `end`?
fn maps_permit(start: u64, end: u64, write: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return false };
    let mut reached = start;
    for line in maps.lines() {
        let Some((from, to, permissions)) = mapping(line) else { continue };
        if to <= reached {
            continue;
        }
        let wanted = if write { permissions.contains('w') } else { permissions.starts_with('r') };
        if from > reached || !wanted {
            return false;
        }
        reached = to;
        if reached >= end {
            return true;
        }
    }
    false
}

/// Parses a line of the list: `from-to permissions …`
fn mapping(line: &str) -> Option<(u64, u64, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((hex(from)?, hex(to)?, rest.get(..4)?))
}

/// `ibv_reg_mr`.
pub extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    or_null(register(pd, addr as u64, len as u64, addr as u64, access as u32))
}

/// `ibv_reg_mr_iova`.
pub extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    or_null(register(pd, addr as u64, len as u64, iova, access as u32))
}

/// `ibv_reg_mr_iova2`.
pub extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    iova: u64,
    access: u32,
) -> *mut ibv_mr {
    or_null(register(pd, addr as u64, len as u64, iova, access))
}

/// `ibv_reg_mr_ex`, of v59.
///
/// # Safety
/// `attr` is null or points to the struct.
pub unsafe extern "C" fn reg_mr_ex(pd: *mut ibv_pd, attr: *const ibv_mr_init_attr) -> *mut ibv_mr {
    or_null((|| {
        // SAFETY: by promise of the caller.
        let attr = *unsafe { attr.as_ref() }.ok_or(EINVAL)?;
        let has = |bit: u64| attr.comp_mask & bit != 0;
        let known = IBV_REG_MR_MASK_IOVA
            | IBV_REG_MR_MASK_ADDR
            | IBV_REG_MR_MASK_FD
            | IBV_REG_MR_MASK_FD_OFFSET
            | IBV_REG_MR_MASK_BUF;
        if has(!known) {
            return Err(EOPNOTSUPP);
        }
        let (addr, len) = (attr.addr as u64, attr.length as u64);
        if has(IBV_REG_MR_MASK_BUF) && has(IBV_REG_MR_MASK_FD | IBV_REG_MR_MASK_FD_OFFSET) {
            return Err(EINVAL);
        }
        if has(IBV_REG_MR_MASK_FD) {
            if has(IBV_REG_MR_MASK_ADDR) || !has(IBV_REG_MR_MASK_FD_OFFSET) {
                return Err(EINVAL);
            }
            let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.fd_offset };
            return register_fd(pd, attr.fd_offset, len, iova, attr.fd, attr.access as u32);
        }
        if !has(IBV_REG_MR_MASK_ADDR) {
            return Err(EINVAL);
        }
        let iova = if has(IBV_REG_MR_MASK_IOVA) { attr.iova } else { addr };
        if has(IBV_REG_MR_MASK_BUF) {
            return register_buf(pd, attr.buf, MemoryRange { addr, len, iova }, attr.access as u32);
        }
        register(pd, addr, len, iova, attr.access as u32)
    })())
}

/// `ibv_reg_buf_mr`, of v64.
pub extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> *mut ibv_mr {
    let (addr, len) = (addr as u64, len as u64);
    or_null(register_buf(pd, buf, MemoryRange { addr, len, iova: addr }, access as u32))
}

/// Registers part of a buffer that this library has allocated.
fn register_buf(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    place: MemoryRange,
    access: u32,
) -> Result<*mut ibv_mr> {
    let memory = buf::memory(pd, buf, place.addr, place.len)?;
    register_as(pd, place, access, Backing::Buffer(memory))
}

/// Registers memory of the program.
pub fn register(
    pd: *mut ibv_pd,
    addr: u64,
    len: u64,
    iova: u64,
    access: u32,
) -> Result<*mut ibv_mr> {
    register_as(pd, MemoryRange { addr, len, iova }, access, Backing::Program)
}

fn register_as(
    pd: *mut ibv_pd,
    mut range: MemoryRange,
    access: u32,
    backing: Backing,
) -> Result<*mut ibv_mr> {
    let pd = pd::find(pd)?;
    if access & IBV_ACCESS_ZERO_BASED != 0 {
        range.iova = 0;
    }
    if is_implicit(range, access) {
        range.len = MAX_REGION;
    }
    if range.len == 0 {
        return Err(EINVAL);
    }
    access_of(access)?;
    bytes(range, access)?;
    bring_in(range, access)?;
    make(pd, range, access, backing)
}

/// Registers a range with the card and makes the handle.
fn make(
    pd: &'static Slot<Pd>,
    range: MemoryRange,
    access: u32,
    backing: Backing,
) -> Result<*mut ibv_mr> {
    let mut bytes = bytes(range, access)?;
    if let Backing::Device(_) = backing {
        bytes.place = raw::Place::Device(range.addr);
    }
    let key = pd.context.card.lock().commands().reg_mr(pd.pd, bytes, access_of(access)?)?;
    keep(pd, key, range, access, backing)
}

/// Makes the handle of a region that the card has registered.
fn keep(
    pd: &'static Slot<Pd>,
    key: Key,
    range: MemoryRange,
    access: u32,
    backing: Backing,
) -> Result<*mut ibv_mr> {
    let addr = match backing {
        Backing::Program | Backing::Buffer(_) => range.addr as usize as *mut c_void,
        _ => ptr::null_mut(),
    };
    let c = ibv_mr {
        context: super::context::inner(pd.context),
        pd: pd.c(),
        addr,
        length: range.len as usize,
        // Programs pass it to other processes for import.
        handle: key,
        lkey: key,
        rkey: key,
    };
    let changing = Changing { pd, addr: range.addr, len: range.len, access };
    let imported = matches!(backing, Backing::Imported);
    let mr = Mr { key, context: pd.context, changing: Mutex::new(changing), backing };
    let Some(slot) = handles::create(c, mr) else {
        if !imported {
            pd.context.card.lock().commands().dereg_mr(key).ok();
        }
        return Err(ENOMEM);
    };
    pd.enter();
    pd.context.enter();
    Ok(slot.c())
}

/// Makes a handle of a region that another process has registered; `range` is its first address and
/// its length.
pub(super) fn keep_imported(
    pd: &'static Slot<Pd>,
    key: Key,
    (iova, len): (u64, u64),
) -> Result<*mut ibv_mr> {
    keep(pd, key, MemoryRange { addr: 0, len, iova }, 0, Backing::Imported)
}

/// `ibv_dereg_mr`.
pub extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    number(deregister(mr))
}

/// As [`dereg_mr`].
pub fn deregister(handle: *mut ibv_mr) -> Result<()> {
    let slot = find(handle)?;
    let context = slot.context;
    {
        let mut card = context.card.lock();
        // Packets that are ready to leave refer to their payload: they leave first.
        card.kick();
        card.commands().dereg_mr(slot.key)?;
    }
    let Mr { changing, backing, .. } = handles::destroy::<Mr>(handle)?;
    changing.into_inner().unwrap_or_else(PoisonError::into_inner).pd.leave();
    context.leave();
    match backing {
        Backing::Program | Backing::Null | Backing::Imported => {}
        Backing::Buffer(memory) => drop(memory),
        Backing::Device(dm) => {
            dm.regions.fetch_sub(1, Ordering::AcqRel);
        }
        // SAFETY: this library's own mapping, to which nothing but the region referred.
        Backing::Mapping { start, len } => unsafe {
            libc::munmap(start as *mut c_void, len);
        },
    }
    Ok(())
}

/// `ibv_rereg_mr`.
pub extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    len: usize,
    access: c_int,
) -> c_int {
    match reregister(mr, flags as u32, pd, addr as u64, len as u64, access as u32) {
        Ok(()) => 0,
        Err(error) => {
            super::set_errno(error);
            IBV_REREG_MR_ERR_INPUT
        }
    }
}

/// All checks come before any change: a failure leaves the region as it was.
fn reregister(
    handle: *mut ibv_mr,
    flags: u32,
    pd: *mut ibv_pd,
    addr: u64,
    len: u64,
    access: u32,
) -> Result<()> {
    let slot = find(handle)?;
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0 || flags == 0 {
        return Err(EINVAL);
    }
    if !matches!(slot.backing, Backing::Program | Backing::Buffer(_)) {
        return Err(EOPNOTSUPP);
    }
    let old = slot.now();
    let mut new = old;
    if flags & IBV_REREG_MR_CHANGE_PD != 0 {
        new.pd = pd::find(pd)?;
        if !ptr::eq(new.pd.context, old.pd.context) {
            return Err(EINVAL);
        }
    }
    if flags & IBV_REREG_MR_CHANGE_ACCESS != 0 {
        new.access = access;
    }
    let moved = flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0;
    if moved {
        (new.addr, new.len) = (addr, len);
    }
    let range = MemoryRange { addr: new.addr, len: new.len, iova: new.addr };
    let rights = access_of(new.access)?;
    if new.len == 0 {
        return Err(EINVAL);
    }
    let bytes = bytes(range, new.access)?;
    bring_in(range, new.access)?;
    // Changing to or from on demand changes how the bytes are accessed.
    let translate = moved || (old.access ^ new.access) & IBV_ACCESS_ON_DEMAND != 0;
    let change = raw::Change {
        pd: (flags & IBV_REREG_MR_CHANGE_PD != 0).then_some(new.pd.pd),
        access: Some(rights),
        bytes: translate.then_some(bytes),
    };
    let mut card = slot.context.card.lock();
    card.kick();
    let key = card.commands().rereg_mr(slot.key, change)?;
    *slot.changing() = new;
    drop(card);
    new.pd.enter();
    old.pd.leave();
    // SAFETY: the slot's own struct; the program must not use the region during this call.
    let c = unsafe { &mut *slot.c() };
    (c.pd, c.addr, c.length) = (new.pd.c(), new.addr as usize as *mut c_void, new.len as usize);
    (c.lkey, c.rkey, c.handle) = (key, key, key);
    Ok(())
}

/// `verbs_context.alloc_null_mr`: reads give zeros, writes are discarded.
pub extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    or_null((|| {
        let pd = pd::find(pd)?;
        let key = pd.context.card.lock().commands().alloc_null_mr(pd.pd)?;
        let range = MemoryRange { addr: 0, len: u64::MAX, iova: 0 };
        keep(pd, key, range, IBV_ACCESS_LOCAL_WRITE, Backing::Null)
    })())
}

/// `verbs_context.reg_dm_mr`: the flags must include `IBV_ACCESS_ZERO_BASED`.
pub extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    len: usize,
    access: u32,
) -> *mut ibv_mr {
    or_null((|| {
        let (pd, dm) = (pd::find(pd)?, super::dm::find(dm)?);
        let known = WRITES | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ZERO_BASED;
        let flags = access & !IBV_ACCESS_OPTIONAL_RANGE;
        if flags & !known != 0 || flags & IBV_ACCESS_ZERO_BASED == 0 {
            return Err(EINVAL);
        }
        let addr = dm.place(offset, len as u64)?;
        if !ptr::eq(dm.context.card, pd.context.card) {
            return Err(EINVAL);
        }
        let range = MemoryRange { addr, len: len as u64, iova: 0 };
        dm.regions.fetch_add(1, Ordering::AcqRel);
        make(pd, range, flags, Backing::Device(dm)).inspect_err(|_| {
            dm.regions.fetch_sub(1, Ordering::AcqRel);
        })
    })())
}

/// `ibv_reg_dmabuf_mr`.
pub extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    len: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    or_null(register_fd(pd, offset, len as u64, iova, fd, access as u32))
}

/// Maps a descriptor's memory and registers the mapping. Memory that cannot be mapped into a
/// process, such as that of some accelerators, is not supported.
fn register_fd(
    pd: *mut ibv_pd,
    offset: u64,
    len: u64,
    iova: u64,
    fd: c_int,
    access: u32,
) -> Result<*mut ibv_mr> {
    let pd = pd::find(pd)?;
    access_of(access)?;
    if access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_ZERO_BASED) != 0 || len == 0 {
        return Err(EINVAL);
    }
    // SAFETY: passes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(1) as u64;
    let within = offset % page;
    let size = len.checked_add(within).ok_or(EINVAL)?;
    let (size, from) = (
        usize::try_from(size).map_err(|_| EINVAL)?,
        libc::off_t::try_from(offset - within).map_err(|_| EINVAL)?,
    );
    let write = if access & WRITES != 0 { libc::PROT_WRITE } else { 0 };
    let flags = libc::MAP_SHARED;
    // SAFETY: a new mapping, at an address that the system chooses.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ | write, flags, fd, from) };
    if start == libc::MAP_FAILED {
        return Err(match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EBADF) => Errno(libc::EBADF),
            Some(libc::ENODEV | libc::EACCES | libc::EPERM) => EOPNOTSUPP,
            Some(libc::ENOMEM) => ENOMEM,
            _ => EINVAL,
        });
    }
    let mapping = Backing::Mapping { start: start as usize, len: size };
    let range = MemoryRange { addr: start as u64 + within, len, iova };
    // Beyond the end of a file there are no pages to fault in.
    let made =
        populate(range.addr, len, write != 0).and_then(|()| make(pd, range, access, mapping));
    made.inspect_err(|_| {
        // SAFETY: this library's own mapping, which no other code knows.
        unsafe { libc::munmap(start, size) };
    })
}

/// `verbs_context.advise_mr`.
///
/// # Safety
/// `list` has `count` entries.
pub unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    number((|| {
        let pd = pd::find(pd)?;
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 || count == 0 || list.is_null() {
            return Err(EINVAL);
        }
        if advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
            return Err(Errno(libc::ENOTSUP));
        }
        let write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        for at in 0..count as usize {
            // SAFETY: by promise of the caller.
            let sge = unsafe { *list.add(at) };
            let range = prefetchable(pd, sge, write)?;
            // A prefetch without faults has nothing to do: what is present needs no fetching.
            if advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT {
                populate(range.0, range.1, write)?;
            }
        }
        Ok(())
    })())
}

/// The address and length of an entry, if its region may be prefetched.
fn prefetchable(pd: &'static Slot<Pd>, sge: ibv_sge, write: bool) -> Result<(u64, u64)> {
    let mut found = None;
    handles::for_each::<Mr>(|mr| {
        if mr.key == sge.lkey {
            found = Some(mr);
        }
    });
    // Here the table is not locked any more: others have the card first, and then the table.
    let mr = found.ok_or(Errno(libc::ENOENT))?.now();
    if mr.pd.pd != pd.pd {
        return Err(EPERM);
    }
    if mr.access & IBV_ACCESS_ON_DEMAND == 0 {
        return Err(EINVAL);
    }
    if write && mr.access & WRITES == 0 {
        return Err(EPERM);
    }
    let from = sge.addr.checked_sub(mr.addr).ok_or(EFAULT)?;
    if from.checked_add(u64::from(sge.length)).is_none_or(|end| end > mr.len) {
        return Err(EFAULT);
    }
    Ok((sge.addr, u64::from(sge.length)))
}
