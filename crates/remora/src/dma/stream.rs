//! A stream: bytes on their way through the card, packet by packet.

use std::collections::VecDeque;

use crate::memory::{AllocError, Buffer};

/// Bytes that a stream holds before its writers wait.
const CAPACITY: usize = 1 << 20;
/// Packets that a stream holds before its writers wait.
const PACKETS: usize = 4096;

/// Bytes in order, and where packets end among them.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) bytes: Buffer,
    /// Bytes that were ever put in and taken out.
    put: u64,
    taken: u64,
    /// Counts of `put` at which packets end.
    ends: VecDeque<u64>,
}

/// A run of bytes in a stream's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Stream {
    pub(super) fn new() -> Result<Stream, AllocError> {
        let bytes = Buffer::new(CAPACITY)?;
        Ok(Stream { bytes, put: 0, taken: 0, ends: VecDeque::with_capacity(PACKETS) })
    }

    /// Where the next bytes can be put, at most `len`; none if there is no room.
    pub(super) fn room(&self, len: usize) -> Run {
        let used = (self.put - self.taken) as usize;
        let free = if self.ends.len() < PACKETS { CAPACITY - used } else { 0 };
        Run::within(self.put, len.min(free))
    }

    /// `len` bytes have been put where [`Stream::room`] said; the packet ends with them or not.
    pub(super) fn filled(&mut self, len: usize, ends: bool) {
        self.put += len as u64;
        if ends {
            self.ends.push_back(self.put);
        }
    }

    /// Where the next bytes of the first packet are, at most `len`; none if there are none.
    pub(super) fn content(&self, len: usize) -> Run {
        let end = self.ends.front().copied().unwrap_or(self.put);
        Run::within(self.taken, len.min((end - self.taken) as usize))
    }

    /// `len` bytes have been taken from where [`Stream::content`] said. Returns whether a packet
    /// ended with them.
    pub(super) fn drained(&mut self, len: usize) -> bool {
        self.taken += len as u64;
        let ended = self.ends.front() == Some(&self.taken);
        if ended {
            self.ends.pop_front();
        }
        ended
    }
}

impl Run {
    /// The first of `len` bytes from a count on that lie in one piece.
    fn within(count: u64, len: usize) -> Run {
        let at = (count % CAPACITY as u64) as usize;
        Run { at, len: len.min(CAPACITY - at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_keep_their_ends() {
        let mut stream = Stream::new().unwrap();
        assert_eq!(stream.content(10).len, 0);
        stream.filled(stream.room(100).len, true);
        stream.filled(stream.room(50).len, false);
        assert_eq!(stream.content(1000).len, 100, "not beyond the packet");
        assert!(!stream.drained(60));
        assert!(stream.drained(stream.content(1000).len));
        assert_eq!(stream.content(1000).len, 50, "a packet whose end is not there yet");
        assert!(!stream.drained(50));
    }

    #[test]
    fn a_full_stream_has_no_room() {
        let mut stream = Stream::new().unwrap();
        stream.filled(stream.room(CAPACITY - 1).len, false);
        assert_eq!(stream.room(100).len, 1);
        stream.filled(1, false);
        assert_eq!(stream.room(100).len, 0);
        stream.drained(10);
        assert_eq!((stream.room(100).at, stream.room(100).len), (0, 10));
        for _ in 0..PACKETS {
            stream.drained(1);
            stream.filled(1, true);
        }
        assert_eq!(stream.room(100).len, 0, "too many packets");
    }
}
