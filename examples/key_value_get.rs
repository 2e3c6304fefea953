//! A hash table in a server's memory, read by a client without the server's help (one-sided).
//!
//! Each entry has a checksum, so that a client notices an entry that is being changed.
//! `cargo run -p remora --example key_value_get`

use std::error::Error;
use std::time::Duration;

use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const ENTRIES: usize = 64;
/// Key (8 bytes), checksum (8), value (48).
const ENTRY_LEN: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01B3))
}

/// Where the search for a key begins; while entries have other keys, it goes on in the next.
fn home(key: u64) -> usize {
    hash(&key.to_le_bytes()) as usize % ENTRIES
}

/// The server's side: ordinary stores into registered memory.
fn put(table: &MemoryRegion, key: u64, text: &str) -> Result<()> {
    let mut value = [0; 48];
    value[..text.len()].copy_from_slice(text.as_bytes());
    for at in (0..ENTRIES).map(|i| (home(key) + i) % ENTRIES * ENTRY_LEN) {
        let entry = table.slice(at..at + ENTRY_LEN);
        if entry.slice(..8).to_vec()? == [0; 8] {
            let words = [key, hash(&value)].map(u64::to_le_bytes).concat();
            return Ok(entry.write(&[words.as_slice(), &value].concat())?);
        }
    }
    Err("the table is full".into())
}

/// The client's side: one READ for each entry, which the server's card carries out.
fn get(qp: &QueuePair, table: Remote, room: &MemorySlice, key: u64) -> Result<Option<String>> {
    for at in (0..ENTRIES).map(|i| (home(key) + i) % ENTRIES * ENTRY_LEN) {
        qp.read(room, table.slice(at..at + ENTRY_LEN)).wait(TIMEOUT)?;
        let entry = room.to_vec()?;
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
        if word(0) == 0 {
            return Ok(None);
        } else if word(0) == key {
            let whole =
                (word(8) == hash(&entry[16..])).then(|| String::from_utf8_lossy(&entry[16..]));
            let text = whole.ok_or("the entry is being changed: ask again")?;
            return Ok(Some(text.trim_end_matches('\0').to_owned()));
        }
    }
    Ok(None)
}

fn main() -> Result<()> {
    let (server, client) = (Device::open()?, Device::open()?);
    let (theirs, mine) = (server.alloc_pd()?, client.alloc_pd()?);
    let table = theirs.alloc(ENTRIES * ENTRY_LEN, Access::REMOTE_READ)?;
    put(&table, 7, "seven")?;
    put(&table, 42, "the answer")?;
    // These queue pairs are connected without connection management, which `ping_pong` shows.
    let (passive, qp) =
        (theirs.create_qp(&QueuePairOptions::new())?, mine.create_qp(&QueuePairOptions::new())?);
    let params = ConnectionParams::new(client.info().mtu);
    passive.connect(qp.local(), &params)?;
    qp.connect(passive.local(), &params)?;
    let (table, room) = (table.slice(..).remote(), mine.alloc(ENTRY_LEN, Access::LOCAL_WRITE)?);
    for key in [7, 42, 1000] {
        let value = get(&qp, table, &room.slice(..), key)?;
        println!("key {key}: {}", value.as_deref().unwrap_or("(none)"));
    }
    Ok(())
}
