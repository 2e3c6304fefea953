//! memcached's meta commands: `mg`, `ms`, `md`, `ma`, `me`, `mn`.
//!
//! Each has a key and flags of one letter, some with a word behind them. `h` and `l` (whether and
//! when an item was used before) are refused: reads by cards, chains and other machines' clients
//! leave no trace that could answer them.

use std::borrow::Cow;
use std::sync::PoisonError;

use crate::front::keyspace::{Change, Found, Refused};
use crate::front::memcached::base64;
use crate::front::memcached::chunk::{BAD_LINE, Chunk, NO_NUMBER, chunk};
use crate::front::memcached::leases::Lease;
use crate::front::memcached::numbers::{end, signed, unsigned, unsigned_32};
use crate::front::memcached::operations::{self, Adding, KEY_BYTES, Mode, Outcome, Storing};
use crate::front::memcached::state::{Call, Taken, Words};
use crate::stats::Op;

/// The most flags of a request.
const MOST_FLAGS: usize = 24;
/// The longest opaque word, in bytes.
const OPAQUE_BYTES: usize = 32;

const WORDS: Words = Words { done: b"HD", not_stored: b"NS", exists: b"EX", not_found: b"NF" };

/// The flags of a request, in their order.
struct Flags<'a> {
    all: [&'a [u8]; MOST_FLAGS],
    count: usize,
}

impl<'a> Flags<'a> {
    /// Reads flags of which `allowed` are known to the command.
    fn read(
        rest: impl Iterator<Item = &'a [u8]>,
        allowed: &[u8],
    ) -> Result<Flags<'a>, &'static [u8]> {
        let mut flags = Flags { all: [&[]; MOST_FLAGS], count: 0 };
        for flag in rest {
            if flags.count == MOST_FLAGS {
                return Err(b"CLIENT_ERROR options flags are too long");
            }
            if !allowed.contains(&flag[0]) {
                return Err(b"CLIENT_ERROR invalid flag");
            }
            if flags.has(flag[0]) {
                return Err(b"CLIENT_ERROR duplicate flag");
            }
            if flag[0] == b'O' && flag.len() > OPAQUE_BYTES + 1 {
                return Err(b"CLIENT_ERROR opaque token too long");
            }
            flags.all[flags.count] = flag;
            flags.count += 1;
        }
        Ok(flags)
    }

    fn all(&self) -> &[&'a [u8]] {
        &self.all[..self.count]
    }

    fn has(&self, letter: u8) -> bool {
        self.all().iter().any(|flag| flag[0] == letter)
    }

    /// The word behind a flag.
    fn word(&self, letter: u8) -> Option<&'a [u8]> {
        self.all().iter().find(|flag| flag[0] == letter).map(|flag| &flag[1..])
    }

    /// The number behind a flag, if the flag is there.
    fn number(&self, letter: u8) -> Result<Option<u64>, &'static [u8]> {
        let wrong = &b"CLIENT_ERROR bad token in command line format"[..];
        self.word(letter).map(|word| unsigned(word).ok_or(wrong)).transpose()
    }

    /// The end behind a flag, in ms of Unix time, if the flag is there.
    fn end(&self, letter: u8, now: u64) -> Result<Option<Option<u64>>, &'static [u8]> {
        let wrong = &b"CLIENT_ERROR bad token in command line format"[..];
        let seconds = self.word(letter).map(|word| signed(word).ok_or(wrong)).transpose()?;
        Ok(seconds.map(|seconds| end(seconds, now)))
    }
}

/// The key that a request names; with `b` it is given in base 64.
fn key<'a>(word: Option<&'a [u8]>, flags: &Flags<'_>) -> Result<Cow<'a, [u8]>, &'static [u8]> {
    let word = word.unwrap_or_default();
    if word.is_empty() || word.len() > KEY_BYTES {
        return Err(BAD_LINE);
    }
    if !flags.has(b'b') {
        return Ok(Cow::Borrowed(word));
    }
    base64::decode(word).map(Cow::Owned).ok_or(b"CLIENT_ERROR error decoding key")
}

