//! How long a kernel's memory accesses take in a simulation. (`turn` lets the kernel wait for
//! them.)

use core::fmt;

use remora_nic::Time;

/// The direction of an access to memory, as the card sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From memory.
    Read,
    /// To memory.
    Write,
}

/// Says when the accesses of a simulated card's kernels are over (PCIe, StRoM §6.2).
///
/// All kernels of a card share it, so accesses can wait for each other.
pub trait Timing: fmt::Debug + Send {
    /// The moment at which an access to `len` bytes is over that begins `now`. Asked once for each
    /// access, in the order of time.
    fn over(&mut self, now: Time, direction: Direction, len: usize) -> Time;
}
