//! The card's own memory, of two kinds: a little that is near, and a lot that is far.
//!
//! So have cards in hardware (*In-Network Memory Access* §5.1.1–2): block RAM of a megabyte or two
//! beside the logic, and gigabytes of DDR4 behind a controller. Here the near memory is in pages
//! that are there from the start, huge ones if the system has any, so that no first touch costs a
//! page fault; the far memory is sparse, and its pages come when they are touched.
//!
//! Both lie in one file of memory, which other processes may map. An offset in it is a *card
//! address*: the far memory begins at 0, and the near memory behind it.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use remora_nic::memory::device::DeviceMemory;
use thiserror::Error;

use crate::memory::memfd::{self, MapError};
use crate::memory::{Buffer, BufferError};

/// Sizes are multiples of this: a huge page of most processors.
const GRANULE: u64 = 2 << 20;
/// The most bytes of either kind: card addresses have 47 bits.
const LEN_MAX: u64 = 1 << 46;
/// The least that a piece is aligned to: a page, so that a piece can be mapped by itself.
const PAGE: u64 = 4096;

/// A kind of card memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// A few MiB, whose pages are there from the start.
    Near,
    /// Gigabytes, whose pages come with the first touch.
    Far,
}

impl MemoryKind {
    /// Its name: `near` or `far`.
    pub fn name(self) -> &'static str {
        match self {
            MemoryKind::Near => "near",
            MemoryKind::Far => "far",
        }
    }
}

/// How much memory of each kind a card has, in bytes; rounded up to multiples of 2 MiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Bytes of near memory.
    pub near: u64,
    /// Bytes of far memory.
    pub far: u64,
}

impl Sizes {
    /// The least of either kind, in bytes; all others are rounded up to a multiple of it.
    pub const LEAST: u64 = GRANULE;
    /// The most of either kind, in bytes.
    pub const MOST: u64 = LEN_MAX;
}

impl Default for Sizes {
    /// 4 MiB near and 4 GiB far, of which only touched pages take memory of the machine.
    fn default() -> Sizes {
        Sizes { near: 4 << 20, far: 4 << 30 }
    }
}

/// Why there is no such card memory.
#[derive(Debug, Error)]
pub enum CardMemoryError {
    /// Of one kind there would be nothing, or more than card addresses reach.
    #[error("a card has 1 byte to {LEN_MAX} bytes of {kind} memory, and not {len}")]
    Size {
        /// The kind.
        kind: &'static str,
        /// Bytes asked for.
        len: u64,
    },
    /// The file of memory cannot be made.
    #[error("cannot make the card's memory of {len} bytes: {source}; ask for less")]
    Make {
        /// Bytes of both kinds.
        len: u64,
        /// The system's reason.
        source: io::Error,
    },
    /// The memory is that of a card of other sizes.
    #[error("the memory has {found} bytes, and the card's has {len}")]
    Other {
        /// Bytes of the memory.
        found: u64,
        /// Bytes of both kinds.
        len: u64,
    },
    /// The memory cannot be mapped.
    #[error("cannot map the card's memory: {0}")]
    Map(#[from] MapError),
}

/// No piece of card memory is free that is long enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the card has no {len} bytes of {} memory left in one piece; free some, or give the card \
         more", kind.name())]
pub struct NoRoom {
    /// The kind asked for.
    pub kind: MemoryKind,
    /// Bytes asked for.
    pub len: u64,
}

/// The memory of one card.
///
/// ```
/// use remora::dma::{CardMemory, MemoryKind, Sizes};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let card = CardMemory::new(Sizes { near: 2 << 20, far: 64 << 20 })?;
/// let piece = card.alloc(MemoryKind::Near, 4096)?;
/// card.bytes().write_at(piece.address() as usize, b"on the card")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CardMemory {
    file: OwnedFd,
    bytes: Buffer,
    sizes: Sizes,
    near_is_there: bool,
    far: Mutex<DeviceMemory>,
    near: Mutex<DeviceMemory>,
}

