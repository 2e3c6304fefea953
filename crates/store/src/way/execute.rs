//! Carries out calls on a store: what kernels do, apart from the card.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remora::kernel::CallStatus;

use super::call::{
    ANSWER_LEN, AnswerHead, BadCall, Call, Condition, EVICTS, EXPIRY_KEPT, EXPIRY_NEVER,
    HOLDS_BACK, Operation, Placement, Refused, VALUE_MAX, WITH_HEADS,
};
use super::index::Index;
use super::row;
use crate::codec::Codec;
use crate::front::server_state::is_of_fronts;
use crate::item::Item;
use crate::journal::{Journal, JournalError};
use crate::memory::Memory;
use crate::request::Asked;
use crate::scan::{Copied, Cursor, ScanBudget, Visited, WALKED_MAX, Wanted};
use crate::select::plan::{Plan, is_laborious};
use crate::select::plans::{self, Planned, Plans};
use crate::select::selection::Selection;
use crate::select::sieve::Sieve;
use crate::store::{
    Change, Changed, Expiry, Found, LONG, Old, Short, Store, UpdateError, Value, is_long,
};
use crate::tablespace::{Eviction, TablespaceError, TablespaceId, TablespaceOptions};

/// Items that one Scan looks at, at most about; the next goes on from there. So that it does not
/// hold up the card's other work for longer than some hundred microseconds.
const LOOKED_MAX: usize = 4096;
/// Bytes of values that it looks at, at most about: as many fewer as its predicate looks at them
/// more often.
const LOOKED_BYTES: usize = 4 << 20;
/// Nanoseconds in which it judges rows, at most about, beside those for their bytes.
const JUDGED_NS: u32 = 400_000;
/// Buckets of a partition that are more than a card walks over: so many may have stores of more
/// than 40 GiB.
const WIDE: usize = 4 * WALKED_MAX;
/// A byte of a compressed value counts as so many, or as those that it stands for, if these are
/// more.
const DECODED: usize = 8;

/// What a call that takes long ends with under [`Effort::Short`]. No client sees it.
pub(crate) const LATER: CallStatus = CallStatus(u8::MAX);

/// How much work a call may make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effort {
    /// What a card does between two packets. A call that is about long values, and so takes
    /// milliseconds, changes nothing and is to be carried out elsewhere.
    Short,
    /// As much as it takes.
    Any,
}

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
    execute_with(Effort::Any, store, operation, bytes, (now, room), out)
}

/// As [`execute`]. A call that would take long ends with [`LATER`] if there is little time.
pub(crate) fn execute_with<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    operation: Operation,
    bytes: &[u8],
    (now, room): (u64, usize),
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    if effort == Effort::Short && bytes.len() >= LONG {
        return Err(LATER);
    }
    let call = Call::parse(bytes).map_err(|bad| match bad {
        BadCall::TooLong => Refused::TooLarge.status(),
        _ => CallStatus::BAD_PARAMS,
    })?;
    if call.request.is_some() || call.is_asking {
        return Err(Refused::Cluster.status());
    }
    execute_call(effort, store, operation, &call, (now, room), out)
}

/// Carries out a call that was read, from any client: see [`execute`].
///
/// # Errors
/// The status that the client gets.
pub fn execute_call<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    operation: Operation,
    call: &Call<'_>,
    (now, room): (u64, usize),
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let room = room.checked_sub(ANSWER_LEN).ok_or(CallStatus::TOO_LONG)?;
    let is_slow = matches!(operation, Operation::Flush | Operation::Drop);
    if is_slow && effort == Effort::Short {
        return Err(LATER);
    }
    let change = |out: &mut Vec<u8>, decide: &Decide<'_>| {
        change(effort, store, (call, &RefCell::default()), now, out, decide)
    };
    match operation {
        Operation::Get => get(effort, store, call, (now, room), out),
        Operation::Put => change(out, &put),
        Operation::Delete => change(out, &|_, _, _| Ok(Change::Delete)),
        Operation::Touch => change(out, &touch),
        Operation::Count => count(effort, store, call, now, out),
        Operation::Scan => scan(effort, store, call, (now, room), out),
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
            let flags = if store.journal().holds_back() { HOLDS_BACK } else { 0 };
            let head = AnswerHead { value_len, flags, expires_ms: now, ..AnswerHead::default() };
            out[start..start + ANSWER_LEN].copy_from_slice(&head.to_bytes());
            if value_len as usize <= room { Ok(0) } else { Err(CallStatus::TOO_LONG) }
        }
        Operation::Create => create(store, call, out),
        Operation::Drop => drop_space(store, call, out),
        // Only the store's server knows what is counted beside it, and of what it is a part.
        Operation::Info | Operation::Map | Operation::Lease => Err(CallStatus::NO_KERNEL),
    }
}

