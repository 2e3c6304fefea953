//! GET: reads a hash-table entry of three buckets and then the value (StRoM Listings 2–4). Misses
//! and chained entries, which the paper's example leaves out, work too.
//!
//! An entry has 64 bytes, little-endian: three buckets of key u64, value address u64 (0: empty
//! bucket) and value length u32, and then u32, the number of the chain's next entry plus one (0:
//! the chain ends).

use super::reader::{Reader, require, word};
use crate::kernel::{CallStatus, Context};

/// Bytes of an entry.
pub const ENTRY_LEN: usize = 64;
/// Buckets of an entry.
pub const BUCKETS: usize = 3;
const BUCKET_LEN: usize = 20;
const AT_NEXT: usize = BUCKETS * BUCKET_LEN;
/// Bytes of [`Params`].
pub const PARAMS_LEN: usize = 24;

/// The key, and the table to look in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Params {
    /// Address of the table's first entry in granted memory.
    pub table: u64,
    /// The key to look for.
    pub key: u64,
    /// The number of the entry that the key hashes to.
    pub entry: u32,
    /// The most entries of a chain that are read; 0 means 64.
    pub chain_max: u32,
}

impl Params {
    /// Reads parameters.
    ///
    /// # Errors
    /// [`CallStatus::BAD_PARAMS`] if the bytes are no valid parameters.
    pub fn parse(bytes: &[u8]) -> Result<Params, CallStatus> {
        let mut reader = Reader(bytes);
        let (table, key) = (reader.u64()?, reader.u64()?);
        let (entry, chain_max) = (reader.u32()?, reader.u32()?);
        reader.end()?;
        let end = u64::from(entry).checked_mul(ENTRY_LEN as u64).and_then(|e| table.checked_add(e));
        require(end.is_some())?;
        Ok(Params { table, key, entry, chain_max })
    }

    /// The parameters' bytes.
    pub fn to_bytes(&self) -> [u8; PARAMS_LEN] {
        let mut out = [0; PARAMS_LEN];
        out[..8].copy_from_slice(&self.table.to_le_bytes());
        out[8..16].copy_from_slice(&self.key.to_le_bytes());
        out[16..20].copy_from_slice(&self.entry.to_le_bytes());
        out[20..].copy_from_slice(&self.chain_max.to_le_bytes());
        out
    }
}

/// The place of a value in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Value {
    /// Its address.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u32,
}

/// Finds a key in an entry by comparing with all buckets at once (StRoM Listing 4).
#[inline]
pub fn find(entry: &[u8; ENTRY_LEN], key: u64) -> Option<Value> {
    let bucket = |i: usize| {
        let at = i * BUCKET_LEN;
        let len = u32::from_le_bytes([0, 1, 2, 3].map(|b| entry[at + 16 + b]));
        (word(entry, at), Value { addr: word(entry, at + 8), len })
    };
    (0..BUCKETS).map(bucket).find(|(k, value)| *k == key && value.addr != 0).map(|(_, v)| v)
}

/// The number of the chain's next entry.
pub fn next(entry: &[u8; ENTRY_LEN]) -> Option<u32> {
    u32::from_le_bytes([0, 1, 2, 3].map(|b| entry[AT_NEXT + b])).checked_sub(1)
}

/// The kernel, called by RPC: the result is the value.
///
/// # Errors
/// [`CallStatus::NOT_FOUND`] if no entry of the chain has the key, [`CallStatus::BUDGET`] if the
/// chain is too long.
pub async fn get(context: Context) -> Result<(), CallStatus> {
    let params = context.params(Params::parse).await?;
    let mut at = params.entry;
    let chain_max = if params.chain_max == 0 { 64 } else { params.chain_max };
    let mut entry = [0; ENTRY_LEN];
    for _ in 0..chain_max {
        let addr = params.table.wrapping_add(u64::from(at) * ENTRY_LEN as u64);
        context.read(addr, &mut entry).await?;
        if let Some(Value { addr, len }) = find(&entry, params.key) {
            return context.send_memory(addr, len).await;
        }
        at = next(&entry).ok_or(CallStatus::NOT_FOUND)?;
    }
    Err(CallStatus::BUDGET)
}

