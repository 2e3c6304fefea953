//! Parts of registered memory, by which requests name local memory.

use std::ops::RangeBounds;

use remora_nic::queue::Sge;

use crate::memory::BufferError;
use crate::region::MemoryRegion;
use crate::remote::{Remote, resolve};

/// A part of a [`MemoryRegion`]. It keeps the region registered.
///
/// Peers may write the memory at any time, so its bytes are copied in and out, and never lent.
///
/// ```
/// use remora::prelude::*;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::open()?;
/// let memory = device.alloc_pd()?.alloc(4096, Access::all())?;
/// let greeting = memory.slice(100..105);
/// greeting.write(b"hello")?;
/// assert_eq!(greeting.to_vec()?, b"hello");
/// assert_eq!(memory.slice(..).slice(101..103).to_vec()?, b"el");
/// assert!(memory.get(4090..5000).is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemorySlice {
    region: MemoryRegion,
    start: u64,
    len: u64,
}

impl MemoryRegion {
    /// A part of the region.
    ///
    /// # Panics
    /// The part is not within the region: see [`MemoryRegion::get`].
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> MemorySlice {
        self.get(range).expect("a part of a memory region lies within it")
    }

    /// A part of the region; `None` if it is not within the region.
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<MemorySlice> {
        let (start, len) = resolve(range, self.len())?;
        Some(MemorySlice { region: self.clone(), start, len })
    }
}

impl MemorySlice {
    /// The region that this is a part of.
    pub fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Is the length zero?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of this part.
    ///
    /// # Panics
    /// The range is not within this part: see [`MemorySlice::get`].
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> MemorySlice {
        self.get(range).expect("a part of a memory slice lies within it")
    }

    /// A part of this part; `None` if the range is not within this one.
    pub fn get(&self, range: impl RangeBounds<usize>) -> Option<MemorySlice> {
        let (start, len) = resolve(range, self.len)?;
        Some(MemorySlice { region: self.region.clone(), start: self.start + start, len })
    }

    /// What a peer needs to reach these bytes. The peer can do what the region's access allows.
    pub fn remote(&self) -> Remote {
        let at = self.region.remote(self.start);
        Remote { addr: at.addr, len: self.len, rkey: at.rkey }
    }

    /// A scatter/gather entry for a work request. (Of a part longer than 4 GiB it names the first
    /// 4 GiB; no message is as long.)
    pub fn sge(&self) -> Sge {
        self.region.sge(self.start, u32::try_from(self.len).unwrap_or(u32::MAX))
    }

    /// Fills `dst` with a copy of the first bytes.
    ///
    /// # Errors
    /// The part is shorter than `dst`, or the region has no buffer of its own.
    pub fn read(&self, dst: &mut [u8]) -> Result<(), BufferError> {
        self.check(dst.len())?;
        self.region.read_at(self.start as usize, dst)
    }

    /// Copies `src` to the beginning of the part.
    ///
    /// # Errors
    /// The part is shorter than `src`, or the region has no buffer of its own.
    pub fn write(&self, src: &[u8]) -> Result<(), BufferError> {
        self.check(src.len())?;
        self.region.write_at(self.start as usize, src)
    }

    /// A copy of the bytes.
    ///
    /// # Errors
    /// The region has no buffer of its own.
    pub fn to_vec(&self) -> Result<Vec<u8>, BufferError> {
        let mut bytes = vec![0; self.len()];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// The 64-bit word at the beginning, in host byte order. Later reads see all that was written
    /// before the word (acquire). So a peer can write its data and then the word, and the program
    /// can watch the word.
    ///
    /// # Errors
    /// The part is shorter than 8 bytes, its address is no multiple of 8, or the region has no
    /// buffer of its own.
    #[inline]
    pub fn load_u64(&self) -> Result<u64, BufferError> {
        self.check(8)?;
        let none = BufferError::OutOfRange { offset: 0, len: 8, buffer: 0 };
        self.region.buffer().ok_or(none)?.load_u64(self.start as usize)
    }

    #[inline]
    fn check(&self, len: usize) -> Result<(), BufferError> {
        if len <= self.len() {
            return Ok(());
        }
        Err(BufferError::OutOfRange { offset: 0, len, buffer: self.len() })
    }
}

/// The whole region.
impl From<&MemoryRegion> for MemorySlice {
    fn from(region: &MemoryRegion) -> MemorySlice {
        region.slice(..)
    }
}

impl From<&MemorySlice> for MemorySlice {
    fn from(slice: &MemorySlice) -> MemorySlice {
        slice.clone()
    }
}
