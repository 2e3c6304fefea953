//! Records as bytes.
//!
//! A record is a header of 40 bytes, the key, the value, and zeros up to a multiple of 8; numbers
//! are little-endian. docs/store-log.md has the table.
//!
//! The checksum is a CRC-64/NVME of key, value and padding, then of the header after the checksum.
//! It begins at the log's salt, a number that clients do not know: no value that a client stores
//! can pass for a record when the log is searched byte by byte.

use crc_fast::{CrcAlgorithm, Digest};

use super::Position;

/// The length of a record's header in bytes.
pub const HEADER: usize = 40;
/// Records begin at multiples of this many bytes.
pub(crate) const ALIGN: usize = 8;
/// The longest key in bytes.
pub const MAX_KEY: usize = 64 << 10;
/// The longest value in bytes, as stored.
pub const MAX_VALUE: usize = (16 << 20) + (64 << 10);
/// The longest record in bytes.
pub const MAX_RECORD: usize = HEADER + MAX_KEY + MAX_VALUE + ALIGN;

/// What a record's operation has besides, if a transaction goes on with the next record.
const GOES_ON: u8 = 0x80;

/// Contents up to this many bytes are put together before they are summed: to sum a few bytes costs
/// as much as to sum a hundred.
const TOGETHER: usize = 512;

/// What a record does. Numbers are the log's: one that is taken never changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Operation {
    /// Gives a key a value, flags and an expiry.
    Put = 1,
    /// Gives a key another expiry.
    Touch = 2,
    /// Removes a key.
    Delete = 3,
    /// Creates a tablespace: the key is its name, the value its options.
    Create = 4,
    /// Drops a tablespace and all that is in it.
    Drop = 5,
    /// Removes all that is in a tablespace.
    Flush = 6,
    /// No change: says that all records up to this position are known to be on the disk.
    Synced = 7,
    /// No change: the end of a snapshot, at the last position that it may have something of. The
    /// value is how many records came before it.
    End = 8,
    /// No change: the first record of an epoch of a group (see [`crate::replica`]).
    Epoch = 9,
    /// Who asked for the change that is the next record: the key is the client's number and its
    /// request's, the value the answer.
    Request = 10,
    /// No change, in the snapshot of a group's node only: what the node knows as of the snapshot,
    /// in one record or several.
    Node = 11,
    /// No change: the transaction ends whose records go on until here.
    Done = 12,
}

impl Operation {
    fn from_number(number: u8) -> Option<Operation> {
        Some(match number {
            1 => Operation::Put,
            2 => Operation::Touch,
            3 => Operation::Delete,
            4 => Operation::Create,
            5 => Operation::Drop,
            6 => Operation::Flush,
            7 => Operation::Synced,
            8 => Operation::End,
            9 => Operation::Epoch,
            10 => Operation::Request,
            11 => Operation::Node,
            12 => Operation::Done,
            _ => return None,
        })
    }
}