fn create<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let name = std::str::from_utf8(call.key).map_err(|_| CallStatus::BAD_PARAMS)?;
    if call.flags >= 2 * EVICTS {
        return Err(CallStatus::BAD_PARAMS);
    }
    let codec = Codec::from_u16(call.flags as u16).filter(|codec| codec.is_available());
    let evicts = call.flags & EVICTS != 0;
    let options = TablespaceOptions {
        name: name.to_owned(),
        quota: (call.argument > 0).then_some(call.argument),
        eviction: if evicts { Eviction::Clock } else { Eviction::Never },
        default_expiry_ms: (call.expires_ms > 0).then_some(call.expires_ms),
        codec: codec.ok_or(Refused::Codec.status())?,
    };
    let created = store.create_tablespace_logged(&options);
    let (id, position) = created.map_err(|error| status_of_space(&error))?;
    answer(AnswerHead { version: id.0.into(), ..AnswerHead::default() }, out);
    Ok(position)
}

fn drop_space<M: Memory, J: Journal>(
    store: &Store<M, J>,
    call: &Call<'_>,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let id = TablespaceId(call.tablespace);
    let all = store.tablespaces();
    if all.iter().any(|space| space.id == id && is_of_fronts(&space.options.name)) {
        return Err(Refused::Kept.status());
    }
    let position = store.drop_tablespace(id).map_err(|error| status_of_space(&error))?;
    answer(AnswerHead::default(), out);
    Ok(position)
}

/// The status that says why a tablespace was not made or dropped.
fn status_of_space(error: &TablespaceError) -> CallStatus {
    match error {
        TablespaceError::Exists(_) => Refused::Exists.status(),
        TablespaceError::Name(_) => CallStatus::BAD_PARAMS,
        TablespaceError::Full => Refused::Tablespaces.status(),
        TablespaceError::Unknown(_) => Refused::Tablespace.status(),
        TablespaceError::Journal(_) => Refused::ReadOnly.status(),
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
        UpdateError::Journal(JournalError::Failed(_)) => Refused::ReadOnly.status(),
        UpdateError::Journal(JournalError::TooLong(_)) => Refused::TooLarge.status(),
    }
}

/// A call's condition, ready to be judged.
struct Judge<'a> {
    condition: Condition<'a>,
    /// The plan of its predicate, or why there is none: its client learns that where it matters.
    planned: Option<Result<Arc<Planned>, CallStatus>>,
}

