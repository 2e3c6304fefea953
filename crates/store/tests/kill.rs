//! A process that is killed: all that it acknowledged is there afterwards.
//!
//! The process is this test program itself, started a second time with a directory in its
//! environment.

#[path = "support/temporary.rs"]
mod temporary;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use remora_store::disk::Directory;
use remora_store::log::{CommitThread, Fsync, Log, Options, Recovered, open};
use remora_store::memory::Heap;
use remora_store::snapshot::Snapshots;
use remora_store::store::{self, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use temporary::Temporary;

const DIRECTORY: &str = "REMORA_STORE_KILLED_IN";
const WRITERS: u64 = 4;

fn opened(directory: &Path) -> (Arc<Directory>, Recovered<Heap, Directory>) {
    let disk = Arc::new(Directory::open(directory).unwrap());
    let options = store::Options::new(8 << 20, 5);
    let log =
        Options { fsync: Fsync::Always, segment_bytes: 100_000, salt: 9, ..Options::default() };
    let recovered = open(&disk, Heap::new(options.memory_len()), options, log, 0).unwrap();
    (disk, recovered)
}

fn space(store: &Store<Heap, Log>) -> TablespaceId {
    let create = || store.create_tablespace(&TablespaceOptions::new("a")).unwrap();
    store.tablespace("a").unwrap_or_else(create)
}

/// The value of a key, which says how often the key was written.
fn count(store: &Store<Heap, Log>, key: u64) -> u64 {
    let mut value = Vec::new();
    let found = store.get(space(store), &key.to_le_bytes(), 0, &mut value);
    found.map_or(0, |_| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Writes until it is killed, and says what is on the disk: a key and its value a line.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let (disk, Recovered { store, committer, recovery }) = opened(Path::new(&directory));
    let _thread = CommitThread::start(committer).unwrap();
    let space = space(&store);
    let snapshots = Snapshots::new(&disk, &recovery, 0);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for key in 0..WRITERS {
            let (store, written) = (&store, &written);
            scope.spawn(move || {
                for value in count(store, key) + 1.. {
                    let (name, bytes) = (key.to_le_bytes(), value.to_le_bytes());
                    let put = store.put(space, &name, &bytes, 0, None, 0).unwrap();
                    let position = remora_store::log::Position::from_number(put.version);
                    store.journal().wait(position).unwrap();
                    written.fetch_add(1, Ordering::Relaxed);
                    // In one write, so that no line is cut by the end of the process.
                    _ = std::io::stdout().write_all(format!("\n{key} {value}\n").as_bytes());
                }
            });
        }
        scope.spawn(|| {
            loop {
                let before = written.load(Ordering::Relaxed);
                while written.load(Ordering::Relaxed) < before + 50 {
                    std::thread::yield_now();
                }
                snapshots.save(&store, &|| 1).unwrap();
            }
        });
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_kill() {
    let temporary = Temporary::new("kill");
    let mut acknowledged = [0; WRITERS as usize];
    let mut snapshots = 0;
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, &temporary.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = 0;
        for line in lines.map_while(Result::ok) {
            let mut words = line.split(' ').map(str::parse::<u64>);
            if let (Some(Ok(key)), Some(Ok(value)), None) =
                (words.next(), words.next(), words.next())
            {
                acknowledged[key as usize] = value;
                seen += 1;
            }
            // What it says after this and before its end is read, too.
            if seen == 150 + round * 37 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let (_disk, Recovered { store, recovery, .. }) = opened(&temporary.0);
        for (key, value) in acknowledged.iter().enumerate() {
            let found = count(&store, key as u64);
            assert!(found >= *value, "round {round}, key {key}: {found} < {value}, {recovery:?}");
        }
        snapshots += u64::from(recovery.snapshot.is_some());
    }
    assert!(acknowledged.iter().all(|value| *value > 20), "{acknowledged:?}");
    assert!(snapshots > 3, "{snapshots}");
}
