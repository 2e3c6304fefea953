//! memcached's protocol of text lines.

use crate::front::keyspace::Expiry;
use crate::front::memcached::chunk::{BAD_LINE, Chunk, NO_NUMBER, VERSION, chunk};
use crate::front::memcached::conversation::{Call, Taken, Words};
use crate::front::memcached::numbers::{end, signed, unsigned, unsigned_32};
use crate::front::memcached::operations::{
    self, Adding, KEY_BYTES, Mode, Outcome, Storing, longest,
};
use crate::front::memcached::{dump, meta, statistics};
use crate::stats::Op;

/// The longest line, in bytes.
const LINE_BYTES: usize = 64 * 1024;
/// The longest line that asks for values, in bytes: it may name thousands of keys.
const GET_BYTES: usize = 1 << 20;
/// The longest value that a line may announce, in bytes; what is too long to be stored is passed
/// over.
const LENGTH_MAX: u64 = i32::MAX as u64 - 2;
/// The answer to a time that is none.
const NO_TIME: &[u8] = b"CLIENT_ERROR invalid exptime argument";
/// The longest value that a client may send before it has logged in, in bytes.
const STRANGER_BYTES: u64 = 2048;

pub(super) const STORE: Words = Words {
    done: b"STORED",
    not_stored: b"NOT_STORED",
    exists: b"EXISTS",
    not_found: b"NOT_FOUND",
};
const DELETE: Words = Words { done: b"DELETED", ..STORE };
const TOUCH: Words = Words { done: b"TOUCHED", ..STORE };

/// The words of a line.
pub(super) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Carries out the request that `input` begins with, if it is whole.
pub(super) fn run(call: &mut Call<'_>, input: &[u8]) -> Taken {
    let unread = input.get(call.state.looked..).unwrap_or_default();
    let Some(found) = memchr::memchr(b'\n', unread) else {
        let gets = call.state.is_known && (input.starts_with(b"get") || input.starts_with(b"gat"));
        if input.len() > if gets { GET_BYTES } else { LINE_BYTES } {
            call.turn.counts.protocol_errors.add(1);
            call.line(b"CLIENT_ERROR line too long");
            return Taken::Close;
        }
        call.state.looked = input.len();
        return Taken::Wants(1);
    };
    let at = call.state.looked + found;
    call.state.looked = at;
    let line = input[..at].strip_suffix(b"\r").unwrap_or(&input[..at]);
    if !call.state.is_known {
        return log_in(call, line, &input[at + 1..], at + 1);
    }
    let mut rest = words(line);
    let name = rest.next().unwrap_or_default();
    let line_op = match name {
        b"get" | b"gets" => get(call, rest, name == b"gets"),
        b"gat" | b"gats" => get_and_touch(call, rest, name == b"gats"),
        b"set" => return store(call, Mode::Set, rest, &input[at + 1..], at + 1),
        b"add" => return store(call, Mode::Add, rest, &input[at + 1..], at + 1),
        b"replace" => return store(call, Mode::Replace, rest, &input[at + 1..], at + 1),
        b"append" => return store(call, Mode::Append, rest, &input[at + 1..], at + 1),
        b"prepend" => return store(call, Mode::Prepend, rest, &input[at + 1..], at + 1),
        b"cas" => return compare(call, rest, &input[at + 1..], at + 1),
        b"ms" => return meta::set(call, rest, &input[at + 1..], at + 1),
        b"mg" => meta::get(call, rest),
        b"md" => meta::delete(call, rest),
        b"ma" => meta::arithmetic(call, rest),
        b"me" => meta::debug(call, rest),
        b"mn" => meta::nothing(call),
        b"delete" => delete(call, rest),
        b"incr" => add(call, rest, false),
        b"decr" => add(call, rest, true),
        b"touch" => touch(call, rest),
        b"lru_crawler" => return dump::crawler(call, rest, at + 1),
        b"stats" if rest.clone().next() == Some(b"cachedump") => {
            return dump::cachedump(call, rest.skip(1), at + 1);
        }
        b"quit" => return Taken::Close,
        // A browser that a page has sent here: its next lines could be commands.
        _ if is_browser(name, rest.clone()) => {
            call.turn.counts.protocol_errors.add(1);
            return Taken::Close;
        }
        _ => administer(call, name, rest),
    };
    Taken::Request(at + 1, line_op)
}

