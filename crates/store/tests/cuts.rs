//! Logs whose ends are cut off and written anew, as those of a group's nodes, by seed.

#[path = "support/random.rs"]
mod random;

use std::sync::Arc;

use random::Random;
use remora_store::disk::{Disk, Fault, Faulty};
use remora_store::log::{
    Committer, Errand, Fields, Fsync, Log, Operation, Options, Outcome, Parts, Position, open_log,
};
use remora_store::snapshot::{SnapshotFile, adopt, newest};

const SALT: u64 = 9;

/// A log, with what it is to have, and what it had before each cut.
struct World {
    disk: Arc<Faulty>,
    log: Log,
    committer: Committer<Faulty>,
    /// Whether syncs are done beside the writing, and one that has not begun or not been told of.
    is_beside: bool,
    errand: Option<Errand<Faulty>>,
    outcome: Option<Outcome>,
    history: Vec<Position>,
    before: Vec<Vec<Position>>,
    epoch: u32,
    now_ms: u64,
}

fn fields(value: &[u8]) -> Fields<'_> {
    Fields { operation: Operation::Put, key: b"key", value, ..Fields::synced() }
}

/// A record whose value is its position.
fn record(position: Position) -> Vec<u8> {
    let (value, mut bytes) = (position.number().to_le_bytes(), Vec::new());
    let fields = fields(&value);
    fields.encode(position, fields.checksum_contents(SALT), &mut bytes);
    bytes
}

fn read_back(disk: &Arc<Faulty>, fsync: Fsync) -> (Log, Committer<Faulty>, Vec<Position>) {
    let options =
        Options { fsync, segment_bytes: 600, salt: SALT, retry_ms: 10, ..Options::default() };
    let (log, mut read) = (Log::new(options), Vec::new());
    let from = newest(&**disk).unwrap().unwrap_or(Position::NONE);
    let opened = open_log(disk, &log, from, Parts::All, &mut |position, fields| {
        assert_eq!(fields.value, position.number().to_le_bytes());
        read.push(position);
        Ok(())
    });
    let (committer, _) = opened.unwrap();
    (log, committer, read)
}

impl World {
    fn new(seed: u64, fsync: Fsync) -> World {
        let disk = Arc::new(Faulty::new(seed));
        let (log, committer, history) = read_back(&disk, fsync);
        World {
            disk,
            log,
            committer,
            is_beside: false,
            errand: None,
            outcome: None,
            history,
            before: Vec::new(),
            epoch: 1,
            now_ms: 0,
        }
    }

    fn sync_beside(&mut self) {
        self.is_beside = true;
        self.committer.sync_beside();
    }

    fn last(&self) -> Position {
        self.history.last().copied().unwrap_or_default()
    }

    fn append(&mut self) {
        let position = self.last().next(self.epoch).unwrap();
        if self.log.append_at(position, &record(position)).is_ok() {
            self.history.push(position);
        }
    }

    fn cut(&mut self, left: usize) {
        self.before.push(self.history.clone());
        self.history.truncate(left);
        self.log.truncate(self.last());
        self.epoch += 1;
        assert!(self.log.kept() <= self.last() && self.log.durable() <= self.last());
    }

    fn turn(&mut self) {
        self.now_ms += 1;
        self.committer.turn(self.now_ms);
        self.errand = self.errand.take().or_else(|| self.committer.errand());
    }

