//! Segments: the files that the log is.
//!
//! A segment is a header of 64 bytes and records one after another; what follows the last record
//! is zeros, room that was reserved, or what a crash left of writes that nobody was told of.
//! Its name has the position of its first record, so that the order of names is that of positions.

use std::io;

use remora::memory::PageAligned;

use super::Position;
use super::record::{ALIGN, Fields, HEADER, MAX_RECORD, NoRecord, mark, whole};
use crate::disk::{File, read_full, read_on};

/// The length of a segment's header in bytes.
pub const SEGMENT_HEADER: usize = 64;
/// What a segment begins with.
pub const LOG_MAGIC: &[u8; 8] = b"remoraLG";
/// What a snapshot begins with, which is records after such a header, too.
pub const SNAPSHOT_MAGIC: &[u8; 8] = b"remoraSN";
/// What ends the name of a file that is not whole yet.
pub(crate) const TEMPORARY: &str = ".tmp";
/// The version of the format that this code writes, and the only one that it reads.
pub const VERSION: u32 = 1;
/// How much is read from a segment at a time, in bytes.
const READ: usize = 256 << 10;

/// A segment's header, or a snapshot's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The position of the first record; of a snapshot, the last position before it was begun.
    pub first: Position,
    /// Where the checksums of its records begin.
    pub salt: u64,
    /// When it was created, in milliseconds of Unix time.
    pub created_ms: u64,
}

/// Why a file is not a segment of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSegment {
    /// It is shorter than a header.
    #[error("it is shorter than a header")]
    Short,
    /// It begins with other bytes.
    #[error("it does not begin as such a file does")]
    Magic,
    /// Another version wrote it.
    #[error("its format has version {0}, and this program knows version {VERSION} only")]
    Version(u32),
    /// The checksum of the header is wrong.
    #[error("the checksum of its header is wrong")]
    Checksum,
    /// Its name and its header differ.
    #[error("its name is not that of the position in its header: it was renamed, or copied")]
    Name,
}