/// Whether a line is of HTTP. (A person who writes `GET key` in capitals gets an error.)
fn is_browser<'a>(name: &[u8], mut rest: impl Iterator<Item = &'a [u8]>) -> bool {
    let is_place =
        |word: &[u8]| [&b"/"[..], b"http", b"HTTP/"].iter().any(|it| word.starts_with(it));
    match name {
        b"POST" | b"Host:" => true,
        b"GET" | b"PUT" | b"DELETE" => rest.any(is_place),
        _ => false,
    }
}

/// What concerns no key.
fn administer<'a>(
    call: &mut Call<'_>,
    name: &[u8],
    mut rest: impl Iterator<Item = &'a [u8]> + Clone,
) -> Op {
    match name {
        b"version" => call.line(format!("VERSION {VERSION}").as_bytes()),
        b"stats" => statistics::text(call, rest.next().unwrap_or_default()),
        b"verbosity" => verbosity(call, rest),
        b"flush_all" => flush(call, rest),
        b"slabs" => dump::slabs(call, rest),
        b"cache_memlimit" => dump::memory_limit(call, rest),
        b"shutdown" => call.line(b"ERROR: shutdown not enabled"),
        _ => {
            call.turn.counts.errors.add(1);
            call.line(b"ERROR");
        }
    }
    Op::Other
}

/// There is nothing to be more verbose about: the level is accepted, and that is all.
fn verbosity<'a>(call: &mut Call<'_>, mut rest: impl Iterator<Item = &'a [u8]> + Clone) {
    if !matches!(rest.clone().count(), 1 | 2) {
        return call.line(b"ERROR");
    }
    quietly(call, rest.clone(), |call| {
        let level = rest.next().and_then(unsigned);
        call.line(if level.is_some() { b"OK" } else { BAD_LINE });
    });
}

fn flush<'a>(call: &mut Call<'_>, mut rest: impl Iterator<Item = &'a [u8]> + Clone) {
    let count = rest.clone().count();
    if count > 2 {
        return call.line(b"ERROR");
    }
    let is_silent = rest.clone().last() == Some(b"noreply");
    quietly(call, rest.clone(), |call| {
        let first = rest.next().filter(|_| count > usize::from(is_silent));
        let Some(delay) = first.map_or(Some(0), signed) else {
            return call.line(NO_TIME);
        };
        match operations::flush(call.turn, call.ts, delay) {
            Ok(()) => call.line(b"OK"),
            Err(refused) => call.refused(&refused),
        }
    });
}

/// With a password, the first request is a `set` whose value is a user and the password.
fn log_in(call: &mut Call<'_>, line: &[u8], data: &[u8], head: usize) -> Taken {
    let mut rest = words(line);
    let is_set = rest.next() == Some(b"set");
    let len = rest.nth(3).and_then(unsigned).filter(|len| is_set && *len <= STRANGER_BYTES);
    let Some(len) = len.map(|len| len as usize) else {
        call.line(b"CLIENT_ERROR unauthenticated");
        return Taken::Close;
    };
    if data.len() < len + 2 {
        return Taken::Wants(len + 2 - data.len());
    }
    call.turn.counts.auth_cmds.add(1);
    let word = data[..len].splitn(2, |byte| *byte == b' ').nth(1).unwrap_or_default();
    if &data[len..len + 2] != b"\r\n" || !call.turn.server.settings.is_password(word) {
        call.turn.counts.auth_refused.add(1);
        call.line(b"CLIENT_ERROR authentication failure");
        return Taken::Close;
    }
    call.state.is_known = true;
    call.line(b"STORED");
    Taken::Request(head + len + 2, Op::Other)
}

/// Writes a value as `get` shows it: the line, the value, the line's end.
fn show(call: &mut Call<'_>, key: &[u8], value: &[u8], flags: u32, version: Option<u64>) {
    call.out.extend_from_slice(b"VALUE ");
    call.out.extend_from_slice(key);
    call.out.push(b' ');
    call.number(flags.into());
    call.out.push(b' ');
    call.number(value.len() as u64);
    if let Some(version) = version {
        call.out.push(b' ');
        call.number(version);
    }
    call.out.extend_from_slice(b"\r\n");
    call.out.extend_from_slice(value);
    call.out.extend_from_slice(b"\r\n");
}

