use super::*;
use crate::journal::Unlogged;
use crate::memory::Heap;
use crate::select::Predicate;
use crate::select::schema::Schema;
use crate::select::selection::{BytesAt, OUTPUTS_MAX, Output, Selection};
use crate::store::Options;
use crate::way::row::each_row;
use std::collections::BTreeMap;

type TestStore = Store<Heap, Unlogged>;

const ROOM: usize = 1 << 20;

fn store(limit: u64) -> TestStore {
    let options = Options::new(limit, 5);
    Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap()
}

fn create(store: &TestStore, name: &str, codec: Codec) -> TablespaceId {
    let options = TablespaceOptions { codec, ..TablespaceOptions::new(name) };
    store.create_tablespace(&options).unwrap()
}

/// Carries out a call.
fn ask(
    effort: Effort,
    store: &TestStore,
    operation: Operation,
    call: &Call<'_>,
    room: usize,
) -> Result<(AnswerHead, Vec<u8>), CallStatus> {
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    call.write(&mut bytes).unwrap();
    execute_with(effort, store, operation, &bytes, (1, room), &mut out)?;
    let (head, rest) = AnswerHead::parse(&out).unwrap();
    Ok((head, rest.to_vec()))
}

/// What a scan answers, by key, how often each key came, and how many calls it took.
struct Scanned {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    times: usize,
    looked_at: u32,
    calls: usize,
}

fn scan_all(store: &TestStore, space: TablespaceId, value: &[u8], room: usize) -> Scanned {
    let mut all = Scanned { rows: BTreeMap::new(), times: 0, looked_at: 0, calls: 0 };
    let mut argument = 0;
    loop {
        let call = Call { tablespace: space.0, value, argument, ..Call::default() };
        let (head, rows) = ask(Effort::Short, store, Operation::Scan, &call, room).unwrap();
        let mut each = |key: &[u8], row: &[u8]| {
            all.rows.insert(key.to_vec(), row.to_vec());
            all.times += 1;
        };
        each_row(&rows, head.value_len, &mut each).unwrap();
        (all.calls, all.looked_at) = (all.calls + 1, all.looked_at + head.flags);
        argument = head.version;
        if argument == 0 {
            return all;
        }
    }
}

#[test]
fn a_scan_of_an_empty_tablespace_beside_a_full_one_takes_several_calls() {
    let store = store(16 << 20);
    let (full, empty) = (create(&store, "full", Codec::None), create(&store, "e", Codec::None));
    for key in 0..90_000u32 {
        store.put(full, &key.to_le_bytes(), b"", 0, None, 1).unwrap();
    }
    let scanned = scan_all(&store, empty, &[], ROOM);
    assert!(scanned.calls > 1 && scanned.times == 0);
    let scanned = scan_all(&store, full, &[], ROOM);
    assert_eq!((scanned.times, scanned.rows.len(), scanned.looked_at), (90_000, 90_000, 90_000));
}

const NOTE: &str = "a note, a note, a note, a note, a note, a note ";

fn schema() -> Schema {
    Schema::parse("id u32\nprice u32\nnote text").unwrap()
}

/// A row whose length depends on its number: some are longer than what is judged together.
fn row(id: u32) -> Vec<u8> {
    let long = if id % 97 == 5 { 120 } else { id as usize % 5 };
    let note = format!("{}{id}", NOTE.repeat(long));
    let mut row = Vec::new();
    schema().write_row([&*id.to_string(), &(id % 10).to_string(), &note], &mut row).unwrap();
    row
}

fn selection(predicate: &str, output: &str) -> Selection {
    let condition = Predicate::parse(predicate).unwrap().bind(&schema(), &[]).unwrap();
    let output = Output::parse(output, &schema()).unwrap();
    Selection { row_least: schema().fixed(), condition, output, limit: u64::MAX }
}

