//! memcached's protocols: any bytes, in pieces of any size. Requests that memcache-proto
//! understands are read as it reads them, and all answers of kinds that it knows are such as it
//! understands.

use memcache_proto::binary::{BinaryCommand, BinaryRequest, Opcode, ParsedBinaryResponse, Status};
use memcache_proto::{Command, Response};
use remora_store::front::memcached::session::Session;

use crate::fronts::{feed, with_turn};
use crate::seeds::Seed;

/// The length of a binary header, in bytes.
const HEADER: usize = 24;

/// The first byte says how long the pieces are; the rest is what a client sends.
///
/// # Panics
/// If answers are not whole, or differ when the bytes come in pieces, or if a request or an answer
/// is another one to the oracle.
pub fn memcached(data: &[u8]) {
    let Some((piece, input)) = data.split_first() else { return };
    let answers = |piece: usize| {
        let mut answers = Vec::new();
        with_turn(|turn| {
            let mut session = Session::new(&turn.server);
            answers = feed(input, piece, |input, out| session.run(turn, input, out));
        });
        answers
    };
    let whole = answers(input.len().max(1));
    let in_pieces = answers(usize::from(*piece).max(1));
    if input.first() == Some(&0x80) {
        let kinds = framed(&whole);
        if !kinds.iter().any(|(opcode, ..)| *opcode == 0x10) {
            assert_eq!(framed(&in_pieces), kinds);
        }
    } else {
        readable(&whole);
    }
    first_request(input);
}

/// Lines that the oracle does not know begin so.
const UNKNOWN: [&[u8]; 12] = [
    b"TOUCHED", b"RESET", b"STAT ", b"ERROR: ", b"HD", b"VA ", b"EN", b"EX", b"NF", b"NS", b"MN",
    b"ME ",
];

/// Reads all answers in text.
fn readable(mut answers: &[u8]) {
    while !answers.is_empty() {
        let len = Response::parse(answers).map(|(_, len)| len);
        let len = len.unwrap_or_else(|error| {
            let known = UNKNOWN.iter().any(|begin| answers.starts_with(begin));
            assert!(known, "{error}: {}", answers.escape_ascii());
            let line = answers.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
            let mut words = answers[..line - 2].split(|byte| *byte == b' ');
            match (words.next(), words.next()) {
                (Some(b"VA"), Some(len)) => {
                    let len = std::str::from_utf8(len).ok().and_then(|len| len.parse().ok());
                    line + len.unwrap_or(0) + 2
                }
                _ => line,
            }
        });
        answers = &answers[len..];
    }
}

/// A request that stores a value and nothing else.
struct Storing<'a> {
    key: &'a [u8],
    value: &'a [u8],
    flags: u32,
}

/// The bytes of the first request, if the oracle reads it and the store is to read it so, too; and
/// what it stores, if that is all that it does.
fn read(input: &[u8]) -> Option<(usize, Option<Storing<'_>>)> {
    if input.first() == Some(&0x80) {
        let (command, len) = BinaryCommand::parse(input).ok()?;
        // The oracle takes any data type; there is none but 0.
        if input[5] != 0 {
            return None;
        }
        let storing = match command {
            BinaryCommand::Set { key, value, flags, expiration: 0, cas: 0, .. }
            | BinaryCommand::Add { key, value, flags, expiration: 0, .. } => {
                // Of an Add the oracle does not tell the version.
                let alone = input[16..24] == [0; 8] && input[4] == 8;
                Some(Storing { key, value, flags }).filter(|_| alone)
            }
            _ => None,
        };
        return Some((len, storing));
    }
    let (command, len) = Command::parse(input).ok()?;
    let line = input.split(|byte| *byte == b'\n').next()?;
    let words = line.split(|byte| *byte == b' ').count();
    // The oracle takes names in capitals, and words behind the last.
    let wanted = match command {
        Command::Set { .. } | Command::Add { .. } | Command::Replace { .. } => 5,
        Command::Append { .. } | Command::Prepend { .. } => 5,
        Command::Cas { .. } => 6,
        Command::Get { .. } | Command::Gets { .. } => words,
        _ => return None,
    };
    if !line.first()?.is_ascii_lowercase() || words != wanted {
        return None;
    }
    let storing = match command {
        Command::Set { key, flags, exptime: 0, data } => Some((key, flags, data)),
        Command::Add { key, flags, exptime: 0, data } => Some((key, flags, data)),
        _ => None,
    };
    Some((len, storing.map(|(key, flags, value)| Storing { key, value, flags })))
}

