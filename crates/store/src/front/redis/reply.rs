//! Replies of Redis' protocol, in its second and third versions.

/// The version that a connection has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// RESP2: arrays, bulk strings, numbers.
    #[default]
    Two,
    /// RESP3: maps, sets, doubles, nulls as well.
    Three,
}

/// Writes replies to the end of a buffer.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
    /// The buffer may grow to this length, in bytes.
    limit: usize,
}

impl<'a> Reply<'a> {
    /// A writer to the end of `out`, which may grow to `limit` bytes.
    pub fn new(out: &'a mut Vec<u8>, version: Version, limit: usize) -> Reply<'a> {
        Reply { out, version, limit }
    }

    /// The same writer, for a shorter time.
    pub fn reborrow(&mut self) -> Reply<'_> {
        Reply { out: self.out, version: self.version, limit: self.limit }
    }

    /// The version in which it writes.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Changes the version for what follows.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Whether the buffer has gone beyond its limit: a command whose reply has many parts need not
    /// write the rest, since the session takes back all of it.
    pub fn is_full(&self) -> bool {
        self.out.len() > self.limit
    }

    /// Whether so many bytes more stay within the buffer's limit.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.out.len().saturating_add(bytes) <= self.limit
    }

    /// The buffer's length, for [`Reply::truncate`].
    pub fn len(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing is in the buffer.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Takes back what was written since the buffer was `len` bytes long.
    pub fn truncate(&mut self, len: usize) {
        self.out.truncate(len);
    }

    /// `OK`.
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line ends.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: a word in capitals that clients understand, and a text. Line ends become blanks.
    pub fn error(&mut self, text: &str) {
        self.line(b'-', text.as_bytes());
    }

    /// An error whose text holds bytes of the client's. What is no UTF-8 is replaced: clients show
    /// errors as text.
    pub fn error_bytes(&mut self, text: &[u8]) {
        self.line(b'-', String::from_utf8_lossy(text).as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.push(kind);
        let from = self.out.len();
        self.out.extend_from_slice(text);
        for byte in &mut self.out[from..] {
            if matches!(*byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }

    /// A whole number.
    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// One for true.
    pub fn flag(&mut self, yes: bool) {
        self.out.extend_from_slice(if yes { b":1\r\n" } else { b":0\r\n" });
    }

    fn number(&mut self, kind: u8, number: i64) {
        let mut digits = itoa::Buffer::new();
        self.out.push(kind);
        self.out.extend_from_slice(digits.format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A string that `append` writes to the end of the buffer, if it returns something; otherwise
    /// nothing is written. The value is copied once, from where it lies to here.
    pub fn bulk_by<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> Option<T>) -> Option<T> {
        let mut digits = itoa::Buffer::new();
        let start = self.out.len();
        // Most values are 10 to 99 bytes long: room for the head of such a one.
        self.out.extend_from_slice(b"$00\r\n");
        let Some(found) = append(self.out) else {
            self.out.truncate(start);
            return None;
        };
        let digits = digits.format(self.out.len().saturating_sub(start + 5)).as_bytes();
        let head = digits.len() + 3;
        let body = start + 5..self.out.len();
        if head > 5 {
            self.out.extend_from_slice(&[0; 20][..head - 5]);
        }
        if head != 5 {
            let len = body.len();
            self.out.copy_within(body, start + head);
            self.out.truncate(start + head + len);
        }
        self.out[start + 1..start + 1 + digits.len()].copy_from_slice(digits);
        self.out[start + 1 + digits.len()..start + head].copy_from_slice(b"\r\n");
        self.out.extend_from_slice(b"\r\n");
        Some(found)
    }

    /// Nothing, where a string would stand.
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// Nothing, where an array would stand.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.version {
            Version::Two => b"*-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// The head of an array of `len` replies.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// The head of a map of `len` pairs.
    pub fn map(&mut self, len: usize) {
        match self.version {
            Version::Two => self.number(b'*', len as i64 * 2),
            Version::Three => self.number(b'%', len as i64),
        }
    }

    /// The head of a set of `len` replies.
    pub fn set(&mut self, len: usize) {
        match self.version {
            Version::Two => self.number(b'*', len as i64),
            Version::Three => self.number(b'~', len as i64),
        }
    }

    /// A text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.version {
            Version::Two => self.bulk(text.as_bytes()),
            Version::Three => {
                self.number(b'=', text.len() as i64 + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, version, 1 << 20));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn replies_of_both_versions() {
        type Write = fn(&mut Reply<'_>);
        let cases: [(Write, &str, &str); 8] = [
            (|reply| reply.ok(), "+OK\r\n", "+OK\r\n"),
            (|reply| reply.error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (
                |reply| reply.integer(i64::MIN),
                ":-9223372036854775808\r\n",
                ":-9223372036854775808\r\n",
            ),
            (|reply| reply.bulk(b"a\r"), "$2\r\na\r\r\n", "$2\r\na\r\r\n"),
            (|reply| reply.null(), "$-1\r\n", "_\r\n"),
            (|reply| reply.null_array(), "*-1\r\n", "_\r\n"),
            (|reply| reply.map(2), "*4\r\n", "%2\r\n"),
            (|reply| reply.verbatim("x"), "$1\r\nx\r\n", "=5\r\ntxt:x\r\n"),
        ];
        for (write, two, three) in cases {
            assert_eq!(written(Version::Two, write), two);
            assert_eq!(written(Version::Three, write), three);
        }
    }

    #[test]
    fn strings_that_are_written_in_place_equal_those_that_are_copied() {
        for len in [0, 1, 9, 10, 64, 99, 100, 12345] {
            let value = vec![b'v'; len];
            let copied = written(Version::Two, |reply| reply.bulk(&value));
            let in_place = written(Version::Two, |reply| {
                reply.bulk_by(|out| {
                    out.extend_from_slice(&value);
                    Some(())
                });
            });
            assert_eq!(in_place, copied, "{len} bytes");
        }
        assert_eq!(written(Version::Two, |reply| _ = reply.bulk_by(|_| None::<()>)), "");
    }
}
