//! What a node says before it relays a client to its group's primary: that it relays, so that the
//! other one does not relay again, and the password, if the client has given it.
//!
//! The mark is `relayed LENGTH\r\nPASSWORD\r\n`. There is no answer to it: the client's own answers
//! follow at once, or the reason why there are none.

use crate::front::memcached::numbers::unsigned;

const WORD: &[u8] = b"relayed ";
/// The longest first line, with its end.
const LINE_BYTES: usize = WORD.len() + 5 + 2;

/// What a connection begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin<'a> {
    /// A mark of so many bytes, with a password or an empty one.
    Mark(usize, &'a [u8]),
    /// What may become a mark with more bytes.
    Part,
    /// A client's first request.
    Request,
}

/// The mark for a client that has given this password, or none.
pub(super) fn mark(password: Option<&str>) -> Vec<u8> {
    let password = password.unwrap_or_default();
    format!("relayed {}\r\n{password}\r\n", password.len()).into_bytes()
}

/// Looks at what a connection begins with.
pub(super) fn begin(input: &[u8]) -> Begin<'_> {
    let head = input.len().min(WORD.len());
    if input[..head] != WORD[..head] {
        return Begin::Request;
    }
    let line = &input[..input.len().min(LINE_BYTES)];
    let Some(end) = memchr::memmem::find(line, b"\r\n") else {
        return if line.len() < LINE_BYTES { Begin::Part } else { Begin::Request };
    };
    let length = unsigned(&input[head..end]).and_then(|length| u16::try_from(length).ok());
    let Some(length) = length.map(usize::from) else { return Begin::Request };
    let rest = &input[end + 2..];
    let Some(whole) = rest.get(..length + 2) else { return Begin::Part };
    match whole.strip_suffix(b"\r\n") {
        Some(password) => Begin::Mark(end + 2 + whole.len(), password),
        None => Begin::Request,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        for password in [None, Some("secret"), Some("two\r\nlines")] {
            let bytes = mark(password);
            let all = [&bytes[..], b"get k\r\n"].concat();
            let own = password.unwrap_or_default().as_bytes();
            assert_eq!(begin(&all), Begin::Mark(bytes.len(), own));
            for cut in 0..bytes.len() {
                assert_eq!(begin(&bytes[..cut]), Begin::Part, "{cut}");
            }
        }
    }

    #[test]
    fn all_else_is_a_request() {
        for text in [
            "get k\r\n",
            "replace k 0 0 1\r\n",
            "relayed\r\n",
            "relayed x\r\n",
            "relayed -1\r\n",
            "relayed 65536\r\n",
            "relayed 1234567",
            "relayed 00000000000000000000000000000000000000001\r\n",
            "relayed 3\r\nabcde\r\n",
            "\u{80}",
        ] {
            assert_eq!(begin(text.as_bytes()), Begin::Request, "{text:?}");
        }
    }
}
