//! Counts acknowledged events, in the fields of the C structs that the header reserves for it.

use libc::{pthread_cond_t, pthread_mutex_t};

/// A counter of acknowledged events, with its mutex and condition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckCounter {
    pub(crate) mutex: *mut pthread_mutex_t,
    pub(crate) cond: *mut pthread_cond_t,
    pub(crate) completed: *mut u32,
}

impl AckCounter {
    /// Counts `more` events as acknowledged.
    ///
    /// # Safety
    /// The places are those of an object that lives through the call.
    pub(crate) unsafe fn add(self, more: u32) {
        // SAFETY: by promise of the caller; the counter is reached under its mutex only.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *self.completed = (*self.completed).wrapping_add(more);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Waits until `got` events are acknowledged.
    ///
    /// # Safety
    /// As for [`AckCounter::add`].
    pub(crate) unsafe fn wait(self, got: u32) {
        // SAFETY: by promise of the caller; the counter is reached under its mutex only.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while (*self.completed).wrapping_sub(got) as i32 <= -1 {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}
