//! What has come over a connection and is not dealt with, and the buffers that it is read into.

use std::io;

use remora::memory::PageAligned;
use rustix::fd::AsFd;
use rustix::io::Errno;

/// Bytes that one read takes at most.
pub(super) const READ_BYTES: usize = 64 * 1024;
/// The same while a long argument is on its way.
const LONG_READ_BYTES: usize = 1 << 20;
/// Buffers up to this size are kept for the next connection, in bytes; smaller ones than a read
/// takes are not.
pub(super) const SPARE_BYTES: usize = 2 * READ_BYTES;
/// How many buffers a thread keeps of each kind.
pub(super) const SPARES: usize = 256;
/// What is left of the input of this many bytes or fewer waits for the rest in a buffer of its
/// size: thousands of connections may have sent the begin of a request.
const LEFT_BYTES: usize = 1024;

/// What has come.
#[derive(Debug, Default)]
pub(super) struct Input {
    place: Place,
    /// Bytes of the place before this are dealt with.
    start: usize,
    /// Up to here the place has bytes that have come.
    end: usize,
}

/// Where it is.
#[derive(Debug)]
enum Place {
    /// Little, which waits for the rest.
    Little(Vec<u8>),
    /// What was read.
    Large(PageAligned),
}

impl Default for Place {
    fn default() -> Place {
        Place::Little(Vec::new())
    }
}

impl Place {
    fn bytes(&self) -> &[u8] {
        match self {
            Place::Little(bytes) => bytes,
            Place::Large(bytes) => bytes,
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Place::Little(bytes) => bytes,
            Place::Large(bytes) => bytes,
        }
    }
}

impl Input {
    /// What is not dealt with.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.place.bytes()[self.start..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// So many bytes are dealt with.
    pub(super) fn use_up(&mut self, count: usize) {
        self.start += count;
    }

    /// The memory that it takes, in bytes.
    pub(super) fn capacity(&self) -> usize {
        self.place.bytes().len()
    }

    /// Reads once, with room for `wanted` bytes in reason. Ok(0) is: nothing has come yet.
    pub(super) fn read(
        &mut self,
        from: impl AsFd,
        wanted: usize,
        spares: &mut Vec<PageAligned>,
    ) -> io::Result<usize> {
        self.make_room(wanted.clamp(READ_BYTES / 4, LONG_READ_BYTES), spares);
        match rustix::io::read(from, &mut self.place.bytes_mut()[self.end..]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.end += count;
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes room for so many bytes behind those that have come.
    fn make_room(&mut self, room: usize, spares: &mut Vec<PageAligned>) {
        let kept = self.bytes().len();
        match &mut self.place {
            Place::Large(bytes) if bytes.len() - kept >= room => {
                bytes.copy_within(self.start..self.end, 0);
            }
            place => {
                let spare = if kept + room <= READ_BYTES { spares.pop() } else { None };
                let len = READ_BYTES.max(kept + room).max(2 * kept);
                let mut larger = spare.unwrap_or_else(|| PageAligned::new(len));
                larger[..kept].copy_from_slice(&place.bytes()[self.start..self.end]);
                *place = Place::Large(larger);
            }
        }
        (self.start, self.end) = (0, kept);
    }

    /// Gives the buffer back if little is left in it.
    pub(super) fn keep_left(&mut self, spares: &mut Vec<PageAligned>) {
        if self.bytes().len() > LEFT_BYTES {
            return;
        }
        let left = self.bytes().to_vec();
        (self.start, self.end) = (0, left.len());
        let before = std::mem::replace(&mut self.place, Place::Little(left));
        if let Place::Large(bytes) = before
            && bytes.len() <= SPARE_BYTES
            && spares.len() < SPARES
        {
            spares.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn bytes_come_into_pages_in_whatever_pieces_they_are_used_up() {
        let (mut from, to) = UnixStream::pair().unwrap();
        to.set_nonblocking(true).unwrap();
        let (mut input, mut spares) = (Input::default(), Vec::new());
        let sent: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        let (mut used, mut next) = (0, sent.chunks(7000));
        while used < sent.len() {
            next.by_ref().take(3).for_each(|piece| from.write_all(piece).unwrap());
            while input.read(&to, 1, &mut spares).unwrap() > 0 {}
            assert_eq!(input.place.bytes().as_ptr().addr() % 4096, 0);
            assert_eq!(input.bytes(), &sent[used..][..input.bytes().len()]);
            let here = input.bytes().len();
            let count = if used + here == sent.len() { here } else { here - here * (used % 4) / 5 };
            input.use_up(count);
            used += count;
            input.keep_left(&mut spares);
            assert_eq!(input.bytes(), &sent[used..][..input.bytes().len()]);
        }
        assert!(input.is_empty() && input.capacity() == 0 && spares.len() == 1);
    }

    #[test]
    fn a_long_argument_gets_room_and_leaves_no_spare_of_its_size() {
        let (mut from, to) = UnixStream::pair().unwrap();
        let (mut input, mut spares) = (Input::default(), Vec::new());
        let mut come = 0;
        while come < 1 << 20 {
            from.write_all(&[7; 50_000]).unwrap();
            come += input.read(&to, (1 << 20) - come, &mut spares).unwrap();
        }
        assert!(input.bytes().len() == come && input.bytes().iter().all(|byte| *byte == 7));
        input.use_up(come);
        input.keep_left(&mut spares);
        assert!(spares.is_empty());
        drop(from);
        while input.read(&to, 1, &mut spares).is_ok() {}
    }
}
