//! Any bytes as work-queue elements, which may be rewritten at any time.

use remora_nic::Counters;
use remora_nic::memory::window::next_key;

use crate::arena::{Arena, OPEN};
use crate::card::subject;

/// The input is a list of steps, as for [`crate::card`](crate::card()). A step posts an element,
/// rewrites one that is posted, lets the card send, or advances the time.
///
/// # Panics
/// Those of [`crate::card`](crate::card()).
pub fn element(data: &[u8]) {
    element_counters(data);
}

/// Runs [`element`], and returns the card's counters.
pub fn element_counters(data: &[u8]) -> Counters {
    let mut arena = Arena::new();
    let mut rest = data;
    while let [step, vary, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        let subject = subject(&arena, *vary);
        match step & 7 {
            0 => arena.transmit(),
            1 => arena.pass(u64::from(*vary) << (step >> 3)),
            2 => arena.collect(),
            3 => arena.rewrite(subject, usize::from(*vary) * usize::from(*step), bytes),
            _ => arena.post_raw(subject, &put_right(&arena, *vary, bytes)),
        }
    }
    arena.flush()
}

/// An element with a valid key and address, if `vary` says so.
fn put_right(arena: &Arena, vary: u8, bytes: &[u8]) -> Vec<u8> {
    let mut element = bytes.to_vec();
    if vary & 4 == 0 && element.len() >= 56 {
        let offset = u64::from(u16::from_le_bytes([element[40], element[41]]) & 0x1FFF);
        element[40..48].copy_from_slice(&(OPEN + offset).to_le_bytes());
        element[50..52].copy_from_slice(&[0, 0]);
        element[52..56].copy_from_slice(&arena.open.to_le_bytes());
    }
    if vary & 8 == 0 && element.len() >= 2 {
        element[0] %= 14;
        element[1] = 0;
    }
    if element.len() >= 64 && matches!(element[0], 9..=12) && vary & 16 == 0 {
        // Operations without local entries, on memory of peers or on a window that may be bound.
        element[11] = 0;
        let key = if element[0] == 10 { next_key(arena.window) } else { arena.window };
        element[12..16].copy_from_slice(&key.to_le_bytes());
        element[16..24].copy_from_slice(&(OPEN + 8).to_le_bytes());
        let named = if element[0] == 10 { arena.open } else { arena.window };
        element[24..28].copy_from_slice(&named.to_le_bytes());
        element[58..64].fill(0);
    }
    element
}