/// Builds the bytes of a table, for the host that serves it.
#[derive(Clone, Debug)]
pub struct Table {
    entries: Vec<[u8; ENTRY_LEN]>,
    /// Entries that keys hash to; the other entries continue chains.
    heads: u32,
    overflow_used: u32,
}

/// The table has no entry left to continue a chain with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table has no entry left to continue a chain: give it more overflow entries")]
pub struct TableFull;

impl Table {
    /// A table of `heads` entries that keys hash to and `overflow` entries that continue chains.
    ///
    /// # Panics
    /// If `heads` is zero.
    pub fn new(heads: u32, overflow: u32) -> Table {
        assert!(heads > 0, "a table has entries");
        let entries = vec![[0; ENTRY_LEN]; (heads + overflow) as usize];
        Table { entries, heads, overflow_used: 0 }
    }

    /// The number of the entry that a key hashes to in a table of `heads` such entries.
    pub fn hash(key: u64, heads: u32) -> u32 {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mixed) * u128::from(heads)) >> 64) as u32
    }

    /// Adds a key. Returns the number of the entry that the key hashes to.
    ///
    /// # Errors
    /// The key needs a further entry, and none is left.
    pub fn insert(&mut self, key: u64, value: Value) -> Result<u32, TableFull> {
        let head = Table::hash(key, self.heads);
        let mut at = head;
        loop {
            let entry = &mut self.entries[at as usize];
            let free = (0..BUCKETS).find(|i| {
                let (k, addr) = (word(entry, i * BUCKET_LEN), word(entry, i * BUCKET_LEN + 8));
                addr == 0 || k == key
            });
            if let Some(i) = free {
                let bucket = &mut entry[i * BUCKET_LEN..][..BUCKET_LEN];
                bucket[..8].copy_from_slice(&key.to_le_bytes());
                bucket[8..16].copy_from_slice(&value.addr.to_le_bytes());
                bucket[16..].copy_from_slice(&value.len.to_le_bytes());
                return Ok(head);
            }
            if let Some(next) = next(entry) {
                at = next;
                continue;
            }
            let more = self.heads + self.overflow_used;
            if more as usize >= self.entries.len() {
                return Err(TableFull);
            }
            self.overflow_used += 1;
            self.entries[at as usize][AT_NEXT..].copy_from_slice(&(more + 1).to_le_bytes());
            at = more;
        }
    }

    /// The table's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.entries.as_flattened()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_round_trip() {
        let params = Params { table: 1 << 40, key: 7, entry: 9, chain_max: 3 };
        assert_eq!(Params::parse(&params.to_bytes()), Ok(params));
        assert_eq!(Params::parse(&params.to_bytes()[1..]), Err(CallStatus::BAD_PARAMS));
        assert_eq!(Params::parse(&[0xFF; PARAMS_LEN]), Err(CallStatus::BAD_PARAMS));
    }

    #[test]
    fn keys_are_found_in_buckets_and_chains() {
        let mut table = Table::new(1, 2);
        for key in 0..9 {
            let value = Value { addr: 1000 + key, len: key as u32 };
            assert_eq!(table.insert(key, value), Ok(0));
        }
        assert_eq!(table.insert(9, Value { addr: 1, len: 1 }), Err(TableFull));
        let entry = |i: u32| table.entries[i as usize];
        assert_eq!(find(&entry(0), 2), Some(Value { addr: 1002, len: 2 }));
        assert_eq!((find(&entry(0), 3), next(&entry(0)), next(&entry(2))), (None, Some(1), None));
        assert_eq!(find(&entry(2), 8), Some(Value { addr: 1008, len: 8 }));
    }
}
