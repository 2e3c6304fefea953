//! The log in worlds where the disk does what disks do, by seed.

use std::sync::Arc;

use super::work::{Group, Wake, Work};
use super::*;
use crate::disk::{Disk, Fault, Faulty};

#[path = "../../tests/support/random.rs"]
mod random;

use random::Random;

/// A log on a disk, and what was appended to it, by counter from 1 on.
struct World {
    disk: Arc<Faulty>,
    log: Log,
    committer: Committer<Faulty>,
    /// The values, in order; what a crash loses is taken off.
    appended: Vec<Vec<u8>>,
    now_ms: u64,
}

fn options(fsync: Fsync) -> Options {
    Options { fsync, segment_bytes: 600, salt: 9, retry_ms: 10, ..Options::default() }
}

fn put(value: &[u8]) -> Fields<'_> {
    Fields { operation: Operation::Put, key: b"key", value, ..Fields::synced() }
}

/// The values of the log on a disk.
fn values(disk: &Faulty, from: Position) -> Result<(Vec<Vec<u8>>, Replayed), ReplayError> {
    let mut values = Vec::new();
    let replayed = replay(disk, from, Parts::Whole, &mut |_, fields| {
        values.push(fields.value.to_vec());
        Ok(())
    })?;
    Ok((values, replayed))
}

impl World {
    fn new(disk: Faulty, options: Options) -> World {
        World::open(Arc::new(disk), options, Vec::new(), 0).unwrap()
    }

    /// Opens the log again, and checks it against what was appended: all that was durable is there,
    /// and nothing that is not a beginning of what was appended.
    fn open(
        disk: Arc<Faulty>,
        options: Options,
        mut appended: Vec<Vec<u8>>,
        durable: u64,
    ) -> Result<World, ReplayError> {
        let log = Log::new(options);
        let mut read = Vec::new();
        let (committer, replayed) =
            open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, fields| {
                assert_eq!(log.append(&put(b"early")), Err(LogError::Closed));
                read.push(fields.value.to_vec());
                Ok(())
            })?;
        assert!(read.len() as u64 >= durable, "{durable} were durable, {replayed:?}");
        assert_eq!(read[..], appended[..read.len()]);
        assert_eq!(replayed.last.counter(), read.len() as u64);
        appended.truncate(read.len());
        Ok(World { disk, log, committer, appended, now_ms: 0 })
    }

    fn append(&mut self, length: usize) {
        let mut value = vec![length as u8; length];
        let number = self.appended.len() as u64;
        value.extend_from_slice(&number.to_le_bytes());
        if let Ok(position) = self.log.append(&put(&value)) {
            self.appended.push(value);
            assert_eq!(position.counter(), self.appended.len() as u64);
        }
    }

    fn turn(&mut self) -> Turn {
        self.now_ms += 1;
        self.committer.turn(self.now_ms)
    }

    /// Some appends and turns, until the disk crashes or there were enough of them.
    fn run(&mut self, random: &mut Random, steps: usize) {
        for _ in 0..steps {
            if self.disk.crashed() {
                return;
            }
            match random.below(3) {
                0 => self.now_ms += random.below(900),
                1 => _ = self.turn(),
                _ => self.append(random.below(300) as usize),
            }
        }
    }

    fn crash_and_open(self, options: Options) -> World {
        self.disk.restart();
        let durable = self.log.durable().counter();
        World::open(self.disk, options, self.appended, durable).unwrap()
    }
}

/// A sync has failed, and what it was for is in the memory of the operating system, which takes it
/// for written. The process ends, and the next one shows it to readers: from then on it is kept.
#[test]
fn what_was_read_back_outlives_the_machine() {
    let mut failed = 0;
    for (seed, step) in (0..20).flat_map(|seed| (0..4).map(move |step| (seed, step))) {
        let mut world = World::new(Faulty::new(seed), options(Fsync::Always));
        world.append(10);
        world.turn();
        world.append(20);
        let (before, fault) = (world.disk.steps(), world.disk.steps() + step);
        world.disk.fault_at(fault, Fault::Error);
        world.turn();
        if world.disk.steps() <= fault {
            continue; // There were no so many steps.
        }
        failed += 1;
        let durable = world.log.durable().counter();
        let next = World::open(world.disk, options(Fsync::Always), world.appended, durable);
        let World { disk, appended, .. } = next.unwrap();
        disk.restart();
        let (left, _) = values(&disk, Position::NONE).unwrap();
        assert_eq!(left, appended, "seed {seed}, step {step} after {before}");
    }
    assert!(failed >= 40, "{failed}");
}

