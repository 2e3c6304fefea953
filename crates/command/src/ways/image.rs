//! Bytes that will lie at a known address of the peer, while they are prepared: structures and
//! their values.

use anyhow::{Context, Result, ensure};
use remora::offload::kernel::builtin::{consistency, get};

/// Bytes of a list's element: key, next element, value (StRoM's Figure 6).
pub const ELEMENT_LEN: usize = 24;

/// The bytes that will lie at the peer from some address on.
#[derive(Clone, Debug)]
pub struct Image {
    base: u64,
    room: usize,
    bytes: Vec<u8>,
}

/// A linked list at the peer.
#[derive(Clone, Debug)]
pub struct List {
    /// Address of its first element.
    pub head: u64,
    /// The keys, from the first element to the last.
    pub keys: Vec<u64>,
    /// Bytes of each value.
    pub value_len: u32,
}

impl Image {
    /// An empty image for `room` bytes at `base`.
    pub fn new(base: u64, room: usize) -> Image {
        Image { base, room, bytes: Vec::new() }
    }

    /// The address of its first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds bytes on cache lines of their own; returns their address at the peer.
    pub fn put(&mut self, bytes: &[u8]) -> Result<u64> {
        let at = self.reserve(bytes.len())?;
        self.set(at, bytes);
        Ok(at)
    }

    /// Room for `len` bytes.
    pub fn reserve(&mut self, len: usize) -> Result<u64> {
        let at = self.bytes.len().next_multiple_of(64);
        let fits = at + len <= self.room;
        ensure!(fits, "the peer's {} bytes of memory do not hold all of the data", self.room);
        self.bytes.resize(at + len, 0);
        Ok(self.base + at as u64)
    }

    /// Sets the bytes at an address.
    pub fn set(&mut self, addr: u64, bytes: &[u8]) {
        let at = (addr - self.base) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds a list with these keys and values; all values have the same length.
    pub fn list(&mut self, entries: &[(u64, &[u8])]) -> Result<List> {
        let value_len = entries.first().context("a list has elements")?.1.len();
        let mut next = 0u64;
        for (key, value) in entries.iter().rev() {
            ensure!(value.len() == value_len, "the values of a list have one length");
            let value = self.put(value)?;
            let words = [*key, next, value].map(u64::to_le_bytes);
            next = self.put(words.as_flattened())?;
        }
        let keys = entries.iter().map(|(key, _)| *key).collect();
        Ok(List { head: next, keys, value_len: u32::try_from(value_len)? })
    }

    /// Adds a hash table with these keys and values, three quarters full if keys spread evenly.
    pub fn table(
        &mut self,
        entries: &[(u64, &[u8])],
    ) -> Result<remora::kernel::builtin::RemoteTable> {
        let heads = u32::try_from(entries.len().div_ceil(get::BUCKETS) * 4 / 3 + 1)?;
        let mut table = get::Table::new(heads, heads);
        for (key, value) in entries {
            let len = u32::try_from(value.len())?;
            table.insert(*key, get::Value { addr: self.put(value)?, len })?;
        }
        let table = self.put(table.bytes())?;
        Ok(remora::kernel::builtin::RemoteTable { table, heads })
    }

    /// Adds an object of `len` bytes that ends with its CRC64; returns its address.
    pub fn object(&mut self, data: &[u8]) -> Result<u64> {
        let mut object = data.to_vec();
        object.extend_from_slice(&consistency::checksum(data).to_le_bytes());
        self.put(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_leads_from_key_to_key() {
        let mut image = Image::new(1 << 20, 4096);
        let list = image.list(&[(7, b"seven"), (8, b"eight")]).unwrap();
        let word = |addr: u64| {
            let at = (addr - image.base()) as usize;
            u64::from_le_bytes(image.bytes()[at..at + 8].try_into().unwrap())
        };
        let second = word(list.head + 8);
        assert_eq!((word(list.head), word(second), word(second + 8)), (7, 8, 0));
        let value = (word(second + 16) - image.base()) as usize;
        assert_eq!(&image.bytes()[value..value + 5], b"eight");
    }

    #[test]
    fn data_that_does_not_fit_is_refused() {
        let mut image = Image::new(0, 100);
        assert!(image.put(&[1; 64]).is_ok());
        assert!(image.put(&[1; 64]).unwrap_err().to_string().contains("100 bytes"));
        assert!(image.list(&[(1, b"a"), (2, b"bc")]).is_err());
    }
}
