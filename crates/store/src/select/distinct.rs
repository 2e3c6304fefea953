//! About how many different values there were: HyperLogLog.
//!
//! The sketch is that of `remora-offload`'s built-in kernel (its hash, ranks and estimate) at one
//! precision, so that for columns of 8 bytes both have the same registers. This crate does not
//! depend on that one yet; when it does, its `Sketch` replaces this one.

/// Bits of a hash that choose a register.
pub const PRECISION: u32 = 12;
/// The registers of a sketch, a byte each. The standard error is 1.04/√registers, some 1.6 %.
pub const REGISTERS: usize = 1 << PRECISION;

/// A sketch of the values that were added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sketch {
    registers: Box<[u8; REGISTERS]>,
}

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch { registers: Box::new([0; REGISTERS]) }
    }
}

/// SplitMix64 without its last step, which only changes low bits.
#[inline]
fn hash(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (value ^ value >> 32).wrapping_mul(0x9E37_79B1);
    (mixed ^ mixed >> 29).wrapping_mul(0x94D0_49BB_1331_11EB)
}

/// The word that stands for bytes: up to 8 of them are that word, and of more it is a hash.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    match (words, rest) {
        ([], _) => u64::from_le_bytes(last),
        ([word], []) => u64::from_le_bytes(*word),
        _ => {
            let mixed = |all: u64, word: u64| hash(all ^ word).rotate_left(32);
            let all = words
                .iter()
                .fold(bytes.len() as u64, |all, word| mixed(all, u64::from_le_bytes(*word)));
            mixed(all, u64::from_le_bytes(last))
        }
    }
}

impl Sketch {
    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: &[u8]) {
        let hash = hash(word(value));
        let register = &mut self.registers[(hash >> (64 - PRECISION)) as usize];
        // A guard stops the count if there is no bit.
        let rank = (hash << PRECISION | 1 << (PRECISION - 1)).leading_zeros() as u8 + 1;
        *register = rank.max(*register);
    }

    /// The registers.
    pub fn registers(&self) -> &[u8; REGISTERS] {
        &self.registers
    }

    /// Adds what another sketch has seen. Returns false, and changes nothing, if these are not the
    /// registers of a sketch.
    pub fn merge(&mut self, registers: &[u8; REGISTERS]) -> bool {
        let fits = registers.iter().all(|rank| u32::from(*rank) <= 64 - PRECISION + 1);
        if fits {
            for (mine, theirs) in self.registers.iter_mut().zip(registers) {
                *mine = (*mine).max(*theirs);
            }
        }
        fits
    }

    /// The estimated number of different values: Ertl's ("New cardinality estimation algorithms
    /// for HyperLogLog sketches", 2017), which needs no corrections for few or many.
    pub fn estimate(&self) -> f64 {
        let highest = (64 - PRECISION) as usize;
        let mut counts = [0u32; 66];
        self.registers.iter().for_each(|rank| counts[usize::from(*rank)] += 1);
        let m = REGISTERS as f64;
        let mut z = m * tau(1.0 - f64::from(counts[highest + 1]) / m);
        for rank in (1..=highest).rev() {
            z = 0.5 * (z + f64::from(counts[rank]));
        }
        z += m * sigma(f64::from(counts[0]) / m);
        m * m / (2.0 * core::f64::consts::LN_2 * z)
    }
}

fn sigma(x: f64) -> f64 {
    if x >= 1.0 {
        return f64::INFINITY;
    }
    let (mut x, mut y, mut z) = (x, 1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

fn tau(x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return 0.0;
    }
    let (mut x, mut y, mut z) = (x, 1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_near_the_number_of_different_values() {
        assert_eq!(Sketch::default().estimate(), 0.0);
        for count in [1u32, 10, 1000, 100_000] {
            let (mut numbers, mut texts) = (Sketch::default(), Sketch::default());
            for value in (0..count).chain(0..count / 2) {
                numbers.add(&u64::from(value).to_le_bytes());
                texts.add(format!("customer number {value}").as_bytes());
            }
            for sketch in [numbers, texts] {
                let error = (sketch.estimate() - f64::from(count)).abs() / f64::from(count);
                assert!(error < 0.05, "{count}: {}", sketch.estimate());
            }
        }
    }

    #[test]
    fn merged_sketches_have_seen_both() {
        let (mut one, mut other, mut both) =
            (Sketch::default(), Sketch::default(), Sketch::default());
        for value in 0..5000u64 {
            if value % 3 == 0 { &mut one } else { &mut other }.add(&value.to_le_bytes());
            both.add(&value.to_le_bytes());
        }
        assert!(one.merge(other.registers()));
        assert_eq!(one, both);
        let mut wrong = *other.registers();
        wrong[7] = 54;
        assert!(!one.merge(&wrong));
        assert_eq!(one, both);
    }
}