#[test]
fn a_scan_selects_what_a_look_at_each_row_selects() {
    for codec in [Codec::None, Codec::Lz4 { head: 8 }, Codec::Lz4 { head: 0 }] {
        let store = store(8 << 20);
        let (space, other) = (create(&store, "rows", codec), create(&store, "o", Codec::None));
        for id in 0..3000u32 {
            store.put(space, &id.to_be_bytes(), &row(id), 0, None, 1).unwrap();
            store.put(other, &id.to_be_bytes(), &row(3), 0, None, 1).unwrap();
        }
        // Rows that have gone, and one that is too short for the schema.
        (3000..3050u32)
            .for_each(|id| drop(store.put(space, &id.to_be_bytes(), &row(id), 0, Some(1), 0)));
        store.put(space, b"short", &[0; 7], 0, None, 1).unwrap();
        for predicate in ["price < 2", "note like '%note 29%'", "price = 3 and note like '%53'"] {
            let wanted = selection(predicate, "id");
            let plan = Plan::new(&wanted).unwrap();
            let expected: Vec<u32> = (0..3000).filter(|&id| plan.is_match(&row(id))).collect();
            assert!(!expected.is_empty());
            for room in [ROOM, ANSWER_LEN + 70] {
                let found = scan_all(&store, space, &wanted.to_bytes().unwrap(), room);
                let ids: Vec<_> =
                    found.rows.keys().map(|key| key[..].try_into().unwrap()).collect();
                assert_eq!(ids.into_iter().map(u32::from_be_bytes).collect::<Vec<_>>(), expected);
                let same = |(key, row): (&Vec<u8>, &Vec<u8>)| key.iter().rev().eq(row.iter());
                assert!(found.rows.iter().all(same), "{predicate}: another row's columns");
                assert_eq!((found.times, found.looked_at), (expected.len(), 3001));
            }
        }
        let counted = selection("price < 2", "count").to_bytes().unwrap();
        let call = Call { tablespace: space.0, value: &counted, ..Call::default() };
        let (head, answers) = ask(Effort::Any, &store, Operation::Scan, &call, ROOM).unwrap();
        assert_eq!(head.version, 0, "all of it in one call");
        assert!(answers.windows(8).any(|word| word == 600u64.to_le_bytes()), "{answers:?}");
    }
}

#[test]
fn a_damaged_row_is_not_selected() {
    let store = store(8 << 20);
    let space = create(&store, "rows", Codec::None);
    (0..100u32).for_each(|id| drop(store.put(space, &id.to_be_bytes(), &row(id), 0, None, 1)));
    let pin = store.pin();
    let at = store.locate(&pin, space, &20u32.to_be_bytes(), 1).unwrap().value_at;
    drop(pin);
    let wanted = selection("price = 0", "*").to_bytes().unwrap();
    assert_eq!(scan_all(&store, space, &wanted, ROOM).times, 10);
    // A byte of the text, which the condition does not look at.
    store.memory().write(at + 9, b"?");
    assert_eq!((scan_all(&store, space, &wanted, ROOM).times, store.damaged()), (9, 1));
    assert_eq!((scan_all(&store, space, &[], ROOM).times, store.damaged()), (99, 2));
}

/// What a scan cannot decompress does not come, and is counted.
#[test]
fn a_row_that_cannot_be_decompressed_is_counted() {
    let store = store(8 << 20);
    let space = create(&store, "rows", Codec::Lz4 { head: 8 });
    (0..100u32).for_each(|id| drop(store.put(space, &id.to_be_bytes(), &row(id), 0, None, 1)));
    let pin = store.pin();
    let at = store.locate(&pin, space, &4u32.to_be_bytes(), 1).unwrap().value_at;
    drop(pin);
    store.memory().write(at + 8, &[0xFF; 4]);
    let wanted = selection("price = 4", "*").to_bytes().unwrap();
    assert_eq!((scan_all(&store, space, &wanted, ROOM).times, store.damaged()), (9, 1));
    assert_eq!((scan_all(&store, space, &[], ROOM).times, store.damaged()), (99, 2));
}

/// Columns may be the same bytes many times: what they come to is known before they are copied.
#[test]
fn a_row_whose_columns_do_not_fit_is_not_copied() {
    let store = store(8 << 20);
    let space = create(&store, "rows", Codec::None);
    store.put(space, b"key", &[b'x'; 30_000], 0, None, 1).unwrap();
    let all = BytesAt { offset: 8, len: None };
    let output = Output::Columns(vec![all; OUTPUTS_MAX]);
    let wanted = Selection { output, ..selection("true", "*") }.to_bytes().unwrap();
    let call = Call { tablespace: space.0, value: &wanted, ..Call::default() };
    let (mut bytes, mut out) = (Vec::new(), Vec::new());
    call.write(&mut bytes).unwrap();
    let refused = execute(&store, Operation::Scan, &bytes, 1, ROOM, &mut out);
    assert_eq!(refused, Err(CallStatus::TOO_LONG));
    assert!(out.capacity() <= ROOM, "{} bytes", out.capacity());
}

