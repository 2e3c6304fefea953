//! Requests of Redis' protocol (RESP): arrays of bulk strings, and lines that a person types.
//!
//! A [`Reader`] goes over bytes that arrive in any pieces, each byte once, and finds where the
//! arguments of the next request lie. It keeps no copy: [`Arguments`] borrow the caller's buffer.
//! Only a typed line with quotes is rewritten, in a buffer of the reader's own.

use std::ops::Range;

use thiserror::Error;

/// What a reader accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// The most arguments in a request.
    pub arguments: usize,
    /// The longest argument, in bytes.
    pub bulk_bytes: usize,
    /// The longest request, in bytes: what a connection may make the server keep.
    pub request_bytes: usize,
}

/// The longest line, in bytes: a typed command, or a length.
const LINE_BYTES: usize = 64 * 1024;
/// What a client that has not logged in may send.
const STRANGER: RequestLimits =
    RequestLimits { arguments: 10, bulk_bytes: 16 * 1024, request_bytes: 256 * 1024 };

/// Why the bytes are no request. The connection cannot go on, as nobody knows where the next
/// request begins.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// A typed line without an end.
    #[error("Protocol error: too big inline request")]
    LongLine,
    /// A typed line that opens a quote and does not close it, or goes on after it.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// A number of arguments without an end.
    #[error("Protocol error: too big mbulk count string")]
    LongCount,
    /// The number of arguments is none, or beyond the limit.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// The length of an argument without an end.
    #[error("Protocol error: too big bulk count string")]
    LongLength,
    /// An argument begins with another byte than a dollar.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    Dollar(u8),
    /// The length of an argument is none, or beyond the limit.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// The arguments together are beyond the limit.
    #[error("Protocol error: the request is longer than the server takes (limit: {0} bytes)")]
    Long(usize),
    /// More arguments than a client may send before it has logged in.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerCount,
    /// A longer argument than a client may send before it has logged in.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerLength,
}

/// Where a request's arguments lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    at: u32,
    len: u32,
}

/// The arguments of a request; the first is the command's name.
#[derive(Clone, Copy, Debug)]
pub struct Arguments<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
}

impl<'a> Arguments<'a> {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The argument at `index`; empty where there is none.
    pub fn at(&self, index: usize) -> &'a [u8] {
        let Some(span) = self.spans.get(index) else { return &[] };
        self.bytes.get(span.at as usize..span.at as usize + span.len as usize).unwrap_or_default()
    }

    /// All from `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a> {
        let this = *self;
        (first.min(self.len())..self.len()).map(move |index| this.at(index))
    }
}

/// A request that was put aside, as those of a transaction are.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

impl Kept {
    /// A copy of these.
    pub fn new(arguments: Arguments<'_>) -> Kept {
        let mut kept = Kept::default();
        for argument in arguments.from(0) {
            kept.spans.push(Span { at: kept.bytes.len() as u32, len: argument.len() as u32 });
            kept.bytes.extend_from_slice(argument);
        }
        kept
    }

    /// What was kept.
    pub fn arguments(&self) -> Arguments<'_> {
        Arguments { bytes: &self.bytes, spans: &self.spans }
    }

    /// The memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.capacity() + self.spans.capacity() * size_of::<Span>()
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is whole, and takes this many bytes of the buffer. It may be empty (no argument).
    Whole(usize),
    /// This many more bytes are needed at least.
    Wants(usize),
}

/// Finds requests in bytes.
#[derive(Debug, Default)]
pub struct Reader {
    spans: Vec<Span>,
    /// Up to here the buffer has been read.
    at: usize,
    /// How far a line's end has been looked for.
    looked: usize,
    /// Arguments to come, once the array's length is known.
    wanted: Option<usize>,
    /// The length of the argument to come, once known.
    bulk: Option<usize>,
    /// A typed line, with its quotes resolved.
    typed: Vec<u8>,
    is_typed: bool,
}

impl Reader {
    /// Reads on in `buffer`, which begins with the request. The caller may append to the buffer
    /// between calls, but not change what was there, until a request is whole; then it calls
    /// [`Reader::next`].
    ///
    /// # Errors
    /// If the bytes are no request within `limits`.
    pub fn read(
        &mut self,
        buffer: &[u8],
        limits: &RequestLimits,
        stranger: bool,
    ) -> Result<Progress, Refusal> {
        if self.wanted.is_none() {
            match buffer.first() {
                None => return Ok(Progress::Wants(1)),
                Some(b'*') => {}
                Some(_) => return self.read_typed(buffer),
            }
            let count = match short_line(buffer, b'*') {
                Some((count, end)) => {
                    self.at = end;
                    count as i64
                }
                None => {
                    let Some(line) = self.line(buffer, Refusal::LongCount)? else {
                        return Ok(Progress::Wants(1));
                    };
                    decimal(&buffer[line.start + 1..line.end]).ok_or(Refusal::Count)?
                }
            };
            if count > limits.arguments as i64 {
                return Err(Refusal::Count);
            }
            if stranger && count > STRANGER.arguments as i64 {
                return Err(Refusal::StrangerCount);
            }
            self.wanted = Some(count.max(0) as usize);
        }
        self.read_bulks(buffer, limits, stranger)
    }

