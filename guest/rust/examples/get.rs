//! GET (StRoM Listings 2–4) as a loaded kernel: a hash-table entry of three buckets, and then the
//! value. Parameters, entries and results are those of the built-in kernel GET.
#![no_std]

use remora_guest::{Result, Status, kernel, params_exact, read, send_memory};

kernel!(get);

const ENTRY_LEN: usize = 64;
const BUCKET_LEN: usize = 20;
const BUCKETS: usize = 3;
const CHAIN_MAX: u32 = 64;

fn get() -> Result {
    let params: [u8; 24] = params_exact()?;
    let (table, key) = (u64_at(&params, 0), u64_at(&params, 8));
    let (mut at, chain_max) = (u32_at(&params, 16), u32_at(&params, 20));
    let mut entry = [0; ENTRY_LEN];
    for _ in 0..if chain_max == 0 { CHAIN_MAX } else { chain_max } {
        let offset = u64::from(at) * ENTRY_LEN as u64;
        read(table.checked_add(offset).ok_or(Status::BAD_PARAMS)?, &mut entry)?;
        for bucket in entry[..BUCKETS * BUCKET_LEN].chunks_exact(BUCKET_LEN) {
            let value = u64_at(bucket, 8);
            if u64_at(bucket, 0) == key && value != 0 {
                return send_memory(value, u32_at(bucket, 16));
            }
        }
        // The number of the chain's next entry, plus one.
        at = u32_at(&entry, BUCKETS * BUCKET_LEN).checked_sub(1).ok_or(Status::NOT_FOUND)?;
    }
    Err(Status::BUDGET)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}
