//! memcached's meta commands: `mg`, `ms`, `md`, `ma`, `me`, `mn`.
//!
//! Each has a key and flags of one letter, some with a word behind them.

use std::borrow::Cow;
use std::sync::PoisonError;

use crate::front::keyspace::{Edit, Expiry, Found, Trace};
use crate::front::memcached::base64;
use crate::front::memcached::chunk::{BAD_LINE, Chunk, NO_NUMBER, chunk};
use crate::front::memcached::conversation::{Call, Taken, Words};
use crate::front::memcached::flags::{Flags, MOST_FLAGS};
use crate::front::memcached::leases::{Lease, Leases};
use crate::front::memcached::numbers::signed;
use crate::front::memcached::operations::{self, Adding, KEY_BYTES, Mode, Outcome, Storing};
use crate::slab::class;
use crate::stats::Op;

const WORDS: Words = Words { done: b"HD", not_stored: b"NS", exists: b"EX", not_found: b"NF" };
const TOO_MANY: &[u8] = b"CLIENT_ERROR options flags too long";
/// The longest value that a line may announce.
const LENGTH_MAX: i64 = i32::MAX as i64 - 2;

/// What an answer repeats of its request: the opaque word and the key.
fn repeat(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8], flag: &[u8]) {
    match flag[0] {
        b'O' => {
            call.out.push(b' ');
            call.out.extend_from_slice(flag);
        }
        b'k' => {
            call.out.extend_from_slice(b" k");
            if flags.has(b'b') {
                base64::encode(key, call.out);
                call.out.extend_from_slice(b" b");
            } else {
                call.out.extend_from_slice(key);
            }
        }
        _ => {}
    }
}

fn show(call: &mut Call<'_>, letter: u8, number: u64) {
    call.out.extend_from_slice(&[b' ', letter]);
    call.number(number);
}

/// Seconds until a time, in ms of Unix time.
fn left(at: u64, now: u64) -> u64 {
    at.saturating_sub(now).div_ceil(1000)
}

fn show_left(call: &mut Call<'_>, expires_ms: Option<u64>) {
    match expires_ms {
        Some(at) => show(call, b't', left(at, call.turn.now)),
        None => call.out.extend_from_slice(b" t-1"),
    }
}

/// Seconds since an item was used last.
fn idle_s(call: &Call<'_>, found: &Found) -> u64 {
    (call.turn.now / 1000).saturating_sub(used_s(call, found))
}

/// The second of Unix time in which an item was used last: if nobody knows, that in which this
/// server started.
pub(super) fn used_s(call: &Call<'_>, found: &Found) -> u64 {
    match found.trace {
        Some(Trace { second: second @ 1.., .. }) => second.into(),
        _ => (call.turn.now / 1000).saturating_sub(call.turn.server.uptime().as_secs()),
    }
}

pub(super) fn is_read(found: &Found) -> bool {
    found.trace.is_some_and(|trace| trace.is_read)
}

/// `mn`: the answer says that all before it was carried out.
pub(super) fn nothing(call: &mut Call<'_>) -> Op {
    call.line(b"MN");
    Op::Other
}

/// Says what is wrong with a request.
fn fail(call: &mut Call<'_>, text: &[u8]) {
    call.turn.counts.errors.add(1);
    call.line(text);
}

/// `mg key flags`.
pub(super) fn get<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = get_or_say(call, rest) {
        fail(call, text);
    }
    Op::Get
}