    /// Lets what is done beside the writing be done, or tells of it.
    fn go_on_beside(&mut self) {
        if let Some(outcome) = self.outcome.take() {
            self.committer.ended(outcome, self.now_ms);
            self.errand = self.committer.errand();
        } else {
            self.outcome = self.errand.take().map(Errand::run);
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(12) {
            0 => {
                let left = random.below(self.history.len() as u64 + 1);
                self.cut(left as usize);
            }
            1 => self.now_ms += random.below(1500),
            2..5 => self.turn(),
            5 | 6 => self.go_on_beside(),
            _ => self.append(),
        }
    }

    /// The machine crashes: what was durable is there, and nothing that the log never had.
    fn crash(&mut self, fsync: Fsync) {
        self.disk.restart();
        let durable = self.log.durable().counter() as usize;
        let (log, committer, read) = read_back(&self.disk, fsync);
        assert!(read.len() >= durable, "{read:?} after {durable} were durable");
        assert_eq!(read[..durable], self.history[..durable]);
        self.before.push(std::mem::take(&mut self.history));
        assert!(self.before.iter().any(|had| had.starts_with(&read)), "{read:?}");
        (self.log, self.committer, self.history) = (log, committer, read);
        (self.errand, self.outcome) = (None, None);
        if self.is_beside {
            self.committer.sync_beside();
        }
        self.epoch = self.epoch.max(self.last().epoch()) + 1;
    }
}

#[test]
fn what_is_durable_outlives_cuts_errors_and_crashes() {
    let (mut cut, mut crashed) = (0, 0);
    for seed in 0..300 {
        let fsync = [Fsync::Always, Fsync::EverySecond, Fsync::No][seed as usize % 3];
        let (mut world, mut random) = (World::new(seed, fsync), Random(seed));
        if fsync != Fsync::Always && seed % 2 == 0 {
            world.sync_beside();
        }
        for _ in 0..4 {
            let at = world.disk.steps() + random.below(40);
            let fault = if random.below(2) == 0 { Fault::Error } else { Fault::Crash };
            world.disk.fault_at(at, fault);
            for _ in 0..60 {
                if world.disk.crashed() {
                    break;
                }
                world.step(&mut random);
            }
            crashed += u32::from(world.disk.crashed());
            world.crash(fsync);
        }
        cut += world.before.len();
        // In the end, all that was appended gets to the disk.
        world.append();
        world.now_ms += 10_000;
        world.committer.finish(world.now_ms);
        assert_eq!(world.log.durable(), world.last(), "seed {seed}");
        world.disk.restart();
        let (_, _, read) = read_back(&world.disk, fsync);
        assert_eq!(read, world.history, "seed {seed}");
    }
    assert!(cut > 1000 && crashed > 100, "{cut} {crashed}");
}

/// (Under the other policies a sync comes when a cut is made, or later.)
#[test]
fn without_a_sync_a_record_is_kept_once_the_system_has_it() {
    let mut world = World::new(1, Fsync::No);
    for _ in 0..2 {
        world.append();
        world.turn();
    }
    assert_eq!((world.log.kept().counter(), world.log.durable().counter()), (2, 1));
    world.cut(1);
    assert_eq!((world.log.kept().counter(), world.log.durable().counter()), (1, 1));
}

fn write_copy(disk: &Arc<Faulty>, covered: Position) -> std::io::Result<u64> {
    let mut file = SnapshotFile::create_copy(disk, covered, 5, SALT)?;
    file.add(covered, &fields(b"of the copy"))?;
    file.complete(covered)?;
    file.name()
}

/// Whenever a machine crashes while a copy takes the place of a log, there is the one or the other,
/// and what is appended behind the copy follows it.
#[test]
fn a_copy_takes_the_place_of_a_log_at_once() {
    let (mut old, mut new) = (0, 0);
    let covered = Position::new(7, 5);
    for (seed, step) in (0..10).flat_map(|seed| (0..30).map(move |step| (seed, step))) {
        let mut world = World::new(seed, Fsync::Always);
        for _ in 0..20 {
            world.append();
            world.turn();
        }
        world.disk.fault_at(world.disk.steps() + step, Fault::Crash);
        let is_named = write_copy(&world.disk, covered).is_ok();
        let mut follows = false;
        if is_named {
            world.log.begin_anew(covered);
            let next = covered.next(8).unwrap();
            world.log.append_at(next, &record(next)).unwrap();
            for _ in 0..3 {
                world.turn();
            }
            follows = world.log.durable() == next;
        }
        world.disk.restart();
        let is_whole = world.disk.list().unwrap().iter().any(|name| name == "copy");
        adopt(&*world.disk).unwrap();
        let (_, _, read) = read_back(&world.disk, Fsync::Always);
        if newest(&*world.disk).unwrap() == Some(covered) {
            new += 1;
            let all = [covered.next(8).unwrap()];
            assert!(all.starts_with(&read) && read.len() >= usize::from(follows), "{read:?}");
        } else {
            old += 1;
            assert!(!is_named && !is_whole, "seed {seed}, step {step}");
            assert_eq!(read, world.history);
        }
        assert!(!world.disk.list().unwrap().iter().any(|name| name == "copy"));
    }
    assert!(old > 20 && new > 100, "{old} {new}");
}