impl CardMemory {
    /// Makes the memory, all zeroes.
    ///
    /// # Errors
    /// The sizes are out of range, or the system refuses them.
    pub fn new(sizes: Sizes) -> Result<Arc<CardMemory>, CardMemoryError> {
        let sizes = rounded(sizes)?;
        let len = sizes.near + sizes.far;
        let make = |source| CardMemoryError::Make { len, source };
        CardMemory::on(memfd::sealed("remora-card", len).map_err(make)?, sizes)
    }

    /// The memory that another process has made, as it is; nothing of it is given out.
    ///
    /// # Errors
    /// The sizes are out of range, or not those of the file, or the file is no such memory.
    pub(crate) fn again(file: OwnedFd, sizes: Sizes) -> Result<Arc<CardMemory>, CardMemoryError> {
        let sizes = rounded(sizes)?;
        let (found, len) = (memfd::sealed_len(file.as_fd())?, sizes.near + sizes.far);
        if found != len {
            return Err(CardMemoryError::Other { found, len });
        }
        CardMemory::on(file, sizes)
    }

    fn on(file: OwnedFd, sizes: Sizes) -> Result<Arc<CardMemory>, CardMemoryError> {
        let len = sizes.near + sizes.far;
        let bytes = Buffer::map_only(file.as_fd(), 0, len as usize)?;
        let near_is_there = bytes
            .populate(sizes.far as usize, sizes.near as usize)
            .expect("the near memory is within the whole");
        let near = Mutex::new(DeviceMemory::new(sizes.far..len));
        let far = Mutex::new(DeviceMemory::new(0..sizes.far));
        Ok(Arc::new(CardMemory { file, bytes, sizes, near_is_there, far, near }))
    }

    /// All its bytes: an offset is a card address.
    #[inline]
    pub fn bytes(&self) -> &Buffer {
        &self.bytes
    }

    /// How much there is of each kind.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The card addresses of a kind.
    pub fn range(&self, kind: MemoryKind) -> Range<u64> {
        match kind {
            MemoryKind::Far => 0..self.sizes.far,
            MemoryKind::Near => self.sizes.far..self.sizes.far + self.sizes.near,
        }
    }

    /// Have the pages of the near memory been made when the card was?
    pub fn near_is_there(&self) -> bool {
        self.near_is_there
    }

    /// Gives out `len` bytes of a kind, from a page on. They are zero if they were never given out
    /// before.
    ///
    /// # Errors
    /// No piece of that length is free.
    pub fn alloc(self: &Arc<CardMemory>, kind: MemoryKind, len: u64) -> Result<Piece, NoRoom> {
        let whole = len.max(1).checked_next_multiple_of(PAGE).ok_or(NoRoom { kind, len })?;
        let address = self.of(kind).alloc(whole).ok_or(NoRoom { kind, len })?;
        Ok(Piece { card: self.clone(), kind, address, len: whole })
    }

    /// Gives out `len` bytes from `address` on, as they are: of a piece that was given out before
    /// this process had the memory. `None` if they are not free.
    pub(crate) fn alloc_at(self: &Arc<CardMemory>, address: u64, len: u64) -> Option<Piece> {
        let len = len.max(1).checked_next_multiple_of(PAGE)?;
        let kind = if address < self.sizes.far { MemoryKind::Far } else { MemoryKind::Near };
        let is_page = address.is_multiple_of(PAGE);
        let taken = is_page && self.of(kind).alloc_at(address, len);
        taken.then(|| Piece { card: self.clone(), kind, address, len })
    }

    /// How many pieces are given out.
    pub(crate) fn pieces(&self) -> usize {
        [MemoryKind::Near, MemoryKind::Far].map(|kind| self.of(kind).pieces()).iter().sum()
    }

