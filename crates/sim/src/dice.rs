//! The only source of chance: all random choices of a world come from its seed.
//!
//! [`Dice`] is for a world's choices; [`SplitMix`] is a cheap stream for what each packet draws.

use core::ops::RangeInclusive;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
pub use remora_nic::split_mix::{SplitMix, mix};

/// A stream of random choices, determined by a seed.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Dice {
        Dice(ChaCha8Rng::seed_from_u64(seed))
    }

    /// A new stream, so that choices of one part of a world do not change those of another.
    pub fn fork(&mut self) -> Dice {
        Dice::new(self.number())
    }

    /// A random number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// 32 random bytes, as a card's seed.
    pub fn seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        for chunk in seed.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.number().to_le_bytes());
        }
        seed
    }

    /// A number below `n`, which must not be zero. The bias of the remainder does not matter here.
    pub fn below(&mut self, n: u64) -> u64 {
        self.number() % n
    }

    /// A number in the range.
    pub fn between(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.below(range.end() - range.start() + 1)
    }

    /// A number in the range. Each order of magnitude is equally likely.
    pub fn scaled(&mut self, range: RangeInclusive<u64>) -> u64 {
        let (low, high) = (*range.start(), *range.end());
        let bits = (high - low + 1).ilog2();
        let span = 1u64 << self.between(0..=u64::from(bits));
        low + self.below(span.min(high - low + 1))
    }

    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.number() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// True with probability one half.
    pub fn coin(&mut self) -> bool {
        self.number() & 1 == 1
    }

    /// One of the choices, of which there must be at least one.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

/// What a world of flows draws from its seed. Each use has streams of its own: what one draws tells
/// nothing of what another does, nor of the same with another seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Use {
    /// By host: the seed of its card.
    Cards = 0x0063_6172_6473,
    /// By link: which packets are marked.
    Marks = 0x006D_6172_6B73,
    /// By link: which packets are lost.
    Losses = 0x6C6F_7373,
    /// By switch: which paths packets take.
    Paths = 0x0070_6174_6873,
    /// By section of a world's file: the seed of what it draws.
    Sections = 0x7365_6374_696F_6E73,
    /// By host: when it sends how much to which other.
    Loads = 0x006C_6F61_6473,
    /// The order of hosts in a cycle.
    Cycles = 0x6379_636C_6573,
    /// The lengths of values that are fetched.
    Values = 0x7661_6C75_6573,
    /// By key of a store: the length of its value.
    Keys = 0x6B65_7973,
    /// By connection to stores: what it asks them.
    Operations = 0x6F70_6572_6174_6573,
}

impl Use {
    /// The seed of the stream with this index among those that this use has of `seed`.
    pub fn seed(self, seed: u64, index: u64) -> u64 {
        mix(mix(seed ^ self as u64) ^ index)
    }

    /// That stream.
    pub fn stream(self, seed: u64, index: u64) -> SplitMix {
        SplitMix::new(self.seed(seed, index))
    }
}

/// Bytes determined by `seed`, different for different seeds.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        state = state.wrapping_mul(0xD134_2543_DE82_EF95).wrapping_add(0x2545_F491_4F6C_DD1D);
        let mixed = (state ^ state >> 32).wrapping_mul(0x9E6C_63D0_876A_68DE);
        bytes.extend_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Seeds that are neighbours, and all uses of each, begin with numbers of their own.
    #[test]
    fn streams_have_nothing_in_common() {
        use Use::*;
        let uses = [Cards, Marks, Losses, Paths, Sections, Loads, Cycles, Values, Keys, Operations];
        let mut seen = BTreeSet::new();
        for (seed, of) in (1..=8).flat_map(|seed| uses.map(|of| (seed, of))) {
            for index in 0..256 {
                let first = of.stream(seed, index).number();
                assert!(seen.insert(first), "seed {seed}, {of:?} {index}");
            }
        }
    }
}
