//! Copies from memory that others change to memory that others change.
//!
//! The C library's `memcpy` is not made for such memory: the compiler may assume that nobody else
//! writes it. And where it moves large blocks by the processor's string instruction, it is slow for
//! some distances between source and destination (16 bytes modulo a page: a twentieth of its pace
//! on Zen 3). So large blocks are moved by a loop of vector instructions, which the compiler does
//! not look into; each foreign byte is read once and written once.

use std::mem::MaybeUninit;

use super::copy::{copy_in, copy_out};

/// Bytes that one turn of the loop moves.
#[cfg(target_arch = "x86_64")]
const TURN: usize = 128;
/// Bytes of the block on the stack through which short copies go.
const BLOCK: usize = 1024;

/// Copies `len` bytes from `src` to `dst`. Where the ranges overlap, the destination has bytes of
/// either; no order among them is promised.
///
/// # Safety
/// `len` bytes from `src` on are mapped readable, and as many from `dst` on writable. No reference
/// to either exists.
#[inline]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: by the caller's promise; what `copy_fast` has copied is at most `len`.
    unsafe {
        let done = copy_fast(src, dst, len);
        copy_by_block(src.add(done), dst.add(done), len - done);
    }
}

/// Copies as much of a large block as vector instructions do, from its beginning on; returns how
/// many bytes that is.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_fast(src: *const u8, dst: *mut u8, len: usize) -> usize {
    if len < TURN || !remora_offload::cpu::level().has_avx2() {
        return 0;
    }
    // Stores to whole lines of the destination take half the time of others.
    let head = dst.align_offset(64).min(len);
    let turns = (len - head) / TURN;
    // SAFETY: by the caller's promise; `head` and the turns behind it are within `len`.
    unsafe {
        copy_by_block(src, dst, head);
        turns_avx(src.add(head), dst.add(head), turns);
    }
    head + turns * TURN
}

/// There is nothing faster than a block.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn copy_fast(_src: *const u8, _dst: *mut u8, _len: usize) -> usize {
    0
}

/// [`copy`], through a block of this thread's own.
///
/// # Safety
/// As for [`copy`].
#[inline]
unsafe fn copy_by_block(src: *const u8, dst: *mut u8, len: usize) {
    let mut block = [MaybeUninit::<u8>::uninit(); BLOCK];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(BLOCK);
        let own = std::ptr::slice_from_raw_parts_mut(block.as_mut_ptr().cast::<u8>(), part);
        // SAFETY: by the caller's promise; the block is this thread's, and `copy_in` has
        // initialised the part that is then lent.
        unsafe {
            copy_in(src.add(done), own);
            copy_out(&*own, dst.add(done));
        }
        done += part;
    }
}

/// Moves `turns` times [`TURN`] bytes.
///
/// # Safety
/// As for [`copy`], and the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn turns_avx(src: *const u8, dst: *mut u8, turns: usize) {
    if turns == 0 {
        return;
    }
    // SAFETY: the loop reads and writes TURN bytes a turn, which lie within both ranges by the
    // caller's promise, and changes no register but those that are named.
    unsafe {
        std::arch::asm!(
            "2:",
            "vmovdqu {a}, [{src}]",
            "vmovdqu {b}, [{src} + 32]",
            "vmovdqu {c}, [{src} + 64]",
            "vmovdqu {d}, [{src} + 96]",
            "vmovdqu [{dst}], {a}",
            "vmovdqu [{dst} + 32], {b}",
            "vmovdqu [{dst} + 64], {c}",
            "vmovdqu [{dst} + 96], {d}",
            "add {src}, 128",
            "add {dst}, 128",
            "dec {turns}",
            "jnz 2b",
            src = inout(reg) src => _,
            dst = inout(reg) dst => _,
            turns = inout(reg) turns => _,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_at_every_alignment() {
        let pattern: Vec<u8> = (0..3000).map(|i| (i % 251) as u8).collect();
        for (at, to) in [(0, 0), (1, 0), (0, 1), (16, 0), (5, 63), (64, 65)] {
            for len in (0..300).chain([511, 512, 1023, 1024, 1025, 2300]) {
                let mut there = vec![0xffu8; 3000];
                // SAFETY: both ranges are within their vectors, to which no slices are in use.
                unsafe { copy(pattern.as_ptr().add(at), there.as_mut_ptr().add(to), len) };
                assert_eq!(there[to..to + len], pattern[at..at + len], "{len} from {at} to {to}");
                assert!(there[..to].iter().chain(&there[to + len..]).all(|byte| *byte == 0xff));
            }
        }
    }
}
