//! Answers beside those of Redis itself, where it is installed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use remora::nic::split_mix::SplitMix;

use crate::judges::skip;
use crate::{Client, PATIENCE, options, serve, shown};

/// What is asked: requests, of which a line has one or, between bars, several.
const REQUESTS: &str = include_str!("redis.txt");

/// Debian's package `redis-tools` has the server's program under another name, which the program
/// looks at; `redis-server` adds a name and a service.
const SERVERS: [&str; 2] = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];

/// Redis, at a socket in a directory of its own.
struct Redis {
    child: Child,
    directory: PathBuf,
}

impl Redis {
    /// None, with a word, if it is not installed.
    fn start(name: &str) -> Option<(Redis, UnixStream)> {
        let Some(program) = SERVERS.into_iter().find(|path| Path::new(path).exists()) else {
            skip("redis-server");
            return None;
        };
        let directory = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let socket = directory.join("socket");
        let mut command = Command::new(program);
        command.arg0("redis-server").args(["--port", "0", "--save", "", "--unixsocket"]);
        command.arg(&socket).arg("--dir").arg(&directory);
        command.args(["--proto-max-bulk-len", "16mb", "--maxmemory-policy", "allkeys-lru"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let mut own = Redis { child, directory };
        let since = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(why) => assert!(since.elapsed() < PATIENCE, "redis-server: {why}"),
            }
            assert!(own.child.try_wait().unwrap().is_none(), "redis-server has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Some((own, stream))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The answers to requests, up to that of an `ECHO` behind them.
fn answers(stream: &mut (impl Read + Write), requests: &str) -> Vec<u8> {
    const END: &[u8] = b"$7\r\nthe end\r\n";
    stream.write_all(format!("{requests}\r\nECHO \"the end\"\r\n").as_bytes()).unwrap();
    let (mut got, mut piece) = (Vec::new(), [0; 4096]);
    while !got.ends_with(END) {
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "{requests}: {:?}", shown(&got));
        got.extend_from_slice(&piece[..count]);
    }
    got.truncate(got.len() - END.len());
    got
}

#[track_caller]
fn assert_same<'a>(name: &str, requests: impl Iterator<Item = &'a str>) {
    let Some((_redis, mut theirs)) = Redis::start(name) else { return };
    let server = serve(&options());
    let mut ours = Client::redis(&server);
    let mut wrong = Vec::new();
    for line in requests {
        let request = &line.replace('|', "\r\n");
        let [theirs, ours] = [answers(&mut theirs, request), answers(&mut ours.0, request)];
        if theirs != ours {
            let [theirs, ours] = [shown(&theirs), shown(&ours)];
            wrong.push(format!("{line:?}: Redis {theirs}, here {ours}"));
        }
    }
    assert!(wrong.is_empty(), "{} answers:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn answers_are_those_of_redis() {
    assert_same("remora-beside", REQUESTS.lines().filter(|line| !line.starts_with('#')));
}

/// Options of `SET` and `GETEX`, right and wrong ones: two that need a number lack it.
const OPTIONS: [&str; 14] = [
    "NX",
    "xx",
    "GET",
    "KEEPTTL",
    "persist",
    "EX 100",
    "ex 200",
    "PX 300400",
    "EXAT 9999999999",
    "PXAT 9999999999999",
    "EX x",
    "PX 0",
    "EXAT",
    "what",
];

/// All options stand in any order, and each order says the same error of what is wrong.
#[test]
fn options_in_any_order_are_those_of_redis() {
    let one = OPTIONS.map(str::to_owned);
    let longer = |shorter: &[String]| -> Vec<String> {
        let with = |before: &String| OPTIONS.map(|option| format!("{before} {option}"));
        shorter.iter().flat_map(with).collect()
    };
    let two = longer(&one);
    let three = longer(&two);
    let requests: Vec<String> = [&one[..], &two, &three]
        .concat()
        .into_iter()
        .flat_map(|options| {
            let set = format!("SET k new {options}|GET k|TTL k");
            let getex = format!("GETEX k {options}|TTL k");
            let here = "SET k old PX 9000400|";
            [
                format!("{here}{set}"),
                format!("DEL k|{set}"),
                format!("{here}{getex}"),
                format!("DEL k|{getex}"),
            ]
        })
        .collect();
    assert_same("remora-options", requests.iter().map(String::as_str));
}

/// Random requests.
struct Random(SplitMix);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.number()
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A place among so many, from either end, or just beyond.
    fn place(&mut self, count: i64) -> i64 {
        self.below(2 * count as u64 + 7) as i64 - count - 3
    }

    fn key(&mut self) -> &'static str {
        self.of(&["a", "b", "c", "none"])
    }

    /// A string in quotes, of which many bits are alike.
    fn value(&mut self) -> String {
        let usual = self.of(&["\\x00", "\\xff", "\\x5a"]);
        let len = self.below(40);
        let byte = |random: &mut Random| match random.below(4) {
            0 => format!("\\x{:02x}", random.below(256)),
            _ => usual.to_owned(),
        };
        format!("\"{}\"", (0..len).map(|_| byte(self)).collect::<String>())
    }

    fn step(&mut self) -> String {
        let bits = 1 + self.below(63);
        let kind = format!("{}{bits}", self.of(&["i", "u"]));
        let mark = self.of(&["", "#"]);
        let offset = self.below(if mark.is_empty() { 250 } else { 6 });
        let overflow = self.of(&["", "OVERFLOW SAT ", "OVERFLOW FAIL ", "OVERFLOW WRAP "]);
        // Redis takes numbers near the ends of 64 bits for such at the other end.
        let great = self.of(&[3, 300, 1 << 20, 1 << 40, 1 << 61]);
        let number = self.below(2 * great) as i64 - great as i64;
        match self.below(3) {
            0 => format!(" GET {kind} {mark}{offset}"),
            1 => format!(" {overflow}SET {kind} {mark}{offset} {number}"),
            _ => format!(" {overflow}INCRBY {kind} {mark}{offset} {number}"),
        }
    }

    fn request(&mut self) -> String {
        let (key, other) = (self.key(), self.key());
        let unit = self.of(&[("", 40), (" BYTE", 40), (" BIT", 320)]);
        let range = format!("{} {}{}", self.place(unit.1), self.place(unit.1), unit.0);
        match self.below(8) {
            0 => format!("SET {key} {}", self.value()),
            1 => format!("DEL {key}"),
            2 => format!("BITCOUNT {key} {range}"),
            3 => format!("BITPOS {key} {} {range}", self.below(2)),
            4 => format!("BITPOS {key} {} {}", self.below(2), self.place(40)),
            5 => {
                let operator = self.of(&["AND", "OR", "XOR", "NOT"]);
                let more = self.of(&["", " a", " a b", " b b none", " a a a c", " none none"]);
                let more = if operator == "NOT" { "" } else { more };
                format!("BITOP {operator} {} {key}{more}|GET {other}", self.key())
            }
            _ => {
                let steps: String = (0..=self.below(3)).map(|_| self.step()).collect();
                format!("BITFIELD {key}{steps}|GET {key}")
            }
        }
    }
}

/// What is done with bits is what Redis does, whatever the values are.
#[test]
fn bits_are_those_of_redis() {
    let mut random = Random(SplitMix::new(7));
    let requests: Vec<String> = (0..20_000).map(|_| random.request()).collect();
    assert_same("remora-bits", requests.iter().map(String::as_str));
}
