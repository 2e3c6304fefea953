//! memcached's binary protocol: 24 bytes of header, extras, key, value.

use crate::front::keyspace::{ChangeRefused, Expiry, Found};
use crate::front::memcached::chunk::VERSION;
use crate::front::memcached::conversation::{Call, Taken};
use crate::front::memcached::numbers::end;
use crate::front::memcached::operations::{
    self, Adding, KEY_BYTES, Mode, Outcome, Storing, longest,
};
use crate::front::memcached::statistics;
use crate::stats::Op;

/// The first byte of a request.
pub(super) const REQUEST: u8 = 0x80;
const RESPONSE: u8 = 0x81;
const HEADER: usize = 24;
/// The longest body that a client may send before it has logged in, in bytes.
const STRANGER_BYTES: usize = 2048;
/// An end that says: make no item.
const NEVER_MADE: u32 = u32::MAX;

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
enum Status {
    Done = 0,
    NotFound = 1,
    Exists = 2,
    TooLarge = 3,
    Invalid = 4,
    NotStored = 5,
    NoNumber = 6,
    LogIn = 0x20,
    Unknown = 0x81,
    NoMemory = 0x82,
    Internal = 0x84,
}

impl Status {
    fn text(self) -> &'static [u8] {
        match self {
            Status::Done => b"",
            Status::NotFound => b"Not found",
            Status::Exists => b"Data exists for key.",
            Status::TooLarge => b"Too large.",
            Status::Invalid => b"Invalid arguments",
            Status::NotStored => b"Not stored.",
            Status::NoNumber => b"Non-numeric server-side value for incr or decr",
            Status::LogIn => b"Auth failure.",
            Status::Unknown => b"Unknown command",
            Status::NoMemory => b"Out of memory",
            Status::Internal => b"Internal error",
        }
    }
}

fn status(refused: &ChangeRefused) -> Status {
    match refused {
        ChangeRefused::Key { .. } => Status::Invalid,
        ChangeRefused::Value { .. } => Status::TooLarge,
        ChangeRefused::Memory(_) => Status::NoMemory,
        ChangeRefused::Log(_) | ChangeRefused::Other(_) => Status::Internal,
    }
}

fn outcome_status(outcome: &Outcome) -> Status {
    match outcome {
        Outcome::Done(_) => Status::Done,
        Outcome::NotStored => Status::NotStored,
        Outcome::Exists => Status::Exists,
        Outcome::NotFound => Status::NotFound,
        Outcome::Refused(refused) => status(refused),
    }
}

/// A whole request.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    /// The op-code as it came, and without its quiet form.
    opcode: u8,
    loud: u8,
    extras: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
    opaque: [u8; 4],
    version: u64,
}

impl Request<'_> {
    fn is_quiet(&self) -> bool {
        self.opcode != self.loud
    }

    fn u32(&self, at: usize) -> u32 {
        self.extras
            .get(at..at + 4)
            .map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    /// The version that it must have, if one is named.
    fn compared(&self) -> Option<u64> {
        (self.version != 0).then_some(self.version)
    }
}

/// The op-code that does the same and always answers.
fn loud(opcode: u8) -> u8 {
    match opcode {
        0x09 => 0x00,
        0x0d => 0x0c,
        0x11..=0x16 => opcode - 0x10,
        0x17 => 0x07,
        0x18 => 0x08,
        0x19 | 0x1a => opcode - 0x0b,
        0x1e => 0x1d,
        0x24 => 0x23,
        other => other,
    }
}

/// The lengths that a request of this op-code has: of its extras (one of two), and whether it has a
/// key and a value. None: the op-code is not known.
fn shape(loud: u8) -> Option<([usize; 2], bool, Option<bool>)> {
    Some(match loud {
        0x00 | 0x0c | 0x04 => ([0, 0], true, Some(false)),
        0x01..=0x03 => ([8, 8], true, None),
        0x05 | 0x06 => ([20, 20], true, Some(false)),
        0x07 | 0x0a | 0x0b => ([0, 0], false, Some(false)),
        0x08 => ([0, 4], false, Some(false)),
        0x0e | 0x0f => ([0, 0], true, None),
        0x1b => ([4, 4], false, Some(false)),
        0x1c | 0x1d | 0x23 => ([4, 4], true, Some(false)),
        _ => return None,
    })
}

/// The key of a request, as far as that has come.
pub(super) fn key_of(request: &[u8]) -> &[u8] {
    let Some(header) = request.first_chunk::<HEADER>() else { return &[] };
    let start = HEADER + usize::from(header[4]);
    let end = start + usize::from(u16::from_be_bytes([header[2], header[3]]));
    request.get(start..end).unwrap_or_default()
}

