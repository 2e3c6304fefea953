//! Meta commands, and what memcached itself answers to them, where it is installed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use remora_store::front::keyspace::{Forgetful, Keyspace};
use remora_store::front::memcached::session::Session;
use remora_store::front::served::Served;
use remora_store::front::server_state::{ServerState, Turn};
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{self, Store};
use remora_store::tablespace::TablespaceOptions;

use crate::judges::skip;
use crate::{Client, PATIENCE, options, serve};

/// What is asked of both.
const META: &str = include_str!("meta.txt");
const TEXT: &str = include_str!("text.txt");

/// A session on a clock of its own.
struct Talk {
    session: Session,
    turn: Turn,
}

impl Talk {
    fn new() -> Talk {
        let [talk] = Talk::several();
        talk
    }

    /// Sessions on one store, each for a thread.
    fn several<const N: usize>() -> [Talk; N] {
        let made = store::Options { traced: Some("memcached"), ..store::Options::new(1 << 20, 7) };
        let store = Store::new(Heap::new(made.memory_len()), Unlogged::default(), made).unwrap();
        let spaces = TablespaceOptions::default();
        let keyspace: Arc<dyn Keyspace> = Arc::new(Served::new(Arc::new(store), 1 << 20, spaces));
        let server = Arc::new(ServerState::new(keyspace, Arc::new(Forgetful), N, false));
        [(); N].map(|()| Talk { session: Session::new(&server), turn: Turn::new(server.clone()) })
    }

    /// Asks now.
    fn answer(&mut self, request: &str) -> String {
        let mut out = Vec::new();
        self.session.run(&mut self.turn, request.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    }

    /// Asks at that second.
    #[track_caller]
    fn ask(&mut self, second: u64, request: &str, answer: &str) {
        self.turn.now = (1_000_000 + second) * 1000;
        let mut out = Vec::new();
        self.session.run(&mut self.turn, request.as_bytes(), &mut out);
        assert_eq!(String::from_utf8_lossy(&out), answer, "{request}");
    }
}

#[test]
fn an_item_says_when_it_was_used_last() {
    let mut talk = Talk::new();
    talk.ask(0, "set k 0 0 1\r\n1\r\n", "STORED\r\n");
    talk.ask(3, "mg k l h u\r\nmg k l h\r\n", "HD l3 h0\r\nHD l3 h0\r\n");
    talk.ask(5, "mg k h l\r\nmg k h l\r\n", "HD h1 l2\r\nHD h1 l0\r\n");
    // All other reads count, and so does moving the end.
    talk.ask(10, "get k\r\nmg k l\r\n", "VALUE k 0 1\r\n1\r\nEND\r\nHD l0\r\n");
    talk.ask(20, "touch k 0\r\nmg k l\r\n", "TOUCHED\r\nHD l0\r\n");
    talk.ask(30, "gat 0 k\r\nmg k l\r\n", "VALUE k 0 1\r\n1\r\nEND\r\nHD l0\r\n");
    talk.ask(40, "mg k l T0 u\r\nmg k l T0\r\nmg k l\r\n", "HD l10\r\nHD l10\r\nHD l0\r\n");
    // A new value was never read; a number that gets no longer is no new one.
    talk.ask(50, "incr k 1\r\nmg k h u l\r\n", "2\r\nHD h1 l0\r\n");
    talk.ask(50, "incr k 10\r\nmg k h u\r\n", "12\r\nHD h0\r\n");
    talk.ask(51, "mg k v\r\nms k 1\r\nx\r\nmg k h l u\r\n", "VA 2\r\n12\r\nHD\r\nHD h0 l0\r\n");
    talk.ask(52, "mg n N30 h l\r\nmg n h l\r\n", "HD h0 l0 W\r\nHD h1 l0 Z\r\n");
    talk.ask(53, "mg m N30 u\r\nmg m h\r\n", "HD W\r\nHD h0 Z\r\n");
    talk.ask(
        60,
        "ms t 1 T100\r\nx\r\nme t\r\n",
        "HD\r\nME t exp=-100 la=0 cas=12 fetch=no cls=1 size=42\r\n",
    );
}

/// A version that is stale is so from its beginning: nobody sees it as a good one first.
#[test]
fn a_stale_version_is_never_seen_as_a_good_one() {
    let [mut one, mut other] = Talk::several();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..20_000 {
                one.answer("ms k 1\r\nx\r\n");
                let answer = one.answer("md k I q\r\nmn\r\n");
                assert!(answer.ends_with("MN\r\n"), "{round}: {answer}");
            }
            is_over.store(true, SeqCst);
        });
        // The last version that was seen without a mark.
        let mut good = String::new();
        while !is_over.load(SeqCst) {
            let answer = other.answer("mg k c\r\n");
            let mut words = answer.split_ascii_whitespace().skip(1);
            let Some(version) = words.next() else { continue };
            if words.any(|word| word == "X") {
                assert_ne!(version, good, "it was no stale one before");
            } else {
                good = version.to_owned();
            }
        }
    });
}

