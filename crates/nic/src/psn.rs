//! Packet sequence numbers: 24 bits, compared on a circle.

use core::fmt;

const BITS: u32 = 24;
const MASK: u32 = (1 << BITS) - 1;
/// Half the circle: of two PSNs farther apart, neither is the later one.
pub(crate) const HALF: u32 = 1 << (BITS - 1);

/// A 24-bit packet sequence number.
///
/// Of two PSNs, the one less than half a circle (2²³) ahead of the other is the later one. The
/// transport keeps every window far below that half, so the comparison is never ambiguous.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "u32", into = "u32"))]
pub struct Psn(u32);

impl From<u32> for Psn {
    fn from(value: u32) -> Psn {
        Psn::new(value)
    }
}

impl From<Psn> for u32 {
    fn from(psn: Psn) -> u32 {
        psn.0
    }
}

impl Psn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// The number itself, below 2²⁴.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The PSN `n` packets later.
    #[must_use]
    pub const fn plus(self, n: u32) -> Psn {
        Psn(self.0.wrapping_add(n) & MASK)
    }

    /// The PSN `n` packets earlier.
    #[must_use]
    pub const fn minus(self, n: u32) -> Psn {
        Psn(self.0.wrapping_sub(n) & MASK)
    }

    /// How many packets `self` lies ahead of `other` on the circle, in 0..2²⁴.
    pub const fn distance_from(self, other: Psn) -> u32 {
        self.0.wrapping_sub(other.0) & MASK
    }

    /// Is `self` earlier than `other`?
    pub const fn is_before(self, other: Psn) -> bool {
        let ahead = other.distance_from(self);
        ahead != 0 && ahead < HALF
    }

    /// Is `self` later than `other`?
    pub const fn is_after(self, other: Psn) -> bool {
        other.is_before(self)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_survives_the_wrap() {
        let last = Psn::new(MASK);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).minus(1), last);
        assert!(last.is_before(Psn::new(3)));
        assert!(Psn::new(3).is_after(last));
        assert_eq!(Psn::new(3).distance_from(last), 4);
    }

    #[test]
    fn a_psn_is_neither_before_nor_after_itself() {
        let p = Psn::new(77);
        assert!(!p.is_before(p) && !p.is_after(p));
    }

    #[test]
    fn exactly_one_side_of_the_half_circle_is_before() {
        let p = Psn::new(5);
        assert!(p.is_before(p.plus(HALF - 1)));
        assert!(!p.is_before(p.plus(HALF)));
        assert!(p.is_after(p.minus(HALF - 1)));
    }
}