const POLICIES: [Fsync; 3] = [Fsync::Always, Fsync::EverySecond, Fsync::No];

#[test]
fn what_is_appended_is_read_back_from_any_position() {
    for fsync in POLICIES {
        let mut world = World::new(Faulty::new(1), options(fsync));
        for length in 0..50 {
            world.append(length);
            if length % 3 == 0 {
                world.turn();
            }
        }
        world.committer.finish(world.now_ms);
        assert_eq!(world.log.durable(), world.log.last());
        assert!(world.log.stats().segments > 3, "{:?}", world.log.stats());
        for from in 0..=50 {
            let (read, replayed) = values(&world.disk, Position::new(0, from)).unwrap();
            assert_eq!(read[..], world.appended[from as usize..]);
            assert_eq!((replayed.last.counter(), replayed.torn), (50, None));
        }
        let ahead = values(&world.disk, Position::new(0, 51)).unwrap_err();
        assert!(matches!(ahead, ReplayError::TooShort { .. }), "{ahead}");
    }
}

#[test]
fn under_each_policy_what_counts_as_kept_is_on_the_disk_in_time() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    world.append(1);
    world.append(2);
    assert_eq!(world.turn(), Turn::Synced(2));
    world.append(3);
    assert_eq!(world.turn(), Turn::Synced(1));
    assert_eq!(world.turn(), Turn::Idle);
    assert_eq!(world.log.durable().counter(), 3);

    let mut world = World::new(Faulty::new(1), options(Fsync::EverySecond));
    world.append(1);
    assert_eq!(world.turn(), Turn::Synced(1), "the first segment is synced when it begins");
    world.append(2);
    assert_eq!(world.turn(), Turn::Until(1001));
    assert_eq!(world.log.durable().counter(), 1);
    world.now_ms = 1000;
    assert_eq!(world.turn(), Turn::Synced(1));

    let small = Options { unsynced_bytes: 300, ..options(Fsync::No) };
    let mut world = World::new(Faulty::new(1), small);
    world.append(1);
    world.turn();
    world.append(100);
    assert_eq!(world.turn(), Turn::Idle);
    assert_eq!(world.log.durable().counter(), 1);
    world.append(100);
    assert_eq!(world.turn(), Turn::Synced(2), "unsynced_bytes wait");
}

#[test]
fn a_sync_that_is_asked_for_comes_at_once() {
    for fsync in [Fsync::EverySecond, Fsync::No] {
        let mut world = World::new(Faulty::new(1), options(fsync));
        world.append(1);
        world.turn();
        world.append(2);
        world.turn();
        assert_eq!(world.log.durable().counter(), 1);
        world.log.hurry(world.log.last());
        assert_eq!(world.turn(), Turn::Synced(1));
        assert_eq!(world.log.sync(world.log.last()), Ok(()));
    }
}

/// A log whose last segment has a few groups; every policy writes the same bytes here but zeros.
fn written(fsync: Fsync) -> World {
    let mut world = World::new(Faulty::new(3), options(fsync));
    for length in [10, 50, 20, 200, 3, 1, 90, 200, 40, 5, 17, 60] {
        world.append(length);
        world.turn();
    }
    world.committer.finish(world.now_ms);
    assert!(world.log.stats().segments >= 3);
    world
}

fn log_files(disk: &Faulty) -> Vec<String> {
    disk.list().unwrap().into_iter().filter(|name| segment_first(name).is_some()).collect()
}

#[test]
fn a_log_cut_at_any_byte_is_read_up_to_there() {
    for fsync in [Fsync::Always, Fsync::No] {
        let world = written(fsync);
        let last = log_files(&world.disk).pop().unwrap();
        let first = segment_first(&last).unwrap().counter() as usize;
        let length = world.disk.contents(&last).unwrap().len();
        let mut seen = std::collections::BTreeSet::new();
        for cut in SEGMENT_HEADER..=length {
            let disk = world.disk.copy(cut as u64);
            disk.damage(&last, |bytes| bytes.truncate(cut));
            let (read, replayed) = values(&disk, Position::NONE).unwrap();
            assert_eq!(read[..], world.appended[..read.len()]);
            seen.insert(read.len());
            // The log goes on from there, and is whole again.
            let appended = world.appended.clone();
            let mut again = World::open(Arc::new(disk), options(fsync), appended, 0).unwrap();
            again.append(5);
            again.committer.finish(1);
            let (more, whole) = values(&again.disk, Position::NONE).unwrap();
            assert_eq!(more, again.appended);
            assert_eq!(whole.last.counter(), replayed.last.counter() + 1);
        }
        let all: Vec<_> = (first - 1..=world.appended.len()).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), all);
    }
}

