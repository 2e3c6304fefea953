//! Transactions and crashes: all of one is there afterwards, or nothing.

#[path = "support/random.rs"]
mod random;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use random::Random;
use remora_store::disk::{Disk, Fault, Faulty};
use remora_store::front::served::Served;
use remora_store::front::server::{Options as ServerOptions, Server};
use remora_store::log::{
    self, CommitThread, Committer, Fields, Fsync, Log, Operation, Options, Parts, Position,
    Recovered, ReplayError, Replayed, SEGMENT_HEADER, open_log,
};
use remora_store::memory::Heap;
use remora_store::service::Logged;
use remora_store::snapshot::Snapshots;
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;

const MEMORY: u64 = 2 << 20;

fn options(fsync: Fsync) -> Options {
    Options { fsync, segment_bytes: 1 << 20, salt: 9, retry_ms: 10, ..Options::default() }
}

fn opened(disk: &Arc<Faulty>) -> Recovered<Heap, Faulty> {
    let own = store::Options::new(MEMORY, 5);
    log::open(disk, Heap::new(own.memory_len()), own, options(Fsync::Always), 0).unwrap()
}

/// The disk of a server which Redis' clients asked for this, and whose answers were these.
fn asked(requests: &str, answers: &str, threads: usize) -> Arc<Faulty> {
    let disk = Arc::new(Faulty::new(1));
    let Recovered { store, committer, recovery } = opened(&disk);
    let store = Arc::new(store);
    let thread = CommitThread::start(committer).unwrap();
    let snapshots = Arc::new(Snapshots::new(&disk, &recovery, 0));
    let keeper = Arc::new(Logged::new(Arc::clone(&store), snapshots));
    let keyspace = Arc::new(Served::new(store, MEMORY, TablespaceOptions::default()));
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let options = ServerOptions { redis: vec![any], threads, ..ServerOptions::default() };
    let server = Server::start(&options, keyspace, keeper).unwrap();
    let mut client = TcpStream::connect(server.redis()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(requests.as_bytes()).unwrap();
    let mut got = vec![0; answers.len()];
    client.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), answers);
    drop((server, thread));
    disk
}

fn log_file(disk: &Faulty) -> String {
    let mut names = disk.list().unwrap().into_iter().filter(|name| name.starts_with("log-"));
    names.next().unwrap()
}

fn value(store: &Store<Heap, Log>, key: &str) -> String {
    let mut value = Vec::new();
    if let Some(space) = store.tablespace("db0") {
        store.get(space, key.as_bytes(), 0, &mut value);
    }
    String::from_utf8(value).unwrap()
}

#[test]
fn a_log_cut_at_any_byte_has_all_of_a_transaction_or_nothing() {
    let requests = "MULTI\r\nSET a 1\r\nGET a\r\nINCR b\r\nEXEC\r\nMSET a 2 b 3\r\nRENAME a b\r\n\
                    MSETNX a 4 c 5\r\nMULTI\r\nDEL a b c\r\nAPPEND d 6\r\nEXEC\r\n";
    let answers = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n$1\r\n1\r\n:1\r\n+OK\r\n\
                   +OK\r\n:1\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:3\r\n:1\r\n";
    let states = ["   ", "1 1  ", "2 3  ", " 2  ", "4 2 5 ", "   6"];
    for threads in [1, 2] {
        let disk = asked(requests, answers, threads);
        let (name, mut seen) = (log_file(&disk), Vec::new());
        let length = disk.contents(&name).unwrap().len();
        for cut in SEGMENT_HEADER..=length {
            let disk = Arc::new(disk.copy(1));
            disk.damage(&name, |bytes| bytes.truncate(cut));
            let Recovered { store, recovery, .. } = opened(&disk);
            let state = ["a", "b", "c", "d"].map(|key| value(&store, key)).join(" ");
            assert!(states.contains(&&*state), "{state:?} at {cut} of {length}: {recovery:?}");
            if seen.last() != Some(&state) {
                seen.push(state);
            }
        }
        assert_eq!(seen, states, "each of them was there");
    }
}

fn put(value: &[u8]) -> Fields<'_> {
    Fields { operation: Operation::Put, key: b"key", value, ..Fields::synced() }
}

fn read_back(disk: &Arc<Faulty>, fsync: Fsync) -> (Log, Committer<Faulty>, Vec<u64>, Replayed) {
    let (log, mut read) = (Log::new(options(fsync)), Vec::new());
    let opened = open_log(disk, &log, Position::NONE, Parts::Whole, &mut |_, fields| {
        if fields.operation == Operation::Put {
            read.push(u64::from_le_bytes(*fields.value.first_chunk().unwrap()));
        }
        Ok(())
    });
    let (committer, replayed) = opened.unwrap();
    (log, committer, read, replayed)
}

