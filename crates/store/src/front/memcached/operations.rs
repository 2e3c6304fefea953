//! What memcached's three protocols do to the store.

use crate::front::keyspace::{ChangeRefused, Edit, Expiry, Found, Seen, TablespaceId};
use crate::front::memcached::numbers;
use crate::front::server_state::Turn;

/// The longest key, in bytes.
pub(super) const KEY_BYTES: usize = 250;

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Set,
    Add,
    Replace,
    Append,
    Prepend,
}

/// A request to store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Storing<'a> {
    pub(super) mode: Mode,
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    pub(super) flags: u32,
    /// When it ends.
    pub(super) expiry: Expiry,
    /// Only if the key has this version.
    pub(super) version: Option<u64>,
    /// A missing key is made of what would be joined to it, and ends then.
    pub(super) made: Option<Option<u64>>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was done; the key's version now.
    Done(u64),
    /// The key is there, or is not, against what was asked.
    NotStored,
    /// The key has another version.
    Exists,
    /// The key is not there.
    NotFound,
    /// It cannot be done.
    Refused(ChangeRefused),
}

/// The longest value, in bytes.
pub(super) fn longest(turn: &Turn) -> usize {
    turn.server.settings.bulk_bytes.load(std::sync::atomic::Ordering::Relaxed) as usize
}

/// Stores a value.
pub(super) fn store(turn: &mut Turn, ts: TablespaceId, storing: &Storing<'_>) -> Outcome {
    let &Storing { mode, key, value, flags, expiry, version, made } = storing;
    let (mut outcome, longest) = (Outcome::NotStored, longest(turn));
    let joins = matches!(mode, Mode::Append | Mode::Prepend);
    turn.counts.cmd_set.add(1);
    let changed = change(turn, ts, key, |seen, scratch| {
        if let Some(version) = version {
            match &seen {
                None if joins && made.is_none() => {}
                None => {
                    outcome = Outcome::NotFound;
                    return Edit::Keep;
                }
                // 0 is no version: what is joined is compared with nothing then.
                Some(_) if joins && version == 0 => {}
                Some(seen) if seen.found.version != version => {
                    outcome = Outcome::Exists;
                    return Edit::Keep;
                }
                Some(_) => {}
            }
        }
        outcome = Outcome::NotStored;
        let put = Edit::Put { value, flags, expiry };
        let joined = match (mode, seen) {
            (Mode::Set, _) | (Mode::Add, None) | (Mode::Replace, Some(_)) => return put,
            (Mode::Append, Some(seen)) => (seen, [seen.value(), value]),
            (Mode::Prepend, Some(seen)) => (seen, [value, seen.value()]),
            (Mode::Append | Mode::Prepend, None) => {
                return made.map_or(Edit::Keep, |at| Edit::Put {
                    value,
                    flags,
                    expiry: Expiry::asked(at),
                });
            }
            _ => return Edit::Keep,
        };
        let (seen, parts) = joined;
        if parts[0].len() + parts[1].len() > longest {
            outcome = Outcome::Refused(ChangeRefused::Value { limit: longest });
            return Edit::Keep;
        }
        parts.into_iter().for_each(|part| scratch.extend_from_slice(part));
        let expiry = Expiry::of_item(seen.found.expires_ms);
        Edit::Make { flags: seen.found.flags, expiry }
    });
    let outcome = outcome_of(changed, outcome);
    if version.is_some() {
        match &outcome {
            Outcome::Done(_) => turn.counts.cas_hits.add(1),
            Outcome::Exists => turn.counts.cas_badval.add(1),
            Outcome::NotFound => turn.counts.cas_misses.add(1),
            _ => {}
        }
    }
    if let Outcome::Done(_) = outcome {
        turn.counts.stored.add(1);
    }
    outcome
}

/// What has become of a change; `otherwise` if nothing was changed.
pub(super) fn outcome_of(
    changed: Result<Option<u64>, ChangeRefused>,
    otherwise: Outcome,
) -> Outcome {
    match changed {
        Ok(Some(version)) => Outcome::Done(version),
        Ok(None) => otherwise,
        Err(refused) => Outcome::Refused(refused),
    }
}

