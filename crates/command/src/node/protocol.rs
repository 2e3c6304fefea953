//! The private data that client and node exchange by RDMA CM.
//!
//! ```text
//! request, 56 bytes                     reply, 28 bytes (big-endian)
//!   0  magic "RMem"                       0  magic "RMem"
//!   4  version                            4  version
//!   5  length of the name                 5  flags: 1 writable, 2 file
//!   6  zero                               6  zero
//!   8  token, zero for none               8  address of the region's first byte
//!  24  name, padded with zeroes          16  length
//!                                        24  remote key
//! ```

use remora::connection::token::Token;
use thiserror::Error;

/// The wait for an acknowledge: 4.096 µs · 2^16 = 0.27 s. After eight of them, 2.1 s, a silent peer
/// is given up. One wait is long enough for a busy machine on which the peer gets no processor
/// time.
pub const ACK_TIMEOUT: u8 = 16;
/// Bytes of a request: all the private data of a REQ that RDMA CM leaves to its user.
pub const REQUEST_LEN: usize = 56;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 28;
/// The longest name of a region, in bytes.
pub const NAME_MAX: usize = 32;

const MAGIC: &[u8; 4] = b"RMem";
const VERSION: u8 = 1;
const WRITABLE: u8 = 1;
const FILE: u8 = 2;

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The region's name, as [`is_name`] allows.
    pub name: &'a str,
    /// The client's token, if it has one.
    pub token: Option<Token>,
}

/// Why private data is not a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// It is shorter than a request, or begins with something else.
    #[error("this is a Remora memory node, and the private data is not a request for a region")]
    NotOurs,
    /// It is of another version.
    #[error("the node speaks version {VERSION} of the memory protocol, the client {got}")]
    Version {
        /// The client's version.
        got: u8,
    },
    /// The name is not valid.
    #[error("the request's region name is not well formed")]
    Name,
}

/// Is `name` a valid name of a region: 1 to 32 letters, digits, `.`, `-`, `_`? An `@` before them
/// marks the node's own regions.
pub fn is_name(name: &str) -> bool {
    let rest = name.strip_prefix('@').unwrap_or(name);
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"._-".contains(&c);
    name.len() <= NAME_MAX && !rest.is_empty() && rest.bytes().all(fits)
}

impl<'a> Request<'a> {
    /// Parses a REQ's private data.
    ///
    /// # Errors
    /// See [`RequestError`], which the node sends to the peer as text.
    pub fn parse(bytes: &'a [u8]) -> Result<Request<'a>, RequestError> {
        let bytes: &[u8; REQUEST_LEN] = bytes.first_chunk().ok_or(RequestError::NotOurs)?;
        if &bytes[..4] != MAGIC {
            return Err(RequestError::NotOurs);
        }
        if bytes[4] != VERSION {
            return Err(RequestError::Version { got: bytes[4] });
        }
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[8..24]);
        let (name, padding) =
            bytes[24..].split_at_checked(usize::from(bytes[5])).ok_or(RequestError::Name)?;
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let padded = padding.iter().all(|byte| *byte == 0);
        let name = name.filter(|_| padded).ok_or(RequestError::Name)?;
        Ok(Request { name, token: Token::new(token) })
    }

    /// The bytes of a request; `None` if its name is not valid.
    pub fn emit(&self) -> Option<[u8; REQUEST_LEN]> {
        if !is_name(self.name) {
            return None;
        }
        let mut bytes = [0; REQUEST_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        (bytes[4], bytes[5]) = (VERSION, self.name.len() as u8);
        bytes[8..24].copy_from_slice(&self.token.map_or([0; 16], |t| t.to_bytes()));
        bytes[24..24 + self.name.len()].copy_from_slice(self.name.as_bytes());
        Some(bytes)
    }
}

/// The part of the node's memory that the client may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// The address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its remote key.
    pub rkey: u32,
    /// The client may WRITE.
    pub writable: bool,
    /// The bytes are those of a file, not of memory.
    pub file: bool,
}

/// The peer that accepted the connection is not a memory node of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the peer accepts the connection, but does not answer as a Remora memory node does")]
pub struct ReplyError;

