//! What a connection of memcached's protocols remembers, and what a request is given.

use crate::front::keyspace::{ChangeRefused, TablespaceId};
use crate::front::memcached::operations::Outcome;
use crate::front::server_state::Turn;
use crate::stats::Op;

/// What a connection remembers.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The protocol, once the first byte has come.
    pub(super) is_binary: Option<bool>,
    /// Bytes of a refused value that are still to come.
    pub(super) skip: u64,
    /// How far the end of a line has been looked for.
    pub(super) looked: usize,
    /// How far a walk over all keys has come that the next request asks for.
    pub(super) walk: Walk,
    /// The client has given the password, or none is asked for.
    pub(super) is_known: bool,
}

/// How far a walk over all keys has come, between two steps of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walk {
    pub(super) cursor: u64,
    /// Items that it has shown, and bytes of the answer.
    pub(super) items: u64,
    pub(super) bytes: u64,
}

impl Walk {
    /// Whether some of its answer is given, and not all.
    pub(super) fn has_begun(&self) -> bool {
        self.cursor != 0
    }
}

/// What a protocol has done with the bytes that begin with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It has carried out a request of so many bytes.
    Request(usize, Op),
    /// It has carried out a part of the request, whose bytes it wants to see again.
    Again,
    /// It needs so many more bytes.
    Wants(usize),
    /// The connection cannot go on, or is not to.
    Close,
}

/// What a request is given.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) state: &'a mut Conversation,
    pub(super) turn: &'a mut Turn,
    pub(super) ts: TablespaceId,
    pub(super) out: &'a mut Vec<u8>,
}

impl Call<'_> {
    /// Writes a line.
    pub(super) fn line(&mut self, text: &[u8]) {
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes a number.
    pub(super) fn number(&mut self, number: u64) {
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes why the store refuses.
    pub(super) fn refused(&mut self, refused: &ChangeRefused) {
        self.turn.counts.errors.add(1);
        match refused {
            ChangeRefused::Value { .. } => self.line(b"SERVER_ERROR object too large for cache"),
            ChangeRefused::Memory(_) => self.line(b"SERVER_ERROR out of memory storing object"),
            ChangeRefused::Key { .. } => self.line(b"CLIENT_ERROR bad command line format"),
            ChangeRefused::Log(_) | ChangeRefused::Other(_) => {
                let text = refused.to_string().replace(['\r', '\n'], " ");
                self.out.extend_from_slice(b"SERVER_ERROR ");
                self.line(text.as_bytes());
            }
        }
    }

    /// Writes what became of a request, in the words of its protocol.
    pub(super) fn outcome(&mut self, outcome: &Outcome, words: &Words) {
        match outcome {
            Outcome::Done(_) => self.line(words.done),
            Outcome::NotStored => self.line(words.not_stored),
            Outcome::Exists => self.line(words.exists),
            Outcome::NotFound => self.line(words.not_found),
            Outcome::Refused(refused) => self.refused(refused),
        }
    }

    /// Whether more than may wait has been written.
    pub(super) fn is_full(&self) -> bool {
        let limit = &self.turn.server.settings.output_bytes;
        self.out.len() as u64 > limit.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// What outcomes are called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    pub(super) done: &'static [u8],
    pub(super) not_stored: &'static [u8],
    pub(super) exists: &'static [u8],
    pub(super) not_found: &'static [u8],
}
