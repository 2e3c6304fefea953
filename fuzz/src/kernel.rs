//! Any bytes as calls of the built-in kernels.

use remora_nic::Counters;

use crate::arena::Arena;

/// The input is a list of calls: op-code, next action, length (u16, little-endian), and that many
/// bytes: a header, parameters, payload.
///
/// # Panics
/// If the card panics, accesses memory that was not granted, or loses a request.
pub fn kernel(data: &[u8]) {
    kernel_counters(data);
}

/// Runs [`kernel`], and returns the card's counters.
pub fn kernel_counters(data: &[u8]) -> Counters {
    let mut arena = Arena::new();
    arena.deploy_kernels();
    let mut rest = data;
    while let [opcode, next, low, high, tail @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let (call, tail) = tail.split_at(tail.len().min(len));
        rest = tail;
        arena.call(u64::from(*opcode & 15), call);
        if next & 1 == 0 {
            arena.transmit();
        }
        arena.pass(u64::from(*next));
    }
    // Every kernel that still runs ends with its budget.
    for _ in 0..256 {
        arena.transmit();
    }
    arena.flush()
}
