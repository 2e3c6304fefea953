//! Calls of a store's kernels: any bytes under any op-code, one after another; and the answers that
//! a client reads, from any sender.

use remora::kernel::CallStatus;
use remora_store::journal::Unlogged;
use remora_store::memory::Heap;
use remora_store::store::{Options, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::call::{
    ANSWER_LEN, AnswerHead, Call, Condition, EVICTS, Operation, Placement, Refused, WITH_HEADS,
};
use remora_store::way::execute::execute;
use remora_store::way::index::Index;
use remora_store::way::row::each_row;

use crate::seeds::Seed;
use crate::selection::selections;

/// The store's limit, in bytes.
const LIMIT: u64 = 8 << 20;
/// The time of all inputs, in ms of Unix time.
const NOW: u64 = 1_700_000_000_000;
/// Units of the room for an answer, in bytes.
const ROOM: usize = 64;
/// Digits of a Count, which an answer always has room for.
const DIGITS: usize = 20;

thread_local! {
    static STORE: Store<Heap> = store();
}

fn store() -> Store<Heap> {
    let options = Options::new(LIMIT, 3);
    let heap = Heap::new(options.memory_len());
    Store::new(heap, Unlogged::default(), options).expect("the heap is as long as it must be")
}

/// Steps of: operation, room for the answer, two bytes of length, and the bytes of a call.
///
/// # Panics
/// If a call is read that is not written as it was read, an answer exceeds its room or is not what
/// a client reads, or a change that was answered is not there.
pub fn store_call(mut data: &[u8]) {
    answers(data);
    STORE.with(|store| {
        reset(store);
        while let Some(([operation, room, low, high], rest)) = data.split_first_chunk() {
            let len = usize::from(u16::from_le_bytes([*low, *high])).min(rest.len());
            let (bytes, rest) = rest.split_at(len);
            let all = Operation::ALL;
            let operation = all[usize::from(*operation) % all.len()];
            carry_out(store, operation, usize::from(*room) * ROOM, bytes);
            data = rest;
        }
    });
}

fn reset(store: &Store<Heap>) {
    for space in store.tablespaces() {
        store.drop_tablespace(space.id).expect("it is there, and nothing refuses");
    }
    store.create_tablespace(&TablespaceOptions::new("db0")).expect("there is none");
}

fn carry_out(store: &Store<Heap>, operation: Operation, room: usize, bytes: &[u8]) {
    let call = Call::parse(bytes);
    if let Ok(call) = call {
        let mut again = Vec::new();
        assert_eq!(call.write(&mut again), Ok(()));
        assert_eq!(again, bytes);
    }
    let mut out = Vec::new();
    if let Err(status) = execute(store, operation, bytes, NOW, room, &mut out) {
        use CallStatus as Is;
        let known = [Is::BAD_PARAMS, Is::NOT_FOUND, Is::TOO_LONG, Is::NO_KERNEL];
        assert!(Refused::of(status).is_some() || known.contains(&status), "{status}");
        return;
    }
    let call = call.expect("it was carried out");
    assert!(out.len() <= room.max(ANSWER_LEN + DIGITS), "{operation:?}: {} bytes", out.len());
    let (head, rest) = AnswerHead::parse(&out).expect("an answer has a head");
    let (space, mut value) = (TablespaceId(call.tablespace), Vec::new());
    match operation {
        Operation::Put if call.placement == Placement::Set => {
            let found = store.get(space, call.key, NOW, &mut value);
            let lives = call.expires_ms == 0 || call.expires_ms > NOW;
            assert!(found.is_none_or(|found| found.version == head.version));
            assert!(!lives || found.is_some() && value == call.value);
        }
        Operation::Delete | Operation::Flush | Operation::Drop => {
            assert_eq!(store.get(space, call.key, NOW, &mut value), None);
        }
        Operation::Scan if call.value.is_empty() => {
            each_row(rest, head.value_len, &mut |_, _| {}).expect("rows that can be read");
        }
        Operation::Describe => assert!(Index::parse(rest).is_some()),
        Operation::Create => {
            let name = std::str::from_utf8(call.key).expect("it was carried out");
            assert_eq!(store.tablespace(name), Some(TablespaceId(head.version as u16)));
        }
        _ => {}
    }
}

/// What a client makes of bytes that a store answers.
fn answers(data: &[u8]) {
    let Some((head, rest)) = AnswerHead::parse(data) else { return };
    let mut len = 0;
    let mut add = |key: &[u8], value: &[u8]| len += key.len() + value.len();
    if each_row(rest, head.value_len, &mut add).is_some() {
        assert!(len <= rest.len());
    }
    if let Some(mut index) = Index::parse(rest) {
        let hash = index.hash(TablespaceId(0), b"key");
        let partition = index.partition(hash);
        index.set_count(partition, head.version);
        let _ = (index.buckets(hash), index.count(partition), index.count_at(partition));
    }
}

fn step(operation: Operation, call: &Call<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    call.write(&mut bytes).expect("it is short");
    let [low, high] = (bytes.len() as u16).to_le_bytes();
    [&[operation as u8, 16, low, high][..], &bytes].concat()
}

/// Each operation on a key that is there, with each condition; and plans.
pub fn store_calls() -> Vec<Seed> {
    let call = Call { key: b"key", value: b"12", ..Call::default() };
    let put = step(Operation::Put, &call);
    let get = step(Operation::Get, &Call { value: b"", ..call });
    let seed = |name: &str, steps: &[&[u8]]| Seed { name: name.to_owned(), data: steps.concat() };
    let mut seeds = Vec::new();
    for operation in Operation::ALL {
        let flags = if operation == Operation::Scan { WITH_HEADS } else { EVICTS };
        let value: &[u8] = if operation == Operation::Put { b"13" } else { b"" };
        let asked = step(operation, &Call { flags, value, argument: 1, ..call });
        seeds.push(seed(operation.name(), &[&put, &asked, &get]));
    }
    let conditions = [
        ("absent", Condition::Absent),
        ("present", Condition::Present),
        ("version", Condition::Version(2)),
        ("value", Condition::Value(b"12")),
    ];
    for (name, condition) in conditions {
        let placement = Placement::Append;
        let asked = step(Operation::Put, &Call { condition, placement, ..call });
        seeds.push(seed(&format!("append-{name}"), &[&put, &asked, &get]));
    }
    for Seed { name, data } in selections() {
        let (len, rest) = data.split_first_chunk().expect("a length comes first");
        let (plan, rows) = rest.split_at(u16::from_le_bytes(*len).into());
        let row = step(Operation::Put, &Call { value: rows, ..call });
        let scan = step(Operation::Scan, &Call { key: b"", value: plan, ..call });
        let condition = Condition::Predicate(plan);
        let asked = step(Operation::Get, &Call { condition, value: b"", ..call });
        seeds.push(seed(&format!("plan-{name}"), &[&row, &scan, &asked]));
    }
    seeds
}
