//! Values: numbers that nobody sets twice, as bytes. A counter's are its digits alone, and what
//! is appended to stands for its length.

/// A number with this bit is a long value.
pub(crate) const LONG: u32 = 1 << 31;
/// Its bytes: beyond these a value is sent, written and read in other ways than short ones.
const LONG_BYTES: usize = 70_000;
/// What is appended.
const APPENDED: u8 = b'a';

/// What is appended to a value to make it so much longer.
pub(crate) fn appended(more: u32) -> Vec<u8> {
    vec![APPENDED; more as usize]
}

/// A value's bytes: of lengths that take blocks of several sizes.
pub(crate) fn bytes_of(value: u32) -> Vec<u8> {
    let mut bytes = format!("{value} ").into_bytes();
    let least = if value & LONG == 0 { bytes.len() } else { LONG_BYTES };
    bytes.resize(least + value as usize * 37 % 500, b'.');
    bytes
}

/// The value of these bytes, every one of which is looked at.
pub(crate) fn value_of(bytes: &[u8]) -> u32 {
    if !bytes.is_empty() && bytes.iter().all(|byte| *byte == APPENDED) {
        return bytes.len() as u32;
    }
    let space = bytes.iter().position(|byte| *byte == b' ');
    let number = &bytes[..space.unwrap_or(bytes.len())];
    let value = std::str::from_utf8(number).unwrap().parse().unwrap();
    assert!(space.is_none() || bytes == bytes_of(value), "{bytes:?}");
    value
}