/// Changes a key. The answer is its version now, if something was changed.
pub(super) fn change<'v>(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    mut decide: impl FnMut(Option<Seen<'_>>, &mut Vec<u8>) -> Edit<'v>,
) -> Result<Option<u64>, ChangeRefused> {
    let version = turn.server.keyspace.update(ts, key, turn.now, &mut decide)?;
    turn.version = turn.version.max(version.unwrap_or(0));
    Ok(version)
}

/// Deletes a key, if it has this version.
pub(super) fn delete(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    version: Option<u64>,
) -> Outcome {
    let mut outcome = Outcome::NotFound;
    let changed = change(turn, ts, key, |seen, _| {
        outcome = Outcome::NotFound;
        let Some(seen) = seen else { return Edit::Keep };
        if version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Edit::Keep;
        }
        Edit::Delete
    });
    let outcome = outcome_of(changed, outcome);
    match outcome {
        Outcome::Done(_) => turn.counts.delete_hits.add(1),
        _ => turn.counts.delete_misses.add(1),
    }
    outcome
}

/// Moves a key's end. The answer is its version now.
pub(super) fn touch(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    expires_ms: Option<u64>,
) -> Outcome {
    turn.counts.cmd_touch.add(1);
    let mut touched = None;
    let changed = change(turn, ts, key, |seen, _| {
        touched = seen.map(|seen| seen.found);
        touched.map_or(Edit::Keep, |_| Edit::Touch { expires_ms })
    });
    if touched.is_some_and(|found| found.trace.is_some()) {
        turn.server.keyspace.note_read(ts, key, turn.now);
    }
    // The key keeps its version, though the change has a place of its own in the order of all.
    let version = touched.map(|found| found.version);
    let outcome = outcome_of(changed.map(|done| done.and(version)), Outcome::NotFound);
    match outcome {
        Outcome::Done(_) => turn.counts.touch_hits.add(1),
        _ => turn.counts.touch_misses.add(1),
    }
    outcome
}

/// A request to add to a number, or to take from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Adding<'a> {
    pub(super) key: &'a [u8],
    pub(super) delta: u64,
    pub(super) decrements: bool,
    /// What the key gets if it is not there: a number, and an end in ms of Unix time.
    pub(super) initial: Option<(u64, Option<u64>)>,
    /// Another end for a key that is there.
    pub(super) expires_ms: Option<Option<u64>>,
    /// Only if the key has this version.
    pub(super) version: Option<u64>,
}

/// What became of it: as [`Outcome`], the number, and what was known of the key before. None: the
/// value is no number.
pub(super) fn add(
    turn: &mut Turn,
    ts: TablespaceId,
    adding: &Adding<'_>,
) -> Option<(Outcome, u64, Option<Found>)> {
    let (mut outcome, mut number, mut had) = (Outcome::NotFound, None, None);
    let mut in_place = false;
    let changed = change(turn, ts, adding.key, |seen, scratch| {
        outcome = Outcome::NotFound;
        had = seen.map(|seen| seen.found);
        let Some(seen) = seen else {
            let Some((initial, expires_ms)) = adding.initial else { return Edit::Keep };
            number = Some(initial);
            scratch.extend_from_slice(itoa::Buffer::new().format(initial).as_bytes());
            return Edit::Make { flags: 0, expiry: Expiry::asked(expires_ms) };
        };
        if adding.version.is_some_and(|version| version != seen.found.version) {
            outcome = Outcome::Exists;
            return Edit::Keep;
        }
        let before = numbers::unsigned(seen.value());
        number = before.map(|before| match adding.decrements {
            true => before.saturating_sub(adding.delta),
            false => before.wrapping_add(adding.delta),
        });
        let Some(number) = number else { return Edit::Keep };
        scratch.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        // As memcached does: a number keeps its place when it gets shorter.
        let len = scratch.len().max(seen.value().len());
        scratch.resize(len, b' ');
        in_place = scratch.len() <= seen.value().len();
        let expiry = Expiry::of_item(adding.expires_ms.unwrap_or(seen.found.expires_ms));
        Edit::Make { flags: seen.found.flags, expiry }
    });
    let outcome = outcome_of(changed, outcome);
    let was_read = had.and_then(|found| found.trace).is_some_and(|trace| trace.is_read);
    if was_read && in_place {
        // As in memcached: only a number that gets longer is another item.
        turn.server.keyspace.note_read(ts, adding.key, turn.now);
    }
    let counts = &turn.counts;
    match (adding.decrements, had.is_some()) {
        (false, true) => counts.incr_hits.add(1),
        (false, false) => counts.incr_misses.add(1),
        (true, true) => counts.decr_hits.add(1),
        (true, false) => counts.decr_misses.add(1),
    }
    match (outcome, number) {
        (Outcome::NotFound, None) if had.is_some() => None,
        (outcome, number) => Some((outcome, number.unwrap_or(0), had)),
    }
}