/// A value whose compressed part is damaged cannot be decompressed: that a condition refuses it all
/// the same, by what is plain of it, shows that nobody has tried.
#[test]
fn a_value_is_decompressed_for_a_condition_only_where_what_is_plain_of_it_passes() {
    let store = store(8 << 20);
    let space = create(&store, "rows", Codec::Lz4 { head: 8 });
    let rows =
        [(&b"short"[..], row(14)), (b"long", [row(14), NOTE.repeat(90_000).into()].concat())];
    let named = Call { tablespace: space.0, ..Call::default() };
    for (key, row) in rows {
        store.put(space, key, &row, 0, None, 1).unwrap();
        let ask = |effort, operation, predicate: &str| {
            let predicate = selection(predicate, "*").to_bytes().unwrap();
            let condition = Condition::Predicate(&predicate);
            let value: &[u8] = if operation == Operation::Put { b"other" } else { b"" };
            let call = Call { key, condition, value, ..named };
            ask(effort, &store, operation, &call, ROOM).err()
        };
        let (fails, passes) = ("price = 3 and note like 'a note%'", "price = 4 and id = 14");
        assert_eq!(ask(Effort::Any, Operation::Get, passes), None);
        let pin = store.pin();
        let at = store.locate(&pin, space, key, 1).unwrap().value_at;
        drop(pin);
        store.memory().write(at + 8, &[0xFF; 4]);
        assert_eq!(ask(Effort::Any, Operation::Get, passes), Some(CallStatus::NOT_FOUND));
        let refused = Some(Refused::Condition.status());
        assert_eq!(ask(Effort::Short, Operation::Get, fails), refused);
        for operation in [Operation::Put, Operation::Touch, Operation::Delete] {
            assert_eq!(ask(Effort::Any, operation, passes), Some(Refused::Codec.status()));
            assert_eq!(ask(Effort::Any, operation, fails), refused);
        }
    }
}

/// A byte of LZ4 stands for up to 255: what a scan has decoded ends it, not what it has read.
#[test]
fn a_scan_of_rows_that_were_compressed_well_ends_early() {
    const LEN: usize = 900_000;
    let store = store(8 << 20);
    let space = create(&store, "rows", Codec::Lz4 { head: 0 });
    let zeros = vec![0; LEN];
    for id in 0..300u32 {
        store.put(space, &id.to_be_bytes(), &zeros, 0, None, 1).unwrap();
    }
    let wanted = selection("price = 1", "*").to_bytes().unwrap();
    let scanned = scan_all(&store, space, &wanted, ROOM);
    assert_eq!((scanned.times, scanned.looked_at), (0, 300));
    let least = 300 * LEN / (LOOKED_BYTES + LEN);
    assert!(scanned.calls >= least, "{} calls, not {least}", scanned.calls);
}

/// A predicate of as many conditions as there can be, each a search.
fn dear() -> Vec<u8> {
    let searches: Vec<String> = (0..250).map(|n| format!("note contains 'x{n}'")).collect();
    selection(&searches.join(" or "), "*").to_bytes().unwrap()
}

/// What a call does is bounded by what its predicate costs, too.
#[test]
fn a_scan_whose_predicate_costs_much_ends_early() {
    const LEN: usize = 2000;
    let store = store(16 << 20);
    let space = create(&store, "rows", Codec::None);
    for id in 0..3000u32 {
        let mut row = row(id);
        row.resize(LEN, b' ');
        store.put(space, &id.to_be_bytes(), &row, 0, None, 1).unwrap();
    }
    for (wanted, passes) in
        [(dear(), 250), (selection("note contains 'x'", "*").to_bytes().unwrap(), 1)]
    {
        let scanned = scan_all(&store, space, &wanted, ROOM);
        assert_eq!((scanned.times, scanned.looked_at), (0, 3000));
        // A call judges up to twice as many.
        let least = 3000 * LEN * passes / (3 * LOOKED_BYTES);
        let most = 3000 * LEN * passes / LOOKED_BYTES * 2 + 10;
        assert!(
            (least..most).contains(&scanned.calls),
            "{} calls, not {least} to {most}",
            scanned.calls
        );
    }
}

