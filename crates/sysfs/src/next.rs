//! The C library's function that a program would have called without this library.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of the C library, looked up at its first use.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address. Null if this C library has no such function; then a program that is linked to
    /// this C library does not call it either.
    pub(crate) fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // Several threads may look it up at once; all find the same address.
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_of_the_c_library_are_found() {
        let open = Next::new(c"open");
        assert!(!open.get().is_null());
        assert_eq!(open.get(), open.get());
        assert!(Next::new(c"no_such_function_anywhere").get().is_null());
    }
}
