//! Snapshots as files.
//!
//! A snapshot is a header as a segment of the log has it, with other letters, and then records as
//! the log has them: the tablespaces, the items at the positions of their versions, and an end.

use std::io;
use std::sync::Arc;

use crate::disk::{Disk, File};
use crate::log::Next;
use crate::log::{
    Fields, NoSegment, Operation, Position, Reader, ReplayError, SEGMENT_HEADER, SNAPSHOT_MAGIC,
    SegmentHeader, TEMPORARY, segment_first,
};

/// So much is gathered before it is written, in bytes.
const BUFFER: usize = 256 << 10;
/// So much is written before it is synced, in bytes. All of a long snapshot at once would keep the
/// disk from the log, whose syncs come at the same time.
const UNSYNCED: u64 = 32 << 20;
/// What a group's node knows is written in records of at most so many bytes.
const NODE_PIECE: usize = 1 << 20;
/// The name of another node's snapshot that is to stand in the place of all that is there.
const COPY: &str = "copy";

/// A snapshot that is being written. Dropped before [`SnapshotFile::finish`], it leaves nothing.
pub struct SnapshotFile<D: Disk> {
    disk: Arc<D>,
    file: D::File,
    name: String,
    salt: u64,
    buffer: Vec<u8>,
    written: u64,
    synced: u64,
    records: u64,
    finished: bool,
}

impl<D: Disk> SnapshotFile<D> {
    /// Begins a snapshot that has every change up to `covered`.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn create(
        disk: &Arc<D>,
        covered: Position,
        now_ms: u64,
        salt: u64,
    ) -> io::Result<SnapshotFile<D>> {
        Self::create_as(snapshot_name(covered), disk, covered, now_ms, salt)
    }

    /// Begins a copy of another store, which has every change up to `covered`. Once it is whole and
    /// has its name, it stands in the place of all else that the directory has: see [`adopt`].
    ///
    /// # Errors
    ///
    /// What the operating system says; or that an earlier copy has its name, and is not in its
    /// place yet: [`adopt`] must not find another one half-way.
    pub fn create_copy(
        disk: &Arc<D>,
        covered: Position,
        now_ms: u64,
        salt: u64,
    ) -> io::Result<SnapshotFile<D>> {
        if disk.list()?.iter().any(|name| name == COPY) {
            let reason = "an earlier copy is not in its place yet: is the disk full?";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        Self::create_as(COPY.to_owned(), disk, covered, now_ms, salt)
    }

    fn create_as(
        name: String,
        disk: &Arc<D>,
        covered: Position,
        now_ms: u64,
        salt: u64,
    ) -> io::Result<SnapshotFile<D>> {
        let file = disk.create(&format!("{name}{TEMPORARY}"))?;
        let header = SegmentHeader { first: covered, salt, created_ms: now_ms };
        let buffer = header.encode(SNAPSHOT_MAGIC).to_vec();
        let disk = Arc::clone(disk);
        Ok(SnapshotFile {
            disk,
            file,
            name,
            salt,
            buffer,
            written: 0,
            synced: 0,
            records: 0,
            finished: false,
        })
    }

    /// Adds a tablespace (a [`Operation::Create`]) or an item (a [`Operation::Put`]) of a version.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn add(&mut self, version: Position, fields: &Fields<'_>) -> io::Result<()> {
        fields.encode(version, fields.checksum_contents(self.salt), &mut self.buffer);
        self.records += 1;
        if self.buffer.len() >= BUFFER { self.write() } else { Ok(()) }
    }

    /// Adds what a group's node knows as of the snapshot's position: before all else.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn add_node(&mut self, covered: Position, bytes: &[u8]) -> io::Result<()> {
        bytes.chunks(NODE_PIECE).try_for_each(|value| {
            self.add(covered, &Fields { value, ..Fields::of(Operation::Node) })
        })
    }

    /// Ends the snapshot, which has nothing of changes after `end`, and gives it its name. The log
    /// must be on the disk up to `end`. Answers the length in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says; snapshots that were there before still are.
    pub fn finish(mut self, end: Position) -> io::Result<u64> {
        self.complete(end)?;
        self.name()
    }

    /// Ends the snapshot, which is on the disk then, without its name.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn complete(&mut self, end: Position) -> io::Result<()> {
        let value = self.records.to_le_bytes();
        let fields = Fields { value: &value, ..Fields::of(Operation::End) };
        self.add(end, &fields)?;
        self.write()?;
        self.file.sync()
    }

    /// Gives a snapshot that is complete its name. Answers the length in bytes.
    ///
    /// # Errors
    ///
    /// What the operating system says; snapshots that were there before still are.
    pub fn name(mut self) -> io::Result<u64> {
        self.disk.rename(&format!("{}{TEMPORARY}", self.name), &self.name)?;
        self.finished = true;
        self.disk.sync()?;
        Ok(self.written)
    }

    fn write(&mut self) -> io::Result<()> {
        self.file.write_at(self.written, &self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written - self.synced >= UNSYNCED {
            self.file.sync()?;
            self.synced = self.written;
        }
        Ok(())
    }
}

