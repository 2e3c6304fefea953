//! Copies between memory of this process alone and memory that others change at any time.
//!
//! Memory that others change is called *foreign* here. Each foreign byte is touched once, by a
//! volatile access. So the compiler cannot read a byte twice: the copy is checked, and the copy
//! must be used. Nor can the compiler put `memcpy` in the place of the accesses, which may store
//! the first bytes last. Words that are aligned in foreign memory are moved whole, so that no
//! reader sees half of a 64-bit value.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use remora_offload::cpu::{self, Level};

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

/// The widest that any processor of this kind moves at once.
#[cfg(target_arch = "aarch64")]
type Lane = std::arch::aarch64::uint8x16_t;
#[cfg(target_arch = "x86_64")]
type Lane = std::arch::x86_64::__m128i;
#[cfg(not(any(target_arch = "aarch64", target_arch = "x86_64")))]
type Lane = u64;

const WORD: usize = size_of::<u64>();
/// Lanes that are moved in one turn of the main loop.
const UNROLL: usize = 4;
/// Bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;
/// From how many bytes on wider lanes are worth the check for them.
const WIDE: usize = 256;

/// Copies foreign bytes from `src` to `dst`, which need not be initialised.
///
/// # Safety
/// `dst.len()` bytes from `src` on are mapped readable, and none of them is a part of `dst`, which
/// the caller may write.
#[inline]
pub(super) unsafe fn copy_in(src: *const u8, dst: *mut [u8]) {
    if dst.len() == WORD && src.cast::<u64>().is_aligned() {
        // Chains mostly move single words.
        // SAFETY: by the caller's promise; the foreign side is aligned.
        unsafe { dst.cast::<u64>().write_unaligned(src.cast::<u64>().read_volatile()) };
        return fence(Ordering::Acquire);
    }
    // SAFETY: by the caller's promise.
    unsafe {
        if dst.len() >= WIDE {
            copy_in_wide(cpu::level(), src, dst);
        } else {
            copy_in_by::<Lane>(src, dst);
        }
    }
    // Bytes that are read after this are at least as new as those that were copied.
    fence(Ordering::Acquire);
}

/// Copies `src` to foreign memory from `dst` on, the last bytes last.
///
/// Programs poll the last byte of a message, or a flag behind a record, and then read the bytes
/// before it. The stores here are volatile and go by rising addresses, and x86 shows stores to
/// other cores in that order (total store order). Other processors keep the promise for the bytes
/// behind the last whole lane only: those are stored with release ordering, so a reader that sees
/// them sees all bytes before them.
///
/// # Safety
/// `src.len()` bytes from `dst` on are mapped writable, and none of them is a part of `src`.
#[inline]
pub(super) unsafe fn copy_out(src: &[u8], dst: *mut u8) {
    if src.len() == WORD && dst.cast::<u64>().is_aligned() {
        // SAFETY: by the caller's promise; aligned.
        return unsafe { store_word(src.as_ptr(), dst) };
    }
    // SAFETY: by the caller's promise.
    unsafe {
        if src.len() >= WIDE {
            return copy_out_wide(cpu::level(), src, dst);
        }
        #[cfg(target_arch = "x86_64")]
        if src.len().is_multiple_of(LINE) && dst.addr().is_multiple_of(LINE) {
            return copy_out_lines(src, dst);
        }
        copy_out_by::<Lane>(src, dst);
    }
}

