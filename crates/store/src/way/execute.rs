//! Carries out calls on a store: what kernels do, apart from the card.

use std::ops::ControlFlow;

use remora::kernel::CallStatus;

use super::call::{
    ANSWER_LEN, AnswerHead, BadCall, Call, Condition, EXPIRY_KEPT, Operation, Placement, Refused,
};
use super::index::Index;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::scan::Cursor;
use crate::store::{Change, Changed, Found, Old, Store, UpdateError, Value};
use crate::tablespace::TablespaceId;

/// The most items of one Scan, unless the call wants fewer.
const ROWS_MAX: usize = 256;
/// Bytes of a row of a Scan before key and value: their lengths, u32 each.
const ROW_HEAD: usize = 8;

/// Carries out a call whose answer may have `room` bytes; appends the answer to `out`. Returns the
/// position in the log that has to be durable before the answer may leave, or 0.
///
/// # Errors
/// The status that the client gets.
pub fn execute<M: Memory, J: Journal>(
    store: &Store<M, J>,
    operation: Operation,
    bytes: &[u8],
    now: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let call = Call::parse(bytes).map_err(|bad| match bad {
        BadCall::TooLong => Refused::TooLarge.status(),
        _ => CallStatus::BAD_PARAMS,
    })?;
    let room = room.checked_sub(ANSWER_LEN).ok_or(CallStatus::TOO_LONG)?;
    match operation {
        Operation::Get => get(store, &call, now, room, out),
        Operation::Put => change(store, &call, now, out, &put),
        Operation::Delete => change(store, &call, now, out, &|_, _, _| Ok(Change::Delete)),
        Operation::Touch => change(store, &call, now, out, &|call, old, _| {
            let _ = old.ok_or(CallStatus::NOT_FOUND)?;
            Ok(Change::Touch { expires_ms: (call.expires_ms != 0).then_some(call.expires_ms) })
        }),
        Operation::Count => count(store, &call, now, out),
        Operation::Scan => scan(store, &call, now, room, out),
        Operation::Flush => {
            let flushed = store.flush(TablespaceId(call.tablespace));
            let version = flushed.map_err(|error| status_of(&error))?;
            answer(AnswerHead { version, ..AnswerHead::default() }, out);
            Ok(version)
        }
        Operation::Tablespace => {
            let name = std::str::from_utf8(call.key).map_err(|_| CallStatus::BAD_PARAMS)?;
            let number = store.tablespace(name).ok_or(Refused::Tablespace.status())?;
            answer(AnswerHead { version: number.0.into(), ..AnswerHead::default() }, out);
            Ok(0)
        }
        Operation::Describe => {
            let start = out.len();
            answer(AnswerHead::default(), out);
            Index::describe(store, out);
            let value_len = (out.len() - start - ANSWER_LEN) as u32;
            let head = AnswerHead { value_len, ..AnswerHead::default() };
            out[start..start + ANSWER_LEN].copy_from_slice(&head.to_bytes());
            if value_len as usize <= room { Ok(0) } else { Err(CallStatus::TOO_LONG) }
        }
    }
}

fn answer(head: AnswerHead, out: &mut Vec<u8>) {
    out.extend_from_slice(&head.to_bytes());
}

/// The status that says why a key could not be changed.
fn status_of(error: &UpdateError) -> CallStatus {
    match error {
        UpdateError::Tablespace(_) => Refused::Tablespace.status(),
        UpdateError::Key(_) | UpdateError::Value(_) => Refused::TooLarge.status(),
        UpdateError::Memory { .. } | UpdateError::Quota { .. } | UpdateError::Crowded => {
            Refused::Full.status()
        }
        UpdateError::Journal(_) => Refused::ReadOnly.status(),
    }
}

/// Does a condition hold for a value that is there?
fn holds(
    condition: Condition<'_>,
    version: u64,
    value: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> bool,
) -> Result<bool, CallStatus> {
    Ok(match condition {
        Condition::None | Condition::Present => true,
        Condition::Absent => false,
        Condition::Version(wanted) => version == wanted,
        Condition::Value(wanted) => value(&mut |bytes| bytes == wanted),
        Condition::Predicate(_) => return Err(Refused::Predicate.status()),
    })
}

fn get<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    now: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let start = out.len();
    answer(AnswerHead::default(), out);
    let at = out.len();
    let found = store.get(TablespaceId(call.tablespace), call.key, now, out);
    let found = found.ok_or(CallStatus::NOT_FOUND)?;
    if !holds(call.condition, found.version, |is| is(&out[at..]))? {
        return Err(Refused::Condition.status());
    }
    let value_len = out.len() - at;
    let first = usize::try_from(call.argument).unwrap_or(usize::MAX).min(value_len);
    out.drain(at..at + first);
    out.truncate(at + room);
    let head = head_of(&found, value_len);
    out[start..at].copy_from_slice(&head.to_bytes());
    Ok(0)
}

fn head_of(found: &Found, value_len: usize) -> AnswerHead {
    AnswerHead {
        version: found.version,
        expires_ms: found.expires_ms.unwrap_or(0),
        flags: found.flags,
        value_len: value_len as u32,
    }
}

/// What becomes of a key, given the call, its old value and a buffer for the new one.
type Decide<'f> = dyn for<'a> Fn(&Call<'a>, Option<&Old<'_>>, &mut Vec<u8>) -> Result<Change<'a>, CallStatus>
    + 'f;