/// Reads a value, and appends it to `value`.
pub(super) fn get(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    value: &mut Vec<u8>,
) -> Option<Found> {
    read(turn, ts, key, true, value)
}

/// The same, which counts as a use of the key if it `is_noticed`.
pub(super) fn read(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    is_noticed: bool,
    value: &mut Vec<u8>,
) -> Option<Found> {
    let found = match is_noticed {
        true => turn.server.keyspace.get(ts, key, turn.now, value),
        false => turn.server.keyspace.get_unnoticed(ts, key, turn.now, value),
    };
    turn.see_keys(Some(ts), &mut std::iter::once(key));
    count_get(turn, found.is_some());
    found
}

/// Counts a get, among memcached's and among all.
fn count_get(turn: &Turn, is_found: bool) {
    let counts = &turn.counts;
    counts.cmd_get.add(1);
    let (all, own) = match is_found {
        true => (&counts.hits, &counts.get_hits),
        false => (&counts.misses, &counts.get_misses),
    };
    all.add(1);
    own.add(1);
}

/// Reads a value and moves its end, at the same moment, which counts as a use of the key if it
/// `is_noticed`. The answer is what was known of the key before.
pub(super) fn get_and_touch(
    turn: &mut Turn,
    ts: TablespaceId,
    key: &[u8],
    (expires_ms, is_noticed): (Option<u64>, bool),
    value: &mut Vec<u8>,
) -> Result<Option<Found>, ChangeRefused> {
    let (start, mut found) = (value.len(), None);
    turn.counts.cmd_touch.add(1);
    change(turn, ts, key, |seen, _| {
        value.truncate(start);
        found = seen.map(|seen| seen.found);
        let Some(seen) = seen else { return Edit::Keep };
        value.extend_from_slice(seen.value());
        Edit::Touch { expires_ms }
    })?;
    if is_noticed && found.is_some_and(|found| found.trace.is_some()) {
        turn.server.keyspace.note_read(ts, key, turn.now);
    }
    turn.see_keys(Some(ts), &mut std::iter::once(key));
    count_get(turn, found.is_some());
    match found {
        Some(_) => turn.counts.touch_hits.add(1),
        None => turn.counts.touch_misses.add(1),
    }
    Ok(found)
}

/// Removes all keys, now or at a time that is to come.
pub(super) fn flush(turn: &mut Turn, ts: TablespaceId, delay_s: i64) -> Result<(), ChangeRefused> {
    turn.counts.cmd_flush.add(1);
    match numbers::end(delay_s, turn.now) {
        Some(at) if delay_s > 0 && at > turn.now => {
            let at = i64::try_from(at).unwrap_or(i64::MAX);
            turn.server.flush_at.store(at, std::sync::atomic::Ordering::Relaxed);
        }
        _ => {
            // As in memcached: the newest request counts, and takes back one that waits.
            turn.server.flush_at.store(-1, std::sync::atomic::Ordering::Relaxed);
            let version = turn.server.keyspace.flush(ts, turn.now)?;
            turn.version = turn.version.max(version);
        }
    }
    Ok(())
}
