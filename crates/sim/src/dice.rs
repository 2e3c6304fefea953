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