    fn read_bulks(
        &mut self,
        buffer: &[u8],
        limits: &RequestLimits,
        stranger: bool,
    ) -> Result<Progress, Refusal> {
        while self.spans.len() < self.wanted.unwrap_or(0) {
            let len = match self.bulk.take() {
                Some(len) => len,
                None => match self.bulk_length(buffer, limits, stranger)? {
                    Some(len) => len,
                    None => return Ok(Progress::Wants(1)),
                },
            };
            let end = self.at + len + 2;
            if buffer.len() < end {
                self.bulk = Some(len);
                return Ok(Progress::Wants(end - buffer.len()));
            }
            // What stands for the line's end is not looked at, as in Redis: the length counts.
            self.spans.push(Span { at: self.at as u32, len: len as u32 });
            self.at = end;
        }
        Ok(Progress::Whole(self.at))
    }

    /// The length of the next argument; None if it has not arrived.
    fn bulk_length(
        &mut self,
        buffer: &[u8],
        limits: &RequestLimits,
        stranger: bool,
    ) -> Result<Option<usize>, Refusal> {
        let len = match short_line(buffer.get(self.at..).unwrap_or_default(), b'$') {
            Some((len, end)) => {
                self.at += end;
                len
            }
            None => match self.long_length(buffer)? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        if len > limits.bulk_bytes {
            return Err(Refusal::Length);
        }
        if stranger && len > STRANGER.bulk_bytes {
            return Err(Refusal::StrangerLength);
        }
        if self.at.saturating_add(len) > limits.request_bytes {
            return Err(Refusal::Long(limits.request_bytes));
        }
        Ok(Some(len))
    }

    /// The length of the next argument, whatever stands for it; None if it has not arrived.
    fn long_length(&mut self, buffer: &[u8]) -> Result<Option<usize>, Refusal> {
        let Some(line) = self.line(buffer, Refusal::LongLength)? else { return Ok(None) };
        match buffer.get(line.start) {
            Some(b'$') => {}
            Some(&other) => return Err(Refusal::Dollar(other)),
            None => return Err(Refusal::Dollar(b'\r')),
        }
        let len = decimal(buffer.get(line.start + 1..line.end).unwrap_or_default());
        len.and_then(|len| usize::try_from(len).ok()).map(Some).ok_or(Refusal::Length)
    }

    /// The line that begins where the reader stands, without its end; then the reader stands
    /// behind it. A carriage return ends it, and the byte after that is not looked at.
    fn line(&mut self, buffer: &[u8], long: Refusal) -> Result<Option<Range<usize>>, Refusal> {
        let from = self.looked.max(self.at);
        let Some(found) = memchr::memchr(b'\r', buffer.get(from..).unwrap_or_default()) else {
            self.looked = buffer.len();
            return if buffer.len() - self.at > LINE_BYTES { Err(long) } else { Ok(None) };
        };
        let end = from + found;
        if end - self.at > LINE_BYTES {
            return Err(long);
        }
        if buffer.len() < end + 2 {
            self.looked = end;
            return Ok(None);
        }
        let line = self.at..end;
        self.at = end + 2;
        Ok(Some(line))
    }

    fn read_typed(&mut self, buffer: &[u8]) -> Result<Progress, Refusal> {
        let Some(found) = memchr::memchr(b'\n', buffer.get(self.looked..).unwrap_or_default())
        else {
            self.looked = buffer.len();
            if buffer.len() > LINE_BYTES {
                return Err(Refusal::LongLine);
            }
            return Ok(Progress::Wants(1));
        };
        let end = self.looked + found;
        if end > LINE_BYTES {
            return Err(Refusal::LongLine);
        }
        let line = &buffer[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.is_typed = true;
        self.split(line)?;
        Ok(Progress::Whole(end + 1))
    }

    /// Takes a typed line apart at its blanks; quotes hold blanks, and `\n`, `\x41` in double ones.
    fn split(&mut self, line: &[u8]) -> Result<(), Refusal> {
        let mut rest = line;
        loop {
            let skip = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            rest = &rest[skip..];
            if rest.is_empty() {
                return Ok(());
            }
            let at = self.typed.len();
            while let Some((&byte, after)) = rest.split_first() {
                rest = match byte {
                    b'"' | b'\'' => quoted(byte, after, &mut self.typed).ok_or(Refusal::Quotes)?,
                    _ if byte.is_ascii_whitespace() => break,
                    _ => {
                        self.typed.push(byte);
                        after
                    }
                };
            }
            self.spans.push(Span { at: at as u32, len: (self.typed.len() - at) as u32 });
        }
    }

    /// The arguments of the request that is whole in `buffer`.
    pub fn arguments<'a>(&'a self, buffer: &'a [u8]) -> Arguments<'a> {
        let bytes = if self.is_typed { &self.typed } else { buffer };
        Arguments { bytes, spans: &self.spans }
    }

    /// Begins the next request. Memory that an unusual request took is given back.
    pub fn next(&mut self) {
        self.spans.clear();
        self.typed.clear();
        if self.spans.capacity() > 1024 {
            self.spans = Vec::new();
        }
        if self.typed.capacity() > 1024 {
            self.typed = Vec::new();
        }
        self.at = 0;
        self.looked = 0;
        self.wanted = None;
        self.bulk = None;
        self.is_typed = false;
    }

    /// The memory that it takes beside the caller's buffer, in bytes.
    pub fn bytes(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.typed.capacity()
    }
}

/// The number of a line that `lead` begins, and how long the line is with its end. `None` if it is
/// not there as a whole, or not in the form that clients send: up to seven digits, no other sign.
#[inline]
fn short_line(bytes: &[u8], lead: u8) -> Option<(usize, usize)> {
    const DIGITS: usize = 7;
    let digit = |byte: u8| usize::from(byte - b'0');
    match *bytes {
        // Nearly all have one digit or two.
        [first, one @ b'0'..=b'9', b'\r', _, ..] if first == lead => return Some((digit(one), 4)),
        [first, ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', _, ..] if first == lead => {
            return Some((10 * digit(ten) + digit(one), 5));
        }
        [first, ..] if first == lead => {}
        _ => return None,
    }
    let mut number = 0;
    for (index, &byte) in bytes[1..].iter().take(DIGITS + 1).enumerate() {
        match byte {
            b'0'..=b'9' if index < DIGITS && (index == 0 || number > 0) => {
                number = number * 10 + digit(byte);
            }
            b'\r' if index > 0 && bytes.len() > index + 2 => return Some((number, index + 3)),
            _ => return None,
        }
    }
    None
}

/// Reads up to the closing quote, and what follows it. None if there is none, or something other
/// than a blank follows it.
fn quoted<'a>(quote: u8, mut rest: &'a [u8], into: &mut Vec<u8>) -> Option<&'a [u8]> {
    loop {
        let (&byte, after) = rest.split_first()?;
        rest = after;
        if byte == quote {
            let ends = rest.first().is_none_or(u8::is_ascii_whitespace);
            return ends.then_some(rest);
        }
        if byte != b'\\' {
            into.push(byte);
            continue;
        }
        let hex = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
        if quote == b'\'' {
            // Only the quote itself can be escaped in single quotes.
            if rest.first() == Some(&b'\'') {
                into.push(b'\'');
                rest = &rest[1..];
            } else {
                into.push(b'\\');
            }
        } else if let (Some(b'x'), Some(high), Some(low)) =
            (rest.first(), hex(rest.get(1)), hex(rest.get(2)))
        {
            into.push((high * 16 + low) as u8);
            rest = &rest[3..];
        } else {
            let (&byte, after) = rest.split_first()?;
            into.push(match byte {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'b' => 8,
                b'a' => 7,
                other => other,
            });
            rest = after;
        }
    }
}

