//! A disk in memory that behaves as badly as a disk may.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Disk, File};

/// A crash keeps or loses the bytes of an unsynced write in pieces of this size.
const SECTOR: usize = 512;

/// What may go wrong at a step of a [`Faulty`] disk. Every call but reads and lists is a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The machine stops: the step is carried out in part or not at all, and every call fails from
    /// then on, until [`Faulty::restart`].
    Crash,
    /// The step fails with an input/output error. A sync that fails loses what it should have
    /// made last, and later syncs do not say so; a write that fails may have written a part.
    Error,
}

/// A disk in memory, for tests and simulated worlds. Clones are the same disk.
///
/// What it does is a function of its seed and of the calls: a failure can be repeated.
#[derive(Clone, Debug)]
pub struct Faulty {
    state: Arc<Mutex<Medium>>,
}

/// An open file of a [`Faulty`] disk; useless after a crash.
#[derive(Debug)]
pub struct FaultyFile {
    state: Arc<Mutex<Medium>>,
    inode: usize,
    /// The disk's count of restarts when the file was opened.
    restarts: u64,
}

#[derive(Debug)]
struct Medium {
    random: u64,
    /// By number; numbers are not used again.
    inodes: Vec<Inode>,
    names: Names,
    /// Changes of names since the last sync of the directory: the names as they were after each.
    unsynced_names: Vec<Names>,
    /// The names as of the last sync of the directory.
    synced_names: Names,
    steps: u64,
    /// Faults to come, by step.
    faults: BTreeMap<u64, Fault>,
    /// One write or sync in so many fails; 0: none does.
    error_one_in: u64,
    /// The bytes that all files together may have.
    capacity: u64,
    /// Whether reads answer fewer bytes than asked for.
    short_reads: bool,
    /// From which byte on files cannot be read, by number.
    unreadable: BTreeMap<usize, usize>,
    /// Whether nothing can be written.
    read_only: bool,
    crashed: bool,
    restarts: u64,
}

type Names = BTreeMap<String, usize>;

#[derive(Debug, Default)]
struct Inode {
    /// What reads see.
    bytes: Vec<u8>,
    /// What a crash leaves at least.
    synced: Vec<u8>,
    /// Writes since the last sync: where, and how many bytes.
    unsynced: Vec<(usize, usize)>,
}

impl Faulty {
    /// An empty disk without faults and without a limit; `seed` decides what a crash leaves.
    #[must_use]
    pub fn new(seed: u64) -> Faulty {
        let state = Medium {
            random: seed,
            inodes: Vec::new(),
            names: Names::new(),
            unsynced_names: Vec::new(),
            synced_names: Names::new(),
            steps: 0,
            faults: BTreeMap::new(),
            error_one_in: 0,
            capacity: u64::MAX,
            short_reads: false,
            unreadable: BTreeMap::new(),
            read_only: false,
            crashed: false,
            restarts: 0,
        };
        Faulty { state: Arc::new(Mutex::new(state)) }
    }

    /// Lets `fault` happen at the step of this number; the first is 0.
    pub fn fault_at(&self, step: u64, fault: Fault) {
        self.lock().faults.insert(step, fault);
    }

    /// Lets one step in `count` fail with an error, by the seed; 0: none.
    pub fn fail_one_in(&self, count: u64) {
        self.lock().error_one_in = count;
    }

    /// Limits what all files may have together, in bytes; beyond it the disk is full.
    pub fn limit(&self, bytes: u64) {
        self.lock().capacity = bytes;
    }

    /// Lets reads answer fewer bytes than they were asked for.
    pub fn read_short(&self) {
        self.lock().short_reads = true;
    }

