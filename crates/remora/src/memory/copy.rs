//! Copies between our own memory and memory that others change at any time.
//!
//! Foreign bytes are touched once each, by volatile accesses: the compiler may neither read one
//! twice (the copy is what gets checked, so it must be what gets used) nor put a library call in
//! their place, and `memcpy` is free to store the first bytes last. Words that are aligned in
//! foreign memory are moved whole, so that nobody sees half of a 64-bit value.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// What the main loop moves at a time: the widest access that every x86-64 has. Elsewhere, a word.
#[cfg(target_arch = "x86_64")]
type Lane = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Lane = u64;

const LANE: usize = size_of::<Lane>();
const WORD: usize = size_of::<u64>();

/// Copies foreign bytes from `src` on to `dst`.
///
/// # Safety
/// `dst.len()` bytes from `src` on are mapped readable, and none of them is a part of `dst`.
pub(super) unsafe fn copy_in(src: *const u8, dst: &mut [u8]) {
    let len = dst.len();
    let dst = dst.as_mut_ptr();
    let mut at = 0;
    // SAFETY: `at` and the size of an access never pass `len`, so each access is within both
    // ranges; foreign words and lanes are aligned by then, our own side is accessed unaligned.
    unsafe {
        while at < len && !src.add(at).cast::<u64>().is_aligned() {
            dst.add(at).write(src.add(at).read_volatile());
            at += 1;
        }
        while at + WORD <= len && !src.add(at).cast::<Lane>().is_aligned() {
            dst.add(at).cast::<u64>().write_unaligned(src.add(at).cast::<u64>().read_volatile());
            at += WORD;
        }
        while at + LANE <= len {
            dst.add(at).cast::<Lane>().write_unaligned(src.add(at).cast::<Lane>().read_volatile());
            at += LANE;
        }
        while at + WORD <= len {
            dst.add(at).cast::<u64>().write_unaligned(src.add(at).cast::<u64>().read_volatile());
            at += WORD;
        }
        while at < len {
            dst.add(at).write(src.add(at).read_volatile());
            at += 1;
        }
    }
    // What is read after this is at least as new as what was copied.
    fence(Ordering::Acquire);
}

/// Copies `src` to foreign memory from `dst` on, the last bytes last.
///
/// Programs poll the last byte of a message, or a flag behind a record, and then read what lies
/// before it. Volatile stores leave the processor's core in the order written here, which is that
/// of rising addresses, and x86 shows stores to others in that order (total store order). Other
/// processors keep the promise for the last 1 to 16 bytes only: these are stored with release
/// ordering, so all that came before is seen by whoever sees them.
///
/// # Safety
/// `src.len()` bytes from `dst` on are mapped writable, and none of them is a part of `src`.
pub(super) unsafe fn copy_out(src: &[u8], dst: *mut u8) {
    let len = src.len();
    let src = src.as_ptr();
    let mut at = 0;
    // SAFETY: `at` and the size of an access never pass `len`, so each access is within both
    // ranges; foreign words and lanes are aligned by then, our own side is accessed unaligned.
    // Foreign memory is reached by no reference but those of atomics made here.
    unsafe {
        while at < len && !dst.add(at).cast::<u64>().is_aligned() {
            AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), Ordering::Release);
            at += 1;
        }
        if at + WORD <= len && !dst.add(at).cast::<Lane>().is_aligned() {
            store_word(src.add(at), dst.add(at));
            at += WORD;
        }
        while at + LANE < len {
            let lane = src.add(at).cast::<Lane>().read_unaligned();
            dst.add(at).cast::<Lane>().write_volatile(lane);
            at += LANE;
        }
        while at + WORD <= len {
            store_word(src.add(at), dst.add(at));
            at += WORD;
        }
        while at < len {
            AtomicU8::from_ptr(dst.add(at)).store(src.add(at).read(), Ordering::Release);
            at += 1;
        }
    }
}

/// # Safety
/// A word can be read at `src` and written at `dst`, which is aligned.
unsafe fn store_word(src: *const u8, dst: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe {
        let word = src.cast::<u64>().read_unaligned();
        AtomicU64::from_ptr(dst.cast()).store(word, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_alignment() {
        let pattern: Vec<u8> = (0..200u8).collect();
        for offset in 0..17 {
            for len in 0..150 {
                let src = &pattern[offset..offset + len];
                let mut there = [0xffu8; 200];
                // SAFETY: both ranges are within their arrays.
                unsafe { copy_out(src, there.as_mut_ptr().add(offset)) };
                assert_eq!(&there[offset..offset + len], src);
                assert!(there[..offset].iter().chain(&there[offset + len..]).all(|b| *b == 0xff));
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_in(there.as_ptr().add(offset), &mut back) };
                assert_eq!(back, src, "{len} bytes at {offset}");
            }
        }
    }
}
