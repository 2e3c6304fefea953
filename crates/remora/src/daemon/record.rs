//! What is written down of a session so that it outlives the daemon: its name, its token, and the
//! objects that can be made again. It stands in a memory file, which only the daemon has.
//! `restore` reads it.
//!
//! ```text
//! byte    0  magic u64, version u32, which head counts u32, where slots were never used u32
//!        64  a head: length u32, then its bytes
//!      1024  another head, which is written while the first one counts
//!      4096  slots of 64 bytes: length u32 (0: free), then an entry's bytes
//! ```
//!
//! A daemon may be killed between any two of its instructions. So the word that makes a head or a
//! slot count is written last, and what stands there before is whole.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use remora_nic::{Access, Key, Pd};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::commands::{Bytes, Change};
use crate::memory::Buffer;
use crate::memory::memfd::{self, MapError};
use crate::message::{Keep, Loan, Object, Quotas, SessionToken, decode, encode};

const MAGIC: u64 = u64::from_le_bytes(*b"remora\0r");
/// Raised when the layout or an entry changes.
const VERSION: u32 = 2;
const AT_VERSION: usize = 8;
const AT_WHICH: usize = 12;
const AT_UNUSED: usize = 16;
const HEADS: [usize; 2] = [64, 1024];
const HEAD: usize = 960;
const AT_SLOTS: usize = 4096;
const SLOT: usize = 64;
/// The most slots: 64 MiB, of which only those that were used cost memory.
const SLOTS_MAX: u64 = 1 << 20;

/// What a session is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) number: u32,
    pub(crate) name: String,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    pub(crate) token: SessionToken,
    pub(crate) epoch: u32,
    pub(crate) keep: Keep,
}

/// An object that can be made again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Entry {
    Pd(Pd),
    Dm { at: u64, len: u64 },
    Lent { number: u32, loan: Loan },
    Region { key: Key, pd: Pd, bytes: Bytes, access: Access },
}

impl Entry {
    /// The entry of a region that was changed.
    pub(crate) fn changed(self, change: &Change) -> Entry {
        match self {
            Entry::Region { key, pd, bytes, access } => Entry::Region {
                key,
                pd: change.pd.unwrap_or(pd),
                bytes: change.bytes.unwrap_or(bytes),
                access: change.access.unwrap_or(access),
            },
            other => other,
        }
    }

    /// The object.
    pub(crate) fn object(&self) -> Object {
        match *self {
            Entry::Pd(pd) => Object::Pd(pd),
            Entry::Dm { at, .. } => Object::Dm(at),
            Entry::Lent { number, .. } => Object::Lent(number),
            Entry::Region { key, .. } => Object::Mr(key),
        }
    }
}

/// Why a file is no record.
#[derive(Debug, Error)]
pub(crate) enum RecordError {
    #[error("it is of another version of Remora")]
    Version,
    #[error("it cannot be read")]
    Malformed,
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A session's record.
#[derive(Debug)]
pub(crate) struct Record {
    file: OwnedFd,
    memory: Buffer,
    /// The slots of objects.
    at: HashMap<Object, usize>,
    free: Vec<usize>,
    /// Slots from here on were never used.
    next: usize,
}

impl Record {
    /// # Errors
    /// The system has no memory or descriptors.
    pub(crate) fn create(head: &Head, quotas: &Quotas) -> Result<Record, MapError> {
        let most = u64::from(quotas.regions) + u64::from(quotas.others) + u64::from(quotas.loans);
        let len = AT_SLOTS + most.min(SLOTS_MAX) as usize * SLOT;
        let file = memfd::sealed("remora-record", len as u64)?;
        let memory = Buffer::map_only(file.as_fd(), 0, len)?;
        let record = Record { file, memory, at: HashMap::new(), free: Vec::new(), next: AT_SLOTS };
        record.set_head(head);
        record.word(AT_UNUSED).store(AT_SLOTS as u32, Ordering::Relaxed);
        record.word(AT_VERSION).store(VERSION, Ordering::Relaxed);
        let magic = record.memory.word(0).expect("a record has a head");
        magic.store(MAGIC, Ordering::Release);
        Ok(record)
    }

