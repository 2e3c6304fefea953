//! A bump in the wire (StRoM §3.2): adds up the 64-bit numbers of all WRITEs that pass. It keeps
//! the sum and the count of numbers in the first granted region, where a call reads them.
#![no_std]

use remora_guest::{Result, Verdict, granted, kernel, output, payload, read, tap, write};

kernel!(answer);
tap!(add);

/// Bytes of the sum and the count, each u64, little-endian.
const LEN: usize = 16;

fn add() -> Result<Verdict> {
    let place = granted(0)?.addr;
    let mut kept = [0; LEN];
    read(place, &mut kept)?;
    let (mut sum, mut count) = (number(&kept[..8]), number(&kept[8..]));
    let mut piece = [0; 1024];
    loop {
        let len = payload(&mut piece)?;
        if len == 0 {
            break;
        }
        for value in piece[..len].chunks_exact(8) {
            sum = sum.wrapping_add(number(value));
            count += 1;
        }
    }
    kept[..8].copy_from_slice(&sum.to_le_bytes());
    kept[8..].copy_from_slice(&count.to_le_bytes());
    write(place, &kept)?;
    Ok(Verdict::Pass)
}

fn answer() -> Result {
    let mut kept = [0; LEN];
    read(granted(0)?.addr, &mut kept)?;
    output(&kept)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}
