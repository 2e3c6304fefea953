//! A directory that is removed or moved while a store keeps its log in it.

#[path = "support/temporary.rs"]
mod temporary;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use remora_store::disk::Directory;
use remora_store::log::{
    Committer, Fields, Fsync, Log, LogError, Operation, Options, Parts, Position, Turn, open_log,
};
use temporary::Temporary;

/// The log of a directory, and how many records there are.
fn opened(path: &Path) -> (Log, Committer<Directory>, u64) {
    let disk = Arc::new(Directory::open(path).unwrap());
    let options = Options { fsync: Fsync::Always, retry_ms: 1, ..Options::default() };
    let log = Log::new(options);
    let (committer, replayed) =
        open_log(&disk, &log, Position::NONE, Parts::Whole, &mut |_, _| Ok(())).unwrap();
    (log, committer, replayed.records)
}

fn append(log: &Log) -> Result<Position, LogError> {
    log.append(&Fields { key: b"key", value: b"value", ..Fields::of(Operation::Put) })
}

/// The log takes nothing, and says that `what` was removed.
fn is_refused(log: &Log, turn: Turn, what: &str) {
    assert!(matches!(turn, Turn::Refused(_)), "{what}: {turn:?}");
    let refused = append(log).unwrap_err().to_string();
    assert!(refused.contains(what), "{refused}");
}

#[test]
fn nothing_is_acknowledged_in_a_directory_that_is_gone() {
    let own = Temporary::new("removed");
    let (log, mut committer, _) = opened(&own.0);
    let first = append(&log).unwrap();
    assert_eq!((committer.turn(1), log.durable()), (Turn::Synced(1), first));
    fs::remove_dir_all(&own.0).unwrap();
    append(&log).unwrap();
    is_refused(&log, committer.turn(2), "removed");
    assert_eq!(log.durable(), first);
    // Another directory of that name does not have what was acknowledged before.
    fs::create_dir(&own.0).unwrap();
    is_refused(&log, committer.turn(100), "removed");
    is_refused(&log, committer.finish(200), "removed");
    assert_eq!((log.durable(), fs::read_dir(&own.0).unwrap().count()), (first, 0));
}

#[test]
fn a_segment_that_is_gone_is_noticed() {
    let aside = Temporary::new("segment-aside");
    let elsewhere = aside.0.join("elsewhere");
    for is_moved in [false, true] {
        let own = Temporary::new("segment");
        let (log, mut committer, _) = opened(&own.0);
        let first = append(&log).unwrap();
        committer.turn(1);
        let segment = fs::read_dir(&own.0).unwrap().next().unwrap().unwrap().path();
        match is_moved {
            true => fs::rename(&segment, &elsewhere).unwrap(),
            false => fs::remove_file(&segment).unwrap(),
        }
        append(&log).unwrap();
        is_refused(&log, committer.turn(2), "removed or moved");
        is_refused(&log, committer.turn(100), "removed or moved");
        assert_eq!((log.durable(), fs::read_dir(&own.0).unwrap().count()), (first, 0));
        if is_moved {
            fs::rename(&elsewhere, &segment).unwrap();
            assert!(matches!(committer.turn(200), Turn::Synced(_)));
            assert_eq!(log.durable(), log.last());
        }
    }
}

#[test]
fn a_directory_that_comes_back_is_used_again() {
    let (own, aside) = (Temporary::new("moved"), Temporary::new("aside"));
    let (log, mut committer, _) = opened(&own.0);
    append(&log).unwrap();
    committer.turn(1);
    let elsewhere = aside.0.join("elsewhere");
    fs::rename(&own.0, &elsewhere).unwrap();
    let second = append(&log).unwrap();
    is_refused(&log, committer.turn(2), "moved");
    fs::rename(&elsewhere, &own.0).unwrap();
    assert!(matches!(committer.turn(100), Turn::Synced(_)));
    assert_eq!(log.durable(), second);
    let third = append(&log).unwrap();
    committer.turn(101);
    assert_eq!(log.durable(), third);
    drop(committer);
    assert_eq!(opened(&own.0).2, 3);
}