fn get_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next().ok_or(&b"ERROR"[..])?;
    let most = (MOST_FLAGS, &b"CLIENT_ERROR options flags are too long"[..]);
    let read = Flags::read(word, rest, call.turn.now, most, b"");
    let (flags, key) = read.map_err(|fault| fault.text())?;
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let is_noticed = !flags.has(b'u');
    let found = match flags.moved {
        Some(at) => {
            let moves = (at, is_noticed);
            operations::get_and_touch(call.turn, call.ts, &key, moves, &mut value)
        }
        None => Ok(operations::read(call.turn, call.ts, &key, is_noticed, &mut value)),
    };
    match found {
        Err(refused) => call.refused(&refused),
        Ok(Some(found)) => answer(call, &flags, &key, (&found, false), &value),
        Ok(None) if flags.made.is_some() => make(call, &flags, &key),
        Ok(None) if flags.has(b'q') => {}
        Ok(None) => miss(call, &flags, &key),
    }
    call.turn.scratch = value;
    Ok(())
}

fn miss(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8]) {
    call.out.extend_from_slice(b"EN");
    for flag in flags.all() {
        repeat(call, flags, key, flag);
    }
    call.line(b"");
}

/// Writes an item, as it was before this request, or was made by it: what the client asks for, in
/// the order of its flags, some of which move the item's end.
fn answer(
    call: &mut Call<'_>,
    flags: &Flags<'_>,
    key: &[u8],
    (found, is_made): (&Found, bool),
    value: &[u8],
) {
    begin(call, flags, value.len());
    let (mut expires_ms, mut wins) = (found.expires_ms, is_made);
    for flag in flags.all() {
        match flag[0] {
            b'N' if is_made => expires_ms = flags.made.flatten(),
            b'T' => expires_ms = flags.moved.flatten(),
            b'R' => {
                let (now, at) = (call.turn.now, expires_ms.zip(flags.refilled));
                wins |= at.is_some_and(|(at, least)| left(at, now) < left(least, now));
            }
            b's' => show(call, b's', value.len() as u64),
            b't' => show_left(call, expires_ms),
            b'c' => show(call, b'c', found.version),
            b'f' => show(call, b'f', found.flags.into()),
            b'l' => show(call, b'l', idle_s(call, found)),
            b'h' => show(call, b'h', is_read(found).into()),
            _ => repeat(call, flags, key, flag),
        }
    }
    let marks = marks(call, key, found.version, wins);
    call.out.extend_from_slice(marks);
    end(call, flags, value);
}

fn begin(call: &mut Call<'_>, flags: &Flags<'_>, len: usize) {
    if flags.has(b'v') {
        call.out.extend_from_slice(b"VA ");
        call.number(len as u64);
    } else {
        call.out.extend_from_slice(b"HD");
    }
}

fn end(call: &mut Call<'_>, flags: &Flags<'_>, value: &[u8]) {
    call.line(b"");
    if flags.has(b'v') {
        call.line(value);
    }
}