/// A crash at any step of the disk, again and again; the committer has turns amid transactions.
#[test]
fn a_crash_leaves_whole_transactions_and_all_that_was_durable() {
    let (mut lost, mut crashed) = (0, 0);
    for seed in 0..400 {
        let fsync = [Fsync::Always, Fsync::EverySecond, Fsync::No][seed as usize % 3];
        let (disk, mut random) = (Arc::new(Faulty::new(seed)), Random(seed));
        let (mut log, mut committer, mut had, _) = read_back(&disk, fsync);
        // Each value is its transaction's number and how many come after it.
        let mut number = 0;
        for _ in 0..4 {
            disk.fault_at(disk.steps() + random.below(60), Fault::Crash);
            let (mut now_ms, mut durable) = (0, had.len());
            for _ in 0..60 {
                let count = random.below(4) + 1;
                number += 1;
                log.together(|| {
                    for left in (0..count).rev() {
                        let mut bytes = (number << 8 | left).to_le_bytes().to_vec();
                        let is_long = random.below(20) == 0;
                        bytes.resize(if is_long { 70_000 } else { 8 }, 7);
                        if log.append(&put(&bytes)).is_ok() {
                            had.push(number << 8 | left);
                        }
                        now_ms += random.below(900);
                        committer.turn(now_ms);
                    }
                });
                if random.below(2) == 0 {
                    committer.turn(now_ms);
                }
                if log.durable() == log.last() {
                    durable = had.len();
                }
            }
            crashed += u32::from(disk.crashed());
            disk.restart();
            let before = std::mem::take(&mut had);
            let (next, writes, read, replayed) = read_back(&disk, fsync);
            assert!(before.starts_with(&read) && read.len() >= durable, "seed {seed}");
            let is_whole = read.last().is_none_or(|last| last & 0xff == 0);
            assert!(is_whole, "seed {seed}: {read:x?}");
            lost += u32::from(replayed.torn.is_some_and(|torn| torn.reason.contains("no end")));
            (log, committer, had) = (next, writes, read);
        }
    }
    assert!(crashed > 500 && lost > 50, "{crashed} {lost}");
}

/// One that is too long to be kept until its end is read.
#[test]
fn a_long_transaction_is_whole_or_gone() {
    const WRITES: u64 = 40;
    let disk = Arc::new(Faulty::new(1));
    let (log, mut committer, ..) = read_back(&disk, Fsync::Always);
    let mut bytes = vec![7; 70_000];
    let mut write = |number: u64| {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        log.append(&put(&bytes)).unwrap();
    };
    write(0);
    log.together(|| (1..=WRITES).for_each(&mut write));
    committer.finish(1);
    let (.., read, replayed) = read_back(&disk.copy(1).into(), Fsync::Always);
    assert_eq!((read, replayed.torn), ((0..=WRITES).collect::<Vec<_>>(), None));
    let file = log_file(&disk);
    disk.damage(&file, |bytes| bytes.truncate(bytes.len() - 100_000));
    let (log, .., read, replayed) = read_back(&disk, Fsync::Always);
    assert_eq!((read, replayed.records), (vec![0], 1));
    assert!(replayed.torn.unwrap().reason.contains("no end"));
    assert_eq!(log.last().counter(), 1);
}

/// A disk that does not open a file once.
struct OpensAllBut {
    disk: Faulty,
    opened: AtomicU32,
    but: u32,
}

impl Disk for OpensAllBut {
    type File = <Faulty as Disk>::File;

    fn create(&self, name: &str) -> io::Result<Self::File> {
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Self::File> {
        match self.opened.fetch_add(1, Relaxed) == self.but {
            true => Err(io::Error::other("no more descriptors")),
            false => self.disk.open(name),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.disk.list()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.sync()
    }

    fn check(&self, file: Option<(&str, &Self::File)>) -> io::Result<()> {
        self.disk.check(file)
    }

    fn place(&self) -> String {
        self.disk.place()
    }
}

/// Where it cannot be told whether a long one has an end, nothing of it is carried out.
#[test]
fn a_long_transaction_that_cannot_be_read_ahead_is_an_error() {
    let disk = Arc::new(Faulty::new(1));
    let (log, mut committer, ..) = read_back(&disk, Fsync::Always);
    log.together(|| (0..40).for_each(|_| _ = log.append(&put(&[7; 70_000])).unwrap()));
    committer.finish(1);
    let file = log_file(&disk);
    disk.damage(&file, |bytes| bytes.truncate(bytes.len() - 100_000));
    let replay = |but| {
        let (mut count, opened) = (0, AtomicU32::new(0));
        let disk = OpensAllBut { disk: disk.copy(1), opened, but };
        let replayed = log::replay(&disk, Position::NONE, Parts::Whole, &mut |_, _| {
            count += 1;
            Ok(())
        });
        (replayed, count, disk.opened.into_inner())
    };
    let (replayed, count, opens) = replay(u32::MAX);
    assert_eq!((replayed.unwrap().records, count), (0, 0));
    for but in 0..opens {
        let (replayed, count, _) = replay(but);
        assert!(matches!(replayed, Err(ReplayError::Io { .. })), "{but}: {replayed:?}");
        assert_eq!(count, 0, "{but}");
    }
    assert!(opens > 1);
}

/// What others log meanwhile waits for the transaction's end, and a panic is one.
#[test]
fn nothing_is_written_amid_a_transaction() {
    let disk = Arc::new(Faulty::new(1));
    let (log, mut committer, ..) = read_back(&disk, Fsync::Always);
    log.together(|| {
        log.append(&put(&[0; 8])).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| log.append(&put(&[1; 8])).unwrap());
        });
        committer.turn(1);
        assert_eq!(log.durable(), Position::NONE);
    });
    committer.turn(2);
    assert_eq!((log.durable(), log.last().counter()), (log.last(), 3));
    let panicked = std::panic::catch_unwind(|| {
        log.together(|| {
            log.append(&put(&[2; 8])).unwrap();
            panic!("amid a transaction");
        })
    });
    assert!(panicked.is_err());
    committer.turn(3);
    assert_eq!((log.durable(), log.last().counter()), (log.last(), 5));
    log.together(|| ());
    assert_eq!(log.last().counter(), 5, "one without changes logs nothing");
}
