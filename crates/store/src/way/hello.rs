//! What a client and a store say to each other as they connect by RDMA CM, in its private data.
//!
//! ```text
//! hello, 32 bytes                        welcome, 36 bytes (little-endian)
//!   0  magic "RMst"                        0  magic "RMst"
//!   4  version                             4  version
//!   5  what the connection is for          5  what the store is
//!   6  zero                                8  address of the store's first byte
//!   8  token, zero for none               16  length
//!  24  ticket, zero for none              24  remote key
//!                                         28  ticket
//! ```
//!
//! A connection for calls gets a ticket, which nobody can guess; one to a chain shows the ticket of
//! the connection to which it belongs, and ends with it. A program on a card cannot be asked
//! whether its client is still there, and so the other connection's client is asked.

use remora::Remote;
use remora::connection::token::Token;
use thiserror::Error;

/// Bytes of a [`Hello`].
pub const HELLO_LEN: usize = 32;
/// Bytes of a [`Welcome`].
pub const WELCOME_LEN: usize = 36;
/// The version of calls, layout and greetings.
pub const VERSION: u8 = 1;
const MAGIC: &[u8; 4] = b"RMst";

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Purpose {
    /// Calls of kernels, and READs of the store's memory.
    Calls,
    /// Look-ups by a chain: one message asks, one message answers.
    Chain,
}

/// What a client says.
#[derive(Clone, Copy, Debug)]
pub struct Hello {
    /// What the connection is for.
    pub purpose: Purpose,
    /// The secret that the store asks for, if the client has one.
    pub token: Option<Token>,
    /// Of a connection to a chain: the ticket of the connection for calls to which it belongs.
    pub ticket: u64,
}

/// Why private data is not a [`Hello`] or a [`Welcome`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum BadGreeting {
    /// The peer is something else.
    #[error("the peer is no Remora store, or no client of one")]
    NotOurs,
    /// The peer is of another version.
    #[error("the peer speaks version {0} of the store's protocol, this side {VERSION}")]
    Version(u8),
    /// Unknown purpose.
    #[error("the connection is for a purpose that this store does not know")]
    Purpose,
}

fn head(bytes: &[u8], len: usize) -> Result<&[u8], BadGreeting> {
    let bytes = bytes.get(..len).filter(|bytes| bytes.starts_with(MAGIC));
    let bytes = bytes.ok_or(BadGreeting::NotOurs)?;
    if bytes[4] == VERSION { Ok(bytes) } else { Err(BadGreeting::Version(bytes[4])) }
}

impl Hello {
    /// Reads the private data of a REQ.
    ///
    /// # Errors
    /// See [`BadGreeting`].
    pub fn parse(bytes: &[u8]) -> Result<Hello, BadGreeting> {
        let bytes = head(bytes, HELLO_LEN)?;
        let purpose = match bytes[5] {
            0 => Purpose::Calls,
            1 => Purpose::Chain,
            _ => return Err(BadGreeting::Purpose),
        };
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[8..24]);
        Ok(Hello { purpose, token: Token::new(token), ticket: word_at(bytes, 24) })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.purpose {
            Purpose::Calls => 0,
            Purpose::Chain => 1,
        };
        bytes[8..24].copy_from_slice(&self.token.map_or([0; 16], |token| token.to_bytes()));
        bytes[24..].copy_from_slice(&self.ticket.to_le_bytes());
        bytes
    }
}

/// What a store answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// The store's memory, for READs; of length 0 on connections that give no access to it.
    pub memory: Remote,
    /// By which the client's connection to a chain says to whom it belongs.
    pub ticket: u64,
    /// What the store is.
    pub kind: StoreKind,
}

/// What a store is to its clients.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreKind {
    /// A store of its own.
    Alone,
    /// A part of a cluster.
    Member,
    /// A store of its own whose card runs no kernels: what is in its memory counts.
    WithoutKernels,
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

impl Welcome {
    /// Reads the private data of a REP.
    ///
    /// # Errors
    /// See [`BadGreeting`].
    pub fn parse(bytes: &[u8]) -> Result<Welcome, BadGreeting> {
        let bytes = head(bytes, WELCOME_LEN)?;
        let (addr, len) = (word_at(bytes, 8), word_at(bytes, 16));
        let rkey = bytes[24..28].iter().rev().fold(0, |w, b| w << 8 | u32::from(*b));
        if addr.checked_add(len).is_none() {
            return Err(BadGreeting::NotOurs);
        }
        let kind = match bytes[5] {
            1 => StoreKind::Member,
            2 => StoreKind::WithoutKernels,
            _ => StoreKind::Alone,
        };
        Ok(Welcome { memory: Remote { addr, len, rkey }, ticket: word_at(bytes, 28), kind })
    }

    /// The bytes.
    pub fn to_bytes(&self) -> [u8; WELCOME_LEN] {
        let mut bytes = [0; WELCOME_LEN];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[5] = match self.kind {
            StoreKind::Alone => 0,
            StoreKind::Member => 1,
            StoreKind::WithoutKernels => 2,
        };
        bytes[8..16].copy_from_slice(&self.memory.addr.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.memory.len.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.memory.rkey.to_le_bytes());
        bytes[28..].copy_from_slice(&self.ticket.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_round_trip_and_others_are_refused() {
        let token = Token::new([7; 16]);
        for purpose in [Purpose::Calls, Purpose::Chain] {
            let mut bytes = Hello { purpose, token, ticket: 1 << 60 | 5 }.to_bytes().to_vec();
            bytes.resize(56, 0);
            let read = Hello::parse(&bytes).unwrap();
            assert_eq!((read.purpose, read.ticket), (purpose, 1 << 60 | 5));
            assert!(token.unwrap().matches(read.token.as_ref()));
            bytes[5] = 2;
            assert_eq!(Hello::parse(&bytes).unwrap_err(), BadGreeting::Purpose);
            bytes[4] = 9;
            assert_eq!(Hello::parse(&bytes).unwrap_err(), BadGreeting::Version(9));
            bytes[0] = 0;
            assert_eq!(Hello::parse(&bytes).unwrap_err(), BadGreeting::NotOurs);
            assert_eq!(Hello::parse(&bytes[..31]).unwrap_err(), BadGreeting::NotOurs);
        }
        let memory = Remote { addr: 1 << 40, len: 1 << 30, rkey: 77 };
        for kind in [StoreKind::Alone, StoreKind::Member, StoreKind::WithoutKernels] {
            let welcome = Welcome { memory, ticket: 1 << 50 | 3, kind };
            assert_eq!(Welcome::parse(&welcome.to_bytes()), Ok(welcome));
        }
        let memory = Remote { addr: u64::MAX, len: 2, rkey: 1 };
        let wraps = Welcome { memory, ticket: 1, kind: StoreKind::Alone };
        assert_eq!(Welcome::parse(&wraps.to_bytes()), Err(BadGreeting::NotOurs));
    }
}