    /// The record that another daemon wrote, what it says of the session, and its entries.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub(crate) fn open(file: OwnedFd) -> Result<(Record, Head, Vec<Entry>), RecordError> {
        let len = memfd::len_of(&file).map_err(MapError::from)? as usize;
        if len < AT_SLOTS {
            return Err(RecordError::Malformed);
        }
        let memory = Buffer::map_only(file.as_fd(), 0, len)?;
        let mut record =
            Record { file, memory, at: HashMap::new(), free: Vec::new(), next: AT_SLOTS };
        let magic = record.memory.word(0).map_err(|_| RecordError::Malformed)?;
        if magic.load(Ordering::Acquire) != MAGIC {
            return Err(RecordError::Malformed);
        }
        if record.word(AT_VERSION).load(Ordering::Relaxed) != VERSION {
            return Err(RecordError::Version);
        }
        let which = record.word(AT_WHICH).load(Ordering::Acquire) as usize;
        let head = HEADS.get(which).and_then(|at| record.read(*at, HEAD));
        let head = head.and_then(|bytes| decode(&bytes).ok()).ok_or(RecordError::Malformed)?;
        let entries = record.entries();
        Ok((record, head, entries))
    }

    /// Its file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes what the session is now.
    pub(crate) fn set_head(&self, head: &Head) {
        let other = 1 - self.word(AT_WHICH).load(Ordering::Relaxed).min(1);
        self.write(HEADS[other as usize], &encode(head), HEAD);
        self.word(AT_WHICH).store(other, Ordering::Release);
    }