/// Which client is to fill the key: `W` this one, which `wins` if nobody was told before, `Z`
/// another has been told; `X` the value is old.
fn marks(call: &Call<'_>, key: &[u8], version: u64, wins: bool) -> &'static [u8] {
    let mut leases = call.turn.server.leases.lock().unwrap_or_else(PoisonError::into_inner);
    if leases.is_empty() && !wins {
        return b"";
    }
    let held = leases.at(call.ts, key, version);
    let Lease { is_stale, is_won, .. } =
        held.unwrap_or(Lease { version, is_stale: false, is_won: false });
    let wins = !is_won && (is_stale || wins);
    if wins {
        leases.set(call.ts, key, Lease { version, is_stale, is_won: true });
    }
    match (is_won, is_stale, wins) {
        (true, true, _) => b" Z X",
        (true, false, _) => b" Z",
        (false, true, _) => b" X W",
        (false, false, true) => b" W",
        (false, false, false) => b"",
    }
}

/// Makes an empty item, which this client is to fill.
fn make(call: &mut Call<'_>, flags: &Flags<'_>, key: &[u8]) {
    let expiry = Expiry::asked(flags.end_of_made());
    let (mode, value) = (Mode::Add, &b""[..]);
    let storing = Storing { mode, key, value, flags: 0, expiry, version: None, made: None };
    match operations::store(call.turn, call.ts, &storing) {
        Outcome::Done(version) => {
            if !flags.has(b'u') {
                call.turn.server.keyspace.note_read(call.ts, key, call.turn.now);
            }
            let trace = Some(Trace::at(call.turn.now, false));
            let found = Found { version, flags: 0, expires_ms: None, trace };
            answer(call, flags, key, (&found, true), b"");
        }
        Outcome::Refused(refused) => call.refused(&refused),
        // Another client was faster, and is told to fill it.
        _ => {
            let mut value = Vec::new();
            match operations::read(call.turn, call.ts, key, !flags.has(b'u'), &mut value) {
                Some(found) => answer(call, flags, key, (&found, false), &value),
                None => miss(call, flags, key),
            }
        }
    }
}

/// `ms key length flags`, and the value.
pub(super) fn set<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
    data: &[u8],
    head: usize,
) -> Taken {
    let Some(word) = rest.next() else {
        fail(call, b"ERROR");
        return Taken::Request(head, Op::Put);
    };
    let len = rest.next().and_then(signed).filter(|len| (0..=LENGTH_MAX).contains(len));
    let Some(len) = len.map(i64::unsigned_abs) else {
        fail(call, BAD_LINE);
        return Taken::Request(head, Op::Put);
    };
    // The length is a word, too.
    let read = Flags::read(word, rest, call.turn.now, (MOST_FLAGS - 1, TOO_MANY), b"");
    if let Ok((flags, key)) = &read
        && len > operations::longest(call.turn) as u64
    {
        // As in memcached: a client that fails to replace a value does not want the old one, if
        // that is the one which it knows.
        operations::delete(call.turn, call.ts, key, flags.compared);
    }
    let before = call.out.len();
    let (value, whole) = match chunk(call, data, head, len) {
        Chunk::Whole(value, whole) => (value, whole),
        Chunk::Otherwise(taken) => return taken,
    };
    let done = read.map_err(|fault| fault.text());
    if let Err(text) = done.and_then(|(flags, key)| set_or_say(call, &flags, &key, value)) {
        call.out.truncate(before);
        fail(call, text);
    }
    Taken::Request(whole, Op::Put)
}

fn set_or_say(
    call: &mut Call<'_>,
    flags: &Flags<'_>,
    key: &[u8],
    value: &[u8],
) -> Result<(), &'static [u8]> {
    let mode = mode(flags.mode)?;
    let (expiry, made) = (Expiry::asked(flags.moved.flatten()), flags.made);
    // What is added has no version before.
    let version = flags.compared.filter(|_| mode != Mode::Add);
    let client_flags = flags.client;
    let mut storing = Storing { mode, key, value, flags: client_flags, expiry, version, made };
    let mut outcome = operations::store(call.turn, call.ts, &storing);
    if let (Outcome::Exists, Some(compared), Mode::Set | Mode::Replace) = (&outcome, version, mode)
        && flags.has(b'I')
        && let Some(found) = call.turn.server.keyspace.look(call.ts, key, call.turn.now)
        && (1..found.version).contains(&compared)
    {
        // A value that is older than the one there: better than none, and known to be old.
        storing.version = Some(found.version);
        storing.expiry = Expiry::of_item(found.expires_ms);
        outcome = make_stale(call, key, |call, leases| {
            let is_won = leases.at(call.ts, key, found.version).is_some_and(|lease| lease.is_won);
            (operations::store(call.turn, call.ts, &storing), is_won)
        });
    }
    finish(call, flags, key, &outcome, Some(value.len()));
    Ok(())
}

fn mode(letter: Option<u8>) -> Result<Mode, &'static [u8]> {
    Ok(match letter.unwrap_or(b'S') {
        b'S' | b's' => Mode::Set,
        b'A' | b'a' => Mode::Append,
        b'P' | b'p' => Mode::Prepend,
        b'R' | b'r' => Mode::Replace,
        b'E' | b'e' => Mode::Add,
        _ => return Err(b"CLIENT_ERROR invalid mode for ms M token"),
    })
}

