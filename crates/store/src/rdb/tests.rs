//! RDB files: Redis' own bytes, every cut and flipped bit, and versions that are not known.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;

use super::*;

#[path = "../../../remora/tests/support/skips.rs"]
mod skips;
#[path = "../../../remora/tests/support/until.rs"]
mod until;

use until::until_ok;

type Strings = BTreeMap<(u64, Vec<u8>), (Vec<u8>, Option<u64>)>;

fn read_all(bytes: &[u8]) -> Result<(Strings, RdbReport), RdbError> {
    let mut reader = RdbReader::new(bytes)?;
    let mut strings = Strings::new();
    while let Some(entry) = reader.next()? {
        let key = (entry.database, entry.key.to_vec());
        strings.insert(key, (entry.value.to_vec(), entry.expires_ms));
    }
    Ok((strings, reader.report().clone()))
}

fn written(strings: &Strings) -> Vec<u8> {
    let mut writer = RdbWriter::new(Vec::new()).unwrap();
    for ((database, key), (value, expires_ms)) in strings {
        writer.put(*database, key, value, *expires_ms).unwrap();
    }
    writer.finish().unwrap()
}

/// A file with the checksum that its bytes need.
fn summed(body: &[u8]) -> Vec<u8> {
    let mut bytes = body.to_vec();
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Redis, body);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn sample() -> Strings {
    Strings::from([
        ((0, b"a".to_vec()), (b"1".to_vec(), None)),
        ((0, b"".to_vec()), (vec![b'x'; 70], Some(1_700_000_000_123))),
        ((15, vec![0xff; 100]), (vec![7; 20_000], None)),
    ])
}

#[test]
fn the_bytes_of_a_file_are_as_redis_writes_them() {
    let strings = Strings::from([((3, b"key".to_vec()), (b"v".to_vec(), Some(0x0102)))]);
    let body = b"REDIS0009\xfe\x03\xfc\x02\x01\0\0\0\0\0\0\0\x03key\x01v\xff";
    assert_eq!(written(&strings), summed(body));
}

/// The published check value of CRC-64 (Jones), and of a file that Redis wrote.
#[test]
fn the_checksum_is_that_of_redis() {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Redis, b"123456789");
    assert_eq!(sum, 0xe9c6_d914_c4b8_d9ca);
}

#[test]
fn every_way_of_writing_a_string_is_read() {
    let mut body = b"REDIS0011\xfa\x03abc\x01d\xfb\x02\x00\xfe\x00".to_vec();
    body.extend_from_slice(b"\x00\x01a\xc0\xfb"); // -5 in a byte
    body.extend_from_slice(b"\x00\x01b\xc1\x00\x80"); // -32768 in two
    body.extend_from_slice(b"\x00\x01c\xc2\xff\xff\xff\x7f"); // 2147483647 in four
    body.extend_from_slice(b"\xf8\x05\x00\x01d\xc3\x07\x0d\x00a\xe0\x03\x00\x00b"); // LZF
    body.extend_from_slice(b"\xf9\x07\xfd\x01\0\0\0\x00\xc0\x09\x80\0\0\0\x02xy"); // seconds
    body.push(0xff);
    // The LZF above says 13 bytes and gives 14: one that is right first.
    let refused = read_all(&summed(&body)).unwrap_err();
    assert!(refused.to_string().contains("longer than it says"), "{refused}");
    let lzf = body.windows(3).position(|window| window == b"\xc3\x07\x0d").unwrap();
    body[lzf + 2] = 14;
    let (strings, report) = read_all(&summed(&body)).unwrap();
    let value = |key: &[u8]| String::from_utf8(strings[&(0, key.to_vec())].0.clone()).unwrap();
    assert_eq!([value(b"a"), value(b"b"), value(b"c")], ["-5", "-32768", "2147483647"]);
    assert_eq!(value(b"d"), "aaaaaaaaaaaaab");
    assert_eq!(strings[&(0, b"9".to_vec())], (b"xy".to_vec(), Some(1000)));
    assert_eq!((report.version, report.strings, report.checked), (11, 5, true));
    assert_eq!((report.too_long, report.skipped.len()), (0, 0));
}