/// Changes a key, if the call's condition holds.
fn change<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    now: u64,
    out: &mut Vec<u8>,
    decide: &Decide<'_>,
) -> Result<u64, CallStatus> {
    let mut refused = None;
    let updated =
        store.update(TablespaceId(call.tablespace), call.key, now, &mut |old, scratch| {
            let change = may_change(call, old).and_then(|()| decide(call, old, scratch));
            change.unwrap_or_else(|status| {
                refused = Some(status);
                Change::Keep
            })
        });
    let updated = updated.map_err(|error| status_of(&error))?;
    if let Some(status) = refused {
        return Err(status);
    }
    if updated.changed == Changed::Kept {
        return Err(CallStatus::NOT_FOUND);
    }
    answer(AnswerHead { version: updated.version, ..AnswerHead::default() }, out);
    Ok(updated.version)
}

fn may_change(call: &Call<'_>, old: Option<&Old<'_>>) -> Result<(), CallStatus> {
    let Some(old) = old else {
        return match call.condition {
            Condition::None | Condition::Absent => Ok(()),
            _ => Err(CallStatus::NOT_FOUND),
        };
    };
    let mut readable = true;
    let held = holds(call.condition, old.found.version, |is| {
        let mut value = Vec::new();
        readable = old.append_value(&mut value);
        readable && is(&value)
    })?;
    match (held, readable) {
        (true, _) => Ok(()),
        (false, true) => Err(Refused::Condition.status()),
        (false, false) => Err(Refused::Codec.status()),
    }
}

/// When a key expires that is set now.
fn expiry(call: &Call<'_>, old: Option<&Old<'_>>) -> Option<u64> {
    match call.expires_ms {
        EXPIRY_KEPT => old.and_then(|old| old.found.expires_ms),
        0 => None,
        at => Some(at),
    }
}

fn put<'a>(
    call: &Call<'a>,
    old: Option<&Old<'_>>,
    scratch: &mut Vec<u8>,
) -> Result<Change<'a>, CallStatus> {
    let (flags, expires_ms) = (call.flags, expiry(call, old));
    let value = match (call.placement, old) {
        (Placement::Set, _) | (_, None) => Value::Given(call.value),
        (Placement::Append, Some(old)) => {
            read(old, scratch)?;
            scratch.extend_from_slice(call.value);
            Value::Scratch
        }
        (Placement::Prepend, Some(old)) => {
            scratch.extend_from_slice(call.value);
            read(old, scratch)?;
            Value::Scratch
        }
    };
    Ok(Change::Put { value, flags, expires_ms })
}

fn read(old: &Old<'_>, into: &mut Vec<u8>) -> Result<(), CallStatus> {
    if old.append_value(into) { Ok(()) } else { Err(Refused::Codec.status()) }
}

/// Adds to a decimal number; the answer has the sum's digits behind its head.
fn count<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    now: u64,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let digits = std::cell::RefCell::new(Vec::new());
    let start = out.len();
    let version = change(store, call, now, out, &|call, old, scratch| {
        if let Some(old) = old {
            read(old, scratch)?;
        }
        let number = match std::str::from_utf8(scratch) {
            Ok("") if old.is_none() => Some(0),
            Ok(text) => text.parse::<i64>().ok(),
            Err(_) => None,
        };
        let sum = number.and_then(|number| number.checked_add(call.argument.cast_signed()));
        let sum = sum.ok_or(Refused::Number.status())?;
        scratch.clear();
        scratch.extend_from_slice(sum.to_string().as_bytes());
        digits.replace(scratch.clone());
        let flags = old.map_or(call.flags, |old| old.found.flags);
        Ok(Change::Put { value: Value::Scratch, flags, expires_ms: expiry(call, old) })
    })?;
    let digits = digits.into_inner();
    let head = AnswerHead { version, value_len: digits.len() as u32, ..AnswerHead::default() };
    out.truncate(start);
    answer(head, out);
    out.extend_from_slice(&digits);
    Ok(version)
}

/// Rows from a cursor on: for each its lengths, key and value. The head's version is the cursor to
/// go on from, 0 at the end; its length counts the rows.
///
/// A row that does not fit ends the answer, and the next call begins with it. A row that is longer
/// than a whole answer is refused as too long.
fn scan<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    now: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    if !call.value.is_empty() {
        return Err(Refused::Predicate.status());
    }
    let limit = call.limit as usize;
    let at_most = if limit == 0 { ROWS_MAX } else { limit.min(ROWS_MAX) };
    let start = out.len();
    answer(AnswerHead::default(), out);
    let first = out.len();
    let (mut rows, mut value, mut full) = (0, Vec::new(), false);
    let space = TablespaceId(call.tablespace);
    let next = store.scan(space, Cursor(call.argument), now, at_most, &mut |item| {
        value.clear();
        if item.codec.decode(item.stored, super::call::VALUE_MAX, &mut value).is_err() {
            return ControlFlow::Continue(());
        }
        let row = ROW_HEAD + item.key.len() + value.len();
        full = out.len() - first + row > room;
        if full {
            return ControlFlow::Break(());
        }
        out.extend_from_slice(&(item.key.len() as u32).to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(item.key);
        out.extend_from_slice(&value);
        rows += 1;
        ControlFlow::Continue(())
    });
    if full && rows == 0 {
        return Err(CallStatus::TOO_LONG);
    }
    let head = AnswerHead { version: next.0, value_len: rows, ..AnswerHead::default() };
    out[start..first].copy_from_slice(&head.to_bytes());
    Ok(0)
}
