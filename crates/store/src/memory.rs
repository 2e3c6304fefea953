//! The bytes that the store lives in.
//!
//! They are foreign: kernels, chains and one-sided clients that were given access may read and
//! write them at any time. So they are never a Rust slice, what is read from them is checked before
//! it is used, and nothing that the store relies on (locks, bitmaps, counts) is kept in them.

use core::sync::atomic::{AtomicU64, Ordering, fence};

const WORD: u64 = 8;
#[cfg(target_arch = "x86_64")]
const LINE: u64 = 64;

/// Foreign memory, shared among threads by reference. Places are offsets in bytes from its begin.
///
/// The store stays within [`Memory::len`]; an implementation may panic beyond.
pub trait Memory: Send + Sync {
    /// The bytes there are: a multiple of 8.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first byte as chains and one-sided readers name it.
    fn base(&self) -> u64 {
        0
    }

    /// The word at `at`, a multiple of 8 (acquire).
    fn load(&self, at: u64) -> u64;

    /// Replaces the word at `at`, a multiple of 8 (release).
    fn store(&self, at: u64, value: u64);

    /// Replaces the word at `at`, a multiple of 8, if it is `old`.
    ///
    /// # Errors
    /// The word is another one: this one.
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64>;

    /// Copies bytes from `at` on. Others may write them meanwhile, so callers verify the copy. The
    /// copy is made before any later access.
    fn read(&self, at: u64, dst: &mut [u8]);

    /// Copies bytes to `at` and on. A thread that sees one of them also sees what was stored
    /// earlier.
    fn write(&self, at: u64, src: &[u8]);

    /// Asks the processor for bytes that are soon read. The default lets the read wait for them.
    fn prefetch(&self, at: u64, len: u64) {
        let _ = (at, len);
    }

    /// Whether somebody may read by addresses, without the store: what an address that was shown
    /// leads to then stays as it is for a while. The default expects it.
    fn has_readers(&self) -> bool {
        true
    }

    /// Says that the bytes are of no more use, so that the machine may have them back. They read as
    /// anything afterwards. The default keeps them.
    fn give_back(&self, at: u64, len: u64) {
        let _ = (at, len);
    }
}

impl<M: Memory + ?Sized> Memory for &M {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn base(&self) -> u64 {
        (**self).base()
    }

    fn load(&self, at: u64) -> u64 {
        (**self).load(at)
    }

    fn store(&self, at: u64, value: u64) {
        (**self).store(at, value);
    }

    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        (**self).compare_swap(at, old, new)
    }

    fn read(&self, at: u64, dst: &mut [u8]) {
        (**self).read(at, dst);
    }

    fn write(&self, at: u64, src: &[u8]) {
        (**self).write(at, src);
    }

    fn give_back(&self, at: u64, len: u64) {
        (**self).give_back(at, len);
    }

    #[inline]
    fn has_readers(&self) -> bool {
        (**self).has_readers()
    }

    #[inline]
    fn prefetch(&self, at: u64, len: u64) {
        (**self).prefetch(at, len);
    }
}

/// Asks the processor for the cache lines of `len` bytes from `at` on, whose words `word` leads to.
#[inline]
pub(crate) fn prefetch_lines<'a>(at: u64, len: u64, word: impl Fn(u64) -> Option<&'a AtomicU64>) {
    #[cfg(target_arch = "x86_64")]
    for line in (at & !(LINE - 1)..at + len).step_by(LINE as usize) {
        if let Some(word) = word(line) {
            safe_arch::prefetch_t0(word);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len, word);
}

/// Memory of the process's heap, as atomic words: for tests, and where nobody else has access.
///
/// The operating system provides its pages when they are first written.
#[derive(Debug)]
pub struct Heap {
    words: Box<[AtomicU64]>,
}

impl Heap {
    /// Zeros, at least `len` bytes.
    pub fn new(len: u64) -> Heap {
        let zeros = vec![0u64; len.div_ceil(WORD) as usize].into_boxed_slice();
        let words = Box::into_raw(zeros) as *mut [AtomicU64];
        // SAFETY: the pointer comes from a box of as many words, and AtomicU64 has the size, the
        // alignment and the valid values of u64 on targets of 64 bits, the only ones with this
        // crate's cards.
        Heap { words: unsafe { Box::from_raw(words) } }
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        &self.words[(at / WORD) as usize]
    }

    /// Changes the bytes of one word from `offset` on.
    fn write_part(&self, index: usize, offset: usize, src: &[u8]) {
        let word = &self.words[index];
        let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
        bytes[offset..offset + src.len()].copy_from_slice(src);
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

impl Memory for Heap {
    #[inline]
    fn len(&self) -> u64 {
        self.words.len() as u64 * WORD
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    #[inline]
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.word(at).compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn read(&self, at: u64, dst: &mut [u8]) {
        let (mut index, offset) = ((at / WORD) as usize, (at % WORD) as usize);
        let mut rest = dst;
        if offset > 0 {
            let (first, others) = rest.split_at_mut(rest.len().min(WORD as usize - offset));
            let bytes = self.words[index].load(Ordering::Relaxed).to_le_bytes();
            first.copy_from_slice(&bytes[offset..offset + first.len()]);
            (rest, index) = (others, index + 1);
        }
        let (whole, last) = rest.as_chunks_mut::<{ WORD as usize }>();
        let words = &self.words[index..index + whole.len()];
        for (chunk, word) in whole.iter_mut().zip(words) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        if !last.is_empty() {
            let bytes = self.words[index + whole.len()].load(Ordering::Relaxed).to_le_bytes();
            last.copy_from_slice(&bytes[..last.len()]);
        }
        fence(Ordering::Acquire);
    }

    #[inline]
    fn prefetch(&self, at: u64, len: u64) {
        prefetch_lines(at, len, |at| self.words.get((at / WORD) as usize));
    }

    #[inline]
    fn write(&self, at: u64, src: &[u8]) {
        fence(Ordering::Release);
        let (mut index, offset) = ((at / WORD) as usize, (at % WORD) as usize);
        let mut rest = src;
        if offset > 0 {
            let (first, others) = rest.split_at(rest.len().min(WORD as usize - offset));
            self.write_part(index, offset, first);
            (rest, index) = (others, index + 1);
        }
        let (whole, last) = rest.as_chunks::<{ WORD as usize }>();
        let words = &self.words[index..index + whole.len()];
        for (chunk, word) in whole.iter().zip(words) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
        if !last.is_empty() {
            self.write_part(index + whole.len(), 0, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_change_by_comparison() {
        let heap = Heap::new(20);
        assert_eq!(heap.len(), 24);
        heap.store(8, 5);
        assert_eq!(heap.compare_swap(8, 4, 6), Err(5));
        assert_eq!(heap.compare_swap(8, 5, 6), Ok(5));
        assert_eq!(heap.load(8), 6);
    }

    proptest! {
        #[test]
        fn bytes_are_read_as_they_were_written(
            writes in prop::collection::vec((0u64..200, any::<Vec<u8>>()), 0..20),
        ) {
            let heap = Heap::new(512);
            let mut model = vec![0; 512];
            for (at, bytes) in writes {
                heap.write(at, &bytes);
                model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                let mut copy = vec![0; bytes.len()];
                heap.read(at, &mut copy);
                prop_assert_eq!(copy, bytes);
            }
            let mut all = vec![0; 512];
            heap.read(0, &mut all);
            prop_assert_eq!(all, model);
        }
    }
}
