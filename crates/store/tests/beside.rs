//! Syncs beside the writing of the log: they begin and end when a test says so.

#[path = "support/random.rs"]
mod random;

use std::sync::Arc;

use random::Random;
use remora_store::disk::{Disk, Fault, Faulty};
use remora_store::log::{
    Committer, Errand, Fields, Fsync, Log, LogError, Operation, Options, Outcome, Parts, Position,
    Turn, open_log, replay, segment_first,
};

struct World {
    disk: Arc<Faulty>,
    log: Log,
    committer: Committer<Faulty>,
    /// What has not begun, and what has ended without the committer being told.
    errand: Option<Errand<Faulty>>,
    outcome: Option<Outcome>,
    now_ms: u64,
}

fn options() -> Options {
    let fsync = Fsync::EverySecond;
    Options { fsync, segment_bytes: 600, salt: 9, retry_ms: 10, ..Options::default() }
}

/// The last record that another process would read.
fn read_back(disk: &Faulty) -> u64 {
    let mut read = 0_u64;
    let replayed = replay(disk, Position::NONE, Parts::Whole, &mut |position, fields| {
        read += 1;
        assert_eq!((position.counter(), &fields.value[..8]), (read, &read.to_le_bytes()[..]));
        Ok(())
    });
    assert_eq!(replayed.expect("a log").last.counter(), read);
    read
}

impl World {
    fn new(disk: Faulty, options: Options) -> World {
        let (disk, log) = (Arc::new(disk), Log::new(options));
        let opened = open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(()));
        let (mut committer, _) = opened.unwrap();
        committer.sync_beside();
        World { disk, log, committer, errand: None, outcome: None, now_ms: 0 }
    }

    /// With a segment, which has one record.
    fn begun(options: Options) -> World {
        let mut world = World::new(Faulty::new(1), options);
        world.append(0).unwrap();
        assert_eq!(world.turn(), Turn::Synced(1));
        world
    }

    /// Appends a record whose value begins with its number.
    fn append(&self, length: usize) -> Result<Position, LogError> {
        let mut value = (self.log.last().counter() + 1).to_le_bytes().to_vec();
        value.resize(8 + length, 7);
        self.log.append(&Fields { key: b"key", value: &value, ..Fields::of(Operation::Put) })
    }

    fn turn(&mut self) -> Turn {
        self.now_ms += 1;
        let turn = self.committer.turn(self.now_ms);
        self.errand = self.errand.take().or_else(|| self.committer.errand());
        turn
    }

    /// Has what is appended written, and a sync of it begin.
    fn begin_sync(&mut self) {
        self.log.hurry(self.log.last());
        assert_eq!(self.turn(), Turn::Beside);
        assert!(self.errand.is_some());
    }

    fn sync(&mut self) {
        self.outcome = self.errand.take().map(Errand::run);
    }

    fn tell(&mut self) -> Turn {
        let turn = self.committer.ended(self.outcome.take().unwrap(), self.now_ms);
        self.errand = self.committer.errand();
        turn
    }

    fn end_errands(&mut self) {
        while self.errand.is_some() || self.outcome.is_some() {
            if self.outcome.is_none() {
                self.sync();
            }
            self.tell();
        }
    }

    fn step(&mut self, random: &mut Random) {
        match random.below(8) {
            0 => self.now_ms += random.below(900),
            1 | 2 => _ = self.turn(),
            3 if self.outcome.is_some() => _ = self.tell(),
            3 => self.sync(),
            _ => _ = self.append(random.below(250) as usize),
        }
    }

    /// The counters of what is kept and durable.
    fn reached(&self) -> (u64, u64) {
        (self.log.kept().counter(), self.log.durable().counter())
    }

    fn segments(&self) -> usize {
        let names = self.disk.list().unwrap();
        names.iter().filter(|name| segment_first(name).is_some()).count()
    }
}

#[test]
fn a_sync_is_for_what_was_written_before_it_began() {
    let mut world = World::begun(options());
    world.append(0).unwrap();
    world.begin_sync();
    world.append(0).unwrap();
    assert_eq!((world.turn(), world.reached()), (Turn::Beside, (3, 1)));
    world.sync();
    world.append(0).unwrap();
    assert_eq!((world.turn(), world.reached()), (Turn::Beside, (4, 1)));
    assert_eq!((world.tell(), world.reached()), (Turn::Synced(1), (4, 2)));
    // The others' second counts from when it began.
    assert_eq!(world.turn(), Turn::Until(1002));
    world.now_ms = 1001;
    assert_eq!((world.turn(), world.errand.is_some()), (Turn::Beside, true));
    world.sync();
    assert_eq!((world.tell(), world.reached()), (Turn::Synced(2), (4, 4)));
    assert_eq!(world.turn(), Turn::Idle);
    world.disk.restart();
    assert_eq!(read_back(&world.disk), 4);
}