impl<'a> Judge<'a> {
    /// Makes the plan, before a lock is taken.
    fn new(effort: Effort, condition: Condition<'a>) -> Result<Judge<'a>, CallStatus> {
        let planned = match condition {
            Condition::Predicate(predicate) => Some(plan(effort, predicate)),
            _ => None,
        };
        match planned {
            Some(Err(LATER)) => Err(LATER),
            planned => Ok(Judge { condition, planned }),
        }
    }

    /// The predicate's plan, if there is one.
    fn plan(&self) -> Option<&Plan> {
        self.planned.as_ref()?.as_ref().ok().map(|planned| &planned.plan)
    }

    /// See [`Plan::weight`].
    fn weight(&self) -> usize {
        self.plan().map_or(1, Plan::weight)
    }

    /// Whether the condition is about the whole of a value.
    fn is_of_value(&self) -> bool {
        matches!(self.condition, Condition::Value(_) | Condition::Predicate(_))
    }

    /// Does the condition hold for a value that is there? `passes` says whether a plan may select
    /// the value, by what is plain of it; only then is `value` fetched.
    fn holds(
        &self,
        version: u64,
        passes: impl FnOnce(&Plan) -> bool,
        value: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool) -> bool,
    ) -> Result<bool, CallStatus> {
        Ok(match (self.condition, &self.planned) {
            (Condition::None | Condition::Present, _) => true,
            (Condition::Absent, _) => false,
            (Condition::Version(wanted), _) => version == wanted,
            (Condition::Value(wanted), _) => value(&mut |bytes| bytes == wanted),
            (Condition::Predicate(_), Some(Ok(planned))) => {
                let plan = &planned.plan;
                passes(plan) && value(&mut |bytes| plan.is_match(bytes))
            }
            (Condition::Predicate(_), Some(Err(status))) => return Err(*status),
            (Condition::Predicate(_), None) => return Err(Refused::Predicate.status()),
        })
    }
}

fn get<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    call: &Call<'_>,
    (now, room): (u64, usize),
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let judge = Judge::new(effort, call.condition)?;
    let (space, start) = (TablespaceId(call.tablespace), out.len());
    answer(AnswerHead::default(), out);
    let at = out.len();
    let found = match store.get_short(space, call.key, now, judge.plan(), out) {
        Some(Short::Read(found)) => Some(found),
        Some(Short::Unselected) => return Err(Refused::Condition.status()),
        Some(Short::Long) => {
            out.truncate(start);
            if !judge.is_of_value()
                && let Some(position) = get_piece(store, (call, &judge), now, room, out)?
            {
                return Ok(position);
            }
            if effort == Effort::Short {
                return Err(LATER);
            }
            answer(AnswerHead::default(), out);
            store.get(space, call.key, now, out)
        }
        None => None,
    };
    let found = found.ok_or(CallStatus::NOT_FOUND)?;
    if !judge.holds(found.version, |_| true, |is| is(&out[at..]))? {
        return Err(Refused::Condition.status());
    }
    let value_len = out.len() - at;
    let first = usize::try_from(call.argument).unwrap_or(usize::MAX).min(value_len);
    out.drain(at..at + first);
    out.truncate(at + room);
    let head = head_of(&found, value_len);
    out[start..at].copy_from_slice(&head.to_bytes());
    Ok(found.version)
}

/// A piece of a long value, without a copy of the whole; `None` if it is stored in another
/// form than the client sees.
fn get_piece<M: Memory, J: Journal>(
    store: &Store<M, J>,
    (call, judge): (&Call<'_>, &Judge<'_>),
    now: u64,
    room: usize,
    out: &mut Vec<u8>,
) -> Result<Option<u64>, CallStatus> {
    let pin = store.pin();
    let located = store.locate(&pin, TablespaceId(call.tablespace), call.key, now);
    let located = located.ok_or(CallStatus::NOT_FOUND)?;
    if located.found.codec != Codec::None {
        return Ok(None);
    }
    if !judge.holds(located.found.version, |_| true, |_| false)? {
        return Err(Refused::Condition.status());
    }
    answer(head_of(&located.found, located.stored as usize), out);
    let first = call.argument.min(located.stored);
    let at = out.len();
    out.resize(at + room.min((located.stored - first) as usize), 0);
    store.memory().read(located.value_at + first, &mut out[at..]);
    Ok(Some(located.found.version))
}

fn head_of(found: &Found, value_len: usize) -> AnswerHead {
    AnswerHead {
        version: found.version,
        expires_ms: found.expires_ms.unwrap_or(0),
        flags: found.flags,
        value_len: value_len as u32,
    }
}

