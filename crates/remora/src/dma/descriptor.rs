//! Descriptors: what an application asks the engine to do, as 32 bytes in shared memory.
//!
//! The bytes are hostile: an application may write anything there, at any time. The engine reads a
//! descriptor once, and [`Descriptor::parse`] makes of it a value that is valid in itself. Whether
//! its addresses are within memory is judged where they are used.
//!
//! | byte | what |
//! |---|---|
//! | 0 | operation: 1 copy, 2 fill |
//! | 1 | flags: 1 fence, 2 linked, 4 more of the packet follows |
//! | 2–3 | zero |
//! | 4–7 | length in bytes, 1 to 2³⁰ |
//! | 8–15 | source address; the pattern of a fill |
//! | 16–23 | destination address |
//! | 24–31 | zero |
//!
//! Numbers are little-endian.

use std::fmt;

use bitflags::bitflags;

/// Bytes of a descriptor.
pub const BYTES: usize = 32;
/// The longest part that one descriptor moves.
pub const LEN_MAX: u32 = 1 << 30;

/// Set in addresses of host memory, clear in those of card memory.
const HOST: u64 = 1 << 63;
/// The lowest bit of a host region's number in an address.
const REGION_SHIFT: u32 = 48;

/// Where a descriptor's bytes are, in 64 bits: a card address, or a place in a host region that the
/// application has granted (bit 63 set, the region's number in bits 48 to 62, the offset below).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Address {
    /// A card address.
    Card(u64),
    /// A place in a granted region.
    Host(RegionId, u64),
}

/// The number of a host region that was granted to an engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionId(pub u16);

impl RegionId {
    /// The address of a byte of the region. Offsets of 2⁴⁸ and more have none.
    pub fn at(self, offset: u64) -> Address {
        Address::Host(self, offset)
    }
}

impl Address {
    /// The address in 64 bits; `None` for an offset or a region number that has too many.
    pub fn to_bits(self) -> Option<u64> {
        match self {
            Address::Card(at) => (at < HOST).then_some(at),
            Address::Host(RegionId(region), offset) => {
                let fits = region < 1 << 15 && offset < 1 << REGION_SHIFT;
                fits.then_some(HOST | u64::from(region) << REGION_SHIFT | offset)
            }
        }
    }

    /// The address that 64 bits are.
    #[inline]
    pub fn from_bits(bits: u64) -> Address {
        if bits & HOST == 0 {
            return Address::Card(bits);
        }
        let region = (bits & !HOST) >> REGION_SHIFT;
        Address::Host(RegionId(region as u16), bits & ((1 << REGION_SHIFT) - 1))
    }

    /// The address `by` bytes further on; `None` where there is none.
    pub fn plus(self, by: u64) -> Option<Address> {
        match self {
            Address::Card(at) => at.checked_add(by).map(Address::Card),
            Address::Host(region, at) => at.checked_add(by).map(|at| region.at(at)),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Card(at) => write!(f, "card:{at:#x}"),
            Address::Host(RegionId(region), at) => write!(f, "host{region}:{at:#x}"),
        }
    }
}

bitflags! {
    /// What applies to a descriptor besides its operation.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u8 {
        /// Begins only when all before it is complete, and seen by every process to be.
        const FENCE = 1;
        /// The next descriptor is a further part of the same operation: if this one fails, that one
        /// is not attempted.
        const LINKED = 2;
        /// Streaming: the packet does not end with this descriptor.
        const MORE = 4;
    }
}

/// What a descriptor asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Moves bytes from an address to another. A stream is one of the two ends of streaming
    /// channels, which ignore the card's.
    Copy {
        /// The first byte to read.
        src: Address,
        /// The first byte to write.
        dst: Address,
    },
    /// Repeats an 8-byte pattern, little-endian, from the lowest byte of the destination on.
    Fill {
        /// The pattern.
        pattern: u64,
        /// The first byte to write.
        dst: Address,
    },
}

/// A descriptor that is valid in itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The operation.
    pub op: Op,
    /// What applies besides.
    pub flags: Flags,
    /// Bytes to move, 1 to [`LEN_MAX`].
    pub len: u32,
}

impl Descriptor {
    /// Reads a descriptor; `None` if it is none: an unknown operation or flag, a length out of
    /// range, or something other than zero where zero must be.
    #[inline]
    pub fn parse(bytes: &[u8; BYTES]) -> Option<Descriptor> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (head, src, dst, tail) = (word(0), word(8), word(16), word(24));
        let flags = Flags::from_bits((head >> 8) as u8)?;
        let len = (head >> 32) as u32;
        let is_valid = (1..=LEN_MAX).contains(&len) && head >> 16 & 0xffff == 0 && tail == 0;
        let dst = Address::from_bits(dst);
        let op = match head as u8 {
            1 => Op::Copy { src: Address::from_bits(src), dst },
            2 => Op::Fill { pattern: src, dst },
            _ => return None,
        };
        is_valid.then_some(Descriptor { op, flags, len })
    }

    /// Is one of its addresses in this region?
    pub(super) fn names(&self, region: RegionId) -> bool {
        let is_there = |address| matches!(address, Address::Host(of, _) if of == region);
        match self.op {
            Op::Copy { src, dst } => is_there(src) || is_there(dst),
            Op::Fill { dst, .. } => is_there(dst),
        }
    }

    /// The bytes of the descriptor; `None` if an address has no 64 bits.
    #[inline]
    pub fn to_bytes(self) -> Option<[u8; BYTES]> {
        let (code, src, dst) = match self.op {
            Op::Copy { src, dst } => (1, src.to_bits()?, dst),
            Op::Fill { pattern, dst } => (2, pattern, dst),
        };
        let head = code | u64::from(self.flags.bits()) << 8 | u64::from(self.len) << 32;
        let mut bytes = [0; BYTES];
        for (at, word) in [head, src, dst.to_bits()?].into_iter().enumerate() {
            bytes[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
        }
        Some(bytes)
    }
}

