//! The operations of a store's client, whatever carries its calls: those of
//! [`StoreClient`](super::StoreClient) poll and are ready at once, those of
//! [`AsyncStoreClient`](super::AsyncStoreClient) are awaited.

use remora::kernel::{CallFailure, CallStatus};

use super::error::{StoreError, TRIES};
use crate::item::Item;
use crate::select::aggregate::Aggregation;
use crate::select::condition::RowCondition;
use crate::select::selection::{Output, Selection};
use crate::stats::Slow;
use crate::tablespace::{Eviction, TablespaceId, TablespaceOptions};
use crate::way::call::{
    ANSWER_LEN, AnswerHead, Call, Condition, EVICTS, EXPIRY_KEPT, HOLDS_BACK, LEASED, Operation,
    Placement, Refused, VALUE_MAX, WITH_HEADS,
};
use crate::way::chain::{Asks, ChainReader};
use crate::way::clock::boot_ns;
use crate::way::hello::{StoreKind, Welcome};
use crate::way::index::Index;
use crate::way::info::{self, LatencyInfo, Section, SpaceInfo};
use crate::way::map::ClusterMap;
use crate::way::one_sided::{self, OneSided, OneSidedError, Reads};
use crate::way::row::each_row;

/// One READ in so many goes by kernel instead, so that the store learns what is in use, and how
/// much was read: it evicts what is not in use, and READs leave no trace.
const SHOWN: u64 = 64;

/// The longest map that is read, in bytes.
const MAP_MAX: usize = 4 << 20;

/// What a scan has done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Scanned {
    /// Rows that the store has looked at.
    pub looked_at: u64,
    /// Rows that came.
    pub rows: u64,
}

/// What is known of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct About {
    /// Its version: each change of the key gives it a higher one.
    pub version: u64,
    /// The client's own flags.
    pub flags: u32,
    /// When it expires, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

impl About {
    pub(super) fn of(head: &AnswerHead) -> About {
        let expires_ms = (head.expires_ms != 0).then_some(head.expires_ms);
        About { version: head.version, flags: head.flags, expires_ms }
    }
}

/// What a Put does beyond setting a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put<'a> {
    /// What has to hold.
    pub condition: Condition<'a>,
    /// Where the bytes go.
    pub placement: Placement,
    /// The client's own flags.
    pub flags: u32,
    /// When the key expires, in milliseconds of Unix time: 0 for as the tablespace has it by
    /// default; [`EXPIRY_KEPT`], as here by default, for as it was;
    /// [`EXPIRY_NEVER`](crate::way::call::EXPIRY_NEVER).
    pub expires_ms: u64,
}

impl Default for Put<'_> {
    fn default() -> Self {
        let (condition, placement) = Default::default();
        Put { condition, placement, flags: 0, expires_ms: EXPIRY_KEPT }
    }
}

