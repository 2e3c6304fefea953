//! A word to the processor: what will be needed soon.
//!
//! With ten thousand queue pairs, the state of the next one is in no near cache. While one has its
//! turn, or takes its packet, that of the next is on its way.

/// Asks the processor to fetch the cache line in which `value` begins, for writing.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_et0(value);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