fn get<'a>(
    call: &mut Call<'_>,
    keys: impl Iterator<Item = &'a [u8]> + Clone,
    with_version: bool,
) -> Op {
    if keys.clone().next().is_none() {
        call.line(b"ERROR");
        return Op::Get;
    }
    each(call, keys, |call, key, value| {
        let found = operations::get(call.turn, call.ts, key, value);
        Ok(found.map(|found| (found.flags, with_version.then_some(found.version))))
    });
    Op::Get
}

fn get_and_touch<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
    with_version: bool,
) -> Op {
    let Some(seconds) = rest.next() else {
        call.line(b"ERROR");
        return Op::Touch;
    };
    let Some(seconds) = signed(seconds) else {
        call.line(NO_TIME);
        return Op::Touch;
    };
    let expires_ms = end(seconds, call.turn.now);
    each(call, rest, |call, key, value| {
        let found = operations::get_and_touch(call.turn, call.ts, key, (expires_ms, true), value)?;
        Ok(found.map(|found| (found.flags, with_version.then_some(found.version))))
    });
    Op::Touch
}

type Shown = Result<Option<(u32, Option<u64>)>, crate::front::keyspace::ChangeRefused>;

/// Shows the value of each key that `read` finds. (`gat` with a time and no key finds none.)
fn each<'a>(
    call: &mut Call<'_>,
    keys: impl Iterator<Item = &'a [u8]>,
    mut read: impl FnMut(&mut Call<'_>, &[u8], &mut Vec<u8>) -> Shown,
) {
    let start = call.out.len();
    let mut value = std::mem::take(&mut call.turn.scratch);
    for key in keys {
        value.clear();
        if key.len() > KEY_BYTES {
            call.out.truncate(start);
            call.line(BAD_LINE);
            call.turn.scratch = value;
            return;
        }
        match read(call, key, &mut value) {
            Ok(None) => {}
            Ok(Some((flags, version))) => show(call, key, &value, flags, version),
            Err(refused) => {
                call.out.truncate(start);
                call.refused(&refused);
                call.turn.scratch = value;
                return;
            }
        }
        if call.is_full() {
            call.out.truncate(start);
            call.turn.counts.memory_refused.add(1);
            call.line(b"SERVER_ERROR out of memory writing get response");
            call.turn.scratch = value;
            return;
        }
    }
    call.turn.scratch = value;
    call.line(b"END");
}

/// Carries out a request whose last word may be `noreply`. As in memcached, nothing is answered
/// then, and no errors either: the client reads the answer to its next request.
fn quietly<'a, T>(
    call: &mut Call<'_>,
    rest: impl Iterator<Item = &'a [u8]>,
    act: impl FnOnce(&mut Call<'_>) -> T,
) -> T {
    let (is_silent, start) = (rest.last() == Some(b"noreply"), call.out.len());
    let done = act(call);
    if is_silent {
        call.out.truncate(start);
    }
    done
}

fn store<'a>(
    call: &mut Call<'_>,
    mode: Mode,
    rest: impl Iterator<Item = &'a [u8]> + Clone,
    data: &[u8],
    head: usize,
) -> Taken {
    store_if(call, mode, rest, data, head, false)
}

fn compare<'a>(
    call: &mut Call<'_>,
    rest: impl Iterator<Item = &'a [u8]> + Clone,
    data: &[u8],
    head: usize,
) -> Taken {
    store_if(call, Mode::Set, rest, data, head, true)
}

fn store_if<'a>(
    call: &mut Call<'_>,
    mode: Mode,
    rest: impl Iterator<Item = &'a [u8]> + Clone,
    data: &[u8],
    head: usize,
    compares: bool,
) -> Taken {
    let count = rest.clone().count();
    let needed = if compares { 5 } else { 4 };
    if count < needed || count > needed + 1 {
        call.line(b"ERROR");
        return Taken::Request(head, op_of(mode, compares));
    }
    quietly(call, rest.clone(), |call| store_chunk(call, mode, rest, data, head, compares))
}

fn op_of(mode: Mode, compares: bool) -> Op {
    if compares || mode != Mode::Set { Op::Update } else { Op::Put }
}

