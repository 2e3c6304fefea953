//! Memory, as the card sees it: foreign, translated and checked.
//!
//! - [`Memory`], here, is the trait by which the card reaches the driver's bytes.
//! - [`key`]: protection domains, keys, and the kinds of access that they permit. `key_table`: what
//!   a key names.
//! - [`region`]: memory regions (MRs): registers and changes them, and ends their keys.
//! - [`window`]: memory windows (MWs); `window/bind.rs` binds them to regions and unbinds them.
//! - [`page_table`]: where on the bus a region's bytes are.
//! - `check`: decides whether an access is allowed, and which bus address it becomes.
//! - `through_key`: reads and writes bytes through a key, once the check allows it.
//! - [`device`]: device memory, which lives on the card.
//!
//! The rules of keys, regions and windows are those of InfiniBand volume 1, chapter 10 (Software
//! Transport Interface).

pub(crate) mod check;
pub mod device;
pub mod key;
mod key_table;
pub mod page_table;
pub mod region;
mod through_key;
pub mod window;

use core::sync::atomic::AtomicU64;

use thiserror::Error;

/// The bytes behind a bus address, as the driver reaches them.
///
/// A bus address is what page tables hold: in a live process a virtual address of that process, or
/// a handle and an offset that the driver chooses; in the simulator an offset into a host's memory.
/// The card never turns one into a reference, since an application may write registered memory at
/// any time: bytes are copied in and out, or changed by real atomics. Every call may fail, for
/// example because a mapped file has shrunk.
pub trait Memory {
    /// Copies `dst.len()` bytes from `addr`.
    fn read(&mut self, addr: u64, dst: &mut [u8]) -> Result<(), MemoryFault>;

    /// Appends `len` bytes from `addr` to `out`, which stays as it was on a fault.
    fn append(&mut self, addr: u64, len: usize, out: &mut Vec<u8>) -> Result<(), MemoryFault> {
        append_by_reading(self, addr, len, out)
    }

    /// Copies `src` to `addr`. Bytes become visible in rising order of address.
    fn write(&mut self, addr: u64, src: &[u8]) -> Result<(), MemoryFault>;

    /// Announces that `len` bytes from `addr` on will probably be written soon, so that the driver
    /// can prepare. This has no visible effect, and addresses that cannot be reached are ignored.
    /// The default does nothing.
    fn prefetch(&mut self, addr: u64, len: usize) {
        let _ = (addr, len);
    }

    /// Lends `count` 64-bit words from `addr` on (8-byte aligned, host byte order) for many small
    /// accesses in a row. `None`, the default, if they can only be copied.
    fn words(&self, addr: u64, count: u64) -> Option<&[AtomicU64]> {
        let _ = (addr, count);
        None
    }

    /// Replaces the 64-bit word at `addr` (8-byte aligned, host byte order) by `swap` if it equals
    /// `compare`, atomically for the host's processors too. Returns the value before.
    fn compare_swap(&mut self, addr: u64, compare: u64, swap: u64) -> Result<u64, MemoryFault>;

    /// Adds `add` to the word at `addr`, under the rules of [`Memory::compare_swap`]. Returns the
    /// value before.
    fn fetch_add(&mut self, addr: u64, add: u64) -> Result<u64, MemoryFault>;

    /// Replaces the word at `addr`, under the rules of [`Memory::compare_swap`]. The default swaps
    /// until it succeeds, and gives up with a fault if other writers never stop.
    fn store(&mut self, addr: u64, value: u64) -> Result<(), MemoryFault> {
        let mut expected = self.fetch_add(addr, 0)?;
        for _ in 0..TRIES {
            let before = self.compare_swap(addr, expected, value)?;
            if before == expected {
                return Ok(());
            }
            expected = before;
        }
        Err(MemoryFault { addr })
    }

    /// Replaces the word at `addr` by the result of `calc` on it and `operand`, under the rules of
    /// [`Memory::compare_swap`]. Returns the value before. The default swaps until it succeeds, and
    /// gives up with a fault if other writers never stop.
    fn calculate(&mut self, addr: u64, calc: Calc, operand: u64) -> Result<u64, MemoryFault> {
        let mut expected = self.fetch_add(addr, 0)?;
        for _ in 0..TRIES {
            let before = self.compare_swap(addr, expected, calc.of(expected, operand))?;
            if before == expected {
                return Ok(before);
            }
            expected = before;
        }
        Err(MemoryFault { addr })
    }
}

/// [`Memory::append`] made of [`Memory::read`]. It initialises the bytes before it reads them.
///
/// # Errors
/// The [`MemoryFault`] of [`Memory::read`]; `out` stays as it was then.
pub fn append_by_reading(
    memory: &mut (impl Memory + ?Sized),
    addr: u64,
    len: usize,
    out: &mut Vec<u8>,
) -> Result<(), MemoryFault> {
    let from = out.len();
    out.resize(from + len, 0);
    memory.read(addr, &mut out[from..]).inspect_err(|_| out.truncate(from))
}

/// How many times a compare-and-swap is tried against other writers.
const TRIES: usize = 1 << 10;

/// What a calc verb calculates from a 64-bit word and its operand (the vendor's verbs of RedN
/// §5.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Calc {
    /// The greater, without sign.
    Max,
    /// The lesser, without sign.
    Min,
    /// The bits that both have.
    And,
    /// The bits that at least one has.
    Or,
    /// The bits that exactly one has.
    Xor,
    /// The sum, modulo 2^64.
    Add,
}

impl Calc {
    /// The calc verb with this number on the wire, counted from 0 in the order above.
    pub(crate) const fn numbered(number: u64) -> Option<Calc> {
        Some(match number {
            0 => Calc::Max,
            1 => Calc::Min,
            2 => Calc::And,
            3 => Calc::Or,
            4 => Calc::Xor,
            5 => Calc::Add,
            _ => return None,
        })
    }

    /// The value that replaces `word`.
    pub const fn of(self, word: u64, operand: u64) -> u64 {
        match self {
            Calc::Max if word < operand => operand,
            Calc::Min if word > operand => operand,
            Calc::Max | Calc::Min => word,
            Calc::And => word & operand,
            Calc::Or => word | operand,
            Calc::Xor => word ^ operand,
            Calc::Add => word.wrapping_add(operand),
        }
    }
}

/// The driver could not reach memory that the page table names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[error("the memory at bus address {addr:#x} cannot be reached")]
pub struct MemoryFault {
    /// The bus address.
    pub addr: u64,
}
