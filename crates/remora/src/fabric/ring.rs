//! A ring of packets in memory that two processes share: one writes, the other reads.
//!
//! A packet is a *record* of whole cache lines: a word that says how long it is, and the packet,
//! whose payload begins with a line of its own (so that both copies go by whole lines). A record of
//! few bytes is one line, which is all that has to travel between two cores.
//!
//! The reader looks at the word where the next record must begin. It is there as soon as the word
//! has the *stamp* of that place, which is another one each time round; the word behind a record is
//! cleared before the record is shown, so that no old bytes are taken for a stamp. The reader says
//! in another word how far it has read.
//!
//! Neither end trusts the other: what an end must remember, it remembers in its own memory; what
//! it reads of the other, it reads once and checks. A ring in which something cannot be is
//! [`Broken`].

use std::io;
use std::sync::atomic::{Ordering, fence};

use remora_nic::wire::MAX_DATAGRAM;
use thiserror::Error;

use crate::memory::SharedMemory;
use crate::memory::circle::sealed_file;

/// Bytes of a cache line, and of the smallest record.
const LINE: usize = 64;
/// Bytes of the word before the packet.
const HEAD: usize = 8;
/// The longest packet, as its headers, payload, pad and the room of an ICRC.
pub const PACKET_MAX: usize = MAX_DATAGRAM;
/// Room that [`Consumer::take`] needs.
pub const ROOM: usize = PACKET_MAX + LINE;

/// Words before the data, each in a line of its own, and two lines apart, since processors fetch
/// lines in pairs. How far the reader has read:
const READ: usize = 0;
/// The reader sleeps, and wants to be woken for a record.
const ASLEEP: usize = 2 * LINE;
/// The writer waits for room.
const WAITS: usize = 4 * LINE;

/// The other process has written something that cannot be. The ring is of no further use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Broken {
    /// How far the reader says it has read.
    #[error("the reader says that it is at byte {at}, and {last} to {next} are possible")]
    Position {
        /// What the word says.
        at: u64,
        /// What it said last.
        last: u64,
        /// Where the next record will begin.
        next: u64,
    },
    /// The word before a packet.
    #[error(
        "a packet of {len} bytes begins {start} bytes into its record; {PACKET_MAX} is the limit"
    )]
    Record {
        /// Bytes of the packet.
        len: usize,
        /// Where it begins.
        start: usize,
    },
}

/// Both ends of a ring with `data` bytes of data, within this process, and the memory between them:
/// for tests, which write there what a hostile process may.
///
/// # Errors
/// The system has no memory or no descriptors left.
///
/// # Panics
/// `data` is not a power of two of whole pages.
pub fn pair(data: usize) -> io::Result<(Producer, Consumer, SharedMemory)> {
    let file = sealed_file(1, data)?;
    let map = || SharedMemory::map(&file, 0, data);
    Ok((Producer::new(map()?), Consumer::new(map()?), map()?))
}

/// The stamp of a record that begins at `at`.
fn stamp(at: u64) -> u64 {
    ((at / LINE as u64 + 1) & 0xffff_ffff) << 32
}

/// Where a packet begins in its record, and how long the record is. `lead` bytes come before the
/// payload.
fn layout(lead: usize, len: usize) -> (usize, usize) {
    let start = if HEAD + len <= LINE { HEAD } else { (HEAD + lead).next_multiple_of(LINE) - lead };
    (start, (start + len).next_multiple_of(LINE))
}

/// The writer's end.
#[derive(Debug)]
pub struct Producer {
    memory: SharedMemory,
    /// Where the next record begins. Positions count bytes from the start, and never wrap.
    next: u64,
    /// How far the reader had read at the last look.
    read: u64,
    /// A record was written since the last look whether the reader sleeps.
    shown: bool,
}

/// The place of a packet that [`Producer::reserve`] has found.
#[derive(Clone, Copy, Debug)]
pub struct Reservation {
    /// Where the packet begins in the ring's data.
    pub at: usize,
    word: u64,
    len: u64,
}

impl Producer {
    /// The writer's end of a ring of zeroes.
    ///
    /// # Panics
    /// The bytes of data are not a power of two.
    pub fn new(memory: SharedMemory) -> Producer {
        assert!(
            memory.data_len().is_power_of_two(),
            "places are positions without their high bits"
        );
        Producer { memory, next: 0, read: 0, shown: false }
    }

