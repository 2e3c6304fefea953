//! Buffers for results, limited in total bytes; and what kernels keep otherwise.

use core::ops::{Deref, DerefMut};

use remora_nic::kernel::{Buffer, Draft};

use super::owners::{Owners, Use};

/// Bytes of results that are sent as one WRITE: large enough to be efficient, small enough to
/// share the queue pair.
pub const CHUNK: usize = 64 << 10;

/// Buffers for results, limited in total bytes.
#[derive(Debug)]
pub(super) struct Pool {
    free: Vec<Buffer>,
    /// Bytes that buffers in use count for.
    out: usize,
    pub(super) owners: Owners,
    /// Bytes that invocations keep. They are limited apart, so that results find room whatever is
    /// kept.
    kept: usize,
    limit: usize,
    /// While no more is in use, nobody has too much.
    plenty: usize,
}

/// A buffer that grows. It counts for the bytes that it was taken for, whatever is in it.
pub(super) struct Room {
    bytes: Draft,
    counts: usize,
    /// Whose it is.
    account: u32,
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
        Pool {
            free: Vec::new(),
            out: 0,
            owners: Owners::default(),
            kept: 0,
            limit,
            plenty: limit / 3,
        }
    }

    /// The bytes that a buffer of `len` bytes counts for. A step may add to results past a chunk,
    /// so up to two chunks count as one.
    fn cost(len: usize) -> usize {
        if len <= 2 * CHUNK { CHUNK } else { len }
    }

    #[inline]
    fn has_plenty(&self, more: usize) -> bool {
        self.out + more <= self.plenty
    }

    fn with(&self, more: usize) -> Use {
        Use { all: self.out, more, limit: self.limit }
    }

    /// May an account have `more` bytes?
    #[inline]
    fn may_have(&self, account: u32, more: usize) -> bool {
        more == 0 || self.has_plenty(more) || self.owners.may_have(account, self.with(more))
    }

    /// May another call of an account begin, or does it have too much that is not acknowledged?
    #[inline]
    pub(super) fn may_begin(&self, account: u32) -> bool {
        self.has_plenty(CHUNK) || self.owners.may_begin(account, self.with(CHUNK))
    }

    /// Notes that an account's buffer counts for `now` bytes instead of `before`.
    #[inline]
    fn count(&mut self, account: u32, before: usize, now: usize) {
        self.out = (self.out + now).saturating_sub(before);
        self.owners.count(account, before, now);
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

    /// An empty buffer that will take `len` bytes; `None` if the account may not have it now.
    pub(super) fn take(&mut self, account: u32, len: usize) -> Option<Room> {
        let counts = Pool::cost(len);
        if !self.may_have(account, counts) {
            return None;
        }
        self.owners.add_buffer(account);
        self.count(account, 0, counts);
        while let Some(buffer) = self.free.pop() {
            // A buffer that a batch of packets still refers to is left to that batch.
            if let Ok(mut bytes) = Buffer::try_unique(buffer) {
                bytes.clear();
                return Some(Room { bytes, counts, account });
            }
        }
        Some(Room { bytes: Draft::new(Vec::new()), counts, account })
    }

    /// Has a buffer that was taken for less take `len` bytes; `false` if its account may not have
    /// them now.
    #[inline]
    pub(super) fn widen(&mut self, room: &mut Room, len: usize) -> bool {
        let counts = Pool::cost(len).max(room.counts);
        let fits = self.may_have(room.account, counts - room.counts);
        if fits && counts > room.counts {
            self.count(room.account, room.counts, counts);
            room.counts = counts;
        }
        fits
    }

    /// Closes a buffer: it counts for the memory that it has from here on.
    pub(super) fn close(&mut self, room: Room) -> Buffer {
        self.count(room.account, room.counts, room.bytes.capacity());
        room.bytes.shareable()
    }

    /// Takes an account's buffer back for reuse.
    pub(super) fn put(&mut self, account: u32, buffer: Buffer) {
        self.out = self.out.saturating_sub(buffer.capacity());
        self.owners.remove_buffer(account, buffer.capacity());
        // Few buffers are needed at once, and keeping a long one would keep its memory for ever.
        if self.free.len() < 64 && buffer.capacity() <= 4 * CHUNK {
            self.free.push(buffer);
        }
    }

    /// Gives back a buffer that is not sent.
    pub(super) fn drop_room(&mut self, room: Room) {
        let account = room.account;
        let buffer = self.close(room);
        self.put(account, buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_given_back_whatever_was_written() {
        let long = 8 * CHUNK;
        let mut pool = Pool::new(long);
        let of = pool.owners.account(1, 0);
        for written in [0, 5, 3 * CHUNK, long, 2 * long] {
            let mut room = pool.take(of, CHUNK).unwrap();
            assert!(pool.widen(&mut room, long / 2) && pool.out == long / 2);
            assert!(pool.take(of, 0).is_none());
            room.resize(written, 1);
            let buffer = pool.close(room);
            pool.put(of, buffer);
            assert_eq!(pool.out, 0, "{written}");
        }
        let mut room = pool.take(of, 0).unwrap();
        assert!(pool.widen(&mut room, CHUNK) && pool.out == CHUNK);
        assert!(!pool.widen(&mut room, long) && pool.out == CHUNK);
        pool.drop_room(room);
        assert_eq!(pool.out, 0);
    }

    #[test]
    fn a_closed_buffer_counts_for_the_memory_that_it_has() {
        let mut pool = Pool::new(64 * CHUNK);
        let of = pool.owners.account(1, 0);
        let closed = [8, 3 * CHUNK].map(|len| {
            let mut room = pool.take(of, 0).unwrap();
            room.reserve_exact(len);
            pool.close(room)
        });
        assert_eq!(pool.out, 8 + 3 * CHUNK);
        for buffer in closed {
            pool.put(of, buffer);
        }
        let room = pool.take(of, 0).unwrap();
        let buffer = pool.close(room);
        assert_eq!(pool.out, 3 * CHUNK, "a buffer that is used again keeps its memory");
        pool.put(of, buffer);
        assert_eq!(pool.out, 0);
    }

    #[test]
    fn a_buffer_that_counts_for_enough_stays_where_the_limit_is_passed() {
        let mut pool = Pool::new(2 * CHUNK);
        let of = pool.owners.account(1, 0);
        let (mut long, mut short) = (pool.take(of, 0).unwrap(), pool.take(of, 0).unwrap());
        long.reserve_exact(3 * CHUNK);
        let long = pool.close(long);
        assert_eq!(pool.out, 4 * CHUNK);
        assert!(pool.widen(&mut short, CHUNK) && !pool.widen(&mut short, 3 * CHUNK));
        pool.put(of, long);
        assert_eq!(pool.out, CHUNK);
    }
}
