//! Bytes of one owner that begin at a page.

use std::ops::{Deref, DerefMut};

/// The smallest page of any processor that Linux runs on here.
const PAGE: usize = 4096;

/// A fixed number of bytes, zero at first, that begin at a page.
///
/// It is for large bytes that the kernel copies to and from. An allocator puts its own notes before
/// a large `Vec`, which then begins 16 bytes into a page: copies to and from such places take 2 to
/// 8 times as long on some processors. (Registered memory is a [`Buffer`](super::Buffer).)
///
/// ```
/// use remora::memory::PageAligned;
///
/// let mut bytes = PageAligned::new(65_536);
/// assert_eq!(bytes.as_ptr().addr() % 4096, 0);
/// bytes[..5].copy_from_slice(b"hello");
/// ```
#[derive(Debug)]
pub struct PageAligned {
    /// More than is lent: the bytes do not move, so that the place of the first page is kept.
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
}

impl PageAligned {
    /// `len` bytes of zeroes.
    pub fn new(len: usize) -> PageAligned {
        let bytes = vec![0; len + PAGE].into_boxed_slice();
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE) - bytes.as_ptr().addr();
        PageAligned { bytes, start, len }
    }
}

impl Deref for PageAligned {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }
}

impl DerefMut for PageAligned {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_any_length_begin_at_a_page() {
        for len in [0, 1, 4095, 4096, 65_536, 1 << 20] {
            let mut bytes = PageAligned::new(len);
            assert_eq!((bytes.as_ptr().addr() % PAGE, bytes.len()), (0, len));
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
            // A move of the owner moves no bytes.
            let (at, moved) = (bytes.as_ptr().addr(), Some(bytes));
            let bytes = moved.as_deref().unwrap();
            assert!(bytes.as_ptr().addr() == at && bytes.iter().all(|byte| *byte == 7));
        }
    }
}
