//! How numbers that no peer chooses are hashed: op-codes, and those of queue pairs.

use core::hash::Hasher;

/// The deployer chooses op-codes, and the card the numbers of queue pairs, no peer: so the hash
/// only has to spread them over the map.
#[derive(Default)]
pub(super) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u16(&mut self, client: u16) {
        self.0 = u64::from(client) << 48;
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (number ^ self.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ mixed >> 32;
    }
}
