//! Maps by numbers that the card gives: handles, queue pairs, sessions.
//!
//! Clients do not choose these numbers, so that no hash has to withstand them. The usual one takes
//! longer than all else that is done for a completion.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers of the card's.
pub(crate) type ByNumber<V> = HashMap<u32, V, BuildHasherDefault<NumberHasher>>;

/// Spreads numbers over a map.
#[derive(Debug, Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        let mixed = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // Maps take the low bits for the place, and the high ones to tell entries apart.
        self.0 = mixed ^ mixed >> 32;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::{BuildHasher, Hash};

    use super::*;

    #[test]
    fn numbers_in_a_row_have_places_of_their_own() {
        let map: ByNumber<()> = HashMap::default();
        let places: HashSet<u64> =
            (0..1000u32).map(|number| map.hasher().hash_one(1 << 20 | number) & 0xffff).collect();
        assert!(places.len() > 950, "{}", places.len());
        let mut hasher = NumberHasher::default();
        "text".hash(&mut hasher);
        assert_ne!(hasher.finish(), 0);
    }
}