    /// Finds a place for a packet of `len` bytes, at most [`PACKET_MAX`], of which the first `lead`
    /// are headers. `None` if the ring is full: the reader will say when there is room.
    ///
    /// # Errors
    /// The reader has broken the ring.
    #[inline]
    pub fn reserve(
        &mut self,
        lead: usize,
        len: usize,
        tos: u8,
    ) -> Result<Option<Reservation>, Broken> {
        debug_assert!(lead <= len && len <= PACKET_MAX);
        let (start, record) = layout(lead, len);
        if self.free() < record + LINE && !self.make_room(record + LINE)? {
            return Ok(None);
        }
        let at = (self.next as usize & (self.memory.data_len() - 1)) + start;
        let word = stamp(self.next) | (len as u64) << 16 | (start as u64) << 8 | u64::from(tos);
        let at = at & (self.memory.data_len() - 1);
        Ok(Some(Reservation { at, word, len: record as u64 }))
    }

    /// The memory to which the packet is copied, from [`Reservation::at`] on.
    #[inline]
    pub fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// Shows the record of a packet that was copied to its place.
    #[inline]
    pub fn show(&mut self, place: Reservation) {
        let next = self.next + place.len;
        let word_at = |at: u64| self.memory.data_word(at as usize & (self.memory.data_len() - 1));
        word_at(next).store(0, Ordering::Relaxed);
        word_at(self.next).store(place.word, Ordering::Release);
        self.next = next;
        self.shown = true;
    }

    /// Bytes that are free, as far as is known.
    #[inline]
    fn free(&self) -> usize {
        self.memory.data_len() - (self.next - self.read) as usize
    }

    /// Bytes that are free now.
    ///
    /// # Errors
    /// The reader has broken the ring.
    pub fn look(&mut self) -> Result<usize, Broken> {
        let at = self.memory.word(READ).load(Ordering::Acquire);
        if at < self.read || at > self.next || !at.is_multiple_of(LINE as u64) {
            return Err(Broken::Position { at, last: self.read, next: self.next });
        }
        self.read = at;
        Ok(self.free())
    }

    /// Has the reader not taken all that was shown?
    pub fn is_unread(&mut self) -> bool {
        self.look().is_ok() && self.read != self.next
    }

    /// Looks whether there are `wanted` bytes of room; if not, asks the reader to say when.
    #[inline(never)]
    fn make_room(&mut self, wanted: usize) -> Result<bool, Broken> {
        if self.look()? >= wanted {
            return Ok(true);
        }
        self.memory.word(WAITS).store(1, Ordering::Relaxed);
        // Either the reader sees that word, or this look sees how far it has read.
        fence(Ordering::SeqCst);
        Ok(self.look()? >= wanted)
    }

    /// Must the reader be woken for what was shown since the last call? Once: it says anew when it
    /// sleeps again.
    #[inline]
    pub fn must_wake(&mut self) -> bool {
        if !std::mem::take(&mut self.shown) {
            return false;
        }
        // Either this look sees that the reader sleeps, or the reader sees the records.
        fence(Ordering::SeqCst);
        let asleep = self.memory.word(ASLEEP);
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::Relaxed) != 0
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct Consumer {
    memory: SharedMemory,
    /// Where the next record begins.
    next: u64,
    /// Where the last look was, whether the writer waits for room.
    looked: u64,
}

/// A packet that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Where it begins in the room that was given.
    pub start: usize,
    /// Its length.
    pub len: usize,
    /// Its traffic class.
    pub tos: u8,
}

impl Consumer {
    /// The reader's end of a ring of zeroes.
    ///
    /// # Panics
    /// The bytes of data are not a power of two.
    pub fn new(memory: SharedMemory) -> Consumer {
        assert!(
            memory.data_len().is_power_of_two(),
            "places are positions without their high bits"
        );
        Consumer { memory, next: 0, looked: 0 }
    }

    #[inline]
    fn place(&self) -> usize {
        self.next as usize & (self.memory.data_len() - 1)
    }

    /// The word before the next packet, if it is there.
    #[inline]
    fn word(&self) -> Option<u64> {
        let word = self.memory.data_word(self.place()).load(Ordering::Acquire);
        // Zero is a stamp, too, once in 256 GiB; but no record's word is zero.
        (word & !0xffff_ffff == stamp(self.next) && word != 0).then_some(word)
    }

