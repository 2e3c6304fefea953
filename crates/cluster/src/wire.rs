//! What nodes say to each other: as they connect, and in frames over the queue pair.
//!
//! ```text
//! hello, 56 bytes, of the caller          welcome, 24 bytes, of the called (little-endian)
//!   0  magic "RMg4"                         0  magic "RMg4"
//!   4  the node                             4  its region, as Remote has it
//!  12  the node that it calls
//!  20  the epoch
//!  24  its region: address, 8 bytes,
//!      length, 4 bytes, key, 4 bytes
//!  40  the group's token
//! ```
//!
//! An address may be another node's by now: one that comes back without its memory has a new number
//! and the old address. A caller that took such a node for the one that it was would count votes of
//! a node that has forgotten them. So the caller says whom it calls, and nobody else answers.

use remora::Remote;
use remora::connection::token::Token;
use remora_store::replica::{Message, NodeId};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The first bytes of both greetings; the last one is the version.
const MAGIC: &[u8; 4] = b"RMg4";
/// Bytes of a [`Hello`].
pub(crate) const HELLO: usize = 56;
/// Bytes of a [`Welcome`].
pub(crate) const WELCOME: usize = 24;
/// The longest frame, in bytes.
pub(crate) const FRAME: usize = 4096;
/// The bytes of a copy that one frame has at most: the rest are the frame's own.
pub(crate) const PIECE: usize = FRAME - 16;

/// Who connects to whom, and for which epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hello {
    pub(crate) node: NodeId,
    pub(crate) to: NodeId,
    pub(crate) epoch: u32,
    pub(crate) region: Remote,
    pub(crate) token: Token,
}

/// What the node that accepts answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(crate) region: Remote,
}

/// Why a greeting is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer is no node of a Remora store, or of another version: start all from one release")]
pub(crate) struct NoGreeting;

impl Hello {
    /// # Panics
    /// If the region is of 4 GiB or more: no ring is as long.
    pub(crate) fn to_bytes(self) -> [u8; HELLO] {
        let len = u32::try_from(self.region.len).expect("a ring of at most 1 GiB");
        let parts = [
            MAGIC,
            &self.node.0.to_le_bytes()[..],
            &self.to.0.to_le_bytes(),
            &self.epoch.to_le_bytes(),
            &self.region.addr.to_le_bytes(),
            &len.to_le_bytes(),
            &self.region.rkey.to_le_bytes(),
            &self.token.to_bytes(),
        ];
        parts.concat().try_into().expect("the lengths of the parts make it")
    }

    /// Reads the private data of a request to connect.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Hello, NoGreeting> {
        let bytes: &[u8; HELLO] = bytes.first_chunk().ok_or(NoGreeting)?;
        let rest = &mut bytes.strip_prefix(MAGIC).ok_or(NoGreeting)?;
        Ok(Hello {
            node: NodeId(u64::from_le_bytes(take(rest)?)),
            to: NodeId(u64::from_le_bytes(take(rest)?)),
            epoch: u32::from_le_bytes(take(rest)?),
            region: Remote {
                addr: u64::from_le_bytes(take(rest)?),
                len: u32::from_le_bytes(take(rest)?).into(),
                rkey: u32::from_le_bytes(take(rest)?),
            },
            token: Token::new(take(rest)?).ok_or(NoGreeting)?,
        })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], NoGreeting> {
    rest.split_off(..N).and_then(|part| part.try_into().ok()).ok_or(NoGreeting)
}

impl Welcome {
    pub(crate) fn to_bytes(self) -> [u8; WELCOME] {
        let mut bytes = [0; WELCOME];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4..].copy_from_slice(&self.region.to_bytes());
        bytes
    }

    /// Reads the private data of a reply.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Welcome, NoGreeting> {
        let bytes: &[u8; WELCOME] = bytes.first_chunk().ok_or(NoGreeting)?;
        let region = bytes.strip_prefix(MAGIC).ok_or(NoGreeting)?;
        Ok(Welcome { region: Remote::from_bytes(region).map_err(|_| NoGreeting)? })
    }
}

/// A message on the queue pair: one SEND.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Frame<'a> {
    /// Of the protocol.
    Message(Message),
    /// The next bytes of a copy's records, as the log has them.
    Records(&'a [u8]),
    /// The next bytes of what goes with a copy: a `Snapshot`.
    Head(&'a [u8]),
    /// The copy is complete.
    End,
}

impl<'a> Frame<'a> {
    /// The bytes; `None` if they are more than a frame has.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let bytes = postcard::to_allocvec(self).expect("a vector has room for any frame");
        (bytes.len() <= FRAME).then_some(bytes)
    }

    /// Reads a frame, which must have no bytes behind it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Frame<'a>> {
        match postcard::take_from_bytes(bytes) {
            Ok((frame, [])) => Some(frame),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use remora_store::log::Position;
    use remora_store::replica::{Answer, Configuration, MEMBERS_MAX, Mark};

    use super::*;

    const REGION: Remote = Remote { addr: 1 << 40, len: 1 << 20, rkey: 7 };

    #[test]
    fn greetings_come_back_and_others_are_refused() {
        let token = Token::new([9; 16]).unwrap();
        let (node, to) = (NodeId(1 << 60 | 5), NodeId(1 << 59 | 6));
        let hello = Hello { node, to, epoch: 77, region: REGION, token };
        let mut bytes = hello.to_bytes();
        let read = Hello::parse(&bytes).unwrap();
        assert_eq!((read.node, read.to, read.epoch, read.region), (node, to, 77, REGION));
        assert!(token.matches(Some(&read.token)));
        assert!(Hello::parse(&bytes[..HELLO - 1]).is_err());
        bytes[3] = b'1';
        assert!(Hello::parse(&bytes).is_err());
        let welcome = Welcome { region: REGION };
        assert_eq!(Welcome::parse(&welcome.to_bytes()), Ok(welcome));
        assert_eq!(Welcome::parse(&[0; WELCOME]), Err(NoGreeting));
    }

    #[test]
    fn the_longest_message_and_piece_fit_a_frame() {
        let mark = Mark { position: Position::from_number(u64::MAX), offset: u64::MAX };
        let position = mark.position;
        let ends = vec![mark; 32];
        let applied = mark;
        let (first_offset, free_until, committed) = (u64::MAX, u64::MAX, position);
        let answer = Answer { ends, first_offset, applied, committed, free_until };
        let members = (0..MEMBERS_MAX as u64).map(|n| NodeId(u64::MAX - n)).collect::<Vec<_>>();
        let mut epoch = Configuration::first(members[0], members).unwrap();
        epoch.epoch = Position::MAX_EPOCH;
        let piece = [7; PIECE];
        let frames = [
            Frame::Message(Message::History { epoch: u32::MAX, answer }),
            Frame::Message(Message::Epoch(epoch)),
            Frame::Records(&piece),
            Frame::Head(&piece),
            Frame::End,
        ];
        for frame in frames {
            let bytes = frame.encode().expect("it fits");
            assert_eq!(Frame::decode(&bytes), Some(frame));
            assert_eq!(Frame::decode(&bytes[..bytes.len() - 1]), None);
        }
        assert_eq!(Frame::Records(&[0; FRAME]).encode(), None);
        assert_eq!(Frame::decode(&[9]), None);
    }
}