#[test]
fn damage_before_a_crash_is_found_where_a_later_group_says_so() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    for length in [10, 20, 30] {
        world.append(length);
        world.turn();
    }
    let file = log_files(&world.disk).pop().unwrap();
    // The second record is damaged: the third one's group says that it was on the disk.
    let second = SEGMENT_HEADER + 2 * HEADER + 24 + HEADER;
    let disk = world.disk.copy(1);
    disk.damage(&file, |bytes| bytes[second] ^= 1);
    let refused = values(&disk, Position::NONE).unwrap_err();
    assert!(matches!(refused, ReplayError::Corrupt { .. }), "{refused}");
    // The same in the third is taken for what a crash left.
    world.disk.damage(&file, |bytes| {
        let at = bytes.iter().rposition(|byte| *byte == 30).unwrap();
        bytes[at] ^= 1;
    });
    let (read, replayed) = values(&world.disk, Position::NONE).unwrap();
    assert_eq!((read.len(), replayed.torn.is_some()), (2, true));
}

#[test]
fn a_cut_of_any_other_segment_or_of_a_header_is_refused() {
    let world = written(Fsync::No);
    let files = log_files(&world.disk);
    for (index, file) in files.iter().enumerate() {
        let last = index + 1 == files.len();
        let length = world.disk.contents(file).unwrap().len();
        // (Of others than the last, the mark at their end may be missing.)
        for cut in 0..if last { SEGMENT_HEADER } else { length - 2 * HEADER } {
            let disk = world.disk.copy(1);
            disk.damage(file, |bytes| bytes.truncate(cut));
            let refused = values(&disk, Position::NONE).unwrap_err().to_string();
            assert!(refused.contains(file), "{refused}");
        }
        let disk = world.disk.copy(1);
        disk.remove(file).unwrap();
        let refused = values(&disk, Position::NONE).unwrap_err();
        let named = match refused {
            ReplayError::TooShort { .. } => last,
            ReplayError::Missing { .. } | ReplayError::Corrupt { .. } => !last,
            _ => false,
        };
        assert!(named, "{refused}");
    }
}

/// A snapshot leaves the last segment at least.
#[test]
fn a_log_that_is_missing_behind_a_snapshot_is_missed() {
    let world = written(Fsync::No);
    let last = log_files(&world.disk).pop().unwrap();
    let before = Position::new(0, segment_first(&last).unwrap().counter() - 1);
    remove_before(&*world.disk, before).unwrap();
    assert!(values(&world.disk, before).is_ok());
    world.disk.remove(&last).unwrap();
    let missing = values(&world.disk, before).unwrap_err();
    assert!(matches!(missing, ReplayError::Missing { .. }), "{missing}");
}

/// The segment before may be this process's or an earlier one's, and end in order, or where the
/// disk failed or the process ended.
#[test]
fn a_newest_segment_that_is_missing_is_missed() {
    for (life, step) in (0..3).flat_map(|life| (0..5).map(move |step| (life, step))) {
        let mut world = World::new(Faulty::new(3), options(Fsync::Always));
        world.append(10);
        world.turn();
        world.append(20);
        match life {
            0 => {
                world.disk.fault_at(world.disk.steps() + step, Fault::Error);
                world.turn();
                world.now_ms += 100;
            }
            1 => {
                world.disk.fault_at(world.disk.steps() + step, Fault::Crash);
                world.turn();
                world = world.crash_and_open(options(Fsync::Always));
            }
            _ => {
                world.committer.finish(world.now_ms);
                let other = Options { salt: 10 + step, ..options(Fsync::Always) };
                let World { disk, appended, .. } = world;
                world = World::open(disk, other, appended, 2).unwrap();
            }
        }
        world.append(30);
        while world.log.durable() < world.log.last() {
            world.now_ms += 100;
            world.turn();
        }
        let files = log_files(&world.disk);
        assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
        if let [.., last] = &files[1..] {
            world.disk.remove(last).unwrap();
            let missing = values(&world.disk, Position::NONE).unwrap_err();
            assert!(matches!(missing, ReplayError::TooShort { .. }), "{life}, {step}: {missing}");
        }
    }
}