fn head_of_item(item: &Item<'_>, value_len: usize) -> AnswerHead {
    AnswerHead {
        version: item.version,
        expires_ms: item.expires_ms.unwrap_or(0),
        flags: item.flags,
        value_len: value_len as u32,
    }
}

/// What becomes of a key, or why nothing does.
type Decided<'a> = Result<Change<'a>, CallStatus>;

/// Decides it, given the call, the old value and a buffer for the new one.
type Decide<'f> = dyn for<'a> Fn(&Call<'a>, Option<&Old<'_>>, &mut Vec<u8>) -> Decided<'a> + 'f;

/// Changes a key, if the call's condition holds. What its client is told beside the version is
/// taken from the cell.
fn change<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    (call, told): (&Call<'_>, &RefCell<Vec<u8>>),
    now: u64,
    out: &mut Vec<u8>,
    decide: &Decide<'_>,
) -> Result<u64, CallStatus> {
    let judge = Judge::new(effort, call.condition)?;
    let mut refused = None;
    let weight = judge.weight();
    let long = |old: &Old<'_>| is_long(old.stored_len() * weight, old.found.codec);
    let asked = call.request.map(|id| Asked { id, answer: told });
    let space = TablespaceId(call.tablespace);
    let updated =
        store.update_weighed(space, call.key, now, (asked, weight), &mut |old, scratch| {
            let change = match old {
                Some(old) if effort == Effort::Short && long(old) => Err(LATER),
                old => may_change(&judge, old).and_then(|()| decide(call, old, scratch)),
            };
            refused = change.err();
            change.unwrap_or(Change::Keep)
        });
    let updated = updated.map_err(|error| status_of(&error))?;
    if let Some(status) = refused {
        return Err(status);
    }
    if updated.changed == Changed::Kept {
        return Err(CallStatus::NOT_FOUND);
    }
    answer_change(updated.version, &[], out);
    Ok(updated.version)
}

fn may_change(judge: &Judge<'_>, old: Option<&Old<'_>>) -> Result<(), CallStatus> {
    let Some(old) = old else {
        return match judge.condition {
            Condition::None | Condition::Absent => Ok(()),
            _ => Err(CallStatus::NOT_FOUND),
        };
    };
    let mut readable = true;
    let passes = |plan: &Plan| old.passes(plan);
    let held = judge.holds(old.found.version, passes, |is| {
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
fn expiry(call: &Call<'_>, old: Option<&Old<'_>>) -> Expiry {
    match (call.expires_ms, old) {
        (EXPIRY_KEPT, Some(old)) => Expiry::of_item(old.found.expires_ms),
        (EXPIRY_KEPT, None) | (0, _) => Expiry::Default,
        (EXPIRY_NEVER, _) => Expiry::Never,
        (at, _) => Expiry::At(at),
    }
}

fn touch<'a>(
    call: &Call<'a>,
    old: Option<&Old<'_>>,
    _: &mut Vec<u8>,
) -> Result<Change<'a>, CallStatus> {
    let old = old.ok_or(CallStatus::NOT_FOUND)?;
    let expires_ms = match call.expires_ms {
        0 | EXPIRY_NEVER => None,
        EXPIRY_KEPT => old.found.expires_ms,
        at => Some(at),
    };
    Ok(Change::Touch { expires_ms })
}

fn put<'a>(
    call: &Call<'a>,
    old: Option<&Old<'_>>,
    scratch: &mut Vec<u8>,
) -> Result<Change<'a>, CallStatus> {
    let (flags, expiry) = (call.flags, expiry(call, old));
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
    Ok(Change::Put { value, flags, expiry })
}

fn read(old: &Old<'_>, into: &mut Vec<u8>) -> Result<(), CallStatus> {
    if old.append_value(into) { Ok(()) } else { Err(Refused::Codec.status()) }
}

