//! What is kept on a disk: answers that wait for it, and saves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use remora_store::front::keyspace::{Awaited, Keeper};

use remora_store::front::server::Options;

use crate::{Client, options, serve_with};

/// Says when it was waited for, and fails when it is told to.
#[derive(Debug, Default)]
struct Disk {
    waited: AtomicU64,
    fails: AtomicBool,
    /// Up to where answers may show what is not on the disk yet.
    unsynced: AtomicU64,
    /// Saves that were begun.
    saves: AtomicU64,
}

impl Keeper for Disk {
    fn is_awaited(&self) -> bool {
        true
    }

    fn is_kept(&self, awaited: &Awaited) -> Result<bool, String> {
        self.waited.fetch_max(awaited.version, SeqCst);
        if self.fails.load(SeqCst) { Err("the disk is full".to_owned()) } else { Ok(true) }
    }

    fn refuses(&self) -> Option<String> {
        self.fails.load(SeqCst).then(|| "the disk is full".to_owned())
    }

    fn seen(&self) -> u64 {
        self.unsynced.load(SeqCst)
    }

    fn save(&self, is_in_background: bool) -> Result<(), String> {
        if !is_in_background {
            return Err("no directory".to_owned());
        }
        self.saves.fetch_add(1, SeqCst);
        Ok(())
    }

    fn saved_s(&self) -> u64 {
        42
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        vec![("aof_enabled", "1".to_owned())]
    }
}

#[test]
fn answers_wait_for_the_log() {
    let disk = Arc::new(Disk::default());
    let server = serve_with(&options(), disk.clone());
    let mut client = Client::redis(&server);
    client.ask("SET k 1\r\n", "+OK\r\n");
    let first = disk.waited.load(SeqCst);
    assert!(first > 0);
    client.ask("GET k\r\nLASTSAVE\r\nSAVE\r\n", "$1\r\n1\r\n:42\r\n-ERR no directory\r\n");
    assert_eq!(disk.waited.load(SeqCst), first, "a read of what is on the disk waits for nothing");
    // Another client's change is not on the disk: nobody is told of it before.
    disk.unsynced.store(first + 10, SeqCst);
    client.ask("PING\r\n", "+PONG\r\n");
    assert_eq!(disk.waited.load(SeqCst), first);
    client.ask("GET k\r\n", "$1\r\n1\r\n");
    assert_eq!(disk.waited.load(SeqCst), first + 10);
    disk.unsynced.store(first + 20, SeqCst);
    client.ask("SCAN 0 MATCH no\r\n", "*2\r\n$1\r\n0\r\n*0\r\n");
    assert_eq!(disk.waited.load(SeqCst), first + 20);
    disk.unsynced.store(first + 30, SeqCst);
    Client::memcached(&server).ask("get none\r\n", "END\r\n");
    assert_eq!(disk.waited.load(SeqCst), first + 30);
    disk.fails.store(true, SeqCst);
    client.ask("SET k 2\r\n", "-MISCONF the log cannot be written: the disk is full\r\n");
    client.expect_end("");
    let mut client = Client::memcached(&server);
    client.ask(
        "set k 0 0 1\r\nx\r\n",
        "SERVER_ERROR the log cannot be written: the disk is full\r\n",
    );
    client.expect_end("");
}

/// A group of nodes: what it has kept, what answers about keys wait for, and what it was told of
/// last that answers wait for, and when.
#[derive(Debug, Default)]
struct Majority {
    kept: AtomicU64,
    seen: AtomicU64,
    last: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl Keeper for Majority {
    fn is_awaited(&self) -> bool {
        true
    }

    fn hasten(&self, version: u64) {
        self.last.store(version, SeqCst);
        *self.told.lock().unwrap() = Some(Instant::now());
    }

    fn is_kept(&self, awaited: &Awaited) -> Result<bool, String> {
        if Some(awaited.from) < *self.told.lock().unwrap() && awaited.version == self.last() {
            return Err("it waits for longer than the majority has known of it".to_owned());
        }
        Ok(awaited.version <= self.kept.load(SeqCst))
    }

    fn seen(&self) -> u64 {
        self.seen.load(SeqCst)
    }

    fn save(&self, _: bool) -> Result<(), String> {
        Ok(())
    }

    fn saved_s(&self) -> u64 {
        0
    }

    fn entries(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

impl Majority {
    fn last(&self) -> u64 {
        self.last.load(SeqCst)
    }
}

/// An answer waits for its own changes, not for those of others that came before it, and from when
/// the log was told, however long the commands of the turn have taken.
#[test]
fn answers_wait_for_nobody_elses_changes() {
    let majority = Arc::new(Majority::default());
    let server = serve_with(&Options { threads: 1, ..options() }, majority.clone());
    let (mut writer, mut reader) = (Client::redis(&server), Client::redis(&server));
    majority.kept.store(u64::MAX, SeqCst);
    writer.ask("SET old 1\r\n", "+OK\r\n");
    let first = majority.last();
    assert!(first > 0);
    majority.kept.store(first, SeqCst);
    majority.seen.store(first, SeqCst);
    writer.send("SET new 1\r\n");
    while majority.last() == first {
        std::thread::yield_now();
    }
    reader.ask("GET old\r\nDBSIZE\r\n", "$1\r\n1\r\n:2\r\n");
    majority.kept.store(u64::MAX, SeqCst);
    writer.expect("+OK\r\n");
}

/// A server whose disk refuses has changes that it would lose.
#[test]
fn a_shutdown_is_refused_while_the_disk_refuses() {
    let disk = Arc::new(Disk::default());
    let server = serve_with(&options(), disk.clone());
    disk.fails.store(true, SeqCst);
    let mut client = Client::redis(&server);
    let refused = "-ERR Errors trying to SHUTDOWN: the disk is full. SHUTDOWN NOSAVE ends it \
                   anyway\r\n";
    client.ask("SHUTDOWN\r\n", refused);
    assert!(!server.is_stopping());
    client.send("SHUTDOWN NOSAVE\r\n");
    client.expect_end("");
    assert!(server.is_stopping());
}

/// As in Redis, a transaction may ask for a save, and is told so in other words.
#[test]
fn a_transaction_may_begin_a_save() {
    let disk = Arc::new(Disk::default());
    let server = serve_with(&options(), disk.clone());
    let mut client = Client::redis(&server);
    client.ask("BGSAVE\r\nBGSAVE SCHEDULE\r\n", "+Background saving started\r\n".repeat(2));
    client.ask("MULTI\r\nSET k v\r\nBGSAVE\r\n", "+OK\r\n+QUEUED\r\n+QUEUED\r\n");
    assert_eq!(disk.saves.load(SeqCst), 2);
    client.ask("EXEC\r\n", "*2\r\n+OK\r\n+Background saving scheduled\r\n");
    assert_eq!(disk.saves.load(SeqCst), 3);
}