    fn of(&self, kind: MemoryKind) -> std::sync::MutexGuard<'_, DeviceMemory> {
        let memory = match kind {
            MemoryKind::Near => &self.near,
            MemoryKind::Far => &self.far,
        };
        memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for CardMemory {
    /// The file of memory, for another process to map.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Sizes that a card can have.
fn rounded(sizes: Sizes) -> Result<Sizes, CardMemoryError> {
    let size = |kind: MemoryKind, len: u64| match len {
        1..=LEN_MAX => Ok(len.next_multiple_of(GRANULE)),
        _ => Err(CardMemoryError::Size { kind: kind.name(), len }),
    };
    Ok(Sizes { near: size(MemoryKind::Near, sizes.near)?, far: size(MemoryKind::Far, sizes.far)? })
}

/// A piece of card memory that is given out. Dropping it frees the piece.
#[derive(Debug)]
pub struct Piece {
    card: Arc<CardMemory>,
    kind: MemoryKind,
    address: u64,
    len: u64,
}

impl Piece {
    /// The card address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes, a multiple of the page size.
    #[expect(clippy::len_without_is_empty, reason = "a piece is never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Its kind.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// The card whose memory it is.
    pub fn card(&self) -> &Arc<CardMemory> {
        &self.card
    }

    /// Fills `dst` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Some of the bytes are not within the piece.
    pub fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<(), BufferError> {
        self.card.bytes.read_at(self.at(offset, dst.len())?, dst)
    }

    /// Copies `src` to the bytes from `offset` on.
    ///
    /// # Errors
    /// Some of the bytes are not within the piece.
    pub fn write_at(&self, offset: u64, src: &[u8]) -> Result<(), BufferError> {
        self.card.bytes.write_at(self.at(offset, src.len())?, src)
    }

    fn at(&self, offset: u64, len: usize) -> Result<usize, BufferError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok((self.address + offset) as usize),
            _ => Err(BufferError::OutOfRange {
                offset: offset as usize,
                len,
                buffer: self.len as usize,
            }),
        }
    }

    /// Maps the piece by itself: the same bytes as a buffer of their own, to be registered, or to
    /// be the device memory of a card (`ibv_dm`). The piece must outlive what is written there.
    ///
    /// # Errors
    /// The system has no more mappings.
    pub fn map(&self) -> Result<Buffer, MapError> {
        Buffer::map_only(self.card.as_fd(), self.address, self.len as usize)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let freed = self.card.of(self.kind).free(self.address);
        debug_assert!(freed, "a piece is freed once");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Sizes = Sizes { near: 1, far: 4 << 20 };

    #[test]
    fn pieces_of_both_kinds() {
        let card = CardMemory::new(SMALL).unwrap();
        assert_eq!(card.sizes(), Sizes { near: 2 << 20, far: 4 << 20 });
        assert_eq!(
            (card.range(MemoryKind::Far), card.range(MemoryKind::Near)),
            (0..4 << 20, 4 << 20..6 << 20)
        );
        let near = card.alloc(MemoryKind::Near, 100).unwrap();
        let far = card.alloc(MemoryKind::Far, 5000).unwrap();
        assert_eq!((near.address(), near.len()), (4 << 20, 4096));
        assert_eq!((far.address(), far.len()), (0, 8192));
        near.write_at(4092, b"hello").unwrap_err();
        near.write_at(4090, b"hello!").unwrap();
        let mapped = near.map().unwrap();
        let mut bytes = [0; 6];
        mapped.read_at(4090, &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello!");
        let refused = card.alloc(MemoryKind::Near, 2 << 20).unwrap_err();
        assert!(refused.to_string().contains("near memory"), "{refused}");
        drop(near);
        assert_eq!(card.alloc(MemoryKind::Near, 2 << 20).unwrap().address(), 4 << 20);
        assert!(card.alloc(MemoryKind::Far, u64::MAX).is_err());
    }

    #[test]
    fn sizes_that_cannot_be() {
        for sizes in [Sizes { near: 0, ..SMALL }, Sizes { far: 1 << 60, ..SMALL }] {
            assert!(matches!(CardMemory::new(sizes), Err(CardMemoryError::Size { .. })));
        }
    }
}
