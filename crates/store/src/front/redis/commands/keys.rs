//! Keys, whatever their values are.

use crate::front::keyspace::{Edit, Expiry, TablespaceId};
use crate::front::redis::command::{Call, Done, NO_KEY, NOT_INTEGER, SYNTAX, Wrong};
use crate::front::redis::request::decimal;
use crate::front::server_state::DATABASES;

/// `DEL key …`, and `UNLINK`.
pub(crate) fn del(call: &mut Call<'_>) -> Done {
    let mut gone = 0;
    for key in call.arguments.from(1) {
        let changed = call.change(key, |seen, _| match seen {
            Some(_) => Edit::Delete,
            None => Edit::Keep,
        })?;
        gone += i64::from(changed);
    }
    call.reply.integer(gone);
    Ok(())
}

/// `TOUCH key …`.
pub(crate) fn touch(call: &mut Call<'_>) -> Done {
    let ts = call.ts()?;
    for key in call.arguments.from(1) {
        call.turn.server.keyspace.note_read(ts, key, call.turn.now);
    }
    exists(call)
}

/// `EXISTS key …`.
pub(crate) fn exists(call: &mut Call<'_>) -> Done {
    let mut there = 0;
    for key in call.arguments.from(1) {
        let found = call.look(key)?.is_some();
        call.count(found);
        there += i64::from(found);
    }
    call.reply.integer(there);
    Ok(())
}

/// `TYPE key`.
pub(crate) fn kind(call: &mut Call<'_>) -> Done {
    let found = call.look(call.at(1))?;
    call.reply.simple(if found.is_some() { "string" } else { "none" });
    Ok(())
}

/// `RENAME key newkey`.
pub(crate) fn rename(call: &mut Call<'_>) -> Done {
    move_key(call, true)?;
    call.reply.ok();
    Ok(())
}

/// `RENAMENX key newkey`.
pub(crate) fn renamenx(call: &mut Call<'_>) -> Done {
    let moved = move_key(call, false)?;
    call.reply.flag(moved);
    Ok(())
}

fn move_key(call: &mut Call<'_>, replaces: bool) -> Result<bool, Wrong> {
    let (ts, from, to) = (call.ts()?, call.at(1), call.at(2));
    if call.look(from)?.is_none() {
        return Err(NO_KEY);
    }
    if from == to {
        return Ok(false);
    }
    let moved = copy_to(call, (ts, from), (ts, to), replaces)?.ok_or(NO_KEY)?;
    if moved {
        call.change(from, |_, _| Edit::Delete)?;
    }
    Ok(moved)
}

/// Copies a value with its flags and end. None if there is none, false if another is there
/// already and must stay.
fn copy_to(
    call: &mut Call<'_>,
    (from_ts, from): (TablespaceId, &[u8]),
    (to_ts, to): (TablespaceId, &[u8]),
    replaces: bool,
) -> Result<Option<bool>, Wrong> {
    let mut value = std::mem::take(&mut call.turn.scratch);
    value.clear();
    let found = call.turn.server.keyspace.get(from_ts, from, call.turn.now, &mut value);
    let copied = match found {
        None => Ok(None),
        Some(found) => call
            .change_in(to_ts, to, |seen, _| match seen {
                Some(_) if !replaces => Edit::Keep,
                _ => {
                    let expiry = Expiry::of_item(found.expires_ms);
                    Edit::Put { value: &value, flags: found.flags, expiry }
                }
            })
            .map(Some),
    };
    call.turn.scratch = value;
    copied
}

/// The number of a database that an argument names.
pub(crate) fn database(text: &[u8]) -> Result<usize, Wrong> {
    let number = decimal(text).ok_or(NOT_INTEGER)?;
    let index = usize::try_from(number).ok().filter(|index| *index < DATABASES);
    index.ok_or(Wrong::Is("ERR DB index is out of range"))
}

/// `COPY source destination [DB n] [REPLACE]`.
pub(crate) fn copy(call: &mut Call<'_>) -> Done {
    let (mut index, mut to_database, mut replaces) = (3, call.state.database, false);
    while index < call.len() {
        if call.is(index, "replace") {
            replaces = true;
        } else if call.is(index, "db") {
            to_database = database(call.after(&mut index)?)?;
        } else {
            return Err(SYNTAX);
        }
        index += 1;
    }
    let (from, to) = (call.at(1), call.at(2));
    if from == to && to_database == call.state.database {
        return Err(Wrong::Is("ERR source and destination objects are the same"));
    }
    let (from_ts, to_ts) = (call.ts()?, call.turn.server.database(to_database)?);
    let copied = copy_to(call, (from_ts, from), (to_ts, to), replaces)?;
    call.reply.flag(copied == Some(true));
    Ok(())
}