/// Carries calls to a store.
pub(crate) trait Caller {
    /// Calls about the client's tablespace; appends the answer to `out`.
    async fn call(
        &mut self,
        operation: Operation,
        call: &Call<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StoreError>;

    /// The tablespace that calls are about.
    fn tablespace(&self) -> TablespaceId;

    /// Milliseconds of a clock that nobody sets.
    fn clock_ms(&self) -> u64 {
        boot_ns() / 1_000_000
    }
}

/// Calls, and returns the head of the answer, which is appended to `out`.
async fn call<C: Caller>(
    caller: &mut C,
    operation: Operation,
    call: &Call<'_>,
    out: &mut Vec<u8>,
) -> Result<AnswerHead, StoreError> {
    let from = out.len();
    caller.call(operation, call, out).await?;
    let head = AnswerHead::parse(&out[from..]).map(|(head, _)| head);
    head.ok_or_else(StoreError::answer)
}

/// Calls a change; `None` if the key is not there, or the condition does not hold.
async fn change<C: Caller>(
    caller: &mut C,
    operation: Operation,
    asked: &Call<'_>,
) -> Result<Option<u64>, StoreError> {
    match call(caller, operation, asked, &mut Vec::new()).await {
        Ok(head) => Ok(Some(head.version)),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) async fn get_if<C: Caller>(
    caller: &mut C,
    key: &[u8],
    condition: Condition<'_>,
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    get_asked(caller, Call { key, condition, ..Call::default() }, out).await
}

/// Reads a whole value, in pieces if it is long. What the first piece tells the store, it tells
/// once.
async fn get_asked<C: Caller>(
    caller: &mut C,
    first_asked: Call<'_>,
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    let (from, mut asked) = (out.len(), first_asked);
    for _ in 0..TRIES {
        out.truncate(from);
        let Some(first) = read_piece(caller, &asked, out).await? else { return Ok(None) };
        asked.limit = 0;
        // Later pieces belong to the value that passed, or it is read anew.
        asked.condition = Condition::Version(first.version);
        let whole = from + first.value_len as usize;
        while out.len() < whole {
            asked.argument = (out.len() - from) as u64;
            match read_piece(caller, &asked, out).await? {
                Some(_) if out.len() as u64 > from as u64 + asked.argument => {}
                _ => break,
            }
        }
        if out.len() == whole {
            return Ok(Some(About::of(&first)));
        }
        asked = Call { limit: 0, ..first_asked };
    }
    out.truncate(from);
    Err(StoreError::Changing)
}

/// Reads from byte `argument` of a value on, as much as comes with one call.
async fn read_piece<C: Caller>(
    caller: &mut C,
    asked: &Call<'_>,
    out: &mut Vec<u8>,
) -> Result<Option<AnswerHead>, StoreError> {
    let from = out.len();
    match call(caller, Operation::Get, asked, out).await {
        Ok(head) => {
            out.drain(from..from + ANSWER_LEN);
            Ok(Some(head))
        }
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sees to it that there is a lease where one is needed, so that what is read counts; and that the
/// store's clock is known. Answers what Unix time it is for the store.
async fn renew<C: Caller>(caller: &mut C, index: &mut Index) -> Result<u64, StoreError> {
    let asked_ms = caller.clock_ms();
    if index.needs_lease() {
        let sent = boot_ns();
        let head = call(caller, Operation::Lease, &Call::default(), &mut Vec::new()).await?;
        index.learn(head.version);
        index.lease_until(sent.saturating_add(head.expires_ms));
    }
    if index.needs_clock(asked_ms) {
        let described = describe(caller, &mut Vec::new()).await?;
        index.set_clock(described.expires_ms, asked_ms);
    }
    Ok(index.now_ms(asked_ms))
}

/// Reads by READs. `None`: a kernel is to be asked, as it is about one read in [`SHOWN`].
pub(super) async fn read_one_sided<C: Caller, R: Reads>(
    caller: &mut C,
    reader: &mut OneSided<R>,
    reads: &mut u64,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    *reads += 1;
    if reads.is_multiple_of(SHOWN) {
        return Ok(None);
    }
    let now_ms = renew(caller, reader.index_mut()).await?;
    let space = reader.index_mut().space(caller.tablespace());
    Ok(reader.get(space, key, now_ms, |item| take(item, out)).await?.flatten())
}

/// Reads by a kernel, and says how many values were read without one.
pub(super) async fn get_told<C: Caller>(
    caller: &mut C,
    key: &[u8],
    read: u32,
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    get_asked(caller, Call { key, limit: read, ..Call::default() }, out).await
}

/// Reads by READs; by a kernel what cannot be read so.
pub(super) async fn get_one_sided<C: Caller, R: Reads>(
    caller: &mut C,
    reader: &mut OneSided<R>,
    reads: &mut u64,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    if let Some(found) = read_one_sided(caller, reader, reads, key, out).await? {
        return Ok(Some(found));
    }
    match get_told(caller, key, reader.tell(), out).await {
        // It may have been the read that is a kernel's turn: see [`SHOWN`].
        Err(StoreError::NoKernels) => {
            let found = read_one_sided(caller, reader, reads, key, out).await?;
            found.map(Some).ok_or(StoreError::NoKernels)
        }
        found => Ok(found?.inspect(|found| reader.index_mut().learn(found.version))),
    }
}

/// Reads by a chain. `None`: a kernel is to be asked.
pub(super) async fn read_by_chain<C: Caller, A: Asks>(
    caller: &mut C,
    chain: &mut ChainReader<A>,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    let now_ms = renew(caller, chain.index_mut()).await?;
    let space = chain.index_mut().space(caller.tablespace());
    Ok(chain.get(space, key, now_ms, |item| take(item, out)).await?.flatten())
}

/// A kernel has found what a chain has not.
pub(super) async fn learn_by_chain<C: Caller, A: Asks>(
    caller: &mut C,
    chain: &mut ChainReader<A>,
    found: &About,
) -> Result<(), StoreError> {
    if chain.has_missed(found.version) {
        chain.set_index(index(caller).await?);
    }
    chain.index_mut().learn(found.version);
    Ok(())
}

/// Reads by a chain; by a kernel what cannot be read so.
pub(super) async fn get_by_chain<C: Caller, A: Asks>(
    caller: &mut C,
    chain: &mut ChainReader<A>,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    if let Some(found) = read_by_chain(caller, chain, key, out).await? {
        return Ok(Some(found));
    }
    let found = get_if(caller, key, Condition::None, out).await?;
    if let Some(found) = &found {
        learn_by_chain(caller, chain, found).await?;
    }
    Ok(found)
}

/// Reads by a chain from a store without kernels, whose index was just read.
pub(super) async fn get_by_chain_only<C: Caller, A: Asks>(
    caller: &mut C,
    chain: &mut ChainReader<A>,
    index: Index,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<Option<About>, StoreError> {
    chain.set_index(index);
    let found = read_by_chain(caller, chain, key, out).await?;
    found.map(Some).ok_or(StoreError::NoKernels)
}

/// Appends an item's value to `out`; `None` if it is stored in a form that cannot be read.
fn take(item: &Item<'_>, out: &mut Vec<u8>) -> Option<About> {
    let &Item { version, flags, expires_ms, .. } = item;
    let decoded = item.codec.decode(item.stored, VALUE_MAX, out);
    decoded.is_ok().then_some(About { version, flags, expires_ms })
}

async fn describe<C: Caller>(
    caller: &mut C,
    answer: &mut Vec<u8>,
) -> Result<AnswerHead, StoreError> {
    call(caller, Operation::Describe, &Call::default(), answer).await
}

/// What the store says of its index.
pub(super) async fn index<C: Caller>(caller: &mut C) -> Result<Index, StoreError> {
    let (mut answer, asked_ms) = (Vec::new(), caller.clock_ms());
    let head = describe(caller, &mut answer).await?;
    let index = answer.get(ANSWER_LEN..).and_then(Index::parse);
    let mut index = index.ok_or(StoreError::OneSided(OneSidedError::Layout))?;
    index.set_clock(head.expires_ms, asked_ms);
    if head.flags & HOLDS_BACK != 0 {
        index.hold_back();
    }
    if head.flags & LEASED != 0 {
        index.await_lease(number(&head)?);
    }
    Ok(index)
}

/// The cluster's map, as a node tells it.
pub(super) async fn map<C: Caller>(caller: &mut C) -> Result<ClusterMap, StoreError> {
    let (mut text, mut answer, mut first) = (Vec::new(), Vec::new(), None);
    while text.len() < MAP_MAX {
        let asked = Call { argument: text.len() as u64, ..Call::default() };
        answer.clear();
        let head = call(caller, Operation::Map, &asked, &mut answer).await?;
        let piece = answer.get(ANSWER_LEN..).unwrap_or_default();
        if *first.get_or_insert(head.version) != head.version {
            return Err(StoreError::Changing);
        }
        text.extend_from_slice(piece);
        if text.len() >= head.value_len as usize || piece.is_empty() {
            let text = String::from_utf8(text).map_err(|_| StoreError::answer())?;
            return ClusterMap::parse(&text).ok_or_else(StoreError::answer);
        }
    }
    Err(StoreError::answer())
}

pub(super) async fn put<C: Caller>(
    caller: &mut C,
    key: &[u8],
    value: &[u8],
) -> Result<u64, StoreError> {
    let how = Put { expires_ms: 0, ..Put::default() };
    let set = put_with(caller, key, value, &how).await?;
    set.ok_or(StoreError::Refused(Refused::Condition))
}

pub(super) async fn put_with<C: Caller>(
    caller: &mut C,
    key: &[u8],
    value: &[u8],
    how: &Put<'_>,
) -> Result<Option<u64>, StoreError> {
    let &Put { condition, placement, flags, expires_ms } = how;
    let asked = Call { key, value, condition, placement, flags, expires_ms, ..Call::default() };
    change(caller, Operation::Put, &asked).await
}

pub(super) async fn delete_if<C: Caller>(
    caller: &mut C,
    key: &[u8],
    condition: Condition<'_>,
) -> Result<bool, StoreError> {
    let asked = Call { key, condition, ..Call::default() };
    Ok(change(caller, Operation::Delete, &asked).await?.is_some())
}

pub(super) async fn touch<C: Caller>(
    caller: &mut C,
    key: &[u8],
    expires_ms: u64,
) -> Result<bool, StoreError> {
    let asked = Call { key, expires_ms, ..Call::default() };
    Ok(change(caller, Operation::Touch, &asked).await?.is_some())
}

pub(super) async fn count<C: Caller>(
    caller: &mut C,
    key: &[u8],
    add: i64,
) -> Result<i64, StoreError> {
    let argument = add.cast_unsigned();
    let asked = Call { key, argument, expires_ms: EXPIRY_KEPT, ..Call::default() };
    let mut answer = Vec::new();
    call(caller, Operation::Count, &asked, &mut answer).await?;
    let digits = answer.get(ANSWER_LEN..).unwrap_or_default();
    let sum = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    sum.ok_or_else(StoreError::answer)
}

pub(super) async fn scan<C: Caller>(
    caller: &mut C,
    selection: Option<&Selection>,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<Scanned, StoreError> {
    let plan = selection.map(Selection::to_bytes).transpose()?.unwrap_or_default();
    let mut left = selection.map_or(u64::MAX, |selection| selection.limit);
    let (mut done, mut cursor, mut answer) = (Scanned::default(), 0, Vec::new());
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(0);
        let asked = Call { value: &plan, argument: cursor, limit, ..Call::default() };
        let before = done.rows;
        cursor = match scan_step(caller, &asked, &mut answer, &mut done).await {
            Ok(head) => {
                let rows = each_row(&answer[ANSWER_LEN..], head.value_len, &mut each);
                rows.ok_or_else(StoreError::answer)?;
                head.version
            }
            Err(StoreError::Call(CallFailure::Status(CallStatus::TOO_LONG))) => {
                scan_long(caller, selection, cursor, &mut done, &mut each).await?
            }
            Err(error) => return Err(error),
        };
        left = left.saturating_sub(done.rows - before);
        if cursor == 0 {
            break;
        }
    }
    Ok(done)
}

/// Goes on from a cursor with a row that is longer than an answer: its key comes first, then the
/// value by itself, if it still is a row that is selected. Returns where to go on.
async fn scan_long<C: Caller>(
    caller: &mut C,
    selection: Option<&Selection>,
    cursor: u64,
    done: &mut Scanned,
    each: &mut impl FnMut(&[u8], &[u8]),
) -> Result<u64, StoreError> {
    let everything = Selection {
        row_least: 0,
        condition: RowCondition::ALWAYS,
        output: Output::Whole,
        limit: u64::MAX,
    };
    let selection = selection.unwrap_or(&everything);
    let of_keys = Selection { output: Output::Columns(Vec::new()), ..selection.clone() };
    let plan = of_keys.to_bytes()?;
    let asked = Call { value: &plan, argument: cursor, limit: 1, ..Call::default() };
    let (mut answer, mut keys) = (Vec::new(), Vec::new());
    let head = scan_step(caller, &asked, &mut answer, done).await?;
    let rows = each_row(&answer[ANSWER_LEN..], head.value_len, &mut |key: &[u8], _: &[u8]| {
        keys.push(key.to_vec());
    });
    rows.ok_or_else(StoreError::answer)?;
    let rows_of_it = Selection { output: Output::Whole, ..of_keys };
    let is_selected = rows_of_it.to_bytes()?;
    for key in keys {
        let (mut value, mut row) = (Vec::new(), Vec::new());
        let condition = Condition::Predicate(&is_selected);
        match get_if(caller, &key, condition, &mut value).await? {
            Some(_) => {
                selection.output.write(&value, &mut row);
                each(&key, &row);
            }
            None => done.rows -= 1,
        }
    }
    Ok(head.version)
}

async fn scan_step<C: Caller>(
    caller: &mut C,
    asked: &Call<'_>,
    answer: &mut Vec<u8>,
    done: &mut Scanned,
) -> Result<AnswerHead, StoreError> {
    answer.clear();
    let head = call(caller, Operation::Scan, asked, answer).await?;
    done.looked_at += u64::from(head.flags);
    done.rows += u64::from(head.value_len);
    Ok(head)
}

pub(super) async fn items<C: Caller>(
    caller: &mut C,
    mut each: impl FnMut(&[u8], &About, &[u8]),
) -> Result<Scanned, StoreError> {
    let (mut done, mut cursor, mut answer) = (Scanned::default(), 0, Vec::new());
    let mut long = Vec::new();
    loop {
        let asked = Call { argument: cursor, flags: WITH_HEADS, ..Call::default() };
        let head = scan_step(caller, &asked, &mut answer, &mut done).await?;
        let mut are_whole = true;
        let mut row = |key: &[u8], value: &[u8]| match AnswerHead::parse(value) {
            None => are_whole = false,
            Some((head, value)) if value.len() == head.value_len as usize => {
                each(key, &About::of(&head), value);
            }
            Some(_) => long.push(key.to_vec()),
        };
        let rows = each_row(&answer[ANSWER_LEN..], head.value_len, &mut row);
        rows.filter(|()| are_whole).ok_or_else(StoreError::answer)?;
        for key in long.drain(..) {
            answer.clear();
            // One that has gone meanwhile does not come.
            if let Some(about) = get_if(caller, &key, Condition::None, &mut answer).await? {
                each(&key, &about, &answer);
            }
        }
        cursor = head.version;
        if cursor == 0 {
            return Ok(done);
        }
    }
}

pub(super) async fn aggregate<C: Caller>(
    caller: &mut C,
    selection: &Selection,
) -> Result<Aggregation, StoreError> {
    let Output::Aggregates(wanted) = &selection.output else {
        return Err(StoreError::Refused(Refused::Predicate));
    };
    let (mut all, plan, mut cursor) = (Aggregation::new(wanted), selection.to_bytes()?, 0);
    let (mut answer, mut done) = (Vec::new(), Scanned::default());
    loop {
        let asked = Call { value: &plan, argument: cursor, ..Call::default() };
        let head = scan_step(caller, &asked, &mut answer, &mut done).await?;
        all.merge(&answer[ANSWER_LEN..]).map_err(|_| StoreError::answer())?;
        cursor = head.version;
        if cursor == 0 {
            return Ok(all);
        }
    }
}

pub(super) async fn flush<C: Caller>(caller: &mut C) -> Result<(), StoreError> {
    change(caller, Operation::Flush, &Call::default()).await.map(drop)
}

pub(super) async fn find_tablespace<C: Caller>(
    caller: &mut C,
    name: &str,
) -> Result<Option<TablespaceId>, StoreError> {
    let asked = Call { key: name.as_bytes(), ..Call::default() };
    match call(caller, Operation::Tablespace, &asked, &mut Vec::new()).await {
        Ok(head) => number(&head).map(Some),
        Err(StoreError::Refused(Refused::Tablespace)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The number of a tablespace that an answer has as version.
fn number(head: &AnswerHead) -> Result<TablespaceId, StoreError> {
    u16::try_from(head.version).map(TablespaceId).map_err(|_| StoreError::answer())
}

pub(super) async fn create_tablespace<C: Caller>(
    caller: &mut C,
    options: &TablespaceOptions,
) -> Result<TablespaceId, StoreError> {
    let evicts = if options.eviction == Eviction::Clock { EVICTS } else { 0 };
    let asked = Call {
        key: options.name.as_bytes(),
        argument: options.quota.unwrap_or(0),
        expires_ms: options.default_expiry_ms.unwrap_or(0),
        flags: u32::from(options.codec.to_u16()) | evicts,
        ..Call::default()
    };
    number(&call(caller, Operation::Create, &asked, &mut Vec::new()).await?)
}

pub(super) async fn drop_tablespace<C: Caller>(caller: &mut C) -> Result<(), StoreError> {
    call(caller, Operation::Drop, &Call::default(), &mut Vec::new()).await.map(drop)
}

pub(super) async fn counts<C: Caller>(caller: &mut C) -> Result<Vec<(String, u64)>, StoreError> {
    told(caller, Section::Counts, info::read_count).await
}

pub(super) async fn latencies<C: Caller>(caller: &mut C) -> Result<Vec<LatencyInfo>, StoreError> {
    told(caller, Section::Latencies, info::read_latency).await
}

pub(super) async fn tablespaces<C: Caller>(caller: &mut C) -> Result<Vec<SpaceInfo>, StoreError> {
    told(caller, Section::Tablespaces, info::read_tablespace).await
}

pub(super) async fn slow_operations<C: Caller>(caller: &mut C) -> Result<Vec<Slow>, StoreError> {
    told(caller, Section::Slow, info::read_slow).await
}

/// All rows of a section of what the store says of itself.
async fn told<C: Caller, T>(
    caller: &mut C,
    section: Section,
    read: impl Fn(&[u8], &[u8]) -> Option<T>,
) -> Result<Vec<T>, StoreError> {
    let (mut all, mut answer, mut cursor) = (Vec::new(), Vec::new(), 0);
    loop {
        let asked = Call { flags: section as u32, argument: cursor, ..Call::default() };
        answer.clear();
        let head = call(caller, Operation::Info, &asked, &mut answer).await?;
        let mut each = |key: &[u8], value: &[u8]| all.push(read(key, value));
        let rows = each_row(&answer[ANSWER_LEN..], head.value_len, &mut each);
        rows.ok_or_else(StoreError::answer)?;
        if head.version == 0 {
            let all: Option<Vec<T>> = all.into_iter().collect();
            return all.ok_or_else(StoreError::answer);
        }
        // A store whose answers do not go on would be asked for ever.
        if head.version <= cursor {
            return Err(StoreError::answer());
        }
        cursor = head.version;
    }
}

/// What the memory of a store without kernels says of its index. Where there are to be kernels,
/// only they know what a reader may take.
pub(super) async fn read_index<R: Reads>(
    reads: (R, R::Landing),
    welcome: &Welcome,
) -> Result<Index, StoreError> {
    if welcome.kind != StoreKind::WithoutKernels {
        return Err(StoreError::NoKernels);
    }
    Ok(one_sided::read_index(reads, welcome.memory).await?)
}