/// Carries out the request that `input` begins with, if it is whole.
pub(super) fn run(call: &mut Call<'_>, input: &[u8]) -> Taken {
    if input[0] != REQUEST {
        call.turn.counts.protocol_errors.add(1);
        return Taken::Close;
    }
    let Some(header) = input.first_chunk::<HEADER>() else {
        return Taken::Wants(HEADER - input.len());
    };
    let u16_at = |at: usize| usize::from(u16::from_be_bytes([header[at], header[at + 1]]));
    let (key_len, extras_len) = (u16_at(2), usize::from(header[4]));
    let body = u32::from_be_bytes([header[8], header[9], header[10], header[11]]) as usize;
    let opcode = header[1];
    let mut request = Request {
        opcode,
        loud: loud(opcode),
        extras: &[],
        key: &[],
        value: &[],
        opaque: [header[12], header[13], header[14], header[15]],
        version: u64::from_be_bytes([
            header[16], header[17], header[18], header[19], header[20], header[21], header[22],
            header[23],
        ]),
    };
    if key_len + extras_len > body || header[5] != 0 {
        fail(call, &request, Status::Invalid);
        call.turn.counts.protocol_errors.add(1);
        return Taken::Close;
    }
    let too_long = body - key_len - extras_len > longest(call.turn);
    if too_long || !call.state.is_known && body > STRANGER_BYTES || key_len > KEY_BYTES {
        let status = if too_long { Status::TooLarge } else { Status::Invalid };
        let key_at = HEADER + extras_len;
        if call.state.is_known && request.loud == 0x01 && key_len <= KEY_BYTES {
            // As in memcached: a client that fails to replace a value does not want the old one,
            // if that is the one which it knows.
            let Some(key) = input.get(key_at..key_at + key_len) else {
                return Taken::Wants(key_at + key_len - input.len());
            };
            operations::delete(call.turn, call.ts, key, request.compared());
        }
        fail(call, &request, status);
        if !call.state.is_known {
            return Taken::Close;
        }
        return Taken::Request(HEADER + body, Op::Other);
    }
    if input.len() < HEADER + body {
        return Taken::Wants(HEADER + body - input.len());
    }
    let body_bytes = &input[HEADER..HEADER + body];
    request.extras = &body_bytes[..extras_len];
    request.key = &body_bytes[extras_len..extras_len + key_len];
    request.value = &body_bytes[extras_len + key_len..];
    match dispatch(call, &request) {
        Some(op) => Taken::Request(HEADER + body, op),
        None => Taken::Close,
    }
}

/// Carries out a request. None: the connection ends.
fn dispatch(call: &mut Call<'_>, request: &Request<'_>) -> Option<Op> {
    if matches!(request.opcode, 0x20..=0x22) {
        log_in(call, request);
        return Some(Op::Other);
    }
    if !call.state.is_known {
        fail(call, request, Status::LogIn);
        return None;
    }
    if request.opcode == 0x10 {
        stat(call, request);
        return Some(Op::Other);
    }
    let Some((extras, has_key, has_value)) = shape(request.loud) else {
        fail(call, request, Status::Unknown);
        return Some(Op::Other);
    };
    let fits = extras.contains(&request.extras.len())
        && has_key != request.key.is_empty()
        && has_value.is_none_or(|has| has != request.value.is_empty());
    if !fits {
        fail(call, request, Status::Invalid);
        return Some(Op::Other);
    }
    Some(match request.loud {
        0x00 | 0x0c | 0x1d | 0x23 => get(call, request),
        0x01 | 0x02 | 0x03 | 0x0e | 0x0f => store(call, request),
        0x04 => delete(call, request),
        0x05 | 0x06 => add(call, request),
        0x07 => {
            done(call, request, 0);
            return None;
        }
        0x08 => flush(call, request),
        0x0b => {
            answer(call, request, Status::Done, 0, &[], &[], VERSION.as_bytes());
            Op::Other
        }
        0x1c => touch(call, request),
        _ => {
            done(call, request, 0);
            Op::Other
        }
    })
}

/// Writes an answer.
fn answer(
    call: &mut Call<'_>,
    request: &Request<'_>,
    status: Status,
    version: u64,
    extras: &[u8],
    key: &[u8],
    value: &[u8],
) {
    let body = extras.len() + key.len() + value.len();
    let out = &mut *call.out;
    out.extend_from_slice(&[RESPONSE, request.opcode]);
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(&[extras.len() as u8, 0]);
    out.extend_from_slice(&(status as u16).to_be_bytes());
    out.extend_from_slice(&(body as u32).to_be_bytes());
    out.extend_from_slice(&request.opaque);
    out.extend_from_slice(&version.to_be_bytes());
    [extras, key, value].into_iter().for_each(|part| out.extend_from_slice(part));
}

/// Answers that it was done, unless the request is quiet.
fn done(call: &mut Call<'_>, request: &Request<'_>, version: u64) {
    if !request.is_quiet() {
        answer(call, request, Status::Done, version, &[], &[], &[]);
    }
}

fn fail(call: &mut Call<'_>, request: &Request<'_>, status: Status) {
    call.turn.counts.errors.add(1);
    answer(call, request, status, 0, &[], &[], status.text());
}

fn finish(call: &mut Call<'_>, request: &Request<'_>, outcome: &Outcome) {
    match outcome {
        Outcome::Done(version) => done(call, request, *version),
        other => fail(call, request, outcome_status(other)),
    }
}