#[test]
fn a_file_without_a_checksum_is_read_and_said_to_have_none() {
    let mut bytes = b"REDIS0010\xfe\x00\x00\x01k\x01v\xff".to_vec();
    bytes.extend_from_slice(&[0; 8]);
    let (strings, report) = read_all(&bytes).unwrap();
    assert_eq!((strings.len(), report.checked), (1, false));
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let bytes = written(&Strings::from([
        ((0, b"a".to_vec()), (b"1".to_vec(), None)),
        ((1, b"b".to_vec()), (vec![b'x'; 70], Some(1_700_000_000_123))),
    ]));
    for cut in 0..bytes.len() {
        let refused = read_all(&bytes[..cut]).unwrap_err();
        let cut_or_magic = matches!(refused, RdbError::Cut(_) | RdbError::Magic);
        assert!(cut_or_magic, "cut at {cut}: {refused}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        // Redis does not tell a file's version from a later or an earlier one's either, but by it
        // and the checksum.
        assert!(read_all(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn versions_and_types_that_are_not_known_are_named() {
    let version = read_all(b"REDIS0099\xff").unwrap_err().to_string();
    assert!(version.contains("version 99"), "{version}");
    assert!(matches!(read_all(b"REDISabcd\xff"), Err(RdbError::Magic)));
    assert!(matches!(read_all(b"PK\x03\x04 and so on"), Err(RdbError::Magic)));
    let kind = read_all(b"REDIS0011\x63\x01k").unwrap_err();
    assert!(matches!(kind, RdbError::Type { kind: 0x63, at: 9 }), "{kind}");
}

#[test]
fn what_is_longer_than_the_store_takes_is_skipped_and_counted() {
    let mut strings = sample();
    let long = vec![b'k'; crate::log::MAX_KEY + 1];
    strings.insert((0, long), (b"v".to_vec(), Some(5)));
    strings.insert((0, b"v".to_vec()), (vec![b'v'; crate::item::VALUE_MAX + 1], None));
    let (read, report) = read_all(&written(&strings)).unwrap();
    assert_eq!(read, sample());
    assert_eq!(report.too_long, 2);
    // A length that is a lie costs nothing.
    let lie = b"REDIS0011\x00\x01k\x81\xff\xff\xff\xff\xff\xff\xff\xff....";
    assert!(matches!(read_all(lie), Err(RdbError::Cut(_))));
    let lie = b"REDIS0011\x0e\x01k\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00";
    assert!(matches!(read_all(lie), Err(RdbError::Cut(_))));
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        strings: BTreeMap<(u8, Vec<u8>), (Vec<u8>, Option<u64>)>
    ) {
        let strings: Strings = strings
            .into_iter()
            .map(|((database, key), value)| ((u64::from(database), key), value))
            .collect();
        let (read, report) = read_all(&written(&strings)).unwrap();
        prop_assert_eq!(report.strings, strings.len() as u64);
        prop_assert_eq!(read, strings);
    }
}

/// A file that Redis 7.0.15 saved: strings of each kind in two databases, and a key of each other
/// type, a stream with a group and a consumer among them.
const SAVED: &[u8] = include_bytes!("../../tests/data/redis-7.0.15.rdb");

#[test]
fn a_file_that_redis_saved_is_read() {
    let (strings, report) = read_all(SAVED).unwrap();
    assert_eq!(strings, expected());
    let skipped: Vec<_> = report.skipped.iter().map(|(name, count)| (*name, *count)).collect();
    assert_eq!(
        skipped,
        [("function", 1), ("hash", 2), ("list", 2), ("set", 3), ("stream", 1), ("zset", 2)]
    );
    assert_eq!((report.version, report.checked), (10, true));
}

const EXPIRES_MS: u64 = 4_102_444_800_123;

/// The strings of [`commands`].
fn expected() -> Strings {
    let long: Vec<u8> = (0..1000).map(|at| b"abcde"[at / 7 % 5]).collect();
    let mixed: Vec<u8> = (0..3000u32).map(|at| ((at * at) >> 3) as u8).collect();
    Strings::from([
        ((0, b"short".to_vec()), (b"value".to_vec(), None)),
        ((0, b"empty".to_vec()), (b"".to_vec(), None)),
        ((0, b"int8".to_vec()), (b"-100".to_vec(), None)),
        ((0, b"int16".to_vec()), (b"30000".to_vec(), None)),
        ((0, b"int32".to_vec()), (b"-2000000000".to_vec(), None)),
        ((0, b"int64".to_vec()), (b"9000000000000000000".to_vec(), None)),
        ((0, b"long".to_vec()), (long, None)),
        ((0, b"mixed".to_vec()), (mixed, None)),
        ((0, b"\0\xff\r\n".to_vec()), (b"\0\xff\r\n".to_vec(), None)),
        ((5, b"expires".to_vec()), (b"later".to_vec(), Some(EXPIRES_MS))),
    ])
}

/// What made the file: `cargo test -p remora-store write_the_rdb_fixture -- --ignored`.
fn commands() -> Vec<Vec<Vec<u8>>> {
    let words = |line: &str| -> Vec<Vec<u8>> {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    };
    let mut commands: Vec<_> = expected()
        .into_iter()
        .filter(|((database, _), _)| *database == 0)
        .map(|((_, key), (value, _))| vec![b"SET".to_vec(), key, value])
        .collect();
    let lines = "RPUSH list a b 1\nSADD ints 1 2 3\nSADD words a b\nZADD zset 1.5 a -inf b\n\
        HSET hash f v g 2\nXADD stream 1-1 a b\nXADD stream 2-1 c d\n\
        XGROUP CREATE stream group 0\nXREADGROUP GROUP group me COUNT 1 STREAMS stream >\n\
        CONFIG SET set-max-intset-entries 1\nCONFIG SET hash-max-listpack-entries 1\n\
        CONFIG SET zset-max-listpack-entries 1\nCONFIG SET list-max-listpack-size 1\n\
        SADD table x y z\nHSET table2 a b c d\nZADD skiplist 1 a 2 b\nRPUSH quicklist a b c\n\
        SELECT 5";
    commands.extend(lines.lines().map(words));
    commands.push(words(&format!("SET expires later PXAT {EXPIRES_MS}")));
    let library = "#!lua name=l\nredis.register_function('f', function() return 1 end)";
    commands.push(vec![b"FUNCTION".to_vec(), b"LOAD".to_vec(), library.as_bytes().to_vec()]);
    commands.push(vec![b"SAVE".to_vec()]);
    commands
}

/// A real server that listens on a socket in a directory of its own, and ends with this.
struct Redis {
    process: Child,
    directory: PathBuf,
}

/// Debian's package `redis-tools` has the server's program under another name, which the program
/// looks at; `redis-server` adds a name and a service.
const SERVERS: [&str; 2] = ["/usr/bin/redis-server", "/usr/bin/redis-check-rdb"];

impl Redis {
    /// None where it is not installed, but under CI.
    fn start(name: &str, dump: Option<&[u8]>) -> Option<(Redis, UnixStream)> {
        let Some(program) = SERVERS.into_iter().find(|path| Path::new(path).exists()) else {
            skips::has_not("neither redis-server nor redis-tools is installed");
            return None;
        };
        let name = format!("remora-rdb-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        if let Some(dump) = dump {
            std::fs::write(directory.join("dump.rdb"), dump).unwrap();
        }
        let socket = directory.join("socket");
        let process = Command::new(program)
            .arg0("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(&directory)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut redis = Redis { process, directory };
        let stream = until_ok("redis-server listens", || {
            let ended = redis.process.try_wait().unwrap();
            let stream = UnixStream::connect(&socket);
            assert!(stream.is_ok() || ended.is_none(), "redis-server has ended: {ended:?}");
            stream
        });
        Some((redis, stream))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        _ = self.process.kill();
        _ = self.process.wait();
        _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Sends a command, and answers the reply's first line, and the bulk string after it.
fn ask(stream: &mut UnixStream, words: &[Vec<u8>]) -> (String, Vec<u8>) {
    let mut request = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        request.extend_from_slice(word);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request).unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap().trim_end().to_owned();
    let length = line.strip_prefix('$').and_then(|length| length.parse().ok());
    let mut bulk = vec![0; length.map_or(0, |length: usize| length + 2)];
    stream.read_exact(&mut bulk).unwrap();
    bulk.truncate(length.unwrap_or(0));
    (line, bulk)
}

/// Runs [`commands`] on a server, one connection each, and answers what it saved.
fn saved(redis: &Redis) -> Vec<u8> {
    let mut stream = UnixStream::connect(redis.directory.join("socket")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for command in commands() {
        if command[0] == b"XREADGROUP" {
            // Its reply is nested: it goes over a connection of its own, whose end is enough.
            let mut other = UnixStream::connect(redis.directory.join("socket")).unwrap();
            ask(&mut other, &command);
            continue;
        }
        let (line, _) = ask(&mut stream, &command);
        assert!(!line.starts_with('-'), "{command:?}: {line}");
    }
    std::fs::read(redis.directory.join("dump.rdb")).unwrap()
}

#[test]
#[ignore = "writes tests/data/redis-7.0.15.rdb"]
fn write_the_rdb_fixture() {
    let (redis, _stream) = Redis::start("fixture", None).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("redis-7.0.15.rdb"), saved(&redis)).unwrap();
}

#[test]
fn what_the_installed_redis_saves_is_read() {
    let Some((redis, _stream)) = Redis::start("saves", None) else { return };
    let (strings, report) = read_all(&saved(&redis)).unwrap();
    assert_eq!(strings, expected());
    assert!(report.checked && report.skipped.len() == 6, "{report:?}");
}

#[test]
fn the_installed_redis_loads_what_we_write() {
    let mut strings = expected();
    strings.insert((9, vec![b'k'; 20_000]), (vec![0xfe; 200_000], None));
    let Some((_redis, mut stream)) = Redis::start("loads", Some(&written(&strings))) else {
        return;
    };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut databases = BTreeMap::<u64, usize>::new();
    for ((database, key), (value, expires_ms)) in &strings {
        *databases.entry(*database).or_default() += 1;
        ask(&mut stream, &[b"SELECT".to_vec(), database.to_string().into_bytes()]);
        assert_eq!(&ask(&mut stream, &[b"GET".to_vec(), key.clone()]).1, value);
        let time = expires_ms.map_or(-1, |ms| ms as i64);
        let (line, _) = ask(&mut stream, &[b"PEXPIRETIME".to_vec(), key.clone()]);
        assert_eq!(line, format!(":{time}"));
    }
    for (database, count) in databases {
        ask(&mut stream, &[b"SELECT".to_vec(), database.to_string().into_bytes()]);
        assert_eq!(ask(&mut stream, &[b"DBSIZE".to_vec()]).0, format!(":{count}"));
    }
}

/// What Redis 7.0 answers to `DUMP` where the value is 10.
const TEN: &[u8] = b"\x00\xc0\n\n\x00n\x9fWE\x0e\xaec\xbb";

fn restored(payload: &[u8]) -> Result<Vec<u8>, PayloadError> {
    let mut value = b"before".to_vec();
    restore(payload, &mut value)?;
    Ok(value)
}

fn dumped(value: &[u8]) -> Vec<u8> {
    let mut payload = b"before".to_vec();
    dump(value, &mut payload);
    payload.split_off(6)
}

#[test]
fn a_payload_gives_its_value_and_nothing_else_does() {
    assert_eq!(restored(TEN).unwrap(), b"10");
    for len in [0, 1, 63, 64, 0x3fff, 0x4000, 100_000] {
        let value = vec![b'v'; len];
        assert_eq!(restored(&dumped(&value)).unwrap(), value);
    }
    let payload = dumped(b"value");
    for cut in 0..payload.len() {
        assert_eq!(restored(&payload[..cut]), Err(PayloadError::Seal), "{cut} bytes");
    }
    for bit in 0..payload.len() * 8 {
        let mut flipped = payload.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(restored(&flipped), Err(PayloadError::Seal), "bit {bit}");
    }
    for (body, error) in [
        (&b"\x00\x01v\x0d\x00"[..], PayloadError::Seal),
        (b"\x0c\x00", PayloadError::Format),
        (b"\x01\x01v\x09\x00", PayloadError::Format),
        (b"\x00\x02v\x09\x00", PayloadError::Format),
        (b"\x00\x01vw\x09\x00", PayloadError::Format),
        (b"\x00\xc4v\x09\x00", PayloadError::Format),
        (b"\x00\x81\x7f\0\0\0\0\0\0\0v\x09\x00", PayloadError::Format),
        (b"\x00\xc3\x02\x81\x00\x00\x00\x00\x7f\x00\x00\x00ab\x09\x00", PayloadError::TooLong),
    ] {
        assert_eq!(restored(&summed(body)), Err(error), "{}", body.escape_ascii());
    }
}

#[test]
fn the_installed_redis_and_we_take_each_others_payloads() {
    let Some((_redis, mut stream)) = Redis::start("dumps", None) else { return };
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let long: Vec<u8> = (0..200_000u32).map(|at| (at / 700) as u8).collect();
    for value in [&b""[..], b"7", b"-300", b"70000", b"12345678901", b"text", &long] {
        ask(&mut stream, &[b"SET".to_vec(), b"k".to_vec(), value.to_vec()]);
        let (_, payload) = ask(&mut stream, &[b"DUMP".to_vec(), b"k".to_vec()]);
        assert_eq!(restored(&payload).unwrap(), value);
        let words = [b"RESTORE".to_vec(), b"l".to_vec(), b"0".to_vec(), dumped(value)];
        let replace = [&words[..], &[b"REPLACE".to_vec()]].concat();
        assert_eq!(ask(&mut stream, &replace).0, "+OK");
        assert_eq!(ask(&mut stream, &[b"GET".to_vec(), b"l".to_vec()]).1, value);
    }
}

proptest! {
    #[test]
    fn a_payload_of_any_bytes_is_refused_or_gives_a_value(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        is_string in any::<bool>(),
        version in 0u16..16,
    ) {
        prop_assert!(restored(&bytes).is_err());
        let kind: &[u8] = if is_string { &[STRING] } else { &[] };
        let sealed = summed(&[kind, &bytes, &version.to_le_bytes()].concat());
        match restored(&sealed) {
            Ok(value) => prop_assert_eq!(restored(&dumped(&value)).unwrap(), value),
            Err(error) => prop_assert!(error != PayloadError::Seal || u32::from(version) > NEWEST),
        }
    }
}