/// Compares the first request with what the oracle reads, and what it stores with what is there.
fn first_request(input: &[u8]) {
    let Some((len, storing)) = read(input) else { return };
    with_turn(|turn| {
        let (mut session, mut answers) = (Session::new(&turn.server), Vec::new());
        let cut = session.run(turn, &input[..len - 1], &mut answers).used;
        assert!(
            cut == 0 && answers.is_empty(),
            "without its last byte: {}",
            answers.escape_ascii()
        );
        let used = session.run(turn, &input[..len], &mut answers).used;
        assert_eq!(used, len, "{}", answers.escape_ascii());
        let Some(Storing { key, value, flags }) = storing else { return };
        if !(1..=250).contains(&key.len()) {
            return;
        }
        let mut request = vec![0; HEADER + key.len()];
        BinaryRequest::encode_getk(&mut request, key, 9);
        answers.clear();
        Session::new(&turn.server).run(turn, &request, &mut answers);
        match ParsedBinaryResponse::parse(&answers) {
            Ok((ParsedBinaryResponse::Value { flags: is, key: of, value: there, .. }, _)) => {
                assert_eq!((is, of, there), (flags, Some(key), value));
            }
            other => panic!("{other:?}"),
        }
    });
}

/// The op-code, status and length of each answer.
fn framed(mut answers: &[u8]) -> Vec<(u8, u16, u32)> {
    let mut kinds = Vec::new();
    while !answers.is_empty() {
        assert!(answers.len() >= HEADER && answers[0] == 0x81, "{}", answers.escape_ascii());
        let len = u32::from_be_bytes([answers[8], answers[9], answers[10], answers[11]]);
        let (key, extras) = (u16::from_be_bytes([answers[2], answers[3]]), answers[4]);
        assert!(u32::from(key) + u32::from(extras) <= len);
        let is_known = Opcode::from_u8(answers[1]).is_some()
            && Status::from_u16(u16::from_be_bytes([answers[6], answers[7]])).is_some();
        match ParsedBinaryResponse::parse(answers) {
            Ok((_, used)) => assert_eq!(used, HEADER + len as usize),
            Err(error) => assert!(!is_known, "{error}: {}", answers.escape_ascii()),
        }
        kinds.push((answers[1], u16::from_be_bytes([answers[6], answers[7]]), len));
        answers = &answers[HEADER + len as usize..];
    }
    kinds
}

fn binary(opcode: u8) -> Seed {
    let (extras, key, value): (&[u8], &[u8], &[u8]) = match opcode {
        0x01..=0x03 | 0x11..=0x13 => (&[0; 8], b"key", b"value"),
        0x05 | 0x06 | 0x15 | 0x16 => (&[0; 20], b"n", b""),
        0x0e | 0x0f | 0x19 | 0x1a => (b"", b"key", b"more"),
        0x1b..=0x1e | 0x23 | 0x24 => (&[0; 4], b"key", b""),
        0x21 => (b"", b"PLAIN", b"\0user\0word"),
        0x07 | 0x08 | 0x0a | 0x0b | 0x10 | 0x17 | 0x18 | 0x20 => (b"", b"", b""),
        _ => (b"", b"key", b""),
    };
    let mut data = vec![0x40];
    // A value first, so that the request finds one.
    for (opcode, extras, key, value) in
        [(0x01, &[0; 8][..], &b"key"[..], &b"v"[..]), (opcode, extras, key, value)]
    {
        data.extend([0x80, opcode, 0, key.len() as u8, extras.len() as u8, 0, 0, 0]);
        data.extend(((extras.len() + key.len() + value.len()) as u32).to_be_bytes());
        data.extend([0; 12]);
        [extras, key, value].into_iter().for_each(|part| data.extend_from_slice(part));
    }
    Seed { name: format!("binary-{opcode:02x}"), data }
}

/// A request of each kind.
pub fn memcached_requests() -> Vec<Seed> {
    let lines = [
        "set k 1 0 3|abc",
        "add k 0 0 1|x",
        "replace k 0 60 1|x",
        "append k 0 0 1|x",
        "prepend k 0 0 1|x",
        "cas k 0 0 1 1|x",
        "get k k",
        "gets k",
        "gat 10 k",
        "gats 10 k",
        "incr k 1",
        "decr k 1",
        "touch k 10",
        "delete k noreply",
        "stats",
        "stats settings",
        "flush_all 10",
        "version",
        "verbosity 1",
        "quit",
        "mn",
        "mg k s v t f c k O1 q",
        "mg k h l u T9 P1 L2",
        "mg k N30 R30 T30",
        "ms k 1 T9 F3 I|x",
        "ms Zm9v 1 b k MA N10|x",
        "md k q I T10",
        "ma n N0 J5 D2 MI t c v",
        "me k",
        "set k 0 0 99999999|x",
        "set k 0 0 -1",
    ];
    let mut seeds: Vec<_> = lines
        .iter()
        .map(|line| {
            let first = "set k 0 0 1\r\n1\r\n";
            let data = format!("\u{5}{first}{}\r\n", line.replace('|', "\r\n")).into_bytes();
            let name = line.replace(|letter: char| !letter.is_alphanumeric(), "-");
            Seed { name, data }
        })
        .collect();
    seeds.extend((0x00..=0x24).map(binary));
    seeds
}
