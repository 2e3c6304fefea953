//! Hints to the processor. (When the card fetches work requests from a ring, and so which changes
//! it still sees, is in `qp/requester.rs`; what chains may rely on is in `chain.rs`.)

/// Asks the processor to fetch the cache line where `value` begins, for writing. This has no effect
/// that can be seen, but for time.
#[inline(always)]
pub(crate) fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    safe_arch::prefetch_et0(value);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