impl SegmentHeader {
    /// The header as bytes; `magic` is [`LOG_MAGIC`] or [`SNAPSHOT_MAGIC`].
    #[must_use]
    pub fn encode(&self, magic: &[u8; 8]) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(magic);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first.number().to_le_bytes());
        bytes[24..32].copy_from_slice(&self.salt.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.created_ms.to_le_bytes());
        let checksum = checksum(&bytes[..56]);
        bytes[56..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header that `bytes` begin with; `magic` is [`LOG_MAGIC`] or [`SNAPSHOT_MAGIC`].
    ///
    /// # Errors
    ///
    /// [`NoSegment`].
    pub fn decode(magic: &[u8; 8], bytes: &[u8]) -> Result<SegmentHeader, NoSegment> {
        let bytes = bytes.first_chunk::<SEGMENT_HEADER>().ok_or(NoSegment::Short)?;
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        if bytes[..8] != *magic {
            return Err(NoSegment::Magic);
        }
        let version = number(8) as u32;
        if version != VERSION {
            return Err(NoSegment::Version(version));
        }
        if checksum(&bytes[..56]) != number(56) {
            return Err(NoSegment::Checksum);
        }
        Ok(SegmentHeader {
            first: Position::from_number(number(16)),
            salt: number(24),
            created_ms: number(32),
        })
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// The name of the segment whose first record is at `first`.
#[must_use]
pub fn segment_name(first: Position) -> String {
    format!("log-{:016x}", first.number())
}

/// The position in a segment's name; none if the name is no segment's.
#[must_use]
pub fn segment_first(name: &str) -> Option<Position> {
    let digits = name.strip_prefix("log-")?;
    let number = u64::from_str_radix(digits, 16).ok()?;
    let position = Position::from_number(number);
    (segment_name(position) == name).then_some(position)
}

/// Reads a segment's records one after another.
pub(crate) struct Reader<F> {
    file: F,
    header: SegmentHeader,
    /// What was read; it begins at `base` bytes from the file's beginning.
    buffer: Vec<u8>,
    base: u64,
    /// Where in `buffer` the next record begins.
    next: usize,
    /// Whether `buffer` ends where the file does.
    whole: bool,
}

/// What is next in a segment.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// A record.
    Record(Position, Fields<'a>),
    /// No record, at this offset, and why: the file ends or has nothing but zeros (`None`), or has
    /// something that is no record.
    End(u64, Option<&'static str>),
}

impl<F: File> Reader<F> {
    /// Reads the header. `Ok(Err(_))` is a file that does not begin with `magic` and the rest.
    pub(crate) fn open(file: F, magic: &[u8; 8]) -> io::Result<Result<Reader<F>, NoSegment>> {
        let mut bytes = [0; SEGMENT_HEADER];
        let read = read_full(&file, 0, &mut bytes)?;
        Ok(SegmentHeader::decode(magic, &bytes[..read]).map(|header| Reader {
            file,
            header,
            buffer: Vec::new(),
            base: SEGMENT_HEADER as u64,
            next: 0,
            whole: false,
        }))
    }

    pub(crate) fn header(&self) -> SegmentHeader {
        self.header
    }

    /// The next record, or that there is none.
    pub(crate) fn next(&mut self) -> io::Result<Next<'_>> {
        let end = loop {
            match whole(&self.buffer[self.next..]) {
                Ok(_) => break None,
                Err(NoRecord::Short(needed)) if !self.whole => self.fill(needed)?,
                Err(no_record) => break Some(no_record),
            }
        };
        let at = self.base + self.next as u64;
        let rest = &self.buffer[self.next..];
        match end.map_or_else(|| Fields::decode(rest, self.header.salt), Err) {
            Ok((position, fields, length)) => {
                self.next += length;
                Ok(Next::Record(position, fields))
            }
            Err(NoRecord::Empty) => Ok(Next::End(at, None)),
            Err(NoRecord::Short(_)) if rest.is_empty() => Ok(Next::End(at, None)),
            Err(NoRecord::Short(_)) => Ok(Next::End(at, Some("the file ends within it"))),
            Err(NoRecord::Unknown(operation)) => Err(io::Error::other(format!(
                "its record at byte {at} has operation {operation}, which only a newer version of \
                 this program knows"
            ))),
            Err(NoRecord::Damaged(reason)) => Ok(Next::End(at, Some(reason))),
        }
    }

    /// The offset of the next record.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.next as u64
    }

    /// The greatest position that a mark from `at` on names: evidence that what is before it was
    /// on the disk.
    pub(crate) fn last_mark_from(&mut self, at: u64) -> io::Result<Option<Position>> {
        let mut last = None;
        let mut at = at.next_multiple_of(ALIGN as u64);
        let mut bytes = PageAligned::new(READ);
        loop {
            let read = read_full(&self.file, at, &mut bytes)?;
            for start in (0..read.saturating_sub(HEADER - 1)).step_by(ALIGN) {
                last = last.max(mark(&bytes[start..], self.header.salt));
            }
            if read < bytes.len() {
                return Ok(last);
            }
            at += (read - HEADER).next_multiple_of(ALIGN) as u64;
        }
    }

    /// Reads on until `needed` bytes from the next record on are there, or the file ends.
    fn fill(&mut self, needed: usize) -> io::Result<()> {
        debug_assert!(needed <= MAX_RECORD);
        self.buffer.drain(..self.next);
        self.base += self.next as u64;
        self.next = 0;
        let have = self.buffer.len();
        self.buffer.resize(needed.max(READ).max(have), 0);
        let from = self.base + have as u64;
        let (read, ended) = read_on(&self.file, from, &mut self.buffer[have..]);
        self.whole = ended.is_ok() && have + read < self.buffer.len();
        self.buffer.truncate(have + read);
        // What comes before a place that cannot be read is a part of the file still.
        if read > 0 { Ok(()) } else { ended }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, Faulty};

    fn header() -> SegmentHeader {
        SegmentHeader { first: Position::new(1, 5), salt: 77, created_ms: 1234 }
    }

    #[test]
    fn the_header_comes_back_and_damage_is_seen() {
        let bytes = header().encode(LOG_MAGIC);
        assert_eq!(SegmentHeader::decode(LOG_MAGIC, &bytes), Ok(header()));
        for cut in 0..bytes.len() {
            assert_eq!(SegmentHeader::decode(LOG_MAGIC, &bytes[..cut]), Err(NoSegment::Short));
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(LOG_MAGIC, &flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = header().encode(LOG_MAGIC);
        bytes[8] = 2;
        let refused = SegmentHeader::decode(LOG_MAGIC, &bytes).unwrap_err();
        assert!(refused.to_string().contains("version 2"), "{refused}");
    }

    #[test]
    fn names_are_in_the_order_of_positions() {
        let positions = [Position::new(0, 1), Position::new(0, 999), Position::new(1, 2)];
        let names = positions.map(segment_name);
        assert!(names.is_sorted());
        assert_eq!(names.each_ref().map(|name| segment_first(name)), positions.map(Some));
        for other in ["log-", "log-1", "log-000000000000000G", "snapshot-0000000000000001", "tmp"] {
            assert_eq!(segment_first(other), None, "{other}");
        }
    }

    #[test]
    fn a_reader_gives_the_records_and_says_how_they_end() {
        let disk = Faulty::new(1);
        disk.read_short();
        let file = disk.create("segment").unwrap();
        let mut bytes = header().encode(LOG_MAGIC).to_vec();
        let long = vec![b'x'; 3 * READ];
        for (counter, value) in [(5, &b"short"[..]), (6, &long), (7, b"last")] {
            let fields =
                Fields { operation: super::super::Operation::Put, value, ..Fields::synced() };
            fields.encode(Position::new(1, counter), fields.checksum_contents(77), &mut bytes);
        }
        let end = bytes.len() as u64;
        for (rest, reason) in [
            (&[0u8; 100][..], None),
            (b"", None),
            (b"x", Some("the file ends within it")),
            (&[1; HEADER], Some("its checksum is wrong")),
            (&[255; HEADER], Some("its key or value is longer than any")),
        ] {
            let mut bytes = bytes.clone();
            bytes.extend_from_slice(rest);
            file.write_at(0, &bytes).unwrap();
            disk.damage("segment", |all| all.truncate(bytes.len()));
            let mut reader =
                Reader::open(disk.open("segment").unwrap(), LOG_MAGIC).unwrap().unwrap();
            assert_eq!(reader.header(), header());
            let mut counters = vec![];
            let ended = loop {
                match reader.next().unwrap() {
                    Next::Record(position, fields) => {
                        counters.push((position.counter(), fields.value.len()));
                    }
                    Next::End(at, why) => break (at, why),
                }
            };
            assert_eq!(counters, [(5, 5), (6, long.len()), (7, 4)]);
            // Lengths of 0x01010101 are too long, too; both reasons are right.
            assert_eq!(ended.0, end);
            assert_eq!(ended.1.is_some(), reason.is_some(), "{ended:?}");
            assert_eq!(reader.offset(), end);
        }
    }

    #[test]
    fn marks_are_found_wherever_they_lie() {
        let disk = Faulty::new(1);
        let file = disk.create("segment").unwrap();
        file.write_at(0, &header().encode(LOG_MAGIC)).unwrap();
        let mut bytes = Vec::new();
        let mark = Fields::synced();
        mark.encode(Position::new(1, 4), mark.checksum_contents(77), &mut bytes);
        for at in [64, READ as u64 - 8, READ as u64 + 24, 2 * READ as u64] {
            file.write_at(0, &vec![9; 3 * READ]).unwrap();
            file.write_at(0, &header().encode(LOG_MAGIC)).unwrap();
            file.write_at(at, &bytes).unwrap();
            let mut reader =
                Reader::open(disk.open("segment").unwrap(), LOG_MAGIC).unwrap().unwrap();
            assert_eq!(reader.last_mark_from(61).unwrap(), Some(Position::new(1, 4)), "{at}");
            assert_eq!(reader.last_mark_from(at + 1).unwrap(), None);
        }
    }
}
