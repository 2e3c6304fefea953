//! Any bytes as files of the store: its log, its snapshots, and Redis' RDB.
//!
//! Bytes that are wrong fail at a checksum and get no further. So a target tries its input as it
//! is, and with the checksums that its records need.

use std::collections::BTreeMap;

use remora_store::disk::{Disk, Faulty};
use remora_store::log::{
    Fields, LOG_MAGIC, NoRecord, Operation, Parts, Position, SEGMENT_HEADER, SNAPSHOT_MAGIC,
    SegmentHeader, replay, seal, segment_name,
};
use remora_store::rdb::{RdbReader, RdbWriter, dump, restore};
use remora_store::snapshot::{load, snapshot_name};

use crate::Seed;

const SALT: u64 = 0x5eed;

/// The input is a record.
///
/// # Panics
/// If a record is read that is not written as it was read, or that is longer than its bytes.
pub fn store_record(data: &[u8]) {
    let mut bytes = data.to_vec();
    for sealed in [false, true] {
        if sealed {
            seal(&mut bytes, SALT);
        }
        match Fields::decode(&bytes, SALT) {
            Ok((position, fields, length)) => {
                assert!(length <= bytes.len() && length == fields.length());
                let mut again = Vec::new();
                fields.encode(position, fields.checksum_contents(SALT), &mut again);
                assert_eq!(Fields::decode(&again, SALT), Ok((position, fields, length)));
            }
            Err(NoRecord::Short(needed)) => assert!(needed > bytes.len()),
            Err(_) => {}
        }
    }
}

/// Gives all records of `bytes` their checksums, as far as lengths lead.
fn seal_all(bytes: &mut [u8]) {
    let mut rest = bytes;
    while let Some(length) = seal(rest, SALT) {
        rest = &mut rest[length..];
    }
}

/// Puts a file on a disk: a header, and the records in `bytes`.
fn put(disk: &Faulty, name: &str, magic: &[u8; 8], first: Position, bytes: &[u8]) {
    let header = SegmentHeader { first, salt: SALT, created_ms: 0 };
    let file = [&header.encode(magic)[..], bytes].concat();
    drop(disk.create(name));
    disk.damage(name, |all| *all = file);
}

/// The first byte says how: bit 0, whether records get their checksums; bit 1, whether the header
/// is the input's, too; the others, at which record a second segment begins. The rest is one
/// segment or two.
///
/// # Panics
/// If positions come out of order, or an error does not name a file.
pub fn store_segment(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if how & 1 == 1 {
        seal_all(&mut bytes);
    }
    let disk = Faulty::new(u64::from(*how));
    disk.read_short();
    let first = Position::new(0, 1);
    if how & 2 == 2 {
        drop(disk.create(&segment_name(first)));
        disk.damage(&segment_name(first), |all| all.clone_from(&bytes));
    } else {
        let second = u64::from(how >> 2);
        let cut = cut_at(&bytes, second as usize).filter(|_| second > 0);
        let (one, two) = bytes.split_at(cut.unwrap_or(bytes.len()));
        put(&disk, &segment_name(first), LOG_MAGIC, first, one);
        if cut.is_some() {
            let next = Position::new(0, 1 + second);
            put(&disk, &segment_name(next), LOG_MAGIC, next, two);
        }
    }
    let mut last = Position::NONE;
    let replayed = replay(&disk, Position::NONE, Parts::Whole, &mut |position, _| {
        assert!(position.follows(last), "{position} after {last}");
        last = position;
        Ok(())
    });
    match replayed {
        Ok(replayed) => {
            assert_eq!(replayed.last.counter(), last.counter());
            assert_eq!(replayed.records, last.counter());
        }
        Err(error) => {
            let said = error.to_string();
            // (A mark may name more than all files have.)
            assert!(
                said.contains("memory/log-") || said.contains("the log in memory ends"),
                "{said}"
            );
        }
    }
}

/// Where the record of this number begins.
fn cut_at(bytes: &[u8], number: usize) -> Option<usize> {
    let mut at = 0;
    for _ in 0..number {
        let (_, _, length) = Fields::decode(&bytes[at..], SALT).ok()?;
        at += length;
    }
    Some(at)
}

/// The first byte says whether records get their checksums; the rest is a snapshot after its
/// header.
///
/// # Panics
/// If a snapshot is read that has other records than its end says.
pub fn store_snapshot(data: &[u8]) {
    let Some((how, rest)) = data.split_first() else { return };
    let mut bytes = rest.to_vec();
    if how & 1 == 1 {
        seal_all(&mut bytes);
    }
    let disk = Faulty::new(u64::from(*how));
    let covered = Position::new(0, 9);
    put(&disk, &snapshot_name(covered), SNAPSHOT_MAGIC, covered, &bytes);
    let mut records = 0;
    let loaded = load(&disk, covered, &mut |_, _| {
        records += 1;
        Ok(())
    });
    match loaded {
        Ok(loaded) => assert_eq!(loaded.records, records),
        Err(error) => assert!(error.to_string().contains("memory/snapshot-"), "{error}"),
    }
}

