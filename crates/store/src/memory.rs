//! The bytes that the store lives in.
//!
//! They are foreign: kernels, chains and one-sided clients that were given access may read and
//! write them at any time. So they are never a Rust slice, what is read from them is checked before
//! it is used, and nothing that the store relies on (locks, bitmaps, counts) is kept in them.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use remora::memory::Buffer;

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
fn prefetch_lines<'a>(at: u64, len: u64, word: impl Fn(u64) -> Option<&'a AtomicU64>) {
    #[cfg(target_arch = "x86_64")]
    for line in (at & !(LINE - 1)..at + len).step_by(LINE as usize) {
        if let Some(word) = word(line) {
            safe_arch::prefetch_t0(word);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, len, word);
}

const INSIDE: &str = "the store stays within its memory";

/// A buffer of its own, which no card is told of yet.
impl Memory for Buffer {
    #[inline]
    fn len(&self) -> u64 {
        self.len() as u64 & !(WORD - 1)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.word(at as usize).expect(INSIDE).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.word(at as usize).expect(INSIDE).store(value, Ordering::Release);
    }

    #[inline]
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        let word = self.word(at as usize).expect(INSIDE);
        word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline]
    fn read(&self, at: u64, dst: &mut [u8]) {
        self.read_at(at as usize, dst).expect(INSIDE);
        fence(Ordering::Acquire);
    }

    #[inline]
    fn write(&self, at: u64, src: &[u8]) {
        self.write_at(at as usize, src).expect(INSIDE);
    }

    #[inline]
    fn prefetch(&self, at: u64, len: u64) {
        prefetch_lines(at, len, |at| self.word(at as usize).ok());
    }

    fn give_back(&self, at: u64, len: u64) {
        // What the system does not take stays as it is.
        _ = Buffer::give_back(self, at as usize, len as usize).expect(INSIDE);
    }
}

/// Memory of the process: for tests, and where nobody else has access.
///
/// The operating system provides its pages when they are first written.
#[derive(Debug)]
pub struct Heap(Buffer);

impl Heap {
    /// Zeros, at least `len` bytes.
    ///
    /// # Panics
    /// The system has no room for them.
    pub fn new(len: u64) -> Heap {
        let len = len.next_multiple_of(WORD).max(WORD);
        Heap(Buffer::new(len as usize).expect("the system has room"))
    }

    /// Bytes of it that the machine has provided pages for.
    #[cfg(test)]
    pub(crate) fn resident(&self) -> u64 {
        use std::os::unix::fs::FileExt;
        let map = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut entries = vec![0; self.0.len().div_ceil(4096) * 8];
        map.read_exact_at(&mut entries, self.0.addr() / 4096 * 8).unwrap();
        // The highest byte's highest bits: the page is present, or swapped out.
        let present = entries.chunks_exact(8).filter(|entry| entry[7] & 0xC0 != 0);
        present.count() as u64 * 4096
    }
}

impl Memory for Heap {
    #[inline]
    fn len(&self) -> u64 {
        Memory::len(&self.0)
    }

    #[inline]
    fn load(&self, at: u64) -> u64 {
        self.0.load(at)
    }

    #[inline]
    fn store(&self, at: u64, value: u64) {
        self.0.store(at, value);
    }

    #[inline]
    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_swap(at, old, new)
    }

    #[inline]
    fn read(&self, at: u64, dst: &mut [u8]) {
        self.0.read(at, dst);
    }

    #[inline]
    fn write(&self, at: u64, src: &[u8]) {
        self.0.write(at, src);
    }

    #[inline]
    fn prefetch(&self, at: u64, len: u64) {
        self.0.prefetch(at, len);
    }

    fn give_back(&self, at: u64, len: u64) {
        Memory::give_back(&self.0, at, len);
    }
}

/// What a test does before the store reaches its memory.
pub trait Watch: Send + Sync {
    /// The store is about to read `len` bytes from `at` on.
    fn before_read(&self, at: u64, len: usize) {
        let _ = (at, len);
    }

    /// The store is about to write `len` bytes from `at` on.
    fn before_write(&self, at: u64, len: usize) {
        let _ = (at, len);
    }
}

/// Memory for tests, beside whose accesses something happens.
#[derive(Debug)]
pub struct Watched<W> {
    heap: Heap,
    watch: W,
}

impl<W> Watched<W> {
    /// Zeros, as [`Heap::new`].
    ///
    /// # Panics
    /// The system has no room for them.
    pub fn new(len: u64, watch: W) -> Watched<W> {
        Watched { heap: Heap::new(len), watch }
    }

    /// What happens.
    pub fn watch(&self) -> &W {
        &self.watch
    }
}

impl<W: Watch> Memory for Watched<W> {
    fn len(&self) -> u64 {
        self.heap.len()
    }

    fn load(&self, at: u64) -> u64 {
        self.heap.load(at)
    }

    fn store(&self, at: u64, value: u64) {
        self.heap.store(at, value);
    }

    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        self.heap.compare_swap(at, old, new)
    }

    fn read(&self, at: u64, dst: &mut [u8]) {
        self.watch.before_read(at, dst.len());
        self.heap.read(at, dst);
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.watch.before_write(at, src.len());
        self.heap.write(at, src);
    }

    fn prefetch(&self, at: u64, len: u64) {
        self.heap.prefetch(at, len);
    }

    fn give_back(&self, at: u64, len: u64) {
        self.heap.give_back(at, len);
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