/// What an answer to a change repeats of the request, and says of the key, in the flags' order.
fn repeat(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8], version: u64, size: usize) {
    for flag in flags.all() {
        match flag[0] {
            b'O' => {
                call.out.push(b' ');
                call.out.extend_from_slice(flag);
            }
            b'k' => show_key(call, flags, key),
            b'c' => {
                call.out.extend_from_slice(b" c");
                call.number(version);
            }
            b's' => {
                call.out.extend_from_slice(b" s");
                call.number(size as u64);
            }
            _ => {}
        }
    }
}

fn show_key(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8]) {
    call.out.extend_from_slice(b" k");
    if flags.has(b'b') {
        base64::encode(key, call.out);
        call.out.extend_from_slice(b" b");
    } else {
        call.out.extend_from_slice(key);
    }
}

/// Seconds until a key ends, as `t` shows them.
fn left(found: &Found, now: u64) -> Option<u64> {
    found.expires_ms.map(|at| at.saturating_sub(now).div_ceil(1000))
}

/// Writes what a client asks of an item, in the order of its flags.
fn describe(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8], found: &Found, size: usize) {
    for flag in flags.all() {
        let number = match flag[0] {
            b'f' => u64::from(found.flags),
            b's' => size as u64,
            b'c' => found.version,
            b't' => match left(found, call.turn.now) {
                Some(seconds) => seconds,
                None => {
                    call.out.extend_from_slice(b" t-1");
                    continue;
                }
            },
            b'k' => {
                show_key(call, flags, key);
                continue;
            }
            b'O' => {
                call.out.push(b' ');
                call.out.extend_from_slice(flag);
                continue;
            }
            _ => continue,
        };
        call.out.extend_from_slice(&[b' ', flag[0]]);
        call.number(number);
    }
}

/// `mn`: the answer says that all before it was carried out.
pub(super) fn nothing(call: &mut Call<'_>) -> Op {
    call.line(b"MN");
    Op::Other
}

/// `mg key flags`.
pub(super) fn get<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = get_or_say(call, rest) {
        call.turn.counts.errors.add(1);
        call.line(text);
    }
    Op::Get
}

fn get_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next();
    let flags = Flags::read(rest, b"bcfkOqstvENRT")?;
    let key = key(word, &flags)?;
    let now = call.turn.now;
    let (vivified, touched) = (flags.end(b'N', now)?, flags.end(b'T', now)?);
    let fresh_s = flags.number(b'R')?;
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let read = match touched {
        Some(at) => operations::get_and_touch(call.turn, call.ts, &key, at, &mut value),
        None => Ok(operations::get(call.turn, call.ts, &key, &mut value)),
    };
    match read {
        Err(refused) => call.refused(&refused),
        Ok(Some(found)) => {
            let marks = marks(call, &key, &found, fresh_s);
            answer(call, &flags, &key, &found, &value, marks);
        }
        Ok(None) => match vivified {
            None if flags.has(b'q') => {}
            None => call.line(b"EN"),
            Some(at) => vivify(call, &flags, &key, at),
        },
    }
    call.turn.scratch = value;
    Ok(())
}

fn answer(
    call: &mut Call<'_>,
    flags: &Flags<'_>,
    key: &[u8],
    found: &Found,
    value: &[u8],
    marks: &[u8],
) {
    if flags.has(b'v') {
        call.out.extend_from_slice(b"VA ");
        call.number(value.len() as u64);
    } else {
        call.out.extend_from_slice(b"HD");
    }
    describe(call, flags, key, found, value.len());
    call.out.extend_from_slice(marks);
    call.out.extend_from_slice(b"\r\n");
    if flags.has(b'v') {
        call.out.extend_from_slice(value);
        call.out.extend_from_slice(b"\r\n");
    }
}