/// Stores the value after a line that has all its words.
fn store_chunk<'a>(
    call: &mut Call<'_>,
    mode: Mode,
    mut rest: impl Iterator<Item = &'a [u8]>,
    data: &[u8],
    head: usize,
    compares: bool,
) -> Taken {
    let op = op_of(mode, compares);
    let key = rest.next().unwrap_or_default();
    let mut word = || rest.next().unwrap_or_default();
    let (flags, seconds, len) = (unsigned_32(word()), signed(word()), signed(word()));
    let version = compares.then(|| unsigned(word()));
    let (Some(flags), Some(seconds), Some(len), false) =
        (flags, seconds, len, version == Some(None))
    else {
        call.line(BAD_LINE);
        return Taken::Request(head, op);
    };
    let Some(len) = u64::try_from(len).ok().filter(|len| *len <= LENGTH_MAX) else {
        call.line(BAD_LINE);
        return Taken::Request(head, op);
    };
    if key.len() > KEY_BYTES {
        call.line(BAD_LINE);
        let whole = usize::try_from(len).ok().and_then(|len| len.checked_add(head + 2));
        return whole.map_or(Taken::Close, |whole| Taken::Request(whole, op));
    }
    if len > longest(call.turn) as u64 && mode == Mode::Set && !compares {
        // As in memcached: a client that fails to replace a value does not want the old one.
        operations::delete(call.turn, call.ts, key, None);
    }
    let (value, whole) = match chunk(call, data, head, len) {
        Chunk::Whole(value, whole) => (value, whole),
        Chunk::Otherwise(taken) => return taken,
    };
    let expiry = Expiry::asked(end(seconds, call.turn.now));
    let version = version.flatten();
    let storing = Storing { mode, key, value, flags, expiry, version, made: None };
    let outcome = operations::store(call.turn, call.ts, &storing);
    call.outcome(&outcome, &STORE);
    Taken::Request(whole, op)
}

fn delete<'a>(call: &mut Call<'_>, mut rest: impl Iterator<Item = &'a [u8]> + Clone) -> Op {
    let (Some(key), more @ 0..=2) = (rest.next(), rest.clone().count()) else {
        call.line(b"ERROR");
        return Op::Delete;
    };
    quietly(call, rest.clone(), |call| {
        let is_silent = rest.clone().last() == Some(b"noreply");
        let is_zero = rest.next() == Some(b"0");
        // Old clients gave a time, which had to be 0.
        if more != usize::from(is_zero) + usize::from(is_silent) {
            let usage = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
            return call.line(usage);
        }
        if key.len() > KEY_BYTES {
            return call.line(BAD_LINE);
        }
        let outcome = operations::delete(call.turn, call.ts, key, None);
        call.outcome(&outcome, &DELETE);
    });
    Op::Delete
}

/// Carries out a request of a key, a number and perhaps another word.
fn with_number<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]> + Clone,
    act: impl FnOnce(&mut Call<'_>, &[u8], &[u8]),
) {
    if !matches!(rest.clone().count(), 2 | 3) {
        return call.line(b"ERROR");
    }
    quietly(call, rest.clone(), |call| {
        let [key, number] = [(); 2].map(|()| rest.next().unwrap_or_default());
        if key.len() > KEY_BYTES {
            return call.line(BAD_LINE);
        }
        act(call, key, number);
    });
}

fn add<'a>(
    call: &mut Call<'_>,
    rest: impl Iterator<Item = &'a [u8]> + Clone,
    decrements: bool,
) -> Op {
    with_number(call, rest, |call, key, delta| add_to(call, key, delta, decrements));
    Op::Update
}

fn add_to(call: &mut Call<'_>, key: &[u8], delta: &[u8], decrements: bool) {
    let Some(delta) = unsigned(delta) else {
        return call.line(b"CLIENT_ERROR invalid numeric delta argument");
    };
    let adding = Adding { key, delta, decrements, initial: None, expires_ms: None, version: None };
    match operations::add(call.turn, call.ts, &adding) {
        None => call.line(NO_NUMBER),
        Some((Outcome::Done(_), number, _)) => {
            call.number(number);
            call.line(b"");
        }
        Some((outcome, ..)) => call.outcome(&outcome, &STORE),
    }
}

fn touch<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]> + Clone) -> Op {
    with_number(call, rest, |call, key, seconds| {
        let Some(seconds) = signed(seconds) else {
            return call.line(NO_TIME);
        };
        let expires_ms = end(seconds, call.turn.now);
        let outcome = operations::touch(call.turn, call.ts, key, expires_ms);
        call.outcome(&outcome, &TOUCH);
    });
    Op::Touch
}