fn get(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    let touches = matches!(request.loud, 0x1d | 0x23);
    let with_key = matches!(request.loud, 0x0c | 0x23);
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let read = if touches {
        let expires_ms = end(i64::from(request.u32(0)), call.turn.now);
        operations::get_and_touch(call.turn, call.ts, request.key, (expires_ms, true), &mut value)
    } else {
        Ok(operations::get(call.turn, call.ts, request.key, &mut value))
    };
    match read {
        Ok(Some(Found { version, flags, .. })) => {
            let key = if with_key { request.key } else { &[] };
            answer(call, request, Status::Done, version, &flags.to_be_bytes(), key, &value);
        }
        Ok(None) if request.is_quiet() => {}
        Ok(None) if with_key => {
            answer(call, request, Status::NotFound, 0, &[], request.key, &[]);
        }
        Ok(None) => fail(call, request, Status::NotFound),
        Err(refused) => fail(call, request, status(&refused)),
    }
    call.turn.scratch = value;
    if touches { Op::Touch } else { Op::Get }
}

fn store(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    let mode = match request.loud {
        0x01 => Mode::Set,
        0x02 => Mode::Add,
        0x03 => Mode::Replace,
        0x0e => Mode::Append,
        _ => Mode::Prepend,
    };
    let storing = Storing {
        mode,
        key: request.key,
        value: request.value,
        flags: request.u32(0),
        expiry: Expiry::asked(end(i64::from(request.u32(4)), call.turn.now)),
        version: request.compared(),
        made: None,
    };
    let outcome = operations::store(call.turn, call.ts, &storing);
    let outcome = match (mode, outcome) {
        (Mode::Add, Outcome::NotStored) => Outcome::Exists,
        (Mode::Replace, Outcome::NotStored) => Outcome::NotFound,
        (_, outcome) => outcome,
    };
    finish(call, request, &outcome);
    if mode == Mode::Set { Op::Put } else { Op::Update }
}

fn delete(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    let outcome = operations::delete(call.turn, call.ts, request.key, request.compared());
    match outcome {
        Outcome::Done(_) => done(call, request, 0),
        other => fail(call, request, outcome_status(&other)),
    }
    Op::Delete
}

fn add(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    let makes = request.u32(16) != NEVER_MADE;
    let expires_ms = end(i64::from(request.u32(16)), call.turn.now);
    let adding = Adding {
        key: request.key,
        delta: request.u64(0),
        decrements: request.loud == 0x06,
        initial: makes.then(|| (request.u64(8), expires_ms)),
        expires_ms: None,
        version: request.compared(),
    };
    match operations::add(call.turn, call.ts, &adding) {
        None => fail(call, request, Status::NoNumber),
        Some((Outcome::Done(version), number, _)) if !request.is_quiet() => {
            answer(call, request, Status::Done, version, &[], &[], &number.to_be_bytes());
        }
        Some((Outcome::Done(_), ..)) => {}
        Some((other, ..)) => fail(call, request, outcome_status(&other)),
    }
    Op::Update
}

fn flush(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    match operations::flush(call.turn, call.ts, i64::from(request.u32(0))) {
        Ok(()) => done(call, request, 0),
        Err(refused) => fail(call, request, status(&refused)),
    }
    Op::Delete
}

fn touch(call: &mut Call<'_>, request: &Request<'_>) -> Op {
    let expires_ms = end(i64::from(request.u32(0)), call.turn.now);
    let outcome = operations::touch(call.turn, call.ts, request.key, expires_ms);
    finish(call, request, &outcome);
    Op::Touch
}

fn stat(call: &mut Call<'_>, request: &Request<'_>) {
    if !request.extras.is_empty() || !request.value.is_empty() {
        return fail(call, request, Status::Invalid);
    }
    if request.key == b"reset" {
        call.turn.server.reset_counts();
    } else {
        let Some(entries) = statistics::entries(call, request.key) else {
            return fail(call, request, Status::NotFound);
        };
        for (name, value) in entries {
            answer(call, request, Status::Done, 0, &[], name.as_bytes(), value.as_bytes());
        }
    }
    answer(call, request, Status::Done, 0, &[], &[], &[]);
}

/// SASL: the list of its mechanisms, and PLAIN, whose value is `identity NUL user NUL password`.
fn log_in(call: &mut Call<'_>, request: &Request<'_>) {
    if request.opcode == 0x20 {
        return answer(call, request, Status::Done, 0, &[], &[], b"PLAIN");
    }
    call.turn.counts.auth_cmds.add(1);
    let word = request.value.splitn(3, |byte| *byte == 0).nth(2).unwrap_or_default();
    let is_plain = request.opcode == 0x21 && request.key == b"PLAIN";
    if is_plain && call.turn.server.settings.is_password(word) {
        call.state.is_known = true;
        return answer(call, request, Status::Done, 0, &[], &[], b"Authenticated");
    }
    call.turn.counts.auth_refused.add(1);
    fail(call, request, Status::LogIn);
}