    /// Notes an object. Where there is no slot left, the object does not outlive the daemon.
    pub(crate) fn add(&mut self, entry: &Entry) {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.next + SLOT <= self.memory.len() => {
                self.next += SLOT;
                self.word(AT_UNUSED).store(self.next as u32, Ordering::Release);
                self.next - SLOT
            }
            None => {
                tracing::warn!(?entry, "the record is full: this does not outlive the daemon");
                return;
            }
        };
        self.write(at, &encode(entry), SLOT);
        if let Some(old) = self.at.insert(entry.object(), at) {
            self.clear(old);
        }
    }

    /// What was noted of an object.
    #[cfg(test)]
    pub(crate) fn get(&self, object: Object) -> Option<Entry> {
        decode(&self.read(*self.at.get(&object)?, SLOT)?).ok()
    }

    /// Forgets an object, if it was noted.
    pub(crate) fn remove(&mut self, object: Object) {
        if let Some(at) = self.at.remove(&object) {
            self.clear(at);
        }
    }

    fn clear(&mut self, at: usize) {
        self.word(at).store(0, Ordering::Release);
        self.free.push(at);
    }

    /// Reads all entries, and finds where they are. An object that stands there twice was being
    /// changed: the last counts.
    fn entries(&mut self) -> Vec<Entry> {
        let mut entries: HashMap<Object, Entry> = HashMap::new();
        let unused = self.word(AT_UNUSED).load(Ordering::Acquire) as usize;
        let end = unused.min(self.memory.len()) / SLOT * SLOT;
        for at in (AT_SLOTS..end).step_by(SLOT) {
            let Some(bytes) = self.read(at, SLOT) else { continue };
            let Ok(entry) = decode::<Entry>(&bytes) else { continue };
            entries.insert(entry.object(), entry);
            if let Some(old) = self.at.insert(entry.object(), at) {
                self.clear(old);
            }
        }
        self.next = end.max(AT_SLOTS);
        let used: HashSet<usize> = self.at.values().copied().collect();
        self.free = (AT_SLOTS..self.next).step_by(SLOT).filter(|at| !used.contains(at)).collect();
        entries.into_values().collect()
    }

    /// Bytes with their length before them, in `room` bytes at `at`. The length is written last.
    fn write(&self, at: usize, bytes: &[u8], room: usize) {
        assert!(bytes.len() + 4 <= room, "{} bytes have no room in a record", bytes.len());
        self.memory.write_at(at + 4, bytes).expect("the layout lies within the file");
        self.word(at).store(bytes.len() as u32, Ordering::Release);
    }

    fn read(&self, at: usize, room: usize) -> Option<Vec<u8>> {
        let len = self.word(at).load(Ordering::Acquire) as usize;
        let mut bytes = vec![0; (1..=room - 4).contains(&len).then_some(len)?];
        self.memory.read_at(at + 4, &mut bytes).ok()?;
        Some(bytes)
    }

    fn word(&self, at: usize) -> &std::sync::atomic::AtomicU32 {
        self.memory.word32(at).expect("the layout is aligned, and the file holds it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Place;

    fn head() -> Head {
        Head {
            number: 7,
            name: "x".repeat(64),
            uid: u32::MAX,
            pid: i32::MAX,
            token: [255; 16],
            epoch: u32::MAX,
            keep: Keep::Seconds(u32::MAX),
        }
    }

    fn lent(number: u32) -> Entry {
        Entry::Lent { number, loan: Loan::File }
    }

    fn again(record: &Record) -> (Head, Vec<Entry>) {
        let (_, head, entries) = Record::open(record.file.try_clone().unwrap()).unwrap();
        (head, entries)
    }

    #[test]
    fn what_was_noted_is_there_again() {
        let mut record = Record::create(&head(), &Quotas::default()).unwrap();
        assert_eq!(again(&record), (head(), vec![]));
        let place = Place::Lent { number: u32::MAX, offset: u64::MAX };
        let bytes = Bytes { place, iova: u64::MAX, len: u64::MAX };
        let pd: Pd = decode(&encode(&u32::MAX)).unwrap();
        let largest = Entry::Region { key: u32::MAX, pd, bytes, access: Access::all() };
        record.add(&largest);
        assert_eq!(again(&record).1, [largest]);
        record.add(&lent(1));
        record.add(&Entry::Dm { at: 4096, len: 5 });
        record.remove(Object::Lent(1));
        record.remove(Object::Lent(9));
        let changed = Entry::Dm { at: 4096, len: 6 };
        record.add(&changed);
        let mut entries = again(&record).1;
        entries.sort_by_key(|entry| matches!(entry, Entry::Dm { .. }));
        assert_eq!(entries, [largest, changed]);
        let rights = Change { access: Some(Access::empty()), ..Change::default() };
        let fewer = Entry::Region { key: u32::MAX, pd, bytes, access: Access::empty() };
        assert_eq!(largest.changed(&rights), fewer);
        let newer = Head { epoch: 8, ..head() };
        record.set_head(&newer);
        assert_eq!(again(&record).0, newer);

        // The next daemon goes on in the same file.
        let (mut next, ..) = Record::open(record.file.try_clone().unwrap()).unwrap();
        drop(record);
        next.remove(Object::Mr(u32::MAX));
        assert_eq!(next.get(Object::Dm(4096)), Some(changed));
        (10..20).for_each(|number| next.add(&lent(number)));
        assert_eq!(again(&next).1.len(), 11);
    }

    #[test]
    fn a_record_that_is_full_keeps_what_it_has() {
        let quotas = Quotas { regions: 2, others: 1, loans: 1, ..Quotas::default() };
        let mut record = Record::create(&head(), &quotas).unwrap();
        let most = (record.memory.len() - AT_SLOTS) / SLOT;
        (0..most as u32 + 3).for_each(|number| record.add(&lent(number)));
        assert_eq!(again(&record).1.len(), most);
        record.remove(Object::Lent(0));
        record.add(&lent(1000));
        assert!(again(&record).1.contains(&lent(1000)));
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let empty = memfd::sealed("remora-test", 8192).unwrap();
        assert!(matches!(Record::open(empty), Err(RecordError::Malformed)));
        let short = memfd::sealed("remora-test", 64).unwrap();
        assert!(matches!(Record::open(short), Err(RecordError::Malformed)));
        let pipe = std::io::pipe().unwrap().0;
        assert!(Record::open(pipe.into()).is_err());
        let record = Record::create(&head(), &Quotas::default()).unwrap();
        record.word(AT_VERSION).store(99, Ordering::Relaxed);
        let other = Record::open(record.file.try_clone().unwrap());
        assert!(matches!(other, Err(RecordError::Version)));
        // Whatever stands in it.
        record.word(AT_VERSION).store(VERSION, Ordering::Relaxed);
        for at in (AT_SLOTS..AT_SLOTS + 4096).step_by(4) {
            record.word(at).store((at as u32).wrapping_mul(2_654_435_761) >> 26, Ordering::Relaxed);
        }
        for unused in [u32::MAX, 0, AT_SLOTS as u32 + 1] {
            record.word(AT_UNUSED).store(unused, Ordering::Relaxed);
            let (mut next, head_of, _) = Record::open(record.file.try_clone().unwrap()).unwrap();
            assert_eq!(head_of, head());
            // The next daemon's own entries have room in it.
            next.add(&lent(1));
            assert!(again(&next).1.contains(&lent(1)), "{unused}");
        }
    }
}
