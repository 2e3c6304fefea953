//! Buffers for results, limited in total bytes; and what kernels keep otherwise.

use core::ops::{Deref, DerefMut};

use remora_nic::kernel::{Buffer, Draft};

/// Bytes of results that are sent as one WRITE: large enough to be efficient, small enough to
/// share the queue pair.
pub const CHUNK: usize = 64 << 10;

/// Buffers for results, limited in total bytes.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<Buffer>,
    /// Bytes that buffers in use count for.
    out: usize,
    /// Bytes that invocations keep. They are limited apart, so that results find room whatever is
    /// kept.
    kept: usize,
    limit: usize,
}

/// A buffer that grows. It counts for the bytes that it was taken for, whatever is in it.
pub(super) struct Room {
    bytes: Draft,
    counts: usize,
}

impl Deref for Room {
    type Target = Vec<u8>;

    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.bytes
    }
}

impl DerefMut for Room {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }
}

impl Pool {
    pub(super) fn new(limit: usize) -> Pool {
        Pool { free: Vec::new(), out: 0, kept: 0, limit }
    }

    /// The bytes that a buffer of `len` bytes counts for. A step may add to results past a chunk,
    /// so up to two chunks count as one.
    fn cost(len: usize) -> usize {
        if len <= 2 * CHUNK { CHUNK } else { len }
    }

    /// Notes that `more` bytes are in use; `false` if the limit is reached. (It may be passed:
    /// results may have got longer than the buffer was taken for.)
    fn count(&mut self, more: usize) -> bool {
        let fits = more == 0 || self.out + more <= self.limit;
        self.out += if fits { more } else { 0 };
        fits
    }

    /// Notes that an invocation keeps `more` bytes; `false` if the limit is reached.
    pub(super) fn keep(&mut self, more: usize) -> bool {
        let fits = more <= self.limit.saturating_sub(self.kept);
        self.kept += if fits { more } else { 0 };
        fits
    }

    /// Notes that bytes are no longer kept.
    pub(super) fn release(&mut self, kept: usize) {
        self.kept -= kept;
    }

    /// An empty buffer that will take `len` bytes; `None` if the limit is reached.
    pub(super) fn take(&mut self, len: usize) -> Option<Room> {
        let counts = Pool::cost(len);
        if !self.count(counts) {
            return None;
        }
        while let Some(buffer) = self.free.pop() {
            // A buffer that a batch of packets still refers to is left to that batch.
            if let Ok(mut bytes) = Buffer::try_unique(buffer) {
                bytes.clear();
                return Some(Room { bytes, counts });
            }
        }
        Some(Room { bytes: Draft::new(Vec::new()), counts })
    }

    /// Has a buffer that was taken for less take `len` bytes; `false` if the limit is reached.
    #[inline]
    pub(super) fn widen(&mut self, room: &mut Room, len: usize) -> bool {
        let more = Pool::cost(len).saturating_sub(room.counts);
        let fits = self.count(more);
        room.counts += if fits { more } else { 0 };
        fits
    }

    /// Closes a buffer: it counts for what is in it from here on.
    pub(super) fn close(&mut self, room: Room) -> Buffer {
        self.out = self.out - room.counts + Pool::cost(room.bytes.len());
        room.bytes.shareable()
    }

    /// Takes a buffer back for reuse.
    pub(super) fn put(&mut self, buffer: Buffer) {
        self.out = self.out.saturating_sub(Pool::cost(buffer.len()));
        // Few buffers are needed at once, and keeping a long one would keep its memory for ever.
        if self.free.len() < 64 && buffer.capacity() <= 4 * CHUNK {
            self.free.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_whatever_was_written() {
        let long = 8 * CHUNK;
        let mut pool = Pool::new(long);
        for written in [0, 5, 3 * CHUNK, long, 2 * long] {
            let mut room = pool.take(long).unwrap();
            assert!(pool.take(0).is_none());
            room.resize(written, 1);
            let buffer = pool.close(room);
            pool.put(buffer);
            assert_eq!(pool.out, 0, "{written}");
        }
        let mut room = pool.take(0).unwrap();
        assert!(pool.widen(&mut room, CHUNK) && pool.out == CHUNK);
        assert!(pool.widen(&mut room, long) && pool.out == long);
        assert!(!pool.widen(&mut room, long + 1) && pool.out == long);
        let buffer = pool.close(room);
        assert_eq!(pool.out, CHUNK);
        pool.put(buffer);
        assert_eq!(pool.out, 0);
    }

    #[test]
    fn a_buffer_that_counts_for_enough_stays_where_the_limit_is_passed() {
        let mut pool = Pool::new(2 * CHUNK);
        let (mut long, mut short) = (pool.take(0).unwrap(), pool.take(0).unwrap());
        long.resize(3 * CHUNK, 1);
        let long = pool.close(long);
        assert_eq!(pool.out, 4 * CHUNK);
        assert!(pool.widen(&mut short, CHUNK) && !pool.widen(&mut short, 3 * CHUNK));
        pool.put(long);
        assert_eq!(pool.out, CHUNK);
    }
}
