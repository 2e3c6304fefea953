//! A ring of packets between two processes, of which one writes what it likes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use remora::fabric::ring::{Broken, Consumer, PACKET_MAX, Producer, ROOM, pair};

use crate::seeds::Seed;

/// Bytes of the ring's data: the least that there can be.
const DATA: usize = 1 << 16;
/// Packets that are taken in one step.
const TAKEN_MAX: usize = 64;

/// The input is a list of steps. A step sends a packet, takes packets, or writes to the memory
/// between the two ends, as a hostile process at either end may. As long as none has done so, what
/// is taken is what was sent.
///
/// # Panics
/// An end of the ring breaks a promise.
pub fn ring(data: &[u8]) {
    let (mut producer, mut consumer, memory) = pair(DATA).expect("memory for a ring");
    let mut room = vec![0; ROOM];
    // What is on its way; `None` once the memory was written to.
    let mut sent = Some(VecDeque::new());
    let mut rest = data;
    while let Some((&[step, place, low, high], tail)) = rest.split_first_chunk() {
        rest = tail;
        let value = u16::from_le_bytes([low, high]);
        let ended = match step % 6 {
            0 => put(&mut producer, place, usize::from(value), &mut sent),
            1 => take(&mut consumer, &mut room, &mut sent),
            2 => {
                consumer.set_asleep(place & 1 == 0);
                producer.must_wake();
                producer.look().map(drop)
            }
            hostile => {
                sent = None;
                let word = match hostile {
                    3 => memory.word(usize::from(place % 8) * 64),
                    4 => memory.data_word(usize::from(place) * 64),
                    _ => memory.data_word(usize::from(value) & (DATA - 8)),
                };
                let there = word.load(Ordering::Relaxed);
                // A change of a length keeps the stamp; or the whole word is another one.
                let other = if step & 8 == 0 { there ^ u64::from(value) << 8 } else { !there };
                word.store(other, Ordering::Relaxed);
                Ok(())
            }
        };
        if let Err(broken) = ended {
            assert!(sent.is_none(), "{broken}, although nobody has broken it");
            return;
        }
    }
}

type Sent = Option<VecDeque<Vec<u8>>>;

fn put(producer: &mut Producer, lead: u8, len: usize, sent: &mut Sent) -> Result<(), Broken> {
    let packet = vec![lead; len % (PACKET_MAX - 44) + 44];
    if let Some(place) = producer.reserve(usize::from(lead % 45), packet.len(), lead)? {
        producer.memory().write(place.at, &packet);
        producer.show(place);
        if let Some(sent) = sent {
            sent.push_back(packet);
        }
    }
    Ok(())
}

fn take(consumer: &mut Consumer, room: &mut [u8], sent: &mut Sent) -> Result<(), Broken> {
    for _ in 0..TAKEN_MAX {
        let taken = consumer.take(room)?;
        let packet = taken.map(|taken| room[taken.start..][..taken.len].to_vec());
        if let Some(sent) = sent {
            assert_eq!(packet, sent.pop_front(), "what was sent, in order");
        }
        if packet.is_none() {
            break;
        }
    }
    consumer.release();
    Ok(())
}

/// Inputs that send and take, fill the ring, and break each of its words.
pub fn rings() -> Vec<Seed> {
    let seed = |name: &str, data: Vec<u8>| Seed { name: name.to_owned(), data };
    let some = [0, 28, 8, 0, 0, 28, 0, 16, 1, 0, 0, 0, 2, 0, 0, 0];
    let with = |step: [u8; 4]| {
        let after = [1, 0, 0, 0, 0, 28, 0, 16, 2, 0, 0, 0];
        [&some[..8], &step, &after].concat()
    };
    vec![
        seed("honest", some.repeat(8)),
        seed("full", [0, 28, 0xff, 0x0f].repeat(40)),
        seed("read-position", with([3, 0, 1, 0])),
        seed("length", with([4, 0, 0, 0xff])),
        seed("stamp", with([12, 0, 0, 0])),
        seed("payload", with([5, 0, 100, 0])),
    ]
}