/// Which client is to fill the key: `W` this one, `Z` another has been told; `X` the value is old.
fn marks(call: &Call<'_>, key: &[u8], found: &Found, fresh_s: Option<u64>) -> &'static [u8] {
    let mut leases = call.turn.world.leases.lock().unwrap_or_else(PoisonError::into_inner);
    let ends_soon = fresh_s
        .is_some_and(|least| left(found, call.turn.now).is_some_and(|seconds| seconds < least));
    if leases.is_empty() && !ends_soon {
        return b"";
    }
    let version = found.version;
    let held = leases.at(call.ts, key, version);
    let mut lease = held.unwrap_or(Lease { version, is_stale: false, is_won: false });
    if held.is_none() && !ends_soon {
        return b"";
    }
    let wins = !lease.is_won && (lease.is_stale || ends_soon);
    lease.is_won |= wins;
    leases.set(call.ts, key, lease);
    match (lease.is_stale, wins) {
        (true, true) => b" W X",
        (true, false) => b" X Z",
        (false, true) => b" W",
        (false, false) => b" Z",
    }
}

/// Makes an empty item, which this client is to fill.
fn vivify(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8], expires_ms: Option<u64>) {
    let storing = Storing { mode: Mode::Add, key, value: b"", flags: 0, expires_ms, version: None };
    match operations::store(call.turn, call.ts, &storing) {
        Outcome::Done(version) => {
            lend(call, key, Lease { version, is_stale: false, is_won: true });
            let found = Found { version, flags: 0, expires_ms };
            answer(call, flags, key, &found, b"", b" W");
        }
        Outcome::Refused(refused) => call.refused(&refused),
        // Another client was faster, and is told to fill it.
        _ => call.line(b"EN"),
    }
}

/// `ms key length flags`, and the value.
pub(super) fn set<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
    data: &[u8],
    head: usize,
) -> Taken {
    let (word, len) = (rest.next(), rest.next().map(unsigned));
    let Some(Some(len)) = len else {
        call.line(b"CLIENT_ERROR bad data chunk");
        return Taken::Request(head, Op::Put);
    };
    let before = call.out.len();
    let (value, whole) = match chunk(call, data, head, len) {
        Chunk::Whole(value, whole) => (value, whole),
        Chunk::Otherwise(taken) => return taken,
    };
    if let Err(text) = set_or_say(call, word, rest, value) {
        call.out.truncate(before);
        call.turn.counts.errors.add(1);
        call.line(text);
    }
    Taken::Request(whole, Op::Put)
}

fn set_or_say<'a>(
    call: &mut Call<'_>,
    word: Option<&[u8]>,
    rest: impl Iterator<Item = &'a [u8]>,
    value: &[u8],
) -> Result<(), &'static [u8]> {
    let flags = Flags::read(rest, b"bckfOqsFITCEMN")?;
    let wrong_flags = &b"CLIENT_ERROR bad token in command line format"[..];
    let client_flags = flags.word(b'F').map(|word| unsigned_32(word).ok_or(wrong_flags));
    let client_flags = client_flags.transpose()?.unwrap_or(0);
    let mut mode = mode(flags.word(b'M'))?;
    let key = key(word, &flags)?;
    let mut expires_ms = flags.end(b'T', call.turn.now)?.flatten();
    let (compared, invalidates) = (flags.number(b'C')?, flags.has(b'I'));
    if let (Mode::Append | Mode::Prepend, Some(at)) = (mode, flags.end(b'N', call.turn.now)?)
        && call.turn.world.keyspace.look(call.ts, &key, call.turn.now).is_none()
    {
        (mode, expires_ms) = (Mode::Set, at);
    }
    let mut storing =
        Storing { mode, key: &key, value, flags: client_flags, expires_ms, version: compared };
    let mut outcome = operations::store(call.turn, call.ts, &storing);
    if let (Outcome::Exists, true, Some(compared)) = (&outcome, invalidates, compared)
        && let Some(found) = call.turn.world.keyspace.look(call.ts, &key, call.turn.now)
        && compared < found.version
    {
        // A value that is older than the one there: better than none, and known to be old.
        storing.version = Some(found.version);
        storing.expires_ms = found.expires_ms;
        let is_won = is_won(call, &key, found.version);
        outcome = operations::store(call.turn, call.ts, &storing);
        if let Outcome::Done(version) = outcome {
            lend(call, &key, Lease { version, is_stale: true, is_won });
        }
    }
    finish(call, &flags, &key, &outcome, value.len());
    Ok(())
}