/// Adds to a decimal number; the answer has the sum's digits behind its head.
fn count<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    call: &Call<'_>,
    now: u64,
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let digits = RefCell::new(Vec::new());
    let start = out.len();
    let version = change(effort, store, (call, &digits), now, out, &|call, old, scratch| {
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
        Ok(Change::Put { value: Value::Scratch, flags, expiry: expiry(call, old) })
    })?;
    out.truncate(start);
    answer_change(version, &digits.into_inner(), out);
    Ok(version)
}

/// The answer to a change: its version, and what else its client is told.
pub fn answer_change(version: u64, told: &[u8], out: &mut Vec<u8>) {
    let head = AnswerHead { version, value_len: told.len() as u32, ..AnswerHead::default() };
    answer(head, out);
    out.extend_from_slice(told);
}

/// Rows from a cursor on: for each the lengths of key and value, u32 each, key and value; or what a
/// selection wants of them. Of a selection that aggregates, the answers over these rows.
///
/// The head's version is the cursor to go on from, 0 at the end; its flags count the rows that were
/// looked at, its length those that were selected. A row that does not fit ends the answer, and the
/// next call begins with it. A row that is longer than a whole answer is refused as too long; where
/// rows have heads, it comes without its value.
fn scan<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    call: &Call<'_>,
    (now, room): (u64, usize),
    out: &mut Vec<u8>,
) -> Result<u64, CallStatus> {
    let with_heads = match call.flags {
        0 => false,
        WITH_HEADS => true,
        _ => return Err(CallStatus::BAD_PARAMS),
    };
    if call.value.is_empty() {
        return walk(effort, store, (call, None), (now, room), out, &mut |copied, out| {
            if copied.is_whole() && append(&copied.item, with_heads, room, out) {
                return Taken::Row;
            }
            store.count_damage();
            Taken::Nothing
        });
    }
    if with_heads {
        return Err(CallStatus::BAD_PARAMS);
    }
    let planned = plan(effort, call.value)?;
    let Planned { selection, plan } = &*planned;
    let mut sieve = Sieve::new(selection);
    let start = out.len();
    let planned = (call, Some(plan));
    let went = walk(effort, store, planned, (now, room), out, &mut |copied, out| {
        let value = (copied.item.codec, copied.item.stored);
        // Of aggregates, nothing of a row travels.
        let mut taken = Taken::Nothing;
        // The client adds up how many rows it has got of those that it wants at most.
        let _: ControlFlow<()> = sieve.value(
            plan,
            value,
            VALUE_MAX,
            || copied.is_whole(),
            |_, row| {
                // Columns may overlap, and so be longer than the row.
                let end = out.len() + selection.output.written_len(row);
                taken = if end - start - ANSWER_LEN > room { Taken::NoRoom } else { Taken::Row };
                if taken == Taken::Row {
                    selection.output.write(row, out);
                }
            },
        );
        taken
    });
    (0..sieve.sifted().damaged).for_each(|_| store.count_damage());
    let done = went?;
    if let Some(aggregation) = sieve.aggregation() {
        aggregation.write(out);
    }
    let fits = out.len() - start - ANSWER_LEN <= room;
    if fits { Ok(done) } else { Err(CallStatus::TOO_LONG) }
}

/// Appends an item's value, behind its head if heads are wanted; whether the value can be read.
fn append(item: &Item<'_>, with_head: bool, room: usize, out: &mut Vec<u8>) -> bool {
    let head = out.len();
    if with_head {
        out.extend_from_slice(&[0; ANSWER_LEN]);
    }
    let value = out.len();
    let decoded = item.codec.decode(item.stored, VALUE_MAX, out).is_ok();
    if with_head {
        let written = head_of_item(item, out.len() - value).to_bytes();
        out[head..value].copy_from_slice(&written);
        if row::ROW_HEAD + item.key.len() + out.len() - head > room {
            out.truncate(value);
        }
    }
    decoded
}

/// What a call may look at: the fewer the more it costs to judge.
fn budget_of(plan: Option<&Plan>) -> ScanBudget {
    let items = plan.map_or(LOOKED_MAX, |plan| plan.rows_in(JUDGED_NS).min(LOOKED_MAX));
    let bytes = plan.map_or(LOOKED_BYTES, |plan| plan.bytes_as(LOOKED_BYTES));
    ScanBudget { items, bytes, buckets: WALKED_MAX, looked_at: 0 }
}

