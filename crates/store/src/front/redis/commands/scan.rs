//! KEYS, SCAN, RANDOMKEY and DEBUG DIGEST: walks over the keys of a database.

use twox_hash::XxHash3_64;

use crate::front::keyspace::TablespaceId;
use crate::front::redis::command::{Call, Done, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::glob::matches;
use crate::front::redis::request::decimal;
use crate::front::server_state::DATABASES;

/// Keys that one step of a whole walk shows.
const STEP: usize = 1024;
/// Keys that one `SCAN` shows at most.
pub(crate) const MOST: usize = 100_000;

/// `KEYS pattern`.
pub(crate) fn keys(call: &mut Call<'_>) -> Done {
    let (ts, pattern, now, all) = (call.ts()?, call.at(1), call.turn.now, call.at(1) == b"*");
    let (mut found, mut bytes, mut cursor) = (Vec::new(), 0, 0);
    loop {
        cursor = call.turn.server.keyspace.scan(ts, cursor, STEP, now, &mut |key, _| {
            if all || matches(pattern, key) {
                bytes += key.len() + 32;
                found.push(key.to_vec());
            }
            call.reply.has_room(bytes)
        });
        if !call.reply.has_room(bytes) {
            return call.overflow();
        }
        if cursor == 0 {
            break;
        }
    }
    // A walk may show a key twice while the table grows.
    found.sort_unstable();
    found.dedup();
    call.reply.array(found.len());
    found.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

/// A cursor as a client gives it. As in Redis, nothing is 0, and there may be a sign.
fn cursor(text: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    let cursor: u64 = digits.parse().ok()?;
    Some(if is_negative { cursor.wrapping_neg() } else { cursor })
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
pub(crate) fn scan(call: &mut Call<'_>) -> Done {
    let cursor = cursor(call.at(1)).ok_or(Wrong::Is("ERR invalid cursor"))?;
    let (mut pattern, mut count, mut is_string, mut index) = (None, 10, true, 2);
    while index < call.len() {
        if call.is(index, "match") {
            pattern = Some(call.after(&mut index)?).filter(|pattern| *pattern != b"*");
        } else if call.is(index, "count") {
            count = decimal(call.after(&mut index)?).ok_or(NOT_INTEGER)?;
            if count < 1 {
                return Err(SYNTAX);
            }
        } else if call.is(index, "type") {
            is_string = call.after(&mut index)?.eq_ignore_ascii_case(b"string");
        } else {
            return Err(SYNTAX);
        }
        index += 1;
    }
    let (ts, now, mut found) = (call.ts()?, call.turn.now, Vec::new());
    let count = usize::try_from(count).unwrap_or(MOST).min(MOST);
    let mut bytes = 0;
    let next = call.turn.server.keyspace.scan(ts, cursor, count, now, &mut |key, _| {
        if is_string && pattern.is_none_or(|pattern| matches(pattern, key)) {
            bytes += key.len() + 32;
            found.push(key.to_vec());
        }
        call.reply.has_room(bytes)
    });
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(found.len());
    found.iter().for_each(|key| call.reply.bulk(key));
    Ok(())
}

/// Keys among which `RANDOMKEY` chooses: with one alone, a key after a wide gap would come often.
const CHOICES: usize = 16;

/// Steps of a walk after which `RANDOMKEY` chooses among the keys that it has: a small database
/// beside a large one has few of them, far apart.
const STEPS: usize = 16;

/// `RANDOMKEY`: one of the first keys of a walk that begins somewhere.
pub(crate) fn randomkey(call: &mut Call<'_>) -> Done {
    let (ts, now) = (call.ts()?, call.turn.now);
    let keyspace = call.turn.server.keyspace.clone();
    // Any well-mixed number will do: nothing rests on it.
    let seed = mix(call.turn.server.uptime().as_nanos() as u64);
    let (mut cursor, mut begun_anew, mut found) = (keyspace.somewhere(seed), false, Vec::new());
    let mut steps = 0;
    while keyspace.count(ts) > 0 && found.len() < CHOICES && (steps < STEPS || found.is_empty()) {
        let left = CHOICES - found.len();
        cursor = keyspace.scan(ts, cursor, left, now, &mut |key, _| {
            found.push(key.to_vec());
            found.len() < CHOICES
        });
        steps += 1;
        if cursor == 0 && std::mem::replace(&mut begun_anew, true) {
            break;
        }
    }
    match found.get((mix(seed) % found.len().max(1) as u64) as usize) {
        Some(key) => call.reply.bulk(key),
        None => call.reply.null(),
    }
    Ok(())
}

/// Another number for each, without a pattern that shows.
fn mix(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

/// `DEBUG DIGEST`: a number for all that the databases hold. Two stores with the same items, their
/// flags and ends have the same. It holds while nobody changes them.
pub(crate) fn debug(call: &mut Call<'_>) -> Done {
    if call.is(1, "help") {
        return call.help(&["DIGEST", "    Return a digest of all keys and values."]);
    }
    if !call.is(1, "digest") {
        return call.no_subcommand();
    }
    if call.len() != 2 {
        return call.arity();
    }
    let mut items = Vec::new();
    for index in 0..DATABASES {
        if let Some(ts) = call.turn.server.used_database(index) {
            digests(call, ts, index, &mut items);
        }
    }
    // A walk may show a key twice while the table grows.
    items.sort_unstable();
    items.dedup();
    let all = items.into_iter().fold(0, u64::wrapping_add);
    call.reply.simple(&format!("{all:040x}"));
    Ok(())
}

/// Adds a digest for each item of a database.
fn digests(call: &Call<'_>, ts: TablespaceId, database: usize, items: &mut Vec<u64>) {
    let (keyspace, now) = (&call.turn.server.keyspace, call.turn.now);
    let (mut keys, mut value, mut item, mut cursor) = (Vec::new(), Vec::new(), Vec::new(), 0);
    loop {
        cursor = keyspace.scan(ts, cursor, STEP, now, &mut |key, _| {
            keys.push(key.to_vec());
            true
        });
        for key in keys.drain(..) {
            value.clear();
            let Some(found) = keyspace.get(ts, &key, now, &mut value) else { continue };
            item.clear();
            let ends = found.expires_ms.unwrap_or(0);
            for number in [database as u64, key.len() as u64, found.flags.into(), ends] {
                item.extend(number.to_le_bytes());
            }
            item.extend_from_slice(&key);
            item.extend_from_slice(&value);
            items.push(XxHash3_64::oneshot(&item));
        }
        if cursor == 0 {
            return;
        }
    }
}