fn mode(word: Option<&[u8]>) -> Result<Mode, &'static [u8]> {
    Ok(match word {
        None | Some(b"S" | b"s" | b"set") => Mode::Set,
        Some(b"A" | b"a" | b"append") => Mode::Append,
        Some(b"P" | b"p" | b"prepend") => Mode::Prepend,
        Some(b"R" | b"r" | b"replace") => Mode::Replace,
        Some(b"E" | b"e" | b"add") => Mode::Add,
        Some(_) => return Err(b"CLIENT_ERROR invalid mode for ms"),
    })
}

fn lend(call: &Call<'_>, key: &[u8], lease: Lease) {
    let mut leases = call.turn.world.leases.lock().unwrap_or_else(PoisonError::into_inner);
    leases.set(call.ts, key, lease);
}

/// Whether somebody has been told to fill this version of the key.
fn is_won(call: &Call<'_>, key: &[u8], version: u64) -> bool {
    let mut leases = call.turn.world.leases.lock().unwrap_or_else(PoisonError::into_inner);
    leases.at(call.ts, key, version).is_some_and(|lease| lease.is_won)
}

/// Answers with what became of a change, and what is to be repeated.
fn finish(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8], outcome: &Outcome, size: usize) {
    let text = match outcome {
        Outcome::Refused(refused) => return call.refused(refused),
        Outcome::Done(_) if flags.has(b'q') => return,
        Outcome::Done(_) => WORDS.done,
        Outcome::NotStored => WORDS.not_stored,
        Outcome::Exists => WORDS.exists,
        Outcome::NotFound => WORDS.not_found,
    };
    call.out.extend_from_slice(text);
    let version = if let Outcome::Done(version) = outcome { *version } else { 0 };
    repeat(call, flags, key, version, size);
    call.line(b"");
}

/// `md key flags`.
pub(super) fn delete<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = delete_or_say(call, rest) {
        call.turn.counts.errors.add(1);
        call.line(text);
    }
    Op::Delete
}

fn delete_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next();
    let flags = Flags::read(rest, b"bkOqCEITx")?;
    let key = key(word, &flags)?;
    let (compared, expires) = (flags.number(b'C')?, flags.end(b'T', call.turn.now)?);
    let outcome = if flags.has(b'I') {
        let outcome = age(call, &key, compared, expires);
        if let Outcome::Done(version) = outcome {
            lend(call, &key, Lease { version, is_stale: true, is_won: false });
        }
        outcome
    } else if flags.has(b'x') {
        empty(call, &key, compared)
    } else {
        operations::delete(call.turn, call.ts, &key, compared)
    };
    if outcome != Outcome::NotFound || !flags.has(b'q') {
        finish(call, &flags, &key, &outcome, 0);
    }
    Ok(())
}

fn outcome_of(changed: Result<Option<u64>, Refused>, otherwise: Outcome) -> Outcome {
    match changed {
        Ok(Some(version)) => Outcome::Done(version),
        Ok(None) => otherwise,
        Err(refused) => Outcome::Refused(refused),
    }
}