/// What an item that a walk comes to adds to its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Nothing,
    Row,
    /// A row, which was not appended since there is not enough room.
    NoRoom,
}

/// Walks over items from the call's cursor on, those of which the plan, if there is one, says that
/// they may be selected. `take` appends what is wanted of an item.
fn walk<M: Memory, J: Journal>(
    effort: Effort,
    store: &Store<M, J>,
    (call, plan): (&Call<'_>, Option<&Plan>),
    (now, room): (u64, usize),
    out: &mut Vec<u8>,
    take: &mut dyn FnMut(&Copied<'_>, &mut Vec<u8>) -> Taken,
) -> Result<u64, CallStatus> {
    let limit = if call.limit == 0 { u32::MAX } else { call.limit };
    let start = out.len();
    answer(AnswerHead::default(), out);
    let first = out.len();
    let (mut rows, mut decoded, mut full, mut later) = (0, 0, false, false);
    let short = effort == Effort::Short;
    if short && store.buckets_of(Cursor(call.argument)) > WIDE {
        return Err(LATER);
    }
    let (mut budget, weight) = (budget_of(plan), plan.map_or(1, Plan::weight));
    let (longest, bytes) = (if short { LONG / weight } else { usize::MAX }, budget.bytes);
    let wanted = Wanted { space: TablespaceId(call.tablespace), now, longest, plan };
    let went = store.scan_within(&wanted, Cursor(call.argument), &mut budget, &mut |copied| {
        let item = &copied.item;
        later |= short && is_long(item.stored.len() * weight, item.codec);
        if later || rows == limit {
            return Visited::NotTaken;
        }
        if item.codec != Codec::None {
            // A value that says that it is too long is not decoded.
            let len = item.codec.decoded_len(item.stored, VALUE_MAX).unwrap_or(0);
            decoded += len.max(item.stored.len() * DECODED);
        }
        let row = row::begin(item.key, out);
        let taken = take(copied, out);
        full = taken != Taken::Nothing && (taken == Taken::NoRoom || out.len() - first > room);
        if taken == Taken::Row && !full {
            row::end(row, item.key.len(), out);
            rows += 1;
        } else {
            out.truncate(row);
        }
        match full {
            true => Visited::NotTaken,
            false if rows == limit || decoded >= bytes => Visited::Last,
            false => Visited::Next,
        }
    });
    let looked_at = budget.looked_at;
    if (later || went.is_long) && looked_at == 0 {
        return Err(LATER);
    }
    if full && rows == 0 {
        return Err(CallStatus::TOO_LONG);
    }
    let version = went.cursor.0;
    let head = AnswerHead { version, flags: looked_at, value_len: rows, ..Default::default() };
    out[start..first].copy_from_slice(&head.to_bytes());
    Ok(0)
}

/// The plans of selections that the process was asked for.
static PLANS: Mutex<Plans> = Mutex::new(Plans::new());

fn plans() -> MutexGuard<'static, Plans> {
    PLANS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plan of a selection, in its binary form. One that takes long to make is made elsewhere, and
/// kept, if there is little time.
fn plan(effort: Effort, bytes: &[u8]) -> Result<Arc<Planned>, CallStatus> {
    if let Some(planned) = plans().find(bytes) {
        return Ok(planned);
    }
    let refused = |error: plans::PlanRefused| {
        tracing::debug!(%error, "a selection is refused");
        Refused::Predicate.status()
    };
    let selection = Selection::parse(bytes).map_err(|error| refused(error.into()))?;
    if effort == Effort::Short && is_laborious(&selection.condition) {
        return Err(LATER);
    }
    let plan = Plan::new(&selection).map_err(|error| refused(error.into()))?;
    Ok(plans().keep(bytes, Planned { selection, plan }))
}

#[cfg(test)]
mod tests;