impl Reply {
    /// Parses a REP's private data.
    ///
    /// # Errors
    /// It is not a reply.
    pub fn parse(bytes: &[u8]) -> Result<Reply, ReplyError> {
        let bytes: &[u8; REPLY_LEN] = bytes.first_chunk().ok_or(ReplyError)?;
        let (head, rest) = bytes.split_at(8);
        if &head[..4] != MAGIC || head[4] != VERSION {
            return Err(ReplyError);
        }
        let word = |at: usize| rest[at..at + 8].iter().fold(0, |w, b| w << 8 | u64::from(*b));
        let (addr, len) = (word(0), word(8));
        if len == 0 || addr.checked_add(len).is_none() {
            return Err(ReplyError);
        }
        let rkey = rest[16..20].iter().fold(0, |w, b| w << 8 | u32::from(*b));
        let flag = |bit| head[5] & bit != 0;
        Ok(Reply { addr, len, rkey, writable: flag(WRITABLE), file: flag(FILE) })
    }

    /// The bytes of a reply.
    pub fn emit(&self) -> [u8; REPLY_LEN] {
        let mut bytes = [0; REPLY_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        let flag = |is, bit| if is { bit } else { 0 };
        (bytes[4], bytes[5]) = (VERSION, flag(self.writable, WRITABLE) | flag(self.file, FILE));
        bytes[8..16].copy_from_slice(&self.addr.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_be_bytes());
        bytes[24..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";

    fn request() -> [u8; REQUEST_LEN] {
        Request { name: "data", token: TOKEN.parse().ok() }.emit().unwrap()
    }

    #[test]
    fn a_request_has_these_bytes_and_survives_emit_and_parse() {
        let bytes = request();
        assert_eq!(&bytes[..12], b"RMem\x01\x04\0\0\x00\x11\x22\x33");
        assert_eq!(&bytes[24..], b"data\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let parsed = Request::parse(&bytes).unwrap();
        assert_eq!((parsed.name, parsed.token.unwrap().to_string().as_str()), ("data", TOKEN));
        let longest = "x".repeat(NAME_MAX);
        let bytes = Request { name: &longest, token: None }.emit().unwrap();
        assert_eq!(Request::parse(&bytes).unwrap().name, longest);
        assert!(Request::parse(&bytes).unwrap().token.is_none());
        assert!(Request { name: "a/b", token: None }.emit().is_none());
    }

    #[test]
    fn hostile_requests_are_refused_with_a_reason() {
        let with = |at: usize, byte: u8| {
            let mut bytes = request();
            bytes[at] = byte;
            Request::parse(&bytes).map(|r| r.name.to_owned())
        };
        assert_eq!(Request::parse(&[]).unwrap_err(), RequestError::NotOurs);
        assert_eq!(Request::parse(&request()[..55]).unwrap_err(), RequestError::NotOurs);
        assert_eq!(with(0, b'X'), Err(RequestError::NotOurs));
        assert_eq!(with(4, 9), Err(RequestError::Version { got: 9 }));
        for length in [0, 3, 5, 32, 33, 255] {
            assert_eq!(with(5, length), Err(RequestError::Name), "length {length}");
        }
        for byte in [0, b'/', b' ', 0x1b, 0x80, 0xff] {
            assert_eq!(with(25, byte), Err(RequestError::Name), "byte {byte}");
        }
        assert_eq!(with(55, 1), Err(RequestError::Name), "padding that is not zero");
    }

    #[test]
    fn no_bytes_make_the_parsers_panic() {
        let (request, reply) = (request(), [0xff; 300]);
        for len in 0..=request.len() {
            for byte in 0..=255 {
                let mut bytes = request[..len].to_vec();
                if let Some(last) = bytes.last_mut() {
                    *last = byte;
                }
                let _ = Request::parse(&bytes);
                let _ = Reply::parse(&bytes);
            }
        }
        (0..reply.len()).for_each(|len| assert_eq!(Reply::parse(&reply[..len]), Err(ReplyError)));
    }

    #[test]
    fn a_reply_survives_emit_and_parse_and_nonsense_is_refused() {
        let reply = Reply { addr: 1 << 40, len: 5, rkey: 0xdead_beef, writable: true, file: false };
        let mut padded = reply.emit().to_vec();
        padded.resize(196, 0);
        assert_eq!(Reply::parse(&padded), Ok(reply));
        assert_eq!(&reply.emit()[..8], b"RMem\x01\x01\0\0");
        let wraps = Reply { addr: u64::MAX, ..reply };
        assert_eq!(Reply::parse(&wraps.emit()), Err(ReplyError));
        assert_eq!(Reply::parse(&Reply { len: 0, ..reply }.emit()), Err(ReplyError));
        assert_eq!(Reply::parse(&reply.emit()[..27]), Err(ReplyError));
    }
}
