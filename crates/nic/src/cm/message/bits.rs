//! Fields of a message: whole bytes in network order, and bits counted from the top of a byte.
//!
//! Every offset is a constant in the calling code and lies within the fixed-size data. A message of
//! any content has all its fields, so nothing here can fail.

/// `N` bytes at `at`.
pub(crate) fn bytes<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&data[at..at + N]);
    out
}

pub(crate) fn be16(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes(data, at))
}

pub(crate) fn be24(data: &[u8], at: usize) -> u32 {
    be32(data, at) >> 8
}

pub(crate) fn be32(data: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes(data, at))
}

pub(crate) fn be64(data: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes(data, at))
}

/// `width` bits of the byte at `at`, the first of them `from` bits below the top.
pub(crate) fn bits(data: &[u8], at: usize, from: u32, width: u32) -> u8 {
    (data[at] >> (8 - from - width)) & mask(width)
}

/// Puts whole bytes.
pub(crate) fn put(data: &mut [u8], at: usize, value: &[u8]) {
    data[at..at + value.len()].copy_from_slice(value);
}

/// Puts the low 24 bits of `value`.
pub(crate) fn put_be24(data: &mut [u8], at: usize, value: u32) {
    put(data, at, &value.to_be_bytes()[1..]);
}

/// Puts the low `width` bits of `value` where [`bits`] reads them; the place must still be zero.
pub(crate) fn put_bits(data: &mut [u8], at: usize, from: u32, width: u32, value: u8) {
    data[at] |= (value & mask(width)) << (8 - from - width);
}

const fn mask(width: u32) -> u8 {
    0xff >> (8 - width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_top() {
        let data = [0b1010_0110];
        assert_eq!(bits(&data, 0, 0, 5), 0b10100);
        assert_eq!(bits(&data, 0, 5, 2), 0b11);
        assert_eq!(bits(&data, 0, 7, 1), 0);
        assert_eq!(bits(&data, 0, 0, 8), 0b1010_0110);
    }

    #[test]
    fn put_bits_is_the_inverse_and_keeps_its_neighbours() {
        let mut data = [0];
        put_bits(&mut data, 0, 0, 5, 0b10100);
        put_bits(&mut data, 0, 5, 2, 0xff);
        assert_eq!(data, [0b1010_0110]);
    }
}