impl<D: Disk> Drop for SnapshotFile<D> {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed now is removed at the next start.
            _ = self.disk.remove(&format!("{}{TEMPORARY}", self.name));
        }
    }
}

/// The name of the snapshot that has every change up to `covered`.
#[must_use]
pub fn snapshot_name(covered: Position) -> String {
    format!("snapshot-{:016x}", covered.number())
}

/// The position in a snapshot's name; none if the name is no snapshot's.
#[must_use]
pub fn snapshot_position(name: &str) -> Option<Position> {
    let digits = name.strip_prefix("snapshot-")?;
    let position = Position::from_number(u64::from_str_radix(digits, 16).ok()?);
    (snapshot_name(position) == name).then_some(position)
}

/// The newest snapshot of a directory.
///
/// # Errors
///
/// What the operating system says.
pub fn newest<D: Disk>(disk: &D) -> io::Result<Option<Position>> {
    let names = disk.list()?;
    Ok(names.iter().filter_map(|name| snapshot_position(name)).max())
}

/// Puts a copy of another store, if there is one that is whole, in the place of all that the
/// directory has. It does no harm to begin again where this breaks off.
///
/// # Errors
///
/// What the operating system says, or that the copy is damaged.
pub fn adopt<D: Disk>(disk: &D) -> io::Result<()> {
    let names = disk.list()?;
    if !names.iter().any(|name| name == COPY) {
        return Ok(());
    }
    let copy = Reader::open(disk.open_to_read(COPY)?, SNAPSHOT_MAGIC)?.map_err(io::Error::other)?;
    let covered = copy.header().first;
    for name in names {
        if segment_first(&name).is_some() || snapshot_position(&name).is_some() {
            disk.remove(&name)?;
        }
    }
    disk.sync()?;
    disk.rename(COPY, &snapshot_name(covered))?;
    disk.sync()
}

/// What a group's node knew as of the snapshot at `covered`; empty if the snapshot is of a store
/// that is in no group.
///
/// # Errors
///
/// [`ReplayError`].
pub fn load_node<D: Disk>(disk: &D, covered: Position) -> Result<Vec<u8>, ReplayError> {
    let (mut reader, file) = open(disk, covered)?;
    let mut bytes = Vec::new();
    loop {
        let next = reader.next().map_err(|source| {
            let (place, file) = (disk.place(), file.clone());
            ReplayError::Io { place, file, source }
        })?;
        match next {
            Next::Record(_, fields) if fields.operation == Operation::Node => {
                bytes.extend_from_slice(fields.value);
            }
            // Damage is found when all of it is loaded.
            Next::Record(..) | Next::End(..) => return Ok(bytes),
        }
    }
}

/// Removes the snapshots before that at `covered`.
///
/// # Errors
///
/// What the operating system says; what is left is removed the next time.
pub(crate) fn remove_before<D: Disk>(disk: &D, covered: Position) -> io::Result<()> {
    for name in disk.list()? {
        if snapshot_position(&name).is_some_and(|position| position < covered) {
            disk.remove(&name)?;
        }
    }
    Ok(())
}

/// What a snapshot had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// It has every change up to here.
    pub covered: Position,
    /// It has nothing of changes after this.
    pub end: Position,
    /// How many records it has.
    pub records: u64,
    /// When it was begun, in milliseconds of Unix time.
    pub created_ms: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Reads the snapshot at `covered`; `visit` gets the records with the versions of the items.
