//! The memory of the model's nodes.

use std::hash::{Hash, Hasher};
use std::sync::{Mutex, MutexGuard};

use remora_store::memory::Memory;
use remora_store::replica::region_bytes;

use crate::RING;

/// A node's region, as a value. (Pages of its own for each of a million states take minutes.)
#[derive(Debug)]
pub(crate) struct Region(Mutex<Vec<u8>>);

impl Region {
    pub(crate) fn new() -> Region {
        Region(Mutex::new(vec![0; region_bytes(RING).next_multiple_of(8) as usize]))
    }

    fn all(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    pub(crate) fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.read(at, &mut bytes);
        bytes
    }
}

impl Memory for Region {
    fn len(&self) -> u64 {
        self.all().len() as u64
    }

    fn load(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_ne_bytes(word)
    }

    fn store(&self, at: u64, value: u64) {
        self.write(at, &value.to_ne_bytes());
    }

    fn compare_swap(&self, at: u64, old: u64, new: u64) -> Result<u64, u64> {
        let mut all = self.all();
        let word: &mut [u8; 8] = all[at as usize..].first_chunk_mut().unwrap();
        let there = u64::from_ne_bytes(*word);
        if there != old {
            return Err(there);
        }
        *word = new.to_ne_bytes();
        Ok(there)
    }

    fn read(&self, at: u64, dst: &mut [u8]) {
        dst.copy_from_slice(&self.all()[at as usize..][..dst.len()]);
    }

    fn write(&self, at: u64, src: &[u8]) {
        self.all()[at as usize..][..src.len()].copy_from_slice(src);
    }
}

impl Clone for Region {
    fn clone(&self) -> Region {
        Region(Mutex::new(self.all().clone()))
    }
}

impl PartialEq for Region {
    fn eq(&self, other: &Region) -> bool {
        *self.all() == *other.bytes(0, other.len())
    }
}

impl Hash for Region {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.all().hash(state);
    }
}