/// The input is an RDB file, and a value as in such a file.
///
/// # Panics
/// If what is read from it is not the same once it was written and read again.
pub fn store_rdb(data: &[u8]) {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Redis, data);
    let (mut value, mut payload, mut again) = (Vec::new(), Vec::new(), Vec::new());
    if restore(&[data, &sum.to_le_bytes()].concat(), &mut value).is_ok() {
        dump(&value, &mut payload);
        assert_eq!((restore(&payload, &mut again), &again), (Ok(()), &value));
    }
    type Strings = BTreeMap<(u64, Vec<u8>), (Vec<u8>, Option<u64>)>;
    let read = |bytes: &[u8]| -> Option<Strings> {
        let mut reader = RdbReader::new(bytes).ok()?;
        let mut strings = Strings::new();
        while let Some(entry) = reader.next().ok()? {
            let key = (entry.database, entry.key.to_vec());
            strings.insert(key, (entry.value.to_vec(), entry.expires_ms));
        }
        Some(strings)
    };
    // Without its checksum a file says that it has none.
    let body = data.len().saturating_sub(8);
    let unsummed = [&data[..body], &[0; 8]].concat();
    for bytes in [data, &unsummed] {
        let Some(strings) = read(bytes) else { continue };
        let mut writer = RdbWriter::new(Vec::new()).expect("memory takes it");
        for ((database, key), (value, expires_ms)) in &strings {
            writer.put(*database, key, value, *expires_ms).expect("memory takes it");
        }
        let again = writer.finish().expect("memory takes it");
        assert_eq!(read(&again), Some(strings));
    }
}

fn record(operation: Operation, counter: u64, key: &[u8], value: &[u8]) -> Vec<u8> {
    let fields = Fields { key, value, tablespace: 3, expires_ms: 77, ..Fields::of(operation) };
    let mut bytes = Vec::new();
    let position = Position::new(0, counter);
    fields.encode(position, fields.checksum_contents(SALT), &mut bytes);
    bytes
}

fn seed(name: &str, data: Vec<u8>) -> Seed {
    Seed { name: name.to_owned(), data }
}

/// One record of each operation.
pub fn store_records() -> Vec<Seed> {
    let operations = [
        ("put", Operation::Put),
        ("touch", Operation::Touch),
        ("delete", Operation::Delete),
        ("create", Operation::Create),
        ("drop", Operation::Drop),
        ("flush", Operation::Flush),
        ("synced", Operation::Synced),
        ("end", Operation::End),
    ];
    let each = |(name, operation)| seed(name, record(operation, 5, b"key", b"some value"));
    operations.into_iter().map(each).collect()
}

fn log_bytes() -> Vec<u8> {
    let mut bytes = record(Operation::Synced, 0, b"", b"");
    for counter in 1..5 {
        bytes.extend(record(Operation::Put, counter, b"key", &vec![b'x'; counter as usize * 9]));
    }
    bytes
}

/// One segment, two, a torn one, one with a mark after the damage, one with a header of its own.
pub fn store_segments() -> Vec<Seed> {
    let with = |how: u8, bytes: &[u8]| [&[how][..], bytes].concat();
    let whole = log_bytes();
    let mut damaged = whole.clone();
    damaged[60] ^= 1;
    damaged.extend(record(Operation::Synced, 4, b"", b""));
    let header = SegmentHeader { first: Position::new(0, 1), salt: SALT, created_ms: 0 };
    let headed = [&header.encode(LOG_MAGIC)[..], &whole].concat();
    assert_eq!(headed.len(), SEGMENT_HEADER + whole.len());
    vec![
        seed("one", with(1, &whole)),
        seed("two", with(1 | 3 << 2, &whole)),
        seed("torn", with(0, &whole[..whole.len() - 9])),
        seed("damaged", with(0, &damaged)),
        seed("headed", with(2, &headed)),
    ]
}

/// A snapshot of a tablespace and two items, and one whose end is wrong.
pub fn store_snapshots() -> Vec<Seed> {
    let mut bytes = vec![1];
    bytes.extend(record(Operation::Create, 9, b"name", &[0; 24]));
    bytes.extend(record(Operation::Put, 3, b"a", b"1"));
    bytes.extend(record(Operation::Put, 11, b"b", b"2"));
    let end = |count: u64| record(Operation::End, 12, b"", &count.to_le_bytes());
    let [right, wrong] = [3, 4].map(|count| [bytes.clone(), end(count)].concat());
    vec![seed("whole", right), seed("short", wrong)]
}

/// What Redis saved, with a key of each type, and what we write.
pub fn rdbs() -> Vec<Seed> {
    let mut writer = RdbWriter::new(Vec::new()).expect("memory takes it");
    writer.put(0, b"key", b"value", Some(5)).expect("memory takes it");
    writer.put(7, b"other", &[b'x'; 100], None).expect("memory takes it");
    let saved = include_bytes!("../../crates/store/tests/data/redis-7.0.15.rdb");
    vec![
        seed("written", writer.finish().expect("memory takes it")),
        seed("redis", saved.to_vec()),
        // Without its checksum, the payload of a string of 13 equal bytes, compressed.
        seed("payload", b"\0\xc3\x05\x0d\0a\xe0\x03\0\x09\0".to_vec()),
    ]
}