/// A record, its fields as the log has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields<'a> {
    /// What it does.
    pub operation: Operation,
    /// Whether a transaction goes on with the next record: this one counts only with that.
    pub goes_on: bool,
    /// How the value is stored: the number of a codec.
    pub codec: u16,
    /// In which tablespace.
    pub tablespace: u16,
    /// The client's flags.
    pub flags: u32,
    /// When the item expires, in milliseconds of Unix time; 0: never.
    pub expires_ms: u64,
    /// The key.
    pub key: &'a [u8],
    /// The value as stored.
    pub value: &'a [u8],
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRecord {
    /// The record goes on: it has so many bytes.
    Short(usize),
    /// Nothing but zeros: room that was reserved.
    Empty,
    /// Whole, and of an operation that only a newer version of this code knows.
    Unknown(u8),
    /// Something else; the reason in words.
    Damaged(&'static str),
}

impl<'a> Fields<'a> {
    /// A record of this operation in which everything else is zero.
    #[must_use]
    pub fn of(operation: Operation) -> Fields<'static> {
        Fields {
            operation,
            goes_on: false,
            codec: 0,
            tablespace: 0,
            flags: 0,
            expires_ms: 0,
            key: &[],
            value: &[],
        }
    }

    /// The mark that says how far the log is known to be on the disk.
    #[must_use]
    pub fn synced() -> Fields<'static> {
        Fields::of(Operation::Synced)
    }

    /// The length of the record in bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        length(self.key.len(), self.value.len())
    }

    /// Whether key and value are within the limits.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.key.len() <= MAX_KEY && self.value.len() <= MAX_VALUE
    }

    /// The checksum over key and value, which [`Fields::encode`] goes on from: the costly part,
    /// which needs no position and so no lock.
    #[must_use]
    pub fn checksum_contents(&self, salt: u64) -> u64 {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, salt);
        let (key, value, length) = (self.key.len(), self.value.len(), self.length() - HEADER);
        let mut together = [0; TOGETHER];
        if let Some(bytes) = together.get_mut(..length) {
            bytes[..key].copy_from_slice(self.key);
            bytes[key..key + value].copy_from_slice(self.value);
            digest.update(bytes);
        } else {
            digest.update(self.key);
            digest.update(self.value);
            digest.update(&together[..length - key - value]);
        }
        digest.get_state()
    }

    /// Appends the record at `position`; `contents` is [`Fields::checksum_contents`].
    ///
    /// # Panics
    ///
    /// If key or value is beyond the limits ([`Fields::fits`]).
    pub fn encode(&self, position: Position, contents: u64, bytes: &mut Vec<u8>) {
        bytes.reserve(self.length());
        bytes.extend_from_slice(&self.encode_header(position, contents));
        self.append_contents(bytes);
    }

    /// What comes before the key.
    pub(super) fn encode_header(&self, position: Position, contents: u64) -> [u8; HEADER] {
        assert!(self.fits(), "a record's key or value is too long");
        let mut header = [0; HEADER];
        header[8..16].copy_from_slice(&position.number().to_le_bytes());
        header[16..20].copy_from_slice(&(self.value.len() as u32).to_le_bytes());
        header[20..23].copy_from_slice(&(self.key.len() as u32).to_le_bytes()[..3]);
        header[23] = self.operation as u8 | if self.goes_on { GOES_ON } else { 0 };
        header[24..26].copy_from_slice(&self.codec.to_le_bytes());
        header[26..28].copy_from_slice(&self.tablespace.to_le_bytes());
        header[28..32].copy_from_slice(&self.flags.to_le_bytes());
        header[32..40].copy_from_slice(&self.expires_ms.to_le_bytes());
        let checksum = finish(contents, &header);
        header[..8].copy_from_slice(&checksum.to_le_bytes());
        header
    }

    /// Appends what comes behind the header: key, value and padding.
    pub(super) fn append_contents(&self, bytes: &mut Vec<u8>) {
        let end = bytes.len() + self.length() - HEADER;
        bytes.extend_from_slice(self.key);
        bytes.extend_from_slice(self.value);
        bytes.resize(end, 0);
    }

    /// The record that `bytes` begin with, its position and its length in bytes.
    ///
    /// # Errors
    ///
    /// [`NoRecord`].
    pub fn decode(bytes: &'a [u8], salt: u64) -> Result<(Position, Fields<'a>, usize), NoRecord> {
        let record = whole(bytes)?;
        let length = record.len();
        let header = record.first_chunk::<HEADER>().ok_or(NoRecord::Short(HEADER))?;
        let (key_length, value_length) = lengths(header);
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, salt);
        digest.update(&record[HEADER..]);
        if finish(digest.get_state(), header) != number_64(header, 0) {
            return Err(NoRecord::Damaged("its checksum is wrong"));
        }
        let number = header[23] & !GOES_ON;
        let operation = Operation::from_number(number).ok_or(NoRecord::Unknown(number))?;
        let (key, rest) = record[HEADER..].split_at(key_length);
        let fields = Fields {
            operation,
            goes_on: header[23] & GOES_ON != 0,
            codec: u16::from_le_bytes([header[24], header[25]]),
            tablespace: u16::from_le_bytes([header[26], header[27]]),
            flags: number_32(header, 28) as u32,
            expires_ms: number_64(header, 32),
            key,
            value: &rest[..value_length],
        };
        Ok((Position::from_number(number_64(header, 8)), fields, length))
    }
}

/// Gives the record that `bytes` begin with the checksum that it needs, if it is all there; answers
/// its length in bytes. For tools and tests that make records by hand.
pub fn seal(bytes: &mut [u8], salt: u64) -> Option<usize> {
    let record = whole(bytes).ok()?;
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, salt);
    digest.update(&record[HEADER..]);
    digest.update(&record[8..HEADER]);
    let length = record.len();
    bytes[..8].copy_from_slice(&digest.finalize().to_le_bytes());
    Some(length)
}

/// The bytes of the record that `bytes` begin with, if they are all there; says nothing of whether
/// they are right.
pub(crate) fn whole(bytes: &[u8]) -> Result<&[u8], NoRecord> {
    let header = bytes.first_chunk::<HEADER>().ok_or(NoRecord::Short(HEADER))?;
    if *header == [0; HEADER] {
        return Err(NoRecord::Empty);
    }
    let (key_length, value_length) = lengths(header);
    if key_length > MAX_KEY || value_length > MAX_VALUE {
        return Err(NoRecord::Damaged("its key or value is longer than any"));
    }
    let length = length(key_length, value_length);
    bytes.get(..length).ok_or(NoRecord::Short(length))
}

/// The position of the mark that `bytes` are, if they are one.
pub(crate) fn mark(bytes: &[u8], salt: u64) -> Option<Position> {
    // Most bytes of a log are none: look before the checksum is computed.
    let header = bytes.first_chunk::<HEADER>()?;
    if header[16..] != MARK_REST || header[8..16] == [0; 8] {
        return None;
    }
    let (position, _, _) = Fields::decode(header, salt).ok()?;
    Some(position)
}

