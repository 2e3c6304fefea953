//! Rows of an answer: for each the lengths of key and value, u32 each, then key and value.

/// Bytes of a row before key and value.
pub const ROW_HEAD: usize = 8;

/// Appends the head of a row, whose lengths [`end`] fills in, and its key. Returns where it begins.
pub(super) fn begin(key: &[u8], out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; ROW_HEAD]);
    out.extend_from_slice(key);
    start
}

/// Fills in the lengths of the row that began at `start` with a key of so many bytes, and whose
/// value is the rest of `out`.
pub(super) fn end(start: usize, key_len: usize, out: &mut [u8]) {
    let value_len = out.len() - start - ROW_HEAD - key_len;
    let lengths = [key_len as u32, value_len as u32].map(u32::to_le_bytes);
    out[start..start + ROW_HEAD].copy_from_slice(lengths.as_flattened());
}

/// Calls `each` with key and value of `count` rows; `None` if the bytes are no such rows.
pub fn each_row(mut bytes: &[u8], count: u32, each: &mut impl FnMut(&[u8], &[u8])) -> Option<()> {
    for _ in 0..count {
        let (key, rest) = bytes.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_first_chunk::<4>()?;
        let [key, value] = [key, value].map(|len| u32::from_le_bytes(*len) as usize);
        let (key, rest) = rest.split_at_checked(key)?;
        let (value, rest) = rest.split_at_checked(value)?;
        each(key, value);
        bytes = rest;
    }
    bytes.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_whole_or_not_at_all() {
        let rows: [(&[u8], &[u8]); 3] = [(b"key", b"value"), (b"", b""), (b"k", b"")];
        let mut bytes = Vec::new();
        for (key, value) in rows {
            let start = begin(key, &mut bytes);
            bytes.extend_from_slice(value);
            end(start, key.len(), &mut bytes);
        }
        let mut seen = Vec::new();
        let mut each = |key: &[u8], value: &[u8]| seen.push((key.to_vec(), value.to_vec()));
        assert_eq!(each_row(&bytes, 3, &mut each), Some(()));
        assert_eq!(seen.iter().map(|(k, v)| (&k[..], &v[..])).collect::<Vec<_>>(), rows);
        let mut ignore = |_: &[u8], _: &[u8]| {};
        assert_eq!(each_row(&bytes, 2, &mut ignore), None, "bytes are left");
        for len in 0..bytes.len() {
            assert_eq!(each_row(&bytes[..len], 3, &mut ignore), None, "{len}");
        }
        assert_eq!(each_row(&[0xFF; 64], 1, &mut ignore), None);
    }
}