/// Asks the processor to fetch `len` bytes from `to` on, since they will be written. The processor
/// may ignore it, and ignores addresses that are not mapped.
#[inline]
pub(super) fn prefetch(to: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        let end = to.wrapping_add(len);
        let mut line = to.wrapping_sub(to.addr() % LINE);
        while line < end {
            // SAFETY: a hint reads nothing and writes nothing, and never faults.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(line.cast()) };
            line = line.wrapping_add(LINE);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (to, len);
}

/// Asks the processor to fetch the line of this byte, since it will be read.
#[inline]
pub(super) fn prefetch_read(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint reads nothing and writes nothing, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// [`copy_in`] by the widest lanes of a level.
///
/// # Safety
/// As for [`copy_in`].
#[inline]
unsafe fn copy_in_wide(level: Level, src: *const u8, dst: *mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if level.has_avx2() {
        // SAFETY: by the caller's promise; AVX2 includes AVX.
        return unsafe { copy_in_avx(src, dst) };
    }
    let _ = level;
    // SAFETY: by the caller's promise.
    unsafe { copy_in_by::<Lane>(src, dst) }
}

/// [`copy_out`] by the widest lanes of a level.
///
/// # Safety
/// As for [`copy_out`].
#[inline]
unsafe fn copy_out_wide(level: Level, src: &[u8], dst: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    if level.has_avx2() {
        // SAFETY: by the caller's promise; AVX2 includes AVX.
        return unsafe { copy_out_avx(src, dst) };
    }
    let _ = level;
    // SAFETY: by the caller's promise.
    unsafe { copy_out_by::<Lane>(src, dst) }
}

/// # Safety
/// As for [`copy_in`], and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_in_avx(src: *const u8, dst: *mut [u8]) {
    // SAFETY: by the caller's promise.
    unsafe { copy_in_by::<__m256i>(src, dst) }
}

/// # Safety
/// As for [`copy_out`], and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn copy_out_avx(src: &[u8], dst: *mut u8) {
    // SAFETY: by the caller's promise.
    unsafe { copy_out_by::<__m256i>(src, dst) }
}

