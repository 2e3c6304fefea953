//! The call that a program would have reached without us.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, looked up when it is first wanted.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address. Null where this C library has no such function; a program that is linked to
    /// it then has none to call either.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero byte; the rest is the dynamic linker's.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Several threads may look at once, and all find the same.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_c_library_has_is_found_and_nothing_else() {
        let open = Next::new(c"open");
        assert!(!open.get().is_null());
        assert_eq!(open.get(), open.get());
        assert!(Next::new(c"no_such_function_anywhere").get().is_null());
    }
}