/// After a log was ended in order, a flipped bit is found, or it is where nothing is.
#[test]
fn a_flipped_bit_loses_nothing_in_silence() {
    for fsync in [Fsync::Always, Fsync::No] {
        let world = written(fsync);
        let mut refused = 0;
        for file in log_files(&world.disk) {
            let length = world.disk.contents(&file).unwrap().len();
            for byte in 0..length {
                let disk = world.disk.copy(1);
                disk.damage(&file, |bytes| bytes[byte] ^= 1 << (byte % 8));
                match values(&disk, Position::NONE) {
                    Err(error) => {
                        refused += 1;
                        let text = error.to_string();
                        assert!(text.contains(&file), "{text}");
                    }
                    Ok((read, replayed)) => {
                        assert_eq!(read[..], world.appended[..read.len()]);
                        let lost = world.appended.len() - read.len();
                        assert_eq!(lost, 0, "byte {byte} of {file}: {replayed:?}");
                    }
                }
            }
        }
        assert!(refused > 500, "{refused}");
    }
}

#[test]
fn an_error_names_the_file_the_offset_and_what_to_do() {
    let world = written(Fsync::No);
    let file = log_files(&world.disk)[1].clone();
    world.disk.damage(&file, |bytes| bytes[SEGMENT_HEADER + HEADER + 50] ^= 1);
    let text = values(&world.disk, Position::NONE).unwrap_err().to_string();
    let offset = SEGMENT_HEADER + HEADER;
    assert!(text.contains(&format!("{file} is damaged at byte {offset}")), "{text}");
    assert!(text.contains(&format!("truncate -s {offset} memory/{file}")), "{text}");
}

#[test]
fn a_client_cannot_make_a_torn_tail_look_like_damage() {
    // A value that has a mark in it, as a client writes it who does not know the salt.
    let mut value = Vec::new();
    let mark = Fields::synced();
    mark.encode(Position::new(0, 1000), mark.checksum_contents(0), &mut value);
    let disk = Faulty::new(1);
    let mut world = World::new(disk, Options { segment_bytes: 1 << 20, ..options(Fsync::No) });
    world.append(1);
    world.turn();
    world.log.append(&put(&value)).unwrap();
    world.turn();
    let file = log_files(&world.disk).pop().unwrap();
    world.disk.damage(&file, |bytes| {
        let last = bytes.len() - value.len();
        bytes[last - HEADER] ^= 1;
    });
    let (read, replayed) = values(&world.disk, Position::NONE).unwrap();
    assert_eq!(read.len(), 1);
    assert!(replayed.torn.is_some());
}

#[test]
fn a_crash_at_any_step_loses_nothing_that_was_durable() {
    let mut torn = 0;
    for seed in 0..60 {
        let fsync = POLICIES[seed as usize % 3];
        let mut world = World::new(Faulty::new(seed), options(fsync));
        world.run(&mut Random(seed), 60);
        let steps = world.disk.steps();
        for step in 0..steps {
            let disk = Faulty::new(seed ^ step << 32);
            disk.fault_at(step, Fault::Crash);
            let Ok(mut world) = World::open(Arc::new(disk), options(fsync), Vec::new(), 0) else {
                continue; // The crash came while the empty log was opened.
            };
            let mut random = Random(seed);
            world.run(&mut random, 60);
            // Two more lives, so that what a crash left is crashed upon.
            for life in 1..3 {
                let count = world.appended.len();
                world = world.crash_and_open(options(fsync));
                torn += usize::from(world.appended.len() < count);
                world.disk.fault_at(world.disk.steps() + random.below(12), Fault::Crash);
                world.run(&mut random, 20 * life);
            }
            world.crash_and_open(options(fsync));
        }
    }
    assert!(torn > 100, "{torn} logs lost something that was not durable");
}

