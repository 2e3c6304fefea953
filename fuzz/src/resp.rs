//! Redis' protocol: any bytes, in pieces of any size. Requests that redis-protocol understands are
//! read as it reads them, and all replies are such as it understands.

use redis_protocol::resp2::decode::decode as decode2;
use redis_protocol::resp2::types::OwnedFrame;
use redis_protocol::resp3::decode::complete::decode as decode3;
use remora_store::front::redis::request::{Progress, Reader, RequestLimits};
use remora_store::front::redis::session::Session;

use crate::fronts::{feed, with_turn};
use crate::seeds::Seed;

const LIMITS: RequestLimits =
    RequestLimits { arguments: 1 << 20, bulk_bytes: 1 << 24, request_bytes: 1 << 26 };
/// The oracle takes lengths of its own view; requests with longer ones are not compared.
const COMPARED: usize = 1 << 20;

/// The first byte says how long the pieces are; the rest is what a client sends.
///
/// # Panics
/// If a request is read in another way in pieces than as a whole, or than the oracle reads it, or
/// if a reply cannot be read.
pub fn resp(data: &[u8]) {
    let Some((piece, input)) = data.split_first() else { return };
    let piece = usize::from(*piece).max(1);
    requests(input, piece);
    with_turn(|turn| {
        let mut session = Session::detached(&turn.server);
        let replies = feed(input, piece, |input, out| session.run(turn, input, out));
        readable(&replies);
    });
}

type Requests = Vec<Vec<Vec<u8>>>;

fn requests(input: &[u8], piece: usize) {
    let whole = read(input, input.len().max(1));
    assert_eq!(read(input, piece), whole, "in pieces of {piece}");
    let Ok(Some((OwnedFrame::Array(frames), len))) = decode2(input) else { return };
    let strings: Option<Vec<_>> = frames
        .iter()
        .map(|frame| match frame {
            OwnedFrame::BulkString(bytes) => Some(bytes.clone()),
            _ => None,
        })
        .collect();
    if let (Some(strings), true, (found, refused)) = (strings, len < COMPARED, whole) {
        // A number that Redis does not write, such as +3 or 03, is refused here.
        let first = found.first();
        assert!(first == Some(&strings) || first.is_none() && refused, "{strings:?} {found:?}");
    }
}

/// All requests, and whether the bytes were refused after them.
fn read(input: &[u8], piece: usize) -> (Requests, bool) {
    let (mut reader, mut found, mut start, mut end) = (Reader::default(), Vec::new(), 0, 0);
    loop {
        match reader.read(&input[start..end], &LIMITS, false) {
            Err(_) => return (found, true),
            Ok(Progress::Whole(used)) => {
                let arguments = reader.arguments(&input[start..end]);
                found.push(arguments.from(0).map(<[u8]>::to_vec).collect());
                reader.next();
                assert!(used > 0 && used <= end - start);
                start += used;
            }
            Ok(Progress::Wants(_)) if end == input.len() => return (found, false),
            Ok(Progress::Wants(_)) => end = (end + piece).min(input.len()),
        }
    }
}

/// Replies are of the second version, and of the third after a HELLO.
pub(crate) fn readable(mut replies: &[u8]) {
    while !replies.is_empty() {
        let second = decode2(replies).ok().flatten().map(|(_, len)| len);
        let len = second.or_else(|| decode3(replies).ok().flatten().map(|(_, len)| len));
        let len = len.unwrap_or_else(|| panic!("no reply: {}", replies.escape_ascii()));
        replies = &replies[len..];
    }
}

/// A request of each kind, as a person types it.
const REQUESTS: [&str; 53] = [
    "SET k v",
    "SET k v NX GET EX 10",
    "SET k 1 IFEQ v",
    "GET k",
    "GETEX k PERSIST",
    "MSET a 1 b 2",
    "MGET a b c",
    "MSETNX a 1 d 2",
    "INCR n",
    "INCRBY n 5",
    "INCRBYFLOAT n 0.5",
    "APPEND k xyz",
    "SETRANGE k 5 x",
    "GETRANGE k 0 -1",
    "STRLEN k",
    "DELEX k IFEQ v",
    "EXPIRE k 10 NX",
    "PEXPIREAT k 1 GT",
    "TTL k",
    "PERSIST k",
    "DEL a b",
    "EXISTS a",
    "RENAME a b",
    "COPY a b DB 1 REPLACE",
    "SCAN 0 MATCH * COUNT 5",
    "REMORA.SCAN db0 0 SCHEMA a\tu8 WHERE a<9 SELECT a",
    "REMORA.GET k SCHEMA a\tu8 WHERE a<9 SELECT a",
    "REMORA.SCAN db0 0 SCHEMA t\ttext WHERE t\tlike\t$1 PARAMETERS 1 %x%y% COUNT 5",
    "KEYS *[a-c]?",
    "RANDOMKEY",
    "TYPE k",
    "OBJECT ENCODING k",
    "MEMORY USAGE k",
    "DBSIZE",
    "SELECT 1",
    "FLUSHALL ASYNC",
    "HELLO 3",
    "CLIENT LIST",
    "CLIENT SETNAME x",
    "CONFIG GET *",
    "CONFIG SET timeout 0",
    "INFO all",
    "COMMAND DOCS get",
    "COMMAND GETKEYS mset a b",
    "SLOWLOG GET",
    "LCS a b",
    "SETBIT k 7 1",
    "BITCOUNT k 0 -1 BIT",
    "DIGEST k",
    "AUTH a b",
    "RESET",
    "PING",
    "QUIT",
];

/// A request of each kind.
pub fn resp_requests() -> Vec<Seed> {
    let mut seeds: Vec<_> = REQUESTS.into_iter().map(of_line).collect();
    let typed = "\u{1}WATCH k\r\nMULTI\r\nSET \"k\\x41\" 'v'\r\nGET k\r\nEXEC\r\n";
    seeds.push(Seed { name: "typed-transaction".to_owned(), data: typed.into() });
    seeds
}

/// A request as a client's library sends it, behind the byte that chooses how it is cut.
fn of_line(line: &str) -> Seed {
    let words: Vec<_> = line.split(' ').collect();
    let mut data = format!("\u{40}*{}\r\n", words.len()).into_bytes();
    for word in &words {
        data.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    let name = line.to_lowercase().replace(|letter: char| !letter.is_alphanumeric(), "-");
    Seed { name, data }
}