    /// Lets reads of a file fail with an input/output error from this byte on.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn fail_reads(&self, name: &str, from: usize) {
        let mut state = self.lock();
        let inode = *state.names.get(name).unwrap_or_else(|| panic!("there is no file {name}"));
        state.unreadable.insert(inode, from);
    }

    /// From now on nothing can be written, nor a file be opened to be written to.
    pub fn make_read_only(&self) {
        self.lock().read_only = true;
    }

    /// How many steps there have been.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Whether a crash has happened that no restart followed.
    #[must_use]
    pub fn crashed(&self) -> bool {
        self.lock().crashed
    }

    /// All that is not synced is lost, in full or in part, by the seed; the disk works again, with
    /// no fault to come. Files that were open are not.
    pub fn restart(&self) {
        let mut state = self.lock();
        let changes = state.unsynced_names.len() as u64;
        let keep = state.below(changes + 1) as usize;
        if keep > 0 {
            state.names = state.unsynced_names[keep - 1].clone();
        } else {
            state.names = state.synced_names.clone();
        }
        state.synced_names = state.names.clone();
        state.unsynced_names.clear();
        for inode in 0..state.inodes.len() {
            state.crash_inode(inode);
        }
        state.faults.clear();
        state.error_one_in = 0;
        state.crashed = false;
        state.restarts += 1;
    }

    /// The length of a file in bytes, and all of its bytes to change: rot, cuts. What is changed so
    /// is synced.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let inode = *state.names.get(name).unwrap_or_else(|| panic!("there is no file {name}"));
        let inode = &mut state.inodes[inode];
        change(&mut inode.bytes);
        inode.synced = inode.bytes.clone();
        inode.unsynced.clear();
    }

    /// The bytes of a file, as reads see them.
    #[must_use]
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let state = self.lock();
        state.names.get(name).map(|inode| state.inodes[*inode].bytes.clone())
    }

    /// Another disk with the same files, all of them synced, and no faults.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Faulty {
        let copy = Faulty::new(seed);
        {
            let (from, mut to) = (self.lock(), copy.lock());
            for (name, inode) in &from.names {
                let bytes = from.inodes[*inode].bytes.clone();
                to.inodes.push(Inode { synced: bytes.clone(), bytes, unsynced: Vec::new() });
                let number = to.inodes.len() - 1;
                to.names.insert(name.clone(), number);
            }
            to.synced_names = to.names.clone();
        }
        copy
    }

    fn lock(&self) -> MutexGuard<'_, Medium> {
        lock(&self.state)
    }
}

/// A test that panicked with the lock held leaves a disk that is as good as any.
fn lock(state: &Mutex<Medium>) -> MutexGuard<'_, Medium> {
    state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What a step does instead of what it should.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
    Crashed,
}

impl Medium {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn step(&mut self) -> io::Result<Outcome> {
        self.awake()?;
        self.writable()?;
        let step = self.steps;
        self.steps += 1;
        match self.faults.remove(&step) {
            Some(Fault::Crash) => {
                self.crashed = true;
                Ok(Outcome::Crashed)
            }
            Some(Fault::Error) => Ok(Outcome::Failed),
            None if self.error_one_in > 0 && self.below(self.error_one_in) == 0 => {
                Ok(Outcome::Failed)
            }
            None => Ok(Outcome::Done),
        }
    }

    fn awake(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the machine has crashed")) } else { Ok(()) }
    }

    fn writable(&self) -> io::Result<()> {
        if self.read_only { Err(io::ErrorKind::ReadOnlyFilesystem.into()) } else { Ok(()) }
    }

