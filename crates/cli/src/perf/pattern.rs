//! The bytes of messages: they differ from side to side, and from place to place.

use anyhow::{Result, bail};
use remora::MemoryRegion;
use remora::memory::Buffer;

use super::plan::{Plan, Verb};

/// The seeds of the outboxes: of the client, of the server, and of the client's last messages.
pub(super) const CLIENT: u8 = 1;
pub(super) const SERVER: u8 = 2;
pub(super) const LAST: u8 = 3;

/// Fills the outbox.
pub(super) fn fill(region: &MemoryRegion, plan: &Plan, seed: u8) -> Result<()> {
    if plan.verb == Verb::Atomic {
        return Ok(());
    }
    let bytes = pattern(plan, seed);
    for i in 0..plan.slots() as usize {
        region.write_at(plan.outbox(i) as usize, &bytes)?;
    }
    Ok(())
}

/// Compares all slots of the inbox with the pattern.
pub(super) fn compare(buffer: &Buffer, plan: &Plan, seed: u8) -> Result<()> {
    let expected = pattern(plan, seed);
    let mut got = vec![0; expected.len()];
    for i in 0..plan.slots() as usize {
        buffer.read_at(plan.inbox(i) as usize, &mut got)?;
        if let Some(at) = got.iter().zip(&expected).position(|(a, b)| a != b) {
            bail!("byte {at} of message slot {i} is {:#x}, not {:#x}", got[at], expected[at]);
        }
    }
    Ok(())
}

/// The bytes of one message.
fn pattern(plan: &Plan, seed: u8) -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed.wrapping_mul(0x55);
    (0..plan.size).map(byte).collect()
}