/// A value that is not long, but takes long to judge.
#[test]
fn a_value_whose_predicate_costs_much_is_left_for_later() {
    let store = store(4 << 20);
    let space = create(&store, "rows", Codec::None);
    let mut long = row(7);
    long.resize(LONG - 1000, b' ');
    store.put(space, b"key", &long, 0, None, 1).unwrap();
    for (predicate, is_dear) in
        [(dear(), true), (selection("note contains 'x'", "*").to_bytes().unwrap(), false)]
    {
        let condition = Condition::Predicate(&predicate);
        let call = Call { tablespace: space.0, key: b"key", condition, ..Call::default() };
        let refused = Err(Refused::Condition.status());
        for operation in [Operation::Get, Operation::Put, Operation::Delete] {
            let ask = |effort| ask(effort, &store, operation, &call, ROOM).map(drop);
            assert_eq!(ask(Effort::Short), if is_dear { Err(LATER) } else { refused });
            assert_eq!(ask(Effort::Any), refused);
        }
        let scan = Call { tablespace: space.0, value: &predicate, ..Call::default() };
        let short = ask(Effort::Short, &store, Operation::Scan, &scan, ROOM).map(drop);
        assert_eq!(short, if is_dear { Err(LATER) } else { Ok(()) });
        assert!(ask(Effort::Any, &store, Operation::Scan, &scan, ROOM).is_ok());
    }
}

#[test]
fn an_expiry_that_is_kept_is_that_of_the_item() {
    let store = store(1 << 20);
    let brief =
        TablespaceOptions { default_expiry_ms: Some(50), ..TablespaceOptions::new("brief") };
    let tablespace = store.create_tablespace(&brief).unwrap();
    let call = Call { tablespace: tablespace.0, key: b"key", value: b"7", ..Call::default() };
    let ends = |operation, expires_ms| {
        ask(Effort::Any, &store, operation, &Call { expires_ms, ..call }, ROOM).unwrap();
        store.get(tablespace, b"key", 1, &mut Vec::new()).unwrap().expires_ms
    };
    assert_eq!(ends(Operation::Put, EXPIRY_KEPT), Some(51), "it is new");
    assert_eq!(ends(Operation::Touch, 0), None);
    assert_eq!(ends(Operation::Put, EXPIRY_KEPT), None);
    assert_eq!(ends(Operation::Count, EXPIRY_KEPT), None);
    assert_eq!(ends(Operation::Put, 900), Some(900));
    assert_eq!(ends(Operation::Count, EXPIRY_KEPT), Some(900));
    assert_eq!(ends(Operation::Touch, EXPIRY_KEPT), Some(900));
    assert_eq!(ends(Operation::Touch, EXPIRY_NEVER), None);
    assert_eq!(ends(Operation::Touch, 800), Some(800));
    assert_eq!(ends(Operation::Put, 0), Some(51));
    assert_eq!(ends(Operation::Put, EXPIRY_NEVER), None);
    assert_eq!(ends(Operation::Count, EXPIRY_KEPT), None);
}

#[test]
fn what_takes_long_is_left_for_later() {
    let store = store(1 << 20);
    let space = create(&store, "rows", Codec::None);
    store.put(space, b"key", &row(7), 0, None, 1).unwrap();
    let named = Call { tablespace: space.0, ..Call::default() };
    let left = |operation, call: &Call<'_>| {
        ask(Effort::Short, &store, operation, call, ROOM).map(|(head, _)| head.value_len)
    };
    assert_eq!(left(Operation::Flush, &named), Err(LATER));
    assert_eq!(left(Operation::Drop, &named), Err(LATER));
    assert_eq!(store.count(space), 1);
    // A pattern of this test alone: plans are the process's.
    let pattern = selection("note matches 'n.te +left for later|7'", "*").to_bytes().unwrap();
    let scan = Call { value: &pattern, ..named };
    assert_eq!(left(Operation::Scan, &scan), Err(LATER));
    let get = Call { key: b"key", condition: Condition::Predicate(&pattern), ..named };
    assert_eq!(left(Operation::Get, &get), Err(LATER));
    assert!(ask(Effort::Any, &store, Operation::Get, &get, ROOM).is_ok());
    assert_eq!(left(Operation::Scan, &scan), Ok(1), "the plan is there now, on every thread");
    let many = format!("note like '%{}'", "7%".repeat(500));
    let many = selection(&[&*many; 2].join(" or "), "*").to_bytes().unwrap();
    let scan = Call { value: &many, ..named };
    assert_eq!(left(Operation::Scan, &scan), Err(LATER));
    assert!(ask(Effort::Any, &store, Operation::Scan, &scan, ROOM).is_ok());
    assert_eq!(left(Operation::Scan, &scan), Ok(0));
    assert!(ask(Effort::Any, &store, Operation::Flush, &named, ROOM).is_ok());
    assert_eq!(store.count(space), 0);
}
