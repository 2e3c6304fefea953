//! Any bytes as calls of the built-in kernels.

use remora_nic::Counters;

use crate::arena::Arena;

/// The input is a list of calls: op-code, what to do next, length (u16, little-endian), and so many
/// bytes: a header, parameters, payload.
///
/// # Panics
/// If the card panics, touches memory that it was not given, or loses something.
pub fn kernel(data: &[u8]) {
    kernel_counters(data);
}

/// As [`kernel`], and says what the card has counted.
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
    // Whatever still runs ends with its budget.
    for _ in 0..256 {
        arena.transmit();
    }
    arena.flush()
}