/// Makes the version stale that `change` gives the key; it also says whether somebody has been told
/// to fill that. A client that sees this version waits until it is known to be stale.
fn make_stale(
    call: &mut Call<'_>,
    key: &[u8],
    change: impl FnOnce(&mut Call<'_>, &Leases) -> (Outcome, bool),
) -> Outcome {
    let server = call.turn.server.clone();
    let mut leases = server.leases.lock().unwrap_or_else(PoisonError::into_inner);
    let (outcome, is_won) = change(call, &leases);
    if let Outcome::Done(version) = outcome {
        leases.set(call.ts, key, Lease { version, is_stale: true, is_won });
    }
    outcome
}

/// Answers with what became of a change, and what is to be repeated; of a value that was given,
/// also its size and version.
fn finish(
    call: &mut Call<'_>,
    flags: &Flags<'_>,
    key: &[u8],
    outcome: &Outcome,
    given: Option<usize>,
) {
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
    for flag in flags.all() {
        match (flag[0], given) {
            (b'c', Some(_)) => show(call, b'c', version),
            (b's', Some(size)) => show(call, b's', size as u64),
            _ => repeat(call, flags, key, flag),
        }
    }
    call.line(b"");
}

/// `md key flags`.
pub(super) fn delete<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = delete_or_say(call, rest) {
        fail(call, text);
    }
    Op::Delete
}

fn delete_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next().ok_or(&b"ERROR"[..])?;
    let read = Flags::read(word, rest, call.turn.now, (MOST_FLAGS, TOO_MANY), b"x");
    let (flags, key) = read.map_err(|fault| fault.short())?;
    let compared = flags.compared;
    let outcome = if flags.has(b'I') {
        make_stale(call, &key, |call, _| (age(call, &key, compared, flags.moved), false))
    } else if flags.has(b'x') {
        empty(call, &key, compared)
    } else {
        operations::delete(call.turn, call.ts, &key, compared)
    };
    finish(call, &flags, &key, &outcome, None);
    Ok(())
}

/// Gives an item another version, so that a client that read it before cannot store by it.
fn age(
    call: &mut Call<'_>,
    key: &[u8],
    version: Option<u64>,
    expires: Option<Option<u64>>,
) -> Outcome {
    let (mut outcome, mut was_read) = (Outcome::NotFound, false);
    let changed = operations::change(call.turn, call.ts, key, |seen, scratch| {
        outcome = Outcome::NotFound;
        let Some(seen) = seen else { return Edit::Keep };
        if version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Edit::Keep;
        }
        was_read = is_read(&seen.found);
        scratch.extend_from_slice(seen.value());
        let expiry = Expiry::of_item(expires.unwrap_or(seen.found.expires_ms));
        Edit::Make { flags: seen.found.flags, expiry }
    });
    if was_read {
        // For its clients it is the item that it was.
        call.turn.server.keyspace.note_read(call.ts, key, call.turn.now);
    }
    operations::outcome_of(changed, outcome)
}

/// Takes an item's value and flags away, and leaves the item.
fn empty(call: &mut Call<'_>, key: &[u8], version: Option<u64>) -> Outcome {
    let mut outcome = Outcome::NotFound;
    let changed = operations::change(call.turn, call.ts, key, |seen, _| {
        outcome = Outcome::NotFound;
        let Some(seen) = seen else { return Edit::Keep };
        if version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Edit::Keep;
        }
        let expiry = Expiry::of_item(seen.found.expires_ms);
        Edit::Put { value: b"", flags: 0, expiry }
    });
    operations::outcome_of(changed, outcome)
}