    fn used(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].bytes.len() as u64).sum()
    }

    /// Changes the names, in one step.
    fn change_names(&mut self, change: impl FnOnce(&mut Names)) -> io::Result<()> {
        let outcome = self.step()?;
        // A crash may come just after the step as well as just before it.
        if outcome == Outcome::Done || (outcome == Outcome::Crashed && self.below(2) == 0) {
            change(&mut self.names);
            self.unsynced_names.push(self.names.clone());
        }
        answer(outcome)
    }

    fn write(&mut self, inode: usize, at: usize, bytes: &[u8]) -> io::Result<()> {
        let outcome = self.step()?;
        let mut length = match outcome {
            Outcome::Done => bytes.len(),
            _ => self.below(bytes.len() as u64 + 1) as usize,
        };
        let end = self.inodes[inode].bytes.len();
        let room = self.capacity.saturating_sub(self.used());
        let room = usize::try_from(room).unwrap_or(usize::MAX).saturating_add(end);
        let full = at.saturating_add(length) > room;
        if full {
            length = room.saturating_sub(at).min(length);
        }
        if length > 0 {
            let inode = &mut self.inodes[inode];
            if inode.bytes.len() < at + length {
                inode.bytes.resize(at + length, 0);
            }
            inode.bytes[at..at + length].copy_from_slice(&bytes[..length]);
            inode.unsynced.push((at, length));
        }
        if full && outcome == Outcome::Done {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()));
        }
        answer(outcome)
    }

    fn sync_inode(&mut self, inode: usize) -> io::Result<()> {
        let outcome = self.step()?;
        let inode = &mut self.inodes[inode];
        match outcome {
            Outcome::Done => {
                let writes = std::mem::take(&mut inode.unsynced);
                for (at, length) in writes {
                    inode.persist(at, length);
                }
            }
            // The pages count as clean from now on: no later sync writes them.
            Outcome::Failed => inode.unsynced.clear(),
            Outcome::Crashed => {}
        }
        answer(outcome)
    }

    /// What is left of a file: what was synced, and some of the rest.
    fn crash_inode(&mut self, number: usize) {
        let mut inode = std::mem::take(&mut self.inodes[number]);
        for (at, length) in std::mem::take(&mut inode.unsynced) {
            // All, nothing, or some of the sectors.
            let manner = self.below(3);
            let mut from = at;
            while from < at + length {
                let to = ((from / SECTOR + 1) * SECTOR).min(at + length);
                let keep = match manner {
                    0 => false,
                    1 => true,
                    _ => self.below(2) == 0,
                };
                if keep {
                    inode.persist(from, to - from);
                }
                from = to;
            }
        }
        inode.bytes = inode.synced.clone();
        self.inodes[number] = inode;
    }
}

impl Inode {
    fn persist(&mut self, at: usize, length: usize) {
        if self.synced.len() < at + length {
            self.synced.resize(at + length, 0);
        }
        self.synced[at..at + length].copy_from_slice(&self.bytes[at..at + length]);
    }
}

fn answer(outcome: Outcome) -> io::Result<()> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Failed => Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())),
        Outcome::Crashed => Err(io::Error::other("the machine has crashed")),
    }
}

impl Disk for Faulty {
    type File = FaultyFile;

    fn create(&self, name: &str) -> io::Result<FaultyFile> {
        let mut state = self.lock();
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.change_names(|names| _ = names.insert(name.to_owned(), inode))?;
        Ok(FaultyFile { state: Arc::clone(&self.state), inode, restarts: state.restarts })
    }

    fn open(&self, name: &str) -> io::Result<FaultyFile> {
        self.lock().writable()?;
        self.open_to_read(name)
    }