    /// Is there no record?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.word().is_none()
    }

    /// Copies the next packet to `room`, which has at least [`ROOM`] bytes and begins with a line.
    /// `None` if there is none.
    ///
    /// # Errors
    /// The writer has broken the ring.
    #[inline]
    pub fn take(&mut self, room: &mut [u8]) -> Result<Option<Taken>, Broken> {
        let Some(word) = self.word() else { return Ok(None) };
        let (len, begins, tos) = ((word >> 16 & 0xffff) as usize, word >> 8 & 0xff, word as u8);
        let begins = begins as usize;
        if len == 0 || len > PACKET_MAX || !(HEAD..2 * LINE).contains(&begins) {
            return Err(Broken::Record { len, start: begins });
        }
        // As far from a line's start as in the ring, so that the payload begins with a line.
        let start = begins % LINE;
        let from = (self.place() + begins) & (self.memory.data_len() - 1);
        self.memory.read(from, &mut room[start..][..len]);
        self.next += (begins + len).next_multiple_of(LINE) as u64;
        Ok(Some(Taken { start, len, tos }))
    }

    /// Gives back the room of all that was taken. Must the writer be woken, since it waits for it?
    #[inline]
    pub fn release(&mut self) -> bool {
        self.memory.word(READ).store(self.next, Ordering::Release);
        // A writer waits only while the ring is full, so a look each quarter of the way is enough.
        if self.next - self.looked < self.memory.data_len() as u64 / 4 {
            return false;
        }
        self.looked = self.next;
        // Either this look sees that the writer waits, or the writer sees the room.
        fence(Ordering::SeqCst);
        let waits = self.memory.word(WAITS);
        waits.load(Ordering::Relaxed) != 0 && waits.swap(0, Ordering::Relaxed) != 0
    }

    /// Says whether the reader sleeps. Before it does, it calls this, and then looks once more
    /// whether the ring [is empty](Consumer::is_empty). A writer that wakes it says no.
    pub fn set_asleep(&self, asleep: bool) {
        let (word, asleep) = (self.memory.word(ASLEEP), u64::from(asleep));
        if word.load(Ordering::Relaxed) != asleep {
            word.store(asleep, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::circle::CONTROL;

    const DATA: usize = CONTROL;

    /// Both ends of a ring, and the memory between them.
    fn ends() -> (Producer, Consumer, SharedMemory) {
        pair(DATA).unwrap()
    }

    /// Whether there was room for the packet.
    fn put(producer: &mut Producer, lead: usize, packet: &[u8], tos: u8) -> bool {
        let Some(place) = producer.reserve(lead, packet.len(), tos).unwrap() else { return false };
        producer.memory().write(place.at, packet);
        producer.show(place);
        true
    }

    fn take(consumer: &mut Consumer) -> Option<(Vec<u8>, u8)> {
        let mut room = vec![0; ROOM];
        let taken = consumer.take(&mut room).unwrap()?;
        Some((room[taken.start..][..taken.len].to_vec(), taken.tos))
    }

    #[test]
    fn packets_of_every_length_arrive_in_order_many_times_round() {
        let (mut producer, mut consumer, _) = ends();
        let pattern: Vec<u8> = (0..2 * PACKET_MAX).map(|i| (i % 251) as u8).collect();
        let packets: Vec<(usize, &[u8], u8)> = (0..3 * DATA / 700)
            .map(|i| (12 + i % 33, &pattern[i % 100..][..45 + i * 37 % (PACKET_MAX - 45)], i as u8))
            .collect();
        let (mut sent, mut got) = (0, 0);
        while got < packets.len() {
            while sent < packets.len() && {
                let (lead, packet, tos) = packets[sent];
                put(&mut producer, lead, packet, tos)
            } {
                sent += 1;
            }
            for _ in 0..3 {
                let Some((packet, tos)) = take(&mut consumer) else { break };
                assert_eq!((&*packet, tos), (packets[got].1, packets[got].2), "packet {got}");
                got += 1;
            }
            consumer.release();
        }
        assert!(consumer.is_empty() && take(&mut consumer).is_none());
    }

    #[test]
    fn a_short_packet_is_one_line_and_a_payload_begins_with_one() {
        assert_eq!(layout(28, 40), (8, 64));
        assert_eq!(layout(28, 56), (8, 64));
        assert_eq!(layout(28, 57), (36, 128));
        assert_eq!(layout(44, 4140), (20, 4160));
        assert_eq!(layout(60, 70), (68, 192));
        let (mut producer, ..) = ends();
        let place = producer.reserve(28, 4128, 0).unwrap().unwrap();
        assert!((place.at + 28).is_multiple_of(LINE));
    }

    #[test]
    fn old_payload_is_no_record() {
        let (mut producer, mut consumer, _) = ends();
        // Payload that says at each place what a record of the next time round would say.
        let lines = DATA / LINE;
        for round in 0..3 {
            let mut line = 0;
            while line < lines {
                let at = (round * lines + line) as u64 * LINE as u64;
                let forged = |k: u64| stamp(at + DATA as u64 + k * 64) | 8 << 16 | 8 << 8;
                let packet: Vec<u8> =
                    (1..4).flat_map(|k| [forged(k).to_ne_bytes(); 8].concat()).collect();
                assert!(put(&mut producer, 56, &packet, 0));
                assert_eq!(take(&mut consumer).unwrap().0, packet);
                consumer.release();
                assert!(consumer.is_empty());
                line += 4;
            }
        }
    }

    #[test]
    fn the_stamp_of_zero_is_one_like_all_others() {
        let (mut producer, mut consumer, _) = ends();
        let at = 0xffff_ffff * LINE as u64;
        assert_eq!(stamp(at), 0);
        (producer.next, producer.read, consumer.next) = (at, at, at);
        assert!(consumer.is_empty());
        assert!(put(&mut producer, 12, &[7; 16], 3));
        assert_eq!(take(&mut consumer), Some((vec![7; 16], 3)));
        assert!(consumer.is_empty());
    }

    #[test]
    fn a_full_ring_has_room_again_once_the_reader_says_so() {
        let (mut producer, mut consumer, _) = ends();
        let packet = [5; 1000];
        let mut sent = 0;
        while put(&mut producer, 12, &packet, 0) {
            sent += 1;
        }
        assert_eq!(sent, (DATA - LINE) / (52 + 1000usize).next_multiple_of(LINE));
        let mut woken = 0;
        for _ in 0..sent {
            take(&mut consumer).unwrap();
            woken += u32::from(consumer.release());
        }
        assert_eq!(woken, 1, "the writer waited");
        assert!(put(&mut producer, 12, &packet, 0));
        for _ in 0..sent {
            put(&mut producer, 12, &packet, 0);
            take(&mut consumer).unwrap();
            assert!(!consumer.release(), "it did not wait");
        }
    }

    #[test]
    fn a_reader_that_sleeps_is_woken() {
        let (mut producer, consumer, _) = ends();
        assert!(!producer.must_wake(), "nothing was shown");
        put(&mut producer, 12, &[1; 16], 0);
        assert!(!producer.must_wake(), "the reader is awake");
        consumer.set_asleep(true);
        assert!(!consumer.is_empty(), "and looks before it sleeps");
        put(&mut producer, 12, &[1; 16], 0);
        assert!(producer.must_wake());
        assert!(!producer.must_wake(), "once for what was shown");
        put(&mut producer, 12, &[1; 16], 0);
        assert!(!producer.must_wake(), "once for each sleep");
        consumer.set_asleep(true);
        put(&mut producer, 12, &[1; 16], 0);
        assert!(producer.must_wake(), "it sleeps again");
        consumer.set_asleep(true);
        consumer.set_asleep(false);
        put(&mut producer, 12, &[1; 16], 0);
        assert!(!producer.must_wake());
    }

    #[test]
    fn a_reader_that_lies_breaks_the_ring() {
        for lie in [64, 1, u64::MAX, 1 << 40, 63] {
            let (mut producer, _, memory) = ends();
            memory.word(READ).store(lie, Ordering::Relaxed);
            let look = producer.look();
            assert!(matches!(look, Err(Broken::Position { at, .. }) if at == lie), "{look:?}");
        }
        let (mut producer, mut consumer, memory) = ends();
        put(&mut producer, 12, &[1; 100], 0);
        take(&mut consumer).unwrap();
        consumer.release();
        producer.look().unwrap();
        memory.word(READ).store(0, Ordering::Relaxed);
        assert!(producer.look().is_err(), "it goes back");
    }

    #[test]
    fn a_writer_that_lies_breaks_the_ring() {
        for (len, start) in [(0, 8), (PACKET_MAX + 1, 8), (0xffff, 8), (16, 0), (16, 7), (16, 128)]
        {
            let (_, mut consumer, memory) = ends();
            let word = stamp(0) | (len as u64) << 16 | (start as u64) << 8;
            memory.data_word(0).store(word, Ordering::Relaxed);
            let taken = consumer.take(&mut [0; ROOM]);
            assert_eq!(taken, Err(Broken::Record { len, start }));
        }
        let (_, consumer, memory) = ends();
        memory.data_word(0).store(stamp(64) | 16 << 16 | 8 << 8, Ordering::Relaxed);
        assert!(consumer.is_empty(), "another place's stamp is none");
    }

    #[test]
    fn threads_at_both_ends() {
        let (mut producer, mut consumer, _) = ends();
        let total = 20_000u64;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for i in 0..total {
                    let len = 24 + (i * 97 % 4000) as usize;
                    let packet = [i.to_ne_bytes(); 503].concat();
                    while !put(&mut producer, 12, &packet[..len], 0) {
                        std::thread::yield_now();
                    }
                }
            });
            for i in 0..total {
                let packet = loop {
                    if let Some((packet, _)) = take(&mut consumer) {
                        break packet;
                    }
                    std::thread::yield_now();
                };
                consumer.release();
                assert_eq!(packet.len(), 24 + (i * 97 % 4000) as usize);
                assert!(packet.chunks_exact(8).all(|word| word == i.to_ne_bytes()));
            }
        });
    }
}