/// What a mark has from its lengths on.
const MARK_REST: [u8; HEADER - 16] = {
    let mut rest = [0; HEADER - 16];
    rest[23 - 16] = Operation::Synced as u8;
    rest
};

fn finish(contents: u64, header: &[u8; HEADER]) -> u64 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, contents);
    digest.update(&header[8..]);
    digest.finalize()
}

/// The lengths of key and value.
fn lengths(header: &[u8; HEADER]) -> (usize, usize) {
    (number_32(header, 20) & 0xff_ffff, number_32(header, 16))
}

fn length(key: usize, value: usize) -> usize {
    (HEADER + key + value).next_multiple_of(ALIGN)
}

fn number_32(header: &[u8; HEADER], at: usize) -> usize {
    u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize
}

fn number_64(header: &[u8; HEADER], at: usize) -> u64 {
    (number_32(header, at) as u64) | (number_32(header, at + 4) as u64) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT: u64 = 0x1234_5678_9abc_def0;

    fn encoded(fields: &Fields<'_>, position: Position) -> Vec<u8> {
        let mut bytes = Vec::new();
        fields.encode(position, fields.checksum_contents(SALT), &mut bytes);
        bytes
    }

    fn put() -> Fields<'static> {
        Fields {
            operation: Operation::Put,
            goes_on: false,
            codec: 1,
            tablespace: 0x0203,
            flags: 0x0405_0607,
            expires_ms: 0x0809_0a0b,
            key: b"key",
            value: b"value!!",
        }
    }

    /// The format: a change of these bytes is a new version of it.
    #[test]
    fn bytes_are_as_documented() {
        let bytes = encoded(&put(), Position::new(1, 2));
        assert_eq!(bytes.len(), 56);
        assert_eq!(bytes[8..16], [2, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(bytes[16..24], [7, 0, 0, 0, 3, 0, 0, 1]);
        assert_eq!(bytes[24..32], [1, 0, 3, 2, 7, 6, 5, 4]);
        assert_eq!(bytes[32..40], [0x0b, 0x0a, 9, 8, 0, 0, 0, 0]);
        assert_eq!(&bytes[40..], b"keyvalue!!\0\0\0\0\0\0");
        let mut summed = bytes[40..].to_vec();
        summed.extend_from_slice(&bytes[8..40]);
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, SALT);
        digest.update(&summed);
        assert_eq!(bytes[..8], digest.finalize().to_le_bytes());
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_no_record() {
        let bytes = encoded(&put(), Position::new(1, 2));
        for cut in 0..bytes.len() {
            let no_record = Fields::decode(&bytes[..cut], SALT).unwrap_err();
            let needed = if cut < HEADER { HEADER } else { bytes.len() };
            assert_eq!(no_record, NoRecord::Short(needed), "cut at {cut}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Fields::decode(&flipped, SALT).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_operation_of_a_newer_version_is_told_from_damage() {
        let mut bytes = encoded(&put(), Position::new(1, 2));
        assert_eq!(seal(&mut bytes, SALT), Some(56));
        assert!(Fields::decode(&bytes, SALT).is_ok());
        bytes[23] = 99;
        assert_eq!(seal(&mut bytes[..55], SALT), None);
        seal(&mut bytes, SALT);
        assert_eq!(Fields::decode(&bytes, SALT), Err(NoRecord::Unknown(99)));
    }

    #[test]
    fn zeros_are_empty_and_another_salt_is_no_record() {
        assert_eq!(Fields::decode(&[0; 64], SALT).unwrap_err(), NoRecord::Empty);
        let bytes = encoded(&put(), Position::new(1, 2));
        let no_record = Fields::decode(&bytes, SALT + 1).unwrap_err();
        assert_eq!(no_record, NoRecord::Damaged("its checksum is wrong"));
    }

    #[test]
    fn marks_are_found_and_nothing_else_is_one() {
        let at = Position::new(2, 99);
        assert_eq!(mark(&encoded(&Fields::synced(), at), SALT), Some(at));
        assert_eq!(mark(&encoded(&Fields::synced(), at), SALT ^ 1), None);
        assert_eq!(mark(&encoded(&put(), at), SALT), None);
        assert_eq!(mark(&[0; HEADER], SALT), None);
    }

    proptest! {
        #[test]
        fn records_come_back(
            key in proptest::collection::vec(any::<u8>(), 0..300),
            value in proptest::collection::vec(any::<u8>(), 0..1000),
            goes_on: bool, codec: u16, tablespace: u16, flags: u32, expires_ms: u64, number: u64,
            salt: u64,
        ) {
            let operation = Operation::Put;
            let fields = Fields {
                operation, goes_on, codec, tablespace, flags, expires_ms, key: &key, value: &value,
            };
            let mut bytes = vec![];
            let position = Position::from_number(number);
            fields.encode(position, fields.checksum_contents(salt), &mut bytes);
            prop_assert_eq!(bytes.len() % ALIGN, 0);
            let length = bytes.len();
            bytes.extend_from_slice(b"what comes next");
            prop_assert_eq!(Fields::decode(&bytes, salt), Ok((position, fields, length)));
        }
    }
}