///
/// # Errors
///
/// [`ReplayError`]: what was visited before is not known to be whole then.
pub fn load<D: Disk>(
    disk: &D,
    covered: Position,
    visit: &mut dyn FnMut(Position, &Fields<'_>) -> Result<(), String>,
) -> Result<Loaded, ReplayError> {
    let (mut reader, file) = open(disk, covered)?;
    let io = |source| ReplayError::Io { place: disk.place(), file: file.clone(), source };
    let damaged = |offset, reason: String| {
        let (place, file) = (disk.place(), file.clone());
        ReplayError::Snapshot { place, file, offset, reason }
    };
    let mut records = 0;
    loop {
        let at = reader.offset();
        match reader.next().map_err(io)? {
            Next::Record(end, fields) if fields.operation == Operation::End => {
                if fields.value != u64::to_le_bytes(records) {
                    return Err(damaged(
                        at,
                        format!(
                            "it has {records} records, and not as many \
                        as its end says"
                        ),
                    ));
                }
                let created_ms = reader.header().created_ms;
                return Ok(Loaded { covered, end, records, created_ms, bytes: reader.offset() });
            }
            Next::Record(version, fields) => {
                visit(version, &fields).map_err(|reason| {
                    let (place, file) = (disk.place(), file.clone());
                    ReplayError::Apply { place, file, position: version, reason }
                })?;
                records += 1;
            }
            Next::End(at, reason) => {
                let reason = reason.unwrap_or("it ends before its end mark");
                return Err(damaged(at.max(SEGMENT_HEADER as u64), reason.to_owned()));
            }
        }
    }
}

/// Opens the snapshot at `covered`; answers its name, too.
fn open<D: Disk>(disk: &D, covered: Position) -> Result<(Reader<D::File>, String), ReplayError> {
    let file = snapshot_name(covered);
    let io = |source| ReplayError::Io { place: disk.place(), file: file.clone(), source };
    let damaged = |reason: NoSegment| {
        let (place, file, reason) = (disk.place(), file.clone(), reason.to_string());
        ReplayError::Snapshot { place, file, offset: 0, reason }
    };
    let opened = disk.open_to_read(&file).map_err(io)?;
    match Reader::open(opened, SNAPSHOT_MAGIC).map_err(io)? {
        Ok(reader) if reader.header().first == covered => Ok((reader, file)),
        Ok(_) => Err(damaged(NoSegment::Name)),
        Err(reason) => Err(damaged(reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Fault, Faulty};

    fn item(key: &[u8]) -> Fields<'_> {
        Fields { key, value: b"value", ..Fields::of(Operation::Put) }
    }

    fn write(disk: &Arc<Faulty>, covered: u64, keys: &[&[u8]]) -> io::Result<u64> {
        let mut file = SnapshotFile::create(disk, Position::new(0, covered), 5, 77)?;
        for (version, key) in keys.iter().enumerate() {
            file.add(Position::new(0, version as u64), &item(key))?;
        }
        file.finish(Position::new(0, covered + 3))
    }

    fn read(disk: &Faulty, covered: u64) -> Result<(Loaded, Vec<Vec<u8>>), ReplayError> {
        let mut keys = Vec::new();
        let loaded = load(disk, Position::new(0, covered), &mut |_, fields| {
            keys.push(fields.key.to_vec());
            Ok(())
        })?;
        Ok((loaded, keys))
    }

    #[test]
    fn what_is_written_is_read() {
        let disk = Arc::new(Faulty::new(1));
        assert_eq!(newest(&*disk).unwrap(), None);
        write(&disk, 9, &[b"a", b"b"]).unwrap();
        write(&disk, 10, &[b"c"]).unwrap();
        assert_eq!(newest(&*disk).unwrap(), Some(Position::new(0, 10)));
        let (loaded, keys) = read(&disk, 9).unwrap();
        assert_eq!(keys, [b"a", b"b"]);
        assert_eq!((loaded.end.counter(), loaded.records, loaded.created_ms), (12, 2, 5));
        remove_before(&*disk, Position::new(0, 10)).unwrap();
        assert_eq!(disk.list().unwrap(), [snapshot_name(Position::new(0, 10))]);
    }

    #[test]
    fn names_are_told_from_others() {
        let position = Position::new(1, 2);
        assert_eq!(snapshot_position(&snapshot_name(position)), Some(position));
        for other in ["snapshot-", "snapshot-12", "snapshot-0000000000000001.tmp", "log-1"] {
            assert_eq!(snapshot_position(other), None, "{other}");
        }
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let disk = Arc::new(Faulty::new(1));
        write(&disk, 9, &[b"a", b"b"]).unwrap();
        let name = snapshot_name(Position::new(0, 9));
        let length = disk.contents(&name).unwrap().len();
        for cut in 0..length {
            let copy = disk.copy(1);
            copy.damage(&name, |bytes| bytes.truncate(cut));
            let refused = read(&copy, 9).unwrap_err().to_string();
            assert!(refused.contains(&name), "{refused}");
        }
        for bit in 0..length * 8 {
            let copy = disk.copy(1);
            copy.damage(&name, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            assert!(read(&copy, 9).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn records_that_are_missing_are_missed() {
        let disk = Arc::new(Faulty::new(1));
        write(&disk, 9, &[b"a", b"b"]).unwrap();
        let name = snapshot_name(Position::new(0, 9));
        disk.damage(&name, |bytes| _ = bytes.drain(SEGMENT_HEADER..SEGMENT_HEADER + 48));
        let refused = read(&disk, 9).unwrap_err().to_string();
        assert!(refused.contains("it has 1 records"), "{refused}");
    }

    #[test]
    fn after_a_crash_at_any_step_there_is_the_old_snapshot_or_the_new_one() {
        let (mut old, mut new) = (0, 0);
        for seed in 0..20 {
            for step in 0.. {
                let disk = Arc::new(Faulty::new(seed));
                write(&disk, 9, &[b"old"]).unwrap();
                disk.fault_at(disk.steps() + step, Fault::Crash);
                let written = write(&disk, 12, &[b"new"]).is_ok();
                if written && !disk.crashed() {
                    break;
                }
                disk.restart();
                let newest = newest(&*disk).unwrap().unwrap();
                let (_, keys) = read(&disk, newest.counter()).unwrap();
                if newest.counter() == 9 {
                    assert!(!written);
                    old += usize::from(keys == [b"old"]);
                } else {
                    new += usize::from(keys == [b"new"]);
                }
            }
        }
        assert!(old > 50 && new > 10, "{old} {new}");
    }

    #[test]
    fn a_copy_comes_after_the_one_before_has_its_place() {
        let disk = Arc::new(Faulty::new(1));
        let copy = |covered| SnapshotFile::create_copy(&disk, Position::new(0, covered), 5, 77);
        let mut first = copy(3).unwrap();
        first.complete(Position::new(0, 3)).unwrap();
        first.name().unwrap();
        let refused = copy(9).err().unwrap();
        assert!(refused.to_string().contains("not in its place yet"), "{refused}");
        adopt(&*disk).unwrap();
        assert_eq!(read(&disk, 3).unwrap().0.covered, Position::new(0, 3));
        assert!(copy(9).is_ok());
    }

    /// So the last sync of a long one is short.
    #[test]
    fn a_long_snapshot_is_synced_as_it_is_written() {
        let disk = Arc::new(Faulty::new(1));
        let mut file = SnapshotFile::create(&disk, Position::new(0, 9), 5, 77).unwrap();
        disk.sync().unwrap();
        let value = vec![7; 1 << 20];
        for version in 0..40 {
            let fields = Fields { key: b"key", value: &value, ..Fields::of(Operation::Put) };
            file.add(Position::new(0, version), &fields).unwrap();
        }
        disk.restart();
        let name = format!("{}{TEMPORARY}", snapshot_name(Position::new(0, 9)));
        // (Of a write that is not synced, some is there all the same.)
        let left = disk.contents(&name).unwrap().into_iter().filter(|byte| *byte == 7).count();
        assert!(left as u64 > UNSYNCED - (1 << 20), "{left}");
    }

    #[test]
    fn a_snapshot_that_is_given_up_leaves_nothing() {
        let disk = Arc::new(Faulty::new(1));
        disk.limit(200);
        assert!(write(&disk, 9, &[b"a", b"b", b"c"]).is_err());
        assert!(disk.list().unwrap().is_empty());
    }
}