#[test]
fn beside_a_sync_no_more_is_written_than_may_be_unsynced() {
    let (unsynced_bytes, behind_bytes) = (300, 300);
    let mut world = World::begun(Options { unsynced_bytes, behind_bytes, ..options() });
    world.append(100).unwrap();
    world.begin_sync();
    let mut written = 2;
    while world.append(100).is_ok() && world.turn() == Turn::Beside {
        written += 1;
        assert_eq!(world.reached(), (written, 1));
    }
    assert_eq!((world.turn(), written), (Turn::Waits, 4));
    while world.append(100).is_ok() {}
    assert!(matches!(world.append(0), Err(LogError::Behind { .. })));
    assert_eq!((world.turn(), world.reached()), (Turn::Waits, (4, 1)));
    world.sync();
    assert_eq!((world.tell(), world.reached()), (Turn::Synced(1), (4, 2)));
    world.turn();
    assert_eq!(world.log.kept(), world.log.last());
    world.append(0).unwrap();
}

#[test]
fn a_full_segment_is_written_to_until_the_next_one_has_its_name() {
    let mut world = World::begun(options());
    // (More than a segment of 600 bytes takes.)
    world.append(500).unwrap();
    world.append(500).unwrap();
    assert_eq!((world.turn(), world.reached()), (Turn::Beside, (3, 1)));
    world.append(0).unwrap();
    world.turn();
    world.sync();
    assert_eq!((world.tell(), world.segments()), (Turn::Synced(2), 1));
    // The next segment begins with what came meanwhile, and has what comes until it has a name.
    assert_eq!(world.turn(), Turn::Beside);
    world.append(0).unwrap();
    world.turn();
    assert_eq!((world.reached(), world.segments()), ((5, 3), 1));
    let killed = world.disk.copy(1);
    world.sync();
    assert_eq!((world.reached(), world.segments()), ((5, 3), 2));
    assert_eq!((read_back(&killed), read_back(&world.disk.copy(1))), (5, 5));
    assert_eq!((world.tell(), world.reached()), (Turn::Synced(1), (5, 4)));
    // A mark in the one before tells of it.
    world.append(0).unwrap();
    assert_eq!((world.turn(), world.reached()), (Turn::Beside, (6, 4)));
    world.sync();
    assert_eq!((world.tell(), world.turn()), (Turn::Synced(0), Turn::Until(1004)));
    world.committer.finish(world.now_ms);
    assert_eq!((world.reached(), read_back(&world.disk)), ((6, 6), 6));
}

#[test]
fn a_sync_that_fails_beside_the_writing_makes_the_store_readable_only() {
    let mut world = World::begun(options());
    world.append(0).unwrap();
    world.begin_sync();
    world.append(0).unwrap();
    world.turn();
    world.disk.fault_at(world.disk.steps(), Fault::Error);
    world.sync();
    assert!(world.append(0).is_ok(), "nobody knows yet");
    let Turn::Refused(at) = world.tell() else { panic!("it has failed") };
    assert!(matches!(world.append(0), Err(LogError::ReadOnly(_))));
    world.now_ms = at;
    assert!(matches!(world.turn(), Turn::Synced(3)));
    assert_eq!(world.reached(), (4, 4));
    world.append(0).unwrap();
    world.disk.restart();
    assert_eq!(read_back(&world.disk), 4);
}

/// What is to be written again waits for the sync that is under way, and does not trust it.
#[test]
fn a_write_that_fails_beside_a_sync_is_repeated_after_it() {
    for fails in [false, true] {
        let mut world = World::begun(options());
        world.append(0).unwrap();
        world.begin_sync();
        world.append(0).unwrap();
        world.disk.fault_at(world.disk.steps(), Fault::Error);
        let Turn::Refused(at) = world.turn() else { panic!("it has failed") };
        world.now_ms = at;
        assert_eq!(world.turn(), Turn::Waits);
        if fails {
            world.disk.fault_at(world.disk.steps(), Fault::Error);
        }
        world.sync();
        assert_eq!((world.tell(), world.reached()), (Turn::Refused(at), (2, 1)));
        assert!(matches!(world.append(0), Err(LogError::ReadOnly(_))));
        assert_eq!((world.turn(), world.reached()), (Turn::Synced(2), (3, 3)));
        world.append(0).unwrap();
        world.disk.restart();
        assert_eq!(read_back(&world.disk), 3);
    }
}

/// Of a log that is written while syncs are under way, with errors of the disk.
#[test]
fn the_process_may_end_at_any_time_and_so_may_the_machine() {
    let (mut ahead, mut segments, mut errors) = (0, 0, 0);
    for seed in 0..200 {
        let small = Options { unsynced_bytes: 700, behind_bytes: 2000, ..options() };
        let mut world = World::new(Faulty::new(seed), small);
        let mut random = Random(seed);
        if seed % 2 == 0 {
            world.disk.fail_one_in(20);
        }
        for _ in 0..150 {
            world.step(&mut random);
            let (kept, durable) = world.reached();
            assert!(read_back(&world.disk.copy(1)) >= kept, "seed {seed}");
            ahead += usize::from(kept > durable && world.errand.is_some());
        }
        (segments, errors) = (segments + world.segments(), errors + world.log.stats().errors);
        if seed % 4 < 2 {
            world.disk.restart();
            assert!(read_back(&world.disk) >= world.reached().1, "seed {seed}");
        } else {
            world.disk.fail_one_in(0);
            world.end_errands();
            world.committer.finish(world.now_ms);
            assert_eq!(read_back(&world.disk), world.log.last().counter(), "seed {seed}");
        }
    }
    assert!(ahead > 1000 && segments > 500 && errors > 100, "{ahead} {segments} {errors}");
}
