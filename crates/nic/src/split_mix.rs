//! Numbers that look random and are the same in every run: SplitMix64 (Steele, Lea, Flood: Fast
//! Splittable Pseudorandom Number Generators, OOPSLA '14).
//!
//! The card itself draws none. They are here for all that stands around it: worlds, bad networks,
//! tables, tests.

/// A stream of numbers, which costs two multiplications a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// The stream of a seed; every seed is good. Those of seeds that differ by a step of the stream
    /// have the same numbers, only later: [`mix`] the seeds where that matters.
    #[inline]
    pub const fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// The next number.
    #[inline]
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// The next number, as one from 0 up to, but without, 1.
    #[inline]
    pub fn fraction(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A number whose bits all depend on all bits of `n`.
#[inline]
pub const fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the authors' program.
    #[test]
    fn the_numbers_are_those_of_the_paper() {
        let mut numbers = SplitMix::new(0);
        assert_eq!(numbers.number(), 0xE220_A839_7B1D_CDAF);
        assert_eq!(numbers.number(), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(numbers.number(), 0x06C4_5D18_8009_454F);
        assert_eq!(
            SplitMix::new(0).fraction(),
            (0xE220_A839_7B1D_CDAF_u64 >> 11) as f64 / 2f64.powi(53)
        );
    }
}
