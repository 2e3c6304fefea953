//! Streams of numbers, which kernels work on.

use remora_offload::kernel::builtin::column::Column;
use remora_offload::kernel::builtin::filter;

/// What [`lower`] and [`is_lower`] divide the numbers by.
const MIDDLE: u64 = 1 << 43;

/// So many numbers of 44 bits, and their bytes.
pub(crate) fn numbers(n: u64) -> (Vec<u64>, Vec<u8>) {
    let numbers: Vec<u64> = (0..n).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20).collect();
    let bytes = bytes(&numbers);
    (numbers, bytes)
}

fn bytes(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Lets the filter pass the lower half of the numbers.
pub(crate) fn is_lower() -> filter::Params {
    filter::Params {
        row_len: 8,
        column: Column::u64(0),
        compare: filter::Compare::Less,
        operand: MIDDLE,
        count_only: false,
    }
}

/// The bytes of the numbers that it lets pass.
pub(crate) fn lower(numbers: &[u64]) -> Vec<u8> {
    bytes(&numbers.iter().copied().filter(|v| *v < MIDDLE).collect::<Vec<_>>())
}