/// [`copy_in`] by lanes of type `L`, an integer or vector that the processor can move.
///
/// # Safety
/// As for [`copy_in`].
#[inline(always)]
unsafe fn copy_in_by<L: Copy>(src: *const u8, dst: *mut [u8]) {
    let len = dst.len();
    let dst = dst.cast::<u8>();
    let lane = size_of::<L>();
    let mut at = 0;
    // SAFETY: `at` and the size of an access never pass `len`, so each access is within both
    // ranges; foreign words and lanes are aligned by then, our own side is accessed unaligned.
    unsafe {
        if !src.cast::<L>().is_aligned() {
            while at < len && !src.add(at).cast::<u64>().is_aligned() {
                dst.add(at).write(src.add(at).read_volatile());
                at += 1;
            }
            while at + WORD <= len && !src.add(at).cast::<L>().is_aligned() {
                let word = src.add(at).cast::<u64>().read_volatile();
                dst.add(at).cast::<u64>().write_unaligned(word);
                at += WORD;
            }
        }
        while at + UNROLL * lane <= len {
            let from = src.add(at).cast::<L>();
            let to = dst.add(at).cast::<L>();
            // No closures: they would not be compiled for the wider lanes, and may stay calls.
            let (a, b) = (from.read_volatile(), from.add(1).read_volatile());
            let (c, d) = (from.add(2).read_volatile(), from.add(3).read_volatile());
            to.write_unaligned(a);
            to.add(1).write_unaligned(b);
            to.add(2).write_unaligned(c);
            to.add(3).write_unaligned(d);
            at += UNROLL * lane;
        }
        if at == len {
            return;
        }
        while at + lane <= len {
            dst.add(at).cast::<L>().write_unaligned(src.add(at).cast::<L>().read_volatile());
            at += lane;
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
}

/// [`copy_out`] by lanes of type `L`, an integer or vector that the processor can move.
///
/// # Safety
/// As for [`copy_out`].
#[inline(always)]
unsafe fn copy_out_by<L: Copy>(src: &[u8], dst: *mut u8) {
    let len = src.len();
    let src = src.as_ptr();
    let lane = size_of::<L>();
    let mut at = 0;
    // SAFETY: `at` and the size of an access never pass `len`, so each access is within both
    // ranges; foreign words and lanes are aligned by then, our own side is accessed unaligned.
    unsafe {
        while at < len && !dst.add(at).cast::<u64>().is_aligned() {
            store_byte(src.add(at), dst.add(at));
            at += 1;
        }
        while at + WORD <= len && !dst.add(at).cast::<L>().is_aligned() {
            store_word(src.add(at), dst.add(at));
            at += WORD;
        }
        // At least one byte is left over, so that the last bytes are stored with release ordering.
        while at + UNROLL * lane < len {
            let from = src.add(at).cast::<L>();
            let to = dst.add(at).cast::<L>();
            let (a, b) = (from.read_unaligned(), from.add(1).read_unaligned());
            let (c, d) = (from.add(2).read_unaligned(), from.add(3).read_unaligned());
            to.write_volatile(a);
            to.add(1).write_volatile(b);
            to.add(2).write_volatile(c);
            to.add(3).write_volatile(d);
            at += UNROLL * lane;
        }
        while at + lane < len {
            dst.add(at).cast::<L>().write_volatile(src.add(at).cast::<L>().read_unaligned());
            at += lane;
        }
        while at + WORD <= len {
            store_word(src.add(at), dst.add(at));
            at += WORD;
        }
        while at < len {
            store_byte(src.add(at), dst.add(at));
            at += 1;
        }
    }
}

/// [`copy_out`] of whole cache lines, for short copies: in these, to look for unaligned ends takes
/// longer than to copy. (x86 shows the stores to other cores in the order written here.)
///
/// # Safety
/// As for [`copy_out`]; `dst`, and with it all that is written, is aligned to lines.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn copy_out_lines(src: &[u8], dst: *mut u8) {
    for (line, at) in src.as_chunks::<LINE>().0.iter().zip((0..).step_by(LINE)) {
        let from = line.as_ptr().cast::<Lane>();
        // SAFETY: a line of each side is moved, of four lanes; by the caller's promise the foreign
        // side is aligned.
        unsafe {
            let to = dst.add(at).cast::<Lane>();
            let (a, b) = (from.read_unaligned(), from.add(1).read_unaligned());
            let (c, d) = (from.add(2).read_unaligned(), from.add(3).read_unaligned());
            to.write_volatile(a);
            to.add(1).write_volatile(b);
            to.add(2).write_volatile(c);
            to.add(3).write_volatile(d);
        }
    }
}

/// # Safety
/// A byte can be read at `src` and written at `dst`.
#[inline(always)]
unsafe fn store_byte(src: *const u8, dst: *mut u8) {
    // SAFETY: by the caller's promise; foreign memory is reached by atomics and raw pointers only.
    unsafe { AtomicU8::from_ptr(dst).store(src.read(), Ordering::Release) }
}

/// # Safety
/// A word can be read at `src` and written at `dst`, which is aligned.
#[inline(always)]
unsafe fn store_word(src: *const u8, dst: *mut u8) {
    // SAFETY: by the caller's promise; foreign memory is reached by atomics and raw pointers only.
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
        let pattern: Vec<u8> = (0..400).map(|i| (i % 253) as u8).collect();
        for offset in 0..17 {
            for len in (0..150).chain([320, 353]) {
                let src = &pattern[offset..offset + len];
                let mut there = [0xffu8; 400];
                // SAFETY: both ranges are within their arrays.
                unsafe { copy_out(src, there.as_mut_ptr().add(offset)) };
                assert_eq!(&there[offset..offset + len], src);
                assert!(there[..offset].iter().chain(&there[offset + len..]).all(|b| *b == 0xff));
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_in(there.as_ptr().add(offset), &mut *back) };
                assert_eq!(back, src, "{len} bytes at {offset}");
            }
        }
    }

    #[test]
    fn each_level_at_every_alignment() {
        let pattern: Vec<u8> = (0..1200).map(|i| (i % 253) as u8).collect();
        for level in Level::all() {
            for (offset, len) in
                (0..33).flat_map(|at| (0..70).map(move |more| (at, 250 + 13 * more)))
            {
                let src = &pattern[offset / 2..][..len];
                let mut there = vec![0xffu8; 1300];
                // SAFETY: both ranges are within their vectors.
                unsafe { copy_out_wide(level, src, there.as_mut_ptr().add(offset)) };
                assert_eq!(&there[offset..offset + len], src, "{level}: {len} bytes at {offset}");
                assert!(there[..offset].iter().chain(&there[offset + len..]).all(|b| *b == 0xff));
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { copy_in_wide(level, there.as_ptr().add(offset), &mut *back) };
                assert_eq!(back, src, "{level}: {len} bytes at {offset}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn whole_lines() {
        #[repr(align(64))]
        struct Lines([u8; 384]);
        let pattern: Vec<u8> = (0..400).map(|i| (i % 253) as u8).collect();
        for len in (0..320).step_by(LINE) {
            let mut there = Lines([0xff; 384]);
            // SAFETY: both ranges are within their arrays.
            unsafe { copy_out(&pattern[3..3 + len], there.0.as_mut_ptr().add(LINE)) };
            assert_eq!(there.0[LINE..][..len], pattern[3..3 + len]);
            assert!(there.0[..LINE].iter().chain(&there.0[LINE + len..]).all(|b| *b == 0xff));
        }
    }
}