/// memcached, at a socket in a directory of its own.
struct Memcached {
    child: Child,
    directory: std::path::PathBuf,
}

impl Memcached {
    /// None, with a word, if it is not installed.
    fn start(name: &str) -> Option<(Memcached, UnixStream)> {
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("socket");
        let mut command = Command::new("memcached");
        command.arg("-s").arg(&socket).args(["-t", "1", "-u", "root", "-I", "1m"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let Ok(child) = child else {
            std::fs::remove_dir_all(&directory).unwrap();
            skip("memcached");
            return None;
        };
        let mut own = Memcached { child, directory };
        let since = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(why) => assert!(since.elapsed() < PATIENCE, "memcached: {why}"),
            }
            assert!(own.child.try_wait().unwrap().is_none(), "memcached has ended");
            std::thread::sleep(Duration::from_millis(5));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some((own, stream))
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The answers to a request, up to that of the `mn` behind it.
fn answers(stream: &mut (impl Read + Write), request: &str) -> String {
    stream.write_all(format!("{request}mn\r\n").as_bytes()).unwrap();
    let mut got = Vec::new();
    while !(got == b"MN\r\n" || got.ends_with(b"\nMN\r\n")) {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{request}: {:?}", crate::shown(&got));
        got.push(byte[0]);
    }
    String::from_utf8(got).unwrap()
}

/// What two servers may answer differently: versions, and what a second more changes.
fn plain(answer: &str, version: &mut String) -> String {
    let word = |word: &str| match word.split_at_checked(1) {
        Some(("c", number)) if number != "0" && number.bytes().all(|b| b.is_ascii_digit()) => {
            *version = number.to_owned();
            "c#".to_owned()
        }
        Some(("t", number)) => match number.parse::<u64>() {
            Ok(seconds) => format!("t{}", seconds.next_multiple_of(10)),
            Err(_) => word.to_owned(),
        },
        Some(("l", "0" | "1" | "2")) => "l#".to_owned(),
        _ => word.to_owned(),
    };
    let mut words = word;
    let lines = answer.split("\r\n").map(|line| {
        let words: Vec<String> = line.split(' ').map(&mut words).collect();
        words.join(" ")
    });
    lines.collect::<Vec<String>>().join("\r\n")
}

#[track_caller]
fn assert_same(name: &str, requests: &str) {
    let Some((_memcached, mut theirs)) = Memcached::start(name) else { return };
    let server = serve(&options());
    let mut ours = Client::memcached(&server);
    let (mut wrong, mut versions) = (Vec::new(), [String::new(), String::new()]);
    for request in requests.lines().filter(|line| !line.starts_with('#')) {
        let of = |version: &str| request.replace('|', "\r\n").replace("{c}", version) + "\r\n";
        let got =
            [answers(&mut theirs, &of(&versions[0])), answers(&mut ours.0, &of(&versions[1]))];
        let [theirs, ours] = [0, 1].map(|which| plain(&got[which], &mut versions[which]));
        if theirs != ours {
            wrong.push(format!("{request:?}: memcached {theirs:?}, here {ours:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} answers:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn answers_are_those_of_memcached() {
    assert_same("remora-meta", META);
}

#[test]
fn words_and_numbers_are_those_of_memcached() {
    assert_same("remora-text", TEXT);
}