/// `MOVE key db`.
pub(crate) fn move_to(call: &mut Call<'_>) -> Done {
    let to_database = database(call.at(2))?;
    if to_database == call.state.database {
        return Err(Wrong::Is("ERR source and destination objects are the same"));
    }
    let (key, from_ts) = (call.at(1), call.ts()?);
    let to_ts = call.turn.server.database(to_database)?;
    let moved = copy_to(call, (from_ts, key), (to_ts, key), false)? == Some(true);
    if moved {
        call.change(key, |_, _| Edit::Delete)?;
    }
    call.reply.flag(moved);
    Ok(())
}

/// `DBSIZE`.
pub(crate) fn dbsize(call: &mut Call<'_>) -> Done {
    let ts = call.ts()?;
    call.reply.integer(call.turn.server.keyspace.count(ts) as i64);
    Ok(())
}

/// `FLUSHDB [ASYNC | SYNC]`.
pub(crate) fn flushdb(call: &mut Call<'_>) -> Done {
    flush(call, call.state.database..call.state.database + 1)
}

/// `FLUSHALL [ASYNC | SYNC]`.
pub(crate) fn flushall(call: &mut Call<'_>) -> Done {
    flush(call, 0..DATABASES)
}

fn flush(call: &mut Call<'_>, databases: std::ops::Range<usize>) -> Done {
    let plain = call.len() == 1;
    if !plain && !(call.len() == 2 && (call.is(1, "async") || call.is(1, "sync"))) {
        return Err(SYNTAX);
    }
    for index in databases {
        let Some(ts) = call.turn.server.used_database(index) else { continue };
        let version = call.turn.server.keyspace.flush(ts, call.turn.now)?;
        call.turn.version = call.turn.version.max(version);
    }
    call.reply.ok();
    Ok(())
}

/// Strings up to this length are told apart by `OBJECT ENCODING`, in bytes; as Redis does.
const EMBEDDED: usize = 44;

const OBJECT_HELP: &[&str] = &[
    "ENCODING <key>",
    "    Return the kind of value: int, embstr (up to 44 bytes) or raw.",
    "FREQ <key>",
    "    Refused: how often keys are used is not counted.",
    "IDLETIME <key>",
    "    Return the seconds since the key was used, where the store keeps that.",
    "REFCOUNT <key>",
    "    Return 1: values are not shared.",
];

const NO_FREQUENCY: Wrong = Wrong::Is(
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that \
     when switching between policies at runtime LRU and LFU data will take some time to adjust.",
);
const NO_IDLE_TIME: Wrong = Wrong::Is(
    "ERR idle times are not kept for this key: they are in the tablespace of memcached's clients",
);

/// `OBJECT ENCODING | REFCOUNT | IDLETIME | FREQ | HELP`. It is no use of the key.
pub(crate) fn object(call: &mut Call<'_>) -> Done {
    if call.is(1, "help") {
        return call.help(OBJECT_HELP);
    }
    if !["encoding", "refcount", "idletime", "freq"].iter().any(|sub| call.is(1, sub)) {
        return call.no_subcommand();
    }
    if call.len() != 3 {
        return call.arity();
    }
    let (ts, key, now, mut value) = (call.ts()?, call.at(2), call.turn.now, Vec::new());
    let keyspace = &call.turn.server.keyspace;
    let Some(found) = keyspace.get_unnoticed(ts, key, now, &mut value) else {
        call.reply.null();
        return Ok(());
    };
    match () {
        () if call.is(1, "freq") => return Err(NO_FREQUENCY),
        () if call.is(1, "idletime") => {
            let used_s = found.trace.ok_or(NO_IDLE_TIME)?.second;
            // What was not used since the store was opened was not used for as long, at least.
            let idle_s = match used_s {
                0 => call.turn.server.uptime().as_secs(),
                _ => (now / 1000).saturating_sub(used_s.into()),
            };
            call.reply.integer(idle_s as i64);
        }
        () if call.is(1, "refcount") => call.reply.integer(1),
        () if decimal(&value).is_some() => call.reply.bulk(b"int"),
        () => call.reply.bulk(if value.len() <= EMBEDDED { b"embstr" } else { b"raw" }),
    }
    Ok(())
}
