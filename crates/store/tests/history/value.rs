//! Values: numbers that nobody sets twice, as bytes. A counter's are its digits alone.

/// A value's bytes: of lengths that take blocks of several sizes.
pub(crate) fn bytes_of(value: u32) -> Vec<u8> {
    let mut bytes = format!("{value} ").into_bytes();
    bytes.resize(bytes.len() + value as usize * 37 % 500, b'.');
    bytes
}

/// The value of these bytes, every one of which is looked at.
pub(crate) fn value_of(bytes: &[u8]) -> u32 {
    let space = bytes.iter().position(|byte| *byte == b' ');
    let number = &bytes[..space.unwrap_or(bytes.len())];
    let value = std::str::from_utf8(number).unwrap().parse().unwrap();
    assert!(space.is_none() || bytes == bytes_of(value), "{bytes:?}");
    value
}