/// The whole number that these digits are, in the one way that Redis writes it: no plus, no blank,
/// no leading zero. None if they are none, or beyond 64 bits.
#[inline]
pub fn decimal(digits: &[u8]) -> Option<i64> {
    let (negative, digits) = match digits.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, digits),
    };
    if digits.is_empty() || digits.len() > 19 {
        return None;
    }
    if digits[0] == b'0' {
        return (digits.len() == 1 && !negative).then_some(0);
    }
    let mut number = 0u64;
    for digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        // At most 19 digits: below 2^64.
        number = number * 10 + u64::from(digit);
    }
    if negative { 0i64.checked_sub_unsigned(number) } else { i64::try_from(number).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RequestLimits =
        RequestLimits { arguments: 1024 * 1024, bulk_bytes: 1 << 20, request_bytes: 1 << 22 };

    /// All requests in `bytes`, fed `piece` bytes at a time.
    fn requests(bytes: &[u8], piece: usize) -> Result<Vec<Vec<Vec<u8>>>, Refusal> {
        let (mut reader, mut found, mut start, mut end) = (Reader::default(), vec![], 0, 0);
        loop {
            match reader.read(&bytes[start..end], &LIMITS, false)? {
                Progress::Whole(used) => {
                    let arguments = reader.arguments(&bytes[start..end]);
                    found.push(arguments.from(0).map(<[u8]>::to_vec).collect());
                    reader.next();
                    start += used;
                }
                Progress::Wants(more) => {
                    assert!(more > 0);
                    if end == bytes.len() {
                        return Ok(found);
                    }
                    end = (end + piece).min(bytes.len());
                }
            }
        }
    }

    #[test]
    fn requests_are_found_in_pieces_of_any_size() {
        let bytes =
            b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*0\r\nSET \"a b\\x41\" 'c\\'d'\r\n\r\n*1\r\n$0\r\n\r\n";
        let expected: Vec<Vec<Vec<u8>>> = vec![
            vec![b"GET".to_vec(), b"k".to_vec()],
            vec![],
            vec![b"SET".to_vec(), b"a bA".to_vec(), b"c'd".to_vec()],
            vec![],
            vec![b"".to_vec()],
        ];
        for piece in 1..=bytes.len() {
            assert_eq!(requests(bytes, piece).as_ref(), Ok(&expected), "pieces of {piece}");
        }
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let cases: [(&[u8], Refusal); 9] = [
            (b"*x\r\n", Refusal::Count),
            (b"*1048577\r\n", Refusal::Count),
            (b"*1\r\n:3\r\n", Refusal::Dollar(b':')),
            (b"*1\r\n\r\n\r\n", Refusal::Dollar(b'\r')),
            (b"*1\r\n$-1\r\n", Refusal::Length),
            (b"*1\r\n$1048577\r\n", Refusal::Length),
            (b"*1\r\n$99999999999999999999\r\n", Refusal::Length),
            (b"GET \"a\r\n", Refusal::Quotes),
            (b"GET \"a\"b\r\n", Refusal::Quotes),
        ];
        for (bytes, refusal) in cases {
            assert_eq!(requests(bytes, bytes.len()), Err(refusal), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn lines_have_a_limit() {
        let long = vec![b'a'; LINE_BYTES + 1];
        assert_eq!(requests(&long, 1000), Err(Refusal::LongLine));
        let mut count = vec![b'1'; LINE_BYTES + 2];
        count[0] = b'*';
        assert_eq!(requests(&count, 1000), Err(Refusal::LongCount));
        let long = [b"*1\r\n$".as_slice(), &count[1..]].concat();
        assert_eq!(requests(&long, 1000), Err(Refusal::LongLength));
    }

    #[test]
    fn a_request_has_a_limit() {
        let bulk = [b"$1048576\r\n".as_slice(), &vec![0; 1 << 20], b"\r\n"].concat();
        let bytes = [b"*5\r\n".as_slice(), &bulk, &bulk, &bulk, &bulk].concat();
        assert_eq!(requests(&bytes, 65536), Err(Refusal::Long(1 << 22)));
    }

    #[test]
    fn strangers_may_send_little() {
        let mut reader = Reader::default();
        assert_eq!(reader.read(b"*11\r\n", &LIMITS, true), Err(Refusal::StrangerCount));
        let mut reader = Reader::default();
        let refused = reader.read(b"*1\r\n$16385\r\n", &LIMITS, true);
        assert_eq!(refused, Err(Refusal::StrangerLength));
    }

    #[test]
    fn short_lines_are_read_as_long_ones_are() {
        for number in ["0", "7", "64", "16384", "9999999"] {
            let line = format!("${number}\r\n");
            let read = short_line(line.as_bytes(), b'$').unwrap();
            assert_eq!((Some(read.0 as i64), read.1), (decimal(number.as_bytes()), line.len()));
            assert_eq!(short_line(&line.as_bytes()[..line.len() - 1], b'$'), None, "not whole");
            assert_eq!(short_line(line.as_bytes(), b'*'), None);
        }
        // What is unusual is left to the reader that knows all of it.
        for other in ["", "$", "$\r\n", "$01\r\n", "$-1\r\n", "$10000000\r\n", "$1a\r\n"] {
            assert_eq!(short_line(other.as_bytes(), b'$'), None, "{other:?}");
        }
    }

    #[test]
    fn numbers_are_read_as_redis_writes_them() {
        for number in [0, 7, -7, i64::MAX, i64::MIN] {
            assert_eq!(decimal(number.to_string().as_bytes()), Some(number));
        }
        let not = ["", "-", "+1", " 1", "01", "-0", "1a", "9223372036854775808", "1.0"];
        for text in not {
            assert_eq!(decimal(text.as_bytes()), None, "{text:?}");
        }
    }
}