/// How a descriptor has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Status {
    /// All bytes were moved.
    Done = 1,
    /// It was not a descriptor.
    Invalid = 2,
    /// An address names no region that is granted, or bytes outside of memory.
    OutOfRange = 3,
    /// The channel does not move bytes in that direction, or does not do that at all.
    Unsupported = 4,
    /// The region is granted for reading only.
    ReadOnly = 5,
    /// The way to the application's memory failed: the memory or its process has gone.
    Fault = 6,
    /// An earlier part of the same operation, or of the same packet to a stream, failed.
    Skipped = 7,
    /// The engine has stopped.
    Stopped = 8,
    /// Streaming, card to host: the channel that put the packet into the stream has ended before
    /// the packet did, or the rest of the packet could not be put there.
    Cut = 9,
}

impl Status {
    const ALL: [Status; 9] = [
        Status::Done,
        Status::Invalid,
        Status::OutOfRange,
        Status::Unsupported,
        Status::ReadOnly,
        Status::Fault,
        Status::Skipped,
        Status::Stopped,
        Status::Cut,
    ];

    /// The status of a number.
    pub fn of(number: u8) -> Option<Status> {
        Status::ALL.into_iter().find(|status| *status as u8 == number)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Status::Done => "done",
            Status::Invalid => "the descriptor is not valid",
            Status::OutOfRange => "an address is outside of the memory that the engine was given",
            Status::Unsupported => "the channel does not move bytes that way",
            Status::ReadOnly => "the memory was granted for reading only",
            Status::Fault => "the application’s memory cannot be reached",
            Status::Skipped => "an earlier part of the same operation or packet failed",
            Status::Stopped => "the engine has stopped",
            Status::Cut => "the rest of the packet does not come: its writer has ended, or failed",
        })
    }
}

/// How a descriptor has ended, and how many bytes it has moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// How it has ended.
    pub status: Status,
    /// Bytes that were moved.
    pub bytes: u32,
    /// Streaming, card to host: the packet ended with the last of these bytes.
    pub end_of_packet: bool,
}

impl Outcome {
    /// An outcome that moved nothing.
    pub(crate) fn failed(status: Status) -> Outcome {
        Outcome { status, bytes: 0, end_of_packet: false }
    }

    /// The outcome as a word of shared memory: never zero.
    #[inline]
    pub(crate) fn to_word(self) -> u64 {
        let end = u64::from(self.end_of_packet) << 8;
        u64::from(self.status as u8) | end | u64::from(self.bytes) << 32
    }

    /// The outcome of a word; `None` if it is none.
    #[inline]
    pub(crate) fn from_word(word: u64) -> Option<Outcome> {
        let status = Status::of(word as u8)?;
        Some(Outcome { status, bytes: (word >> 32) as u32, end_of_packet: word >> 8 & 1 == 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes 0 to 23 of a copy of 0x01020304 bytes, fenced, from region 2 to the card.
    const COPY: [u8; 24] =
        [1, 1, 0, 0, 4, 3, 2, 1, 0x10, 0, 0, 0, 0, 0, 2, 0x80, 0, 0x20, 0, 0, 0, 0, 0, 0];

    fn copy() -> Descriptor {
        let (src, dst) = (RegionId(2).at(0x10), Address::Card(0x2000));
        Descriptor { op: Op::Copy { src, dst }, flags: Flags::FENCE, len: 0x0102_0304 }
    }

    #[test]
    fn fixed_bytes_both_ways() {
        let mut bytes = [0; BYTES];
        bytes[..24].copy_from_slice(&COPY);
        assert_eq!(Descriptor::parse(&bytes), Some(copy()));
        assert_eq!(copy().to_bytes(), Some(bytes));
    }

    #[test]
    fn what_is_no_descriptor() {
        for (at, byte) in [(0, 0), (0, 3), (1, 8), (2, 1), (7, 0x41), (24, 1), (31, 1)] {
            let mut bytes = copy().to_bytes().unwrap();
            bytes[at] = byte;
            assert_eq!(Descriptor::parse(&bytes), None, "byte {at} is {byte}");
        }
        let empty = Descriptor { len: 0, ..copy() };
        assert_eq!(Descriptor::parse(&empty.to_bytes().unwrap()), None);
        assert_eq!(Address::Card(HOST).to_bits(), None);
        assert_eq!(RegionId(1 << 15).at(0).to_bits(), None);
        assert_eq!(RegionId(0).at(1 << 48).to_bits(), None);
    }

    #[test]
    fn outcomes_are_words() {
        for status in Status::ALL {
            let outcome = Outcome { status, bytes: 7, end_of_packet: status == Status::Done };
            assert_eq!(Outcome::from_word(outcome.to_word()), Some(outcome));
        }
        assert_eq!(Outcome::from_word(0), None);
        assert_eq!(Outcome::from_word(0xff), None);
    }
}
