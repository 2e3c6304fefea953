//! About how many different values there were: the sketch of the HyperLogLog kernel, for values of
//! any length.

use std::fmt;

use remora_offload::kernel::builtin::hyperloglog;
use twox_hash::XxHash3_64;

/// Bits of a hash that choose a register.
pub const PRECISION: u8 = 12;
/// The registers of a sketch, a byte each. The standard error is 1.04/√registers, some 1.6 %.
pub const REGISTERS: usize = 1 << PRECISION;

/// A sketch of the values that were added.
#[derive(Clone)]
pub struct Sketch(hyperloglog::Sketch);

impl fmt::Debug for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sketch(about {:.0})", self.estimate())
    }
}

/// Sketches are equal if they say the same, however many values each has seen.
impl PartialEq for Sketch {
    fn eq(&self, other: &Sketch) -> bool {
        self.registers() == other.registers()
    }
}

impl Eq for Sketch {}

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch(hyperloglog::Sketch::new(PRECISION))
    }
}

/// The word that stands for bytes: up to 8 of them are that word, and of more it is a hash.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    match word.get_mut(..bytes.len()) {
        Some(start) => start.copy_from_slice(bytes),
        None => return XxHash3_64::oneshot(bytes),
    }
    u64::from_le_bytes(word)
}

impl Sketch {
    /// Adds a value.
    #[inline]
    pub fn add(&mut self, value: &[u8]) {
        self.0.add(word(value));
    }

    /// The registers: [`REGISTERS`] bytes.
    pub fn registers(&self) -> &[u8] {
        self.0.registers()
    }

    /// Adds what another sketch has seen. Returns false, and changes nothing, if these are not the
    /// registers of a sketch.
    pub fn merge(&mut self, registers: &[u8; REGISTERS]) -> bool {
        self.0.merge(registers, 0)
    }

    /// The estimated number of different values.
    pub fn estimate(&self) -> f64 {
        self.0.estimate()
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
        let registers = |of: &Sketch| <[u8; REGISTERS]>::try_from(of.registers()).unwrap();
        assert!(one.merge(&registers(&other)));
        assert_eq!(one, both);
        let mut wrong = registers(&other);
        wrong[7] = 54;
        assert!(!one.merge(&wrong));
        assert_eq!(one, both);
    }
}