    fn open_to_read(&self, name: &str) -> io::Result<FaultyFile> {
        let state = self.lock();
        state.awake()?;
        let inode = *state.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(FaultyFile { state: Arc::clone(&self.state), inode, restarts: state.restarts })
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.lock();
        state.awake()?;
        Ok(state.names.keys().cloned().collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.lock();
        let inode = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        state.change_names(|names| {
            names.remove(from);
            names.insert(to.to_owned(), inode);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.lock();
        if !state.names.contains_key(name) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_names(|names| _ = names.remove(name))
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.lock();
        let outcome = state.step()?;
        if outcome == Outcome::Done {
            state.synced_names = state.names.clone();
            state.unsynced_names.clear();
        }
        answer(outcome)
    }

    fn check(&self, file: Option<(&str, &FaultyFile)>) -> io::Result<()> {
        let state = self.lock();
        state.awake()?;
        let is_there =
            |(name, file): (&str, &FaultyFile)| state.names.get(name) == Some(&file.inode);
        if file.is_none_or(is_there) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn place(&self) -> String {
        "memory".to_owned()
    }
}

impl FaultyFile {
    fn lock(&self) -> io::Result<MutexGuard<'_, Medium>> {
        let state = lock(&self.state);
        if state.restarts == self.restarts {
            Ok(state)
        } else {
            Err(io::Error::other("the file was open when the machine crashed"))
        }
    }
}

impl File for FaultyFile {
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        self.lock()?.write(self.inode, at, bytes)
    }

    fn read_at(&self, at: u64, dst: &mut [u8]) -> io::Result<usize> {
        let mut state = self.lock()?;
        state.awake()?;
        let length = state.inodes[self.inode].bytes.len();
        let at = usize::try_from(at).unwrap_or(usize::MAX).min(length);
        let mut count = dst.len().min(length - at);
        if let Some(from) = state.unreadable.get(&self.inode).filter(|from| at + count > **from) {
            count = from.saturating_sub(at);
            if count == 0 {
                return answer(Outcome::Failed).map(|()| 0);
            }
        }
        if state.short_reads && count > 1 {
            count = 1 + state.below(count as u64) as usize;
        }
        dst[..count].copy_from_slice(&state.inodes[self.inode].bytes[at..at + count]);
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        self.lock()?.sync_inode(self.inode)
    }

    fn length(&self) -> io::Result<u64> {
        let state = self.lock()?;
        state.awake()?;
        Ok(state.inodes[self.inode].bytes.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::read_full;

    fn text(disk: &Faulty, name: &str) -> String {
        String::from_utf8(disk.contents(name).unwrap()).unwrap()
    }

    #[test]
    fn a_crash_keeps_what_was_synced_and_any_part_of_the_rest() {
        let mut ends = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let disk = Faulty::new(seed);
            let file = disk.create("a").unwrap();
            file.write_at(0, b"kept").unwrap();
            file.sync().unwrap();
            disk.sync().unwrap();
            file.write_at(4, &[b'x'; 2 * SECTOR]).unwrap();
            disk.restart();
            let left = disk.contents("a").unwrap();
            assert!(left.starts_with(b"kept"));
            ends.insert((left.len(), left[4..].contains(&0)));
            assert!(file.sync().is_err(), "a file that was open at the crash is not usable");
        }
        // None, all, and some of the sectors with holes between them.
        assert!(ends.contains(&(4, false)), "{ends:?}");
        assert!(ends.contains(&(4 + 2 * SECTOR, false)), "{ends:?}");
        assert!(ends.contains(&(4 + 2 * SECTOR, true)), "{ends:?}");
    }

    #[test]
    fn names_last_once_the_directory_is_synced() {
        let mut ends = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let disk = Faulty::new(seed);
            let file = disk.create("new").unwrap();
            file.write_at(0, b"1").unwrap();
            file.sync().unwrap();
            disk.sync().unwrap();
            disk.rename("new", "old").unwrap();
            disk.restart();
            ends.insert(disk.list().unwrap());
        }
        assert_eq!(ends.len(), 2, "{ends:?}");
    }

    #[test]
    fn a_sync_that_fails_loses_and_the_next_one_does_not_say_so() {
        let disk = Faulty::new(1);
        let file = disk.create("a").unwrap();
        disk.sync().unwrap();
        file.write_at(0, b"lost").unwrap();
        disk.fault_at(disk.steps(), Fault::Error);
        assert!(file.sync().is_err());
        file.sync().unwrap();
        assert_eq!(text(&disk, "a"), "lost");
        disk.restart();
        assert_eq!(text(&disk, "a"), "");
    }

    #[test]
    fn a_full_disk_takes_what_fits() {
        let disk = Faulty::new(1);
        disk.limit(6);
        let file = disk.create("a").unwrap();
        file.write_at(0, b"1234").unwrap();
        let full = file.write_at(4, b"5678").unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert_eq!(text(&disk, "a"), "123456");
        file.write_at(0, b"abcd").unwrap();
    }

    #[test]
    fn a_crash_at_a_step_stops_everything() {
        let disk = Faulty::new(1);
        let file = disk.create("a").unwrap();
        disk.fault_at(1, Fault::Crash);
        assert!(file.write_at(0, b"1").is_err());
        assert!(disk.crashed());
        assert!(file.sync().is_err());
        assert!(disk.list().is_err());
        disk.restart();
        assert!(disk.list().is_ok());
    }

    #[test]
    fn short_reads_come_to_an_end() {
        let disk = Faulty::new(1);
        let file = disk.create("a").unwrap();
        file.write_at(0, &[7; 1000]).unwrap();
        disk.read_short();
        let mut bytes = [0; 2000];
        assert_eq!(read_full(&file, 0, &mut bytes).unwrap(), 1000);
        assert!(bytes[..1000].iter().all(|byte| *byte == 7));
    }
}