#[test]
fn errors_of_the_disk_lose_nothing_and_pass() {
    let mut errors = 0;
    for seed in 0..200 {
        let fsync = POLICIES[seed as usize % 3];
        let mut world = World::new(Faulty::new(seed), options(fsync));
        world.disk.fail_one_in(6);
        world.disk.read_short();
        let mut random = Random(seed);
        world.run(&mut random, 150);
        errors += world.log.stats().errors;
        if seed % 2 == 0 {
            // The disk is well again: everything that was taken is written.
            world.disk.fail_one_in(0);
            world.committer.finish(world.now_ms);
            assert_eq!(world.log.durable(), world.log.last());
            assert_eq!(world.log.read_only(), None);
        }
        let world = world.crash_and_open(options(fsync));
        assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
    }
    assert!(errors > 500, "{errors}");
}

#[test]
fn a_full_disk_makes_the_store_readable_only_until_there_is_room() {
    for fsync in POLICIES {
        let mut world = World::new(Faulty::new(1), options(fsync));
        world.append(10);
        world.turn();
        world.disk.limit(500);
        let mut turn = Turn::Idle;
        for _ in 0..200 {
            world.append(50);
            turn = world.turn();
            if matches!(turn, Turn::Refused(_)) {
                break;
            }
        }
        let Turn::Refused(at) = turn else { panic!("the disk never filled: {turn:?}") };
        let reason = world.log.read_only().unwrap();
        assert!(reason.contains("make room there"), "{reason}");
        let last = world.log.last();
        assert_eq!(world.log.append(&put(b"x")), Err(LogError::ReadOnly(reason.clone())));
        assert_eq!(world.log.wait(last), Err(LogError::ReadOnly(reason)));
        // What was durable is there, if it ends here.
        let durable = world.log.durable().counter() as usize;
        let (read, _) = values(&world.disk.copy(1), Position::NONE).unwrap();
        assert!(read.len() >= durable);
        // Too early, then still full, then not.
        assert_eq!(world.turn(), Turn::Refused(at));
        world.now_ms = at;
        assert!(matches!(world.turn(), Turn::Refused(_)));
        world.disk.limit(u64::MAX);
        world.now_ms += 100;
        assert!(matches!(world.turn(), Turn::Synced(_)), "{fsync}");
        assert_eq!(world.log.wait(last), Ok(()));
        world.append(7);
        world.committer.finish(world.now_ms);
        assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
    }
}

#[test]
fn changes_are_refused_while_the_disk_does_not_keep_up() {
    let world = World::new(Faulty::new(1), Options { behind_bytes: 200, ..options(Fsync::No) });
    let mut refused = None;
    for _ in 0..10 {
        refused = world.log.append(&put(&[1; 100])).err();
    }
    assert_eq!(refused, Some(LogError::Behind { waiting_bytes: 40 + 144 + 144 }));
    assert!(world.log.stats().behind > 5);
    let mut world = world;
    world.turn();
    assert!(world.log.append(&put(b"x")).is_ok());
}

#[test]
fn a_transaction_that_has_begun_is_not_refused_half_way() {
    let behind_bytes = 200;
    let mut world = World::new(Faulty::new(1), Options { behind_bytes, ..options(Fsync::No) });
    let log = world.log.clone();
    let last = log.together(|| {
        for _ in 0..10 {
            log.append(&put(&[1; 100])).unwrap();
            assert_eq!(world.turn(), Turn::Idle, "nothing is written before all is there");
        }
        log.append(&put(b"last")).unwrap()
    });
    assert_eq!(log.last().counter(), last.counter() + 1, "its end has a record");
    assert!(matches!(log.append(&put(b"x")), Err(LogError::Behind { .. })));
    world.committer.finish(1);
    let (read, _) = values(&world.disk, Position::NONE).unwrap();
    assert_eq!(read.iter().filter(|value| !value.is_empty()).count(), 11);
}

#[test]
fn a_log_closes_behind_a_transaction_that_is_under_way() {
    let World { disk, log, committer, .. } = World::new(Faulty::new(1), options(Fsync::No));
    let thread = CommitThread::start(committer).unwrap();
    let closes = log.together(|| {
        log.append(&put(b"first")).unwrap();
        let closes = std::thread::spawn(move || drop(thread));
        while !log.is_closing() {
            std::thread::yield_now();
        }
        log.append(&put(b"second")).unwrap();
        closes
    });
    closes.join().unwrap();
    assert_eq!(log.append(&put(b"late")), Err(LogError::Closed));
    let (read, _) = values(&disk, Position::NONE).unwrap();
    let read: Vec<_> = read.into_iter().filter(|value| !value.is_empty()).collect();
    assert_eq!(read, [b"first".to_vec(), b"second".to_vec()]);
}