/// `ma key flags`.
pub(super) fn arithmetic<'a>(call: &mut Call<'_>, rest: impl Iterator<Item = &'a [u8]>) -> Op {
    if let Err(text) = arithmetic_or_say(call, rest) {
        fail(call, text);
    }
    Op::Update
}

fn arithmetic_or_say<'a>(
    call: &mut Call<'_>,
    mut rest: impl Iterator<Item = &'a [u8]>,
) -> Result<(), &'static [u8]> {
    let word = rest.next().ok_or(&b"ERROR"[..])?;
    let read = Flags::read(word, rest, call.turn.now, (MOST_FLAGS, TOO_MANY), b"");
    let (flags, key) = read.map_err(|fault| fault.short())?;
    let decrements = match flags.mode {
        None | Some(b'I' | b'i' | b'+') => false,
        Some(b'D' | b'd' | b'-') => true,
        Some(_) => return Err(b"CLIENT_ERROR invalid mode for ma M token"),
    };
    let adding = Adding {
        key: &key,
        delta: flags.delta.unwrap_or(1),
        decrements,
        initial: flags.made.map(|_| (flags.initial, flags.end_of_made())),
        expires_ms: flags.moved,
        version: flags.compared.filter(|version| *version != 0),
    };
    let (outcome, number, before) =
        operations::add(call.turn, call.ts, &adding).ok_or(NO_NUMBER)?;
    let Outcome::Done(version) = outcome else {
        finish(call, &flags, &key, &outcome, None);
        return Ok(());
    };
    // As in memcached, an item that is made is told of.
    if flags.has(b'q') && before.is_some() {
        return Ok(());
    }
    let value = number.to_string();
    begin(call, &flags, value.len());
    let mut expires_ms = before.and_then(|before| before.expires_ms);
    for flag in flags.all() {
        match flag[0] {
            b'N' if before.is_none() => expires_ms = flags.made.flatten(),
            b'T' => expires_ms = flags.moved.flatten(),
            b't' => show_left(call, expires_ms),
            b'c' => show(call, b'c', version),
            _ => repeat(call, &flags, &key, flag),
        }
    }
    end(call, &flags, value.as_bytes());
    Ok(())
}

/// The key of `me`, whose only flag is `b`: others count for nothing.
fn key_of<'a>(word: &'a [u8], mut rest: impl Iterator<Item = &'a [u8]>) -> Option<Cow<'a, [u8]>> {
    if word.is_empty() || word.len() > KEY_BYTES {
        return None;
    }
    match rest.next() {
        Some(b"b") => base64::decode(word).map(Cow::Owned),
        _ => Some(Cow::Borrowed(word)),
    }
}

/// `me key [b]`: what is known of an item.
pub(super) fn debug<'a>(call: &mut Call<'_>, mut rest: impl Iterator<Item = &'a [u8]>) -> Op {
    let word = rest.next().unwrap_or_default();
    let Some(key) = key_of(word, rest) else {
        fail(call, BAD_LINE);
        return Op::Other;
    };
    let (keyspace, now) = (&call.turn.server.keyspace, call.turn.now);
    let (found, bytes) = (keyspace.look(call.ts, &key, now), keyspace.bytes_of(call.ts, &key, now));
    let (Some(found), Some(bytes)) = (found, bytes) else {
        call.line(b"EN");
        return Op::Other;
    };
    // As memcached has it: how long ago it ended, where -1 is also never.
    let exp = found.expires_ms.map_or(-1, |at| -(left(at, now) as i64));
    let (la, fetch) = (idle_s(call, &found), if is_read(&found) { "yes" } else { "no" });
    let class = class::class_for(&class::classes(), bytes).map_or(0, |index| index + 1);
    call.out.extend_from_slice(b"ME ");
    call.out.extend_from_slice(word);
    let cas = found.version;
    call.line(
        format!(" exp={exp} la={la} cas={cas} fetch={fetch} cls={class} size={bytes}").as_bytes(),
    );
    Op::Other
}
