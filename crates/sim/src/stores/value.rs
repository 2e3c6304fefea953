//! Keys and values: numbers that nobody sets twice, as bytes of all lengths; those of counters as
//! digits. Every other value can be compressed.

use crate::dice::pattern;

/// The bytes of a key.
pub(super) fn key_of(key: usize) -> Vec<u8> {
    format!("key {key}").into_bytes()
}

/// The bytes of a value, at most about `longest`.
pub(super) fn bytes_of(value: u32, longest: usize) -> Vec<u8> {
    let mut bytes = value.to_le_bytes().to_vec();
    let rest = value as usize * 37 % longest;
    match value % 2 {
        0 => bytes.extend(pattern(value.into(), rest)),
        _ => bytes.resize(bytes.len() + rest, value as u8),
    }
    bytes
}

/// Whether a key is a counter, where there are some.
pub(super) fn may_count(key: usize) -> bool {
    key % 3 == 2
}

/// The value of these bytes of a key.
///
/// # Panics
/// If they are those of no value: a reader has seen parts of several.
pub(super) fn value_of(key: usize, bytes: &[u8], longest: usize) -> u32 {
    let digits = std::str::from_utf8(bytes).ok().filter(|_| may_count(key));
    if let Some(sum) = digits.and_then(|digits| digits.parse().ok()) {
        return sum;
    }
    let number = bytes.first_chunk().expect("a value begins with its number");
    let value = u32::from_le_bytes(*number);
    assert_eq!(bytes, bytes_of(value, longest), "the value is torn");
    value
}