#[test]
fn segments_before_a_snapshot_are_removed_and_no_others() {
    let world = written(Fsync::No);
    for position in 0..=12 {
        let disk = world.disk.copy(1);
        remove_before(&disk, Position::new(0, position)).unwrap();
        let (read, _) = values(&disk, Position::new(0, position)).unwrap();
        assert_eq!(read[..], world.appended[position as usize..]);
        let early = values(&disk, Position::NONE);
        let removed = log_files(&disk).len() < log_files(&world.disk).len();
        assert_eq!(matches!(early, Err(ReplayError::Missing { .. })), removed, "{early:?}");
    }
}

#[test]
fn a_later_epoch_goes_on_with_the_counter() {
    let mut world = World::new(Faulty::new(1), options(Fsync::No));
    world.append(1);
    world.committer.finish(1);
    let later = Options { epoch: 7, ..options(Fsync::No) };
    let mut world = World::open(world.disk, later, world.appended, 1).unwrap();
    world.append(2);
    assert_eq!(world.log.last(), Position::new(7, 2));
    world.committer.finish(2);
    // An earlier epoch than the log's is not gone back to.
    let mut world = World::open(world.disk, options(Fsync::No), world.appended, 2).unwrap();
    world.append(3);
    assert_eq!(world.log.last(), Position::new(7, 3));
    world.committer.finish(3);
    assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
}

#[test]
fn a_torn_segment_after_a_snapshot_of_a_later_epoch_is_no_gap() {
    let later = Options { epoch: 3, ..options(Fsync::No) };
    let mut world = World::new(Faulty::new(1), later);
    world.append(1);
    world.append(2);
    world.committer.finish(1);
    let snapshot = world.log.last();
    let mut world = World::open(world.disk, later, world.appended, 2).unwrap();
    world.append(3);
    world.turn();
    let last = log_files(&world.disk).pop().unwrap();
    world.disk.damage(&last, |bytes| bytes.truncate(SEGMENT_HEADER + HEADER + 10));
    remove_before(&*world.disk, snapshot).unwrap();
    assert_eq!(log_files(&world.disk), [last]);
    let (read, replayed) = values(&world.disk, snapshot).unwrap();
    assert_eq!((read.len(), replayed.last), (0, snapshot));
}

#[test]
fn a_refusal_without_anything_to_write_again_passes() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    world.append(1);
    world.turn();
    // The last mark cannot be written.
    world.disk.fault_at(world.disk.steps(), Fault::Error);
    assert!(matches!(world.committer.finish(world.now_ms), Turn::Refused(_)));
    assert!(world.log.read_only().is_some());
    world.now_ms += 100;
    world.turn();
    assert_eq!(world.log.read_only(), None);
    world.append(2);
    assert_eq!(world.turn(), Turn::Synced(1));
    assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
}

#[test]
fn a_value_as_long_as_any_is_taken_and_a_longer_one_refused() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    world.append(MAX_VALUE - 8);
    world.append(1);
    assert_eq!(world.turn(), Turn::Synced(2));
    let long = vec![0; MAX_VALUE + 1];
    assert!(matches!(world.log.append(&put(&long)), Err(LogError::TooLong { .. })));
    assert_eq!(values(&world.disk, Position::NONE).unwrap().0, world.appended);
}

#[test]
fn records_are_synced_when_somebody_waits_and_then_all_at_once() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    let log = world.log.clone();
    (0..10).for_each(|_| world.append(1));
    let crowd = |records, waiters| log.has(Wake::Crowd { records, waiters });
    assert!(log.has(Wake::Any) && !log.has(Wake::Haste), "a client's other requests may follow");
    assert!(crowd(10, 0) && !crowd(11, 0) && !crowd(11, 1));
    log.hurry(Position::new(0, 3));
    assert!(log.has(Wake::Haste) && !log.has(Wake::Nothing));
    let syncs = log.stats().syncs;
    assert_eq!(world.turn(), Turn::Synced(10));
    assert_eq!(log.stats().syncs, syncs + 1);
    assert!(!log.has(Wake::Haste) && !log.has(Wake::Any));
}

