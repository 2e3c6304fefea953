//! Which paths are looked up in another place, and where that is.
//!
//! The other place is a folder that stands for `/sys`: it has `class/infiniband/remora0` for
//! `/sys/class/infiniband/remora0`. The folder `dev` in it stands for `/dev`, and holds
//! `infiniband` only. The verbs library makes one such folder for each process, as each process may
//! have a card at another address, and returns its path from its function `remora_sysfs`. If that
//! library is not loaded, `REMORA_SYSFS` names the folder.

use std::ffi::{CStr, c_char};
use std::mem::{self, MaybeUninit};

/// The folders that are looked up elsewhere, with everything below them.
const FOLDERS: [&[u8]; 5] = [
    b"/sys/class/infiniband",
    b"/sys/class/infiniband_verbs",
    b"/sys/class/infiniband_cm",
    b"/sys/class/misc/rdma_cm",
    b"/dev/infiniband",
];

/// Room for the longest path that Linux takes.
pub(crate) struct Room([MaybeUninit<u8>; libc::PATH_MAX as usize]);

impl Room {
    pub(crate) fn new() -> Room {
        Room([MaybeUninit::uninit(); libc::PATH_MAX as usize])
    }

    /// `path` as it is below `root`, which stands for `/sys`; `None` if the result is too long.
    fn join(&mut self, root: &CStr, path: &CStr) -> Option<*const c_char> {
        let root = root.to_bytes();
        let path = path.to_bytes_with_nul();
        let path = path.strip_prefix(b"/sys").unwrap_or(path);
        let root = root.strip_suffix(b"/").unwrap_or(root);
        let all = root.iter().chain(path);
        if root.len() + path.len() > self.0.len() {
            return None;
        }
        for (to, from) in self.0.iter_mut().zip(all) {
            to.write(*from);
        }
        Some(self.0.as_ptr().cast())
    }
}

/// The path to look up instead of `path`: `path` itself, or a path that `room` now holds.
///
/// # Safety
/// `path` is null or a C string. The result lives as long as both arguments.
pub(crate) unsafe fn of(path: *const c_char, room: &mut Room) -> *const c_char {
    // SAFETY: by promise of the caller.
    if unsafe { !is_ours(path) } {
        return path;
    }
    // SAFETY: as above; `is_ours` refuses null.
    let asked = unsafe { CStr::from_ptr(path) };
    root().and_then(|root| room.join(root, asked)).unwrap_or(path)
}

/// Is `path` one of the [`FOLDERS`], or below one of them?
///
/// # Safety
/// `path` is null or a C string.
unsafe fn is_ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // Most paths differ in the first few bytes; no byte is read beyond the first difference.
    FOLDERS.iter().any(|folder| {
        for (at, byte) in folder.iter().enumerate() {
            // SAFETY: all bytes before this one are equal to the folder's, so none of them ends the
            // string.
            if unsafe { *path.add(at) }.cast_unsigned() != *byte {
                return false;
            }
        }
        // SAFETY: as above.
        matches!(unsafe { *path.add(folder.len()) }.cast_unsigned(), 0 | b'/')
    })
}

/// Is `path` a device file, rather than the folder of devices?
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn is_device(path: *const c_char) -> bool {
    // SAFETY: by promise of the caller; `is_ours` refuses null.
    unsafe { is_ours(path) && CStr::from_ptr(path).to_bytes().starts_with(b"/dev/infiniband/") }
}

/// The folder that stands for `/sys`, if there is one.
fn root() -> Option<&'static CStr> {
    // Asked at each call, because after a fork the library has another folder.
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"remora_sysfs".as_ptr()) };
    let root = if found.is_null() {
        // SAFETY: like all code that reads the environment, this relies on no other thread changing
        // it meanwhile.
        unsafe { libc::getenv(c"REMORA_SYSFS".as_ptr()) }.cast_const()
    } else {
        // SAFETY: only Remora's library exports a function of this name, and it has this type.
        let ask: extern "C" fn() -> *const c_char = unsafe { mem::transmute(found) };
        ask()
    };
    if root.is_null() {
        return None;
    }
    // SAFETY: both sources give C strings that are not freed.
    Some(unsafe { CStr::from_ptr(root) }).filter(|root| !root.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours(path: &CStr) -> bool {
        // SAFETY: it is a C string.
        unsafe { is_ours(path.as_ptr()) }
    }

    #[test]
    fn only_paths_below_the_folders_are_looked_up_elsewhere() {
        assert!(ours(c"/sys/class/infiniband"));
        assert!(ours(c"/sys/class/infiniband/"));
        assert!(ours(c"/sys/class/infiniband/remora0/node_guid"));
        assert!(ours(c"/sys/class/infiniband_verbs/abi_version"));
        assert!(ours(c"/dev/infiniband/uverbs0"));
        for path in [c"", c"/", c"/sys/class", c"/sys/class/infinibandage", c"sys/class/infiniband"]
        {
            assert!(!ours(path), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { !is_ours(std::ptr::null()) });
    }

    #[test]
    fn a_path_is_put_below_the_root_unless_it_becomes_too_long() {
        let mut room = Room::new();
        let joined = room.join(c"/run/x/", c"/sys/class/infiniband").unwrap();
        // SAFETY: `join` has just written it.
        assert_eq!(unsafe { CStr::from_ptr(joined) }, c"/run/x/class/infiniband");
        let joined = room.join(c"/run/x", c"/dev/infiniband/uverbs0").unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(joined) }, c"/run/x/dev/infiniband/uverbs0");
        let long = std::ffi::CString::new(vec![b'a'; 4090]).unwrap();
        assert!(room.join(c"/12345", &long).is_none());
        assert!(room.join(c"/1234", &long).is_some());
    }
}
