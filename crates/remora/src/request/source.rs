//! Where the bytes of a request come from.

use std::borrow::Cow;

use crate::region::MemoryRegion;
use crate::slice::MemorySlice;

/// The bytes that a request sends: a part of registered memory, or a few bytes of other memory,
/// which are copied into the request (at most [`inline`](crate::QueuePairOptions::inline) bytes).
///
/// A request takes whatever converts into a source: a [`MemorySlice`], a reference to one or to a
/// [`MemoryRegion`], or a reference to bytes.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// Registered memory.
    Memory(MemorySlice),
    /// Bytes of other memory.
    Bytes(Cow<'a, [u8]>),
}

impl Source<'_> {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Source::Memory(slice) => slice.len() as u64,
            Source::Bytes(bytes) => bytes.len() as u64,
        }
    }

    pub(crate) fn into_owned(self) -> Source<'static> {
        match self {
            Source::Memory(slice) => Source::Memory(slice),
            Source::Bytes(bytes) => Source::Bytes(Cow::Owned(bytes.into_owned())),
        }
    }
}

impl From<MemorySlice> for Source<'_> {
    fn from(slice: MemorySlice) -> Self {
        Source::Memory(slice)
    }
}

impl From<&MemorySlice> for Source<'_> {
    fn from(slice: &MemorySlice) -> Self {
        Source::Memory(slice.clone())
    }
}

impl From<&MemoryRegion> for Source<'_> {
    fn from(region: &MemoryRegion) -> Self {
        Source::Memory(region.into())
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Source::Bytes(Cow::Borrowed(bytes))
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Source<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Source::Bytes(Cow::Borrowed(bytes))
    }
}

impl<'a> From<&'a Vec<u8>> for Source<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Source::Bytes(Cow::Borrowed(bytes))
    }
}