#[test]
fn a_crowd_is_complete_when_as_many_threads_wait_again() {
    let mut world = World::new(Faulty::new(1), options(Fsync::Always));
    let (log, last) = (world.log.clone(), Position::new(0, 1));
    world.append(1);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| log.wait(last));
        while log.crowd().1 == 0 {
            std::thread::yield_now();
        }
        let crowd = |waiters| log.has(Wake::Crowd { records: 9, waiters });
        assert!(crowd(1) && !crowd(2) && log.has(Wake::Haste));
        assert_eq!(world.turn(), Turn::Synced(1));
        assert_eq!(waiting.join().unwrap(), Ok(()));
    });
    assert_eq!(world.log.crowd().1, 0);
}

#[test]
fn a_thread_commits_for_many_and_writes_the_rest_at_the_end() {
    let disk = Arc::new(Faulty::new(1));
    for fsync in POLICIES {
        let before = values(&disk, Position::NONE).unwrap().0.len();
        let log = Log::new(Options { segment_bytes: 20_000, ..options(fsync) });
        let (committer, _) =
            open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(())).unwrap();
        let thread = CommitThread::start(committer).unwrap();
        std::thread::scope(|scope| {
            for client in 0..8 {
                let log = log.clone();
                scope.spawn(move || {
                    for _ in 0..100 {
                        let position = log.append(&put(&[client; 30])).unwrap();
                        if fsync == Fsync::Always {
                            log.wait(position).unwrap();
                            assert!(log.durable() >= position);
                        }
                    }
                });
            }
        });
        thread.close().unwrap();
        assert_eq!(log.append(&put(b"x")), Err(LogError::Closed));
        assert_eq!(values(&disk, Position::NONE).unwrap().0.len(), before + 800);
    }
}

#[test]
fn who_waits_is_told_when_the_disk_refuses() {
    let disk = Arc::new(Faulty::new(1));
    let log = Log::new(Options { retry_ms: 1, ..options(Fsync::Always) });
    let (committer, _) =
        open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(())).unwrap();
    disk.limit(10);
    let thread = CommitThread::start(committer).unwrap();
    let position = log.append(&put(b"x")).unwrap();
    assert!(matches!(log.wait(position), Err(LogError::ReadOnly(_))));
    assert!(thread.close().unwrap_err().contains("could not be written"));
    assert_eq!(log.wait(position), Err(LogError::Closed));
}

#[test]
fn long_records_are_not_copied_while_others_wait_and_come_back() {
    let mut world = World::new(Faulty::new(5), options(Fsync::Always));
    let lengths = [10, 70_000, 200_000, 3, 65_536];
    lengths.into_iter().for_each(|length| world.append(length));
    {
        // Another log with the same records, to look at what waits.
        let other = World::new(Faulty::new(6), options(Fsync::Always));
        let values = &world.appended;
        for value in values {
            other.log.append(&put(value)).unwrap();
        }
        let Some(Work::Write(Group { batch, .. })) = other.log.take() else {
            panic!("records wait to be written");
        };
        let headers = (values.len() + 1) * HEADER;
        let short: usize = values.iter().map(Vec::len).filter(|len| *len < 65_536).sum();
        assert!(batch.short.len() < headers + short + 64, "{}", batch.short.len());
        assert!(batch.len() > lengths.iter().sum::<usize>());
    }
    assert_eq!(world.turn(), Turn::Synced(lengths.len()));
    let World { disk, appended, .. } = world;
    assert_eq!(values(&disk, Position::NONE).unwrap().0, appended);
}

#[test]
fn a_reader_waits_for_what_it_is_told_of_and_for_no_more() {
    let mut world = World::new(Faulty::new(5), options(Fsync::Always));
    world.append(1);
    world.turn();
    world.append(2);
    let at = |counter| Position::new(0, counter);
    let log = world.log.clone();
    assert_eq!(
        (log.seen(Some(at(1))), log.seen(Some(at(2))), log.seen(None)),
        (at(1), at(2), at(2))
    );
    let touch = Fields { key: b"key", ..Fields::of(Operation::Touch) };
    assert_eq!(log.append(&touch).unwrap(), at(3));
    assert_eq!(log.seen(Some(at(1))), at(3), "its expiry may be that young");
}