/// Gives an item another version, so that a client that read it before cannot store by it.
fn age(
    call: &mut Call<'_>,
    key: &[u8],
    version: Option<u64>,
    expires: Option<Option<u64>>,
) -> Outcome {
    let mut outcome = Outcome::NotFound;
    let changed = operations::change(call.turn, call.ts, key, |seen, scratch| {
        outcome = Outcome::NotFound;
        let Some(seen) = seen else { return Change::Keep };
        if version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Change::Keep;
        }
        scratch.extend_from_slice(seen.value());
        let expires_ms = expires.unwrap_or(seen.found.expires_ms);
        Change::Make { flags: seen.found.flags, expires_ms }
    });
    outcome_of(changed, outcome)
}

/// Takes an item's value and flags away, and leaves the item.
fn empty(call: &mut Call<'_>, key: &[u8], version: Option<u64>) -> Outcome {
    let mut outcome = Outcome::NotFound;
    let changed = operations::change(call.turn, call.ts, key, |seen, _| {
        outcome = Outcome::NotFound;
        let Some(seen) = seen else { return Change::Keep };
        if version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Change::Keep;
        }
        Change::Put { value: b"", flags: 0, expires_ms: seen.found.expires_ms }
    });
    outcome_of(changed, outcome)
}

/// `ma key flags`.
pub(super) fn arithmetic<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = arithmetic_or_say(call, rest) {
        call.turn.counts.errors.add(1);
        call.line(text);
    }
    Op::Update
}

fn arithmetic_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next();
    let flags = Flags::read(rest, b"bckOqtvCEDJMNT")?;
    let key = key(word, &flags)?;
    let decrements = match flags.word(b'M') {
        None | Some(b"I" | b"i" | b"+" | b"incr") => false,
        Some(b"D" | b"d" | b"-" | b"decr") => true,
        Some(_) => return Err(b"CLIENT_ERROR invalid mode for ma"),
    };
    let now = call.turn.now;
    let initial = flags.number(b'J')?.unwrap_or(0);
    let adding = Adding {
        key: &key,
        delta: flags.number(b'D')?.unwrap_or(1),
        decrements,
        initial: flags.end(b'N', now)?.map(|expires_ms| (initial, expires_ms)),
        expires_ms: flags.end(b'T', now)?,
        version: flags.number(b'C')?,
    };
    let (outcome, number) = operations::add(call.turn, call.ts, &adding).ok_or(NO_NUMBER)?;
    let Outcome::Done(version) = outcome else {
        if outcome != Outcome::NotFound || !flags.has(b'q') {
            finish(call, &flags, &key, &outcome, 0);
        }
        return Ok(());
    };
    if flags.has(b'q') {
        return Ok(());
    }
    let found = call.turn.world.keyspace.look(call.ts, &key, now);
    let found = found.unwrap_or(Found { version, flags: 0, expires_ms: None });
    let value = number.to_string();
    answer(call, &flags, &key, &Found { version, ..found }, value.as_bytes(), b"");
    Ok(())
}

/// `me key [b]`: what is known of an item.
pub(super) fn debug<'a>(call: &mut Call<'_>, mut rest: impl Iterator<Item = &'a [u8]>) -> Op {
    let word = rest.next();
    let key = Flags::read(rest, b"b").and_then(|flags| key(word, &flags));
    let key = match key {
        Ok(key) => key,
        Err(text) => {
            call.line(text);
            return Op::Other;
        }
    };
    let keyspace = &call.turn.world.keyspace;
    let found = keyspace.look(call.ts, &key, call.turn.now);
    let bytes = keyspace.bytes_of(call.ts, &key, call.turn.now);
    let (Some(found), Some(bytes)) = (found, bytes) else {
        call.line(b"EN");
        return Op::Other;
    };
    call.out.extend_from_slice(b"ME ");
    call.out.extend_from_slice(word.unwrap_or_default());
    let exp = left(&found, call.turn.now).map_or("-1".to_owned(), |seconds| seconds.to_string());
    call.line(format!(" exp={exp} cas={} size={bytes}", found.version).as_bytes());
    Op::Other
}
