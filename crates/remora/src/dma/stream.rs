//! A stream: bytes on their way through the card, packet by packet.

use std::collections::VecDeque;

use crate::memory::{AllocError, Buffer};

/// Bytes that a stream holds before its writers wait.
const CAPACITY: usize = 1 << 20;
/// Packets that a stream holds before its writers wait.
const PACKETS: usize = 4096;

/// Bytes in order, and where packets end among them. A packet is of one writer: others wait until
/// it ends, and what a writer has not ended goes with the writer.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) bytes: Buffer,
    /// Bytes that were put in, but for those that went with their writers; and bytes taken out.
    put: u64,
    taken: u64,
    /// Counts of `put` at which packets end.
    ends: VecDeque<u64>,
    /// Who puts in the last packet, which has not ended, and the count at which it begins.
    writer: Option<(Writer, u64)>,
    /// The rest of the packet of which some was taken last does not come.
    cut: bool,
}

/// A channel that puts bytes into streams, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Writer(pub(super) u32);

/// A run of bytes in a stream's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Stream {
    pub(super) fn new() -> Result<Stream, AllocError> {
        let bytes = Buffer::new(CAPACITY)?;
        let ends = VecDeque::with_capacity(PACKETS);
        Ok(Stream { bytes, put: 0, taken: 0, ends, writer: None, cut: false })
    }

    /// Where the next bytes of this writer can be put, at most `len`; none if there is no room, or
    /// another one's packet has not ended.
    pub(super) fn room(&self, writer: Writer, len: usize) -> Run {
        let used = (self.put - self.taken) as usize;
        let is_its_turn = self.writer.is_none_or(|(other, _)| other == writer);
        let has_room = is_its_turn && self.ends.len() < PACKETS;
        Run::within(self.put, if has_room { len.min(CAPACITY - used) } else { 0 })
    }

    /// `len` bytes have been put where [`Stream::room`] said; the packet ends with them or not.
    pub(super) fn filled(&mut self, writer: Writer, len: usize, ends: bool) {
        let (_, begin) = self.writer.unwrap_or((writer, self.put));
        self.put += len as u64;
        self.writer = (!ends).then_some((writer, begin));
        if ends {
            self.ends.push_back(self.put);
        }
    }

    /// A writer has ended, or failed, and with it a packet that it has not ended: of that nothing
    /// is left, or what was taken already.
    pub(super) fn forget(&mut self, writer: Writer) {
        if let Some((_, begin)) = self.writer.take_if(|(of, _)| *of == writer) {
            self.cut |= self.taken > begin;
            self.put = self.taken.max(begin);
        }
    }

    /// Does the rest of a packet, of which some was taken, not come? It is said once.
    pub(super) fn takes_cut(&mut self) -> bool {
        std::mem::take(&mut self.cut)
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

    const A: Writer = Writer(1);
    const B: Writer = Writer(2);

    #[test]
    fn packets_keep_their_ends() {
        let mut stream = Stream::new().unwrap();
        assert_eq!(stream.content(10).len, 0);
        stream.filled(A, stream.room(A, 100).len, true);
        stream.filled(A, stream.room(A, 50).len, false);
        assert_eq!(stream.content(1000).len, 100, "not beyond the packet");
        assert!(!stream.drained(60));
        assert!(stream.drained(stream.content(1000).len));
        assert_eq!(stream.content(1000).len, 50, "a packet whose end is not there yet");
        assert!(!stream.drained(50));
    }

    #[test]
    fn a_full_stream_has_no_room() {
        let mut stream = Stream::new().unwrap();
        stream.filled(A, stream.room(A, CAPACITY - 1).len, false);
        assert_eq!(stream.room(A, 100).len, 1);
        stream.filled(A, 1, false);
        assert_eq!(stream.room(A, 100).len, 0);
        stream.drained(10);
        assert_eq!((stream.room(A, 100).at, stream.room(A, 100).len), (0, 10));
        for _ in 0..PACKETS {
            stream.drained(1);
            stream.filled(A, 1, true);
        }
        assert_eq!(stream.room(A, 100).len, 0, "too many packets");
    }

    #[test]
    fn a_packet_is_of_one_writer_and_goes_with_it() {
        let mut stream = Stream::new().unwrap();
        stream.filled(A, 30, true);
        stream.filled(A, 20, false);
        assert_eq!(stream.room(B, 10).len, 0);
        stream.forget(B);
        assert_eq!(stream.room(B, 10).len, 0, "it has put nothing");
        stream.forget(A);
        assert_eq!((stream.room(B, 10).at, stream.room(B, 10).len), (30, 10));
        assert!(stream.drained(30) && stream.content(10).len == 0 && !stream.takes_cut());

        // A part of it was taken.
        stream.filled(B, 40, false);
        assert!(!stream.drained(15));
        stream.forget(B);
        stream.filled(B, 3, false);
        stream.forget(B);
        stream.filled(A, 5, true);
        assert!(stream.takes_cut() && !stream.takes_cut());
        assert_eq!((stream.content(10).at, stream.content(10).len), (45, 5));
    }
}
