//! A queue in the consumer's memory. The producer writes records into it, and then their count. The
//! consumer watches its own memory, and writes to the producer's how many records it has taken.
//! No message is sent. `cargo run -p remora --example ring_buffer`

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use remora::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(10);
const SLOTS: u64 = 16;
const SLOT_LEN: usize = 64;
/// Behind the slots: how many records the producer has written so far.
const COUNT: usize = SLOTS as usize * SLOT_LEN;
const RECORDS: u64 = 2000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Waits until the peer has raised a counter in local memory above `seen`.
fn wait_for(counter: &MemorySlice, seen: u64) -> Result<u64> {
    let start = Instant::now();
    while start.elapsed() < TIMEOUT {
        match counter.load_u64()? {
            count if count > seen => return Ok(count),
            _ => thread::yield_now(),
        }
    }
    Err("the peer has fallen silent".into())
}

/// Writes records into the ring, and waits while it has no room.
fn produce(qp: &QueuePair, taken: &MemorySlice, ring: Remote) -> Result<()> {
    let mut room_until = SLOTS;
    for record in 0..RECORDS {
        if record == room_until {
            room_until = wait_for(taken, room_until - SLOTS)? + SLOTS;
        }
        let (text, at) = (format!("record {record}"), (record % SLOTS) as usize * SLOT_LEN);
        // Both requests are in flight together; the card carries them out in this order.
        let written = qp.write(text.as_bytes(), ring.slice(at..));
        qp.write(&(record + 1).to_ne_bytes(), ring.slice(COUNT..)).wait(TIMEOUT)?;
        written.wait(TIMEOUT)?;
    }
    Ok(())
}

/// Takes the records from the ring, and says how many, whenever it has none; returns the last.
fn consume(qp: &QueuePair, ring: &MemoryRegion, taken: Remote) -> Result<String> {
    let (mut there, mut last) = (0, Vec::new());
    for record in 0..RECORDS {
        if record == there {
            qp.write(&record.to_ne_bytes(), taken).wait(TIMEOUT)?;
            there = wait_for(&ring.slice(COUNT..), record)?;
        }
        let at = (record % SLOTS) as usize * SLOT_LEN;
        last = ring.slice(at..at + SLOT_LEN).to_vec()?;
        assert!(last.starts_with(format!("record {record}").as_bytes()));
    }
    Ok(String::from_utf8_lossy(&last).trim_end_matches('\0').into())
}

fn main() -> Result<()> {
    let (here, there) = (Device::open()?, Device::open()?);
    let (mine, theirs) = (here.alloc_pd()?, there.alloc_pd()?);
    let options = QueuePairOptions::new();
    let (producer, consumer) = (mine.create_qp(&options)?, theirs.create_qp(&options)?);
    let params = ConnectionParams::new(here.info().mtu);
    producer.connect(consumer.local(), &params)?;
    consumer.connect(producer.local(), &params)?;
    let taken = mine.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let ring = theirs.alloc(COUNT + 8, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let ring_there = ring.slice(..).remote();
    let (qp, counter) = (producer.clone(), taken.slice(..)); // both stay for the last WRITE to them
    let producing = thread::spawn(move || produce(&qp, &counter, ring_there));
    let last = consume(&consumer, &ring, taken.slice(..).remote())?;
    println!("{RECORDS} records went through a ring of {SLOTS} slots; the last was {last:?}");
    producing.join().expect("the producer does not panic")
}
