//! Decompression of LZF.
//!
//! A control byte below 32 is followed by so many bytes and one more, as they are. Any other is a
//! copy of what came before: the upper three bits are its length less 2, or 7 for a byte that says
//! how much more; the lower five and the byte that follows are how far back it is, less 1.

/// Decompresses `input`, which gives `length` bytes, to the end of `output`.
///
/// # Errors
///
/// Why it cannot be; then `output` has some bytes more, never more than `length`.
pub fn decompress(
    mut input: &[u8],
    length: usize,
    output: &mut Vec<u8>,
) -> Result<(), &'static str> {
    let start = output.len();
    // What the input can give at most bounds what is reserved for it, whatever length it claims.
    output.reserve(length.min(input.len().saturating_mul(MOST_FOR_ONE)));
    while let Some((&control, rest)) = input.split_first() {
        let room = length - (output.len() - start);
        if control < 32 {
            let count = usize::from(control) + 1;
            let run = rest.split_at_checked(count).ok_or("compressed data ends within a run")?;
            if count > room {
                return Err("compressed data is longer than it says");
            }
            output.extend_from_slice(run.0);
            input = run.1;
            continue;
        }
        let (more, rest) = match (control >> 5, rest) {
            (7, [more, rest @ ..]) => (*more, rest),
            (_, rest) => (0, rest),
        };
        let (&low, rest) = rest.split_first().ok_or("compressed data ends within a copy")?;
        let count = usize::from(control >> 5) + usize::from(more) + 2;
        let back = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
        if back > output.len() - start {
            return Err("compressed data copies from before its beginning");
        }
        if count > room {
            return Err("compressed data is longer than it says");
        }
        // The copy may reach into itself.
        let from = output.len() - back;
        for at in from..from + count {
            output.push(output[at]);
        }
        input = rest;
    }
    if output.len() - start == length {
        Ok(())
    } else {
        Err("compressed data is shorter than it says")
    }
}

/// Three bytes give 264 at most.
const MOST_FOR_ONE: usize = 88;

#[cfg(test)]
mod tests {
    use super::*;

    fn decompressed(input: &[u8], length: usize) -> Result<Vec<u8>, &'static str> {
        let mut output = b"before".to_vec();
        decompress(input, length, &mut output)?;
        Ok(output.split_off(6))
    }

    #[test]
    fn runs_and_copies() {
        assert_eq!(decompressed(b"\x02abc", 3).unwrap(), b"abc");
        // Three bytes from three back.
        assert_eq!(decompressed(b"\x02abc\x20\x02", 6).unwrap(), b"abcabc");
        // A copy that reaches into itself, and is longer than eight.
        assert_eq!(decompressed(b"\x00a\xe0\x03\x00", 13).unwrap(), [b'a'; 13]);
        assert_eq!(decompressed(b"", 0).unwrap(), b"");
    }

    #[test]
    fn lies_are_refused() {
        for (input, length) in [
            (&b"\x02ab"[..], 3),
            (b"\x02abc", 2),
            (b"\x02abc", 4),
            (b"\x20\x00", 3),
            (b"\x00a\x20", 4),
            (b"\x00a\xe0", 4),
            (b"\x00a\xe0\x00", 10),
            (b"\x00a\x20\x01", 4),
            (b"\x00a\xe0\xff\x00", 20),
        ] {
            assert!(decompressed(input, length).is_err(), "{input:?}");
        }
        let mut output = Vec::new();
        assert!(decompress(b"\x00a", usize::MAX, &mut output).is_err());
        assert!(output.capacity() < 1000);
    }
}
