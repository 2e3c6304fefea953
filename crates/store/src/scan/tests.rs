//! Selections over a store that changes between the calls of a scan.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::codec::Codec;
use crate::item::VALUE_MAX;
use crate::journal::Unlogged;
use crate::memory::Heap;
use crate::select::Predicate;
use crate::select::schema::Schema;
use crate::select::selection::{Output, Selection};
use crate::store::Options;
use crate::tablespace::TablespaceOptions;

type TestStore = Store<Heap, Unlogged>;

/// Keys that are there when a scan begins.
const KEYS: u32 = 600;
/// The numbers below are selected.
const BELOW: u32 = 30;
const CALLS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A key, new or not, gets a number, and a value of so many bytes.
    Put(u32, u32, usize),
    Delete(u32),
    /// So many keys come that were never there: others are moved, and partitions grow.
    Grow(u32),
    /// Sparse pages are emptied.
    Tidy,
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..KEYS * 2, 0..60u32, 4usize..900);
    prop_oneof![
        6 => put.prop_map(|(key, number, len)| Step::Put(key, number, len)),
        4 => (0..KEYS * 2).prop_map(Step::Delete),
        2 => (1u32..60).prop_map(Step::Grow),
        1 => Just(Step::Tidy),
    ]
}

/// What a key has had while a scan went on.
#[derive(Clone, Copy, Debug)]
struct Had {
    /// At all times a number that is selected.
    always: bool,
    /// Such a number at some time.
    ever: bool,
}

struct World {
    store: TestStore,
    space: TablespaceId,
    had: BTreeMap<u32, Had>,
    fresh: u32,
}

impl World {
    fn new(codec: Codec) -> World {
        let options = Options::new(8 << 20, 5);
        let heap = Heap::new(options.memory_len());
        let store = Store::new(heap, Unlogged::default(), options).unwrap();
        let space = TablespaceOptions { codec, ..TablespaceOptions::new("t") };
        let space = store.create_tablespace(&space).unwrap();
        let other = store.create_tablespace(&TablespaceOptions::new("other")).unwrap();
        let mut world = World { store, space, had: BTreeMap::new(), fresh: KEYS * 2 };
        for key in 0..KEYS {
            let number = key * 7 % 60;
            world.write(key, number, 4 + key as usize % 300);
            let passes = number < BELOW;
            world.had.insert(key, Had { always: passes, ever: passes });
            world.store.put(other, &key.to_be_bytes(), &[0; 8], 0, None, 1).unwrap();
        }
        world
    }

    fn write(&self, key: u32, number: u32, len: usize) {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(len.max(4), b'x');
        self.store.put(self.space, &key.to_be_bytes(), &value, 0, None, 1).unwrap();
    }

    fn put(&mut self, key: u32, number: u32, len: usize) {
        self.write(key, number, len);
        let passes = number < BELOW;
        let had = self.had.entry(key).or_insert(Had { always: false, ever: false });
        had.always &= passes;
        had.ever |= passes;
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Put(key, number, len) => self.put(key, number, len),
            Step::Delete(key) => {
                self.store.delete(self.space, &key.to_be_bytes(), 1).unwrap();
                self.had.entry(key).and_modify(|had| had.always = false);
            }
            Step::Grow(count) => {
                for key in self.fresh..self.fresh + count {
                    self.put(key, key % 60, 40);
                }
                self.fresh += count;
            }
            Step::Tidy => _ = self.store.tidy_pages(false),
        }
    }
}

fn plan() -> Plan {
    let schema = Schema::parse("number u32\nnote text").unwrap();
    let condition = Predicate::parse(&format!("number < {BELOW}")).unwrap();
    let condition = condition.bind(&schema, &[]).unwrap();
    let (row_least, output) = (schema.fixed(), Output::Whole);
    Plan::new(&Selection { row_least, condition, output, limit: u64::MAX }).unwrap()
}

/// What a call of a scan is bounded by.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    items: usize,
    bytes: usize,
    /// Items that its answer has room for.
    room: usize,
    longest: usize,
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let bytes = prop_oneof![Just(1 << 20), 60usize..20_000];
    let room = prop_oneof![Just(usize::MAX), 1usize..20];
    let longest = prop_oneof![Just(usize::MAX), 200usize..1000];
    (1usize..700, bytes, room, longest).prop_map(|(items, bytes, room, longest)| Bounds {
        items,
        bytes,
        room,
        longest,
    })
}

/// A scan from begin to end, with steps between its calls. Returns how often each key was told, and
/// how many items were looked at.
fn scan_all(
    world: &mut World,
    plan: Option<&Plan>,
    bounds: Bounds,
    steps: &mut dyn Iterator<Item = Step>,
) -> (BTreeMap<u32, usize>, u64) {
    let selects = super::tests::plan();
    let (mut told, mut looked_at) = (BTreeMap::new(), 0);
    let (mut cursor, mut is_long) = (Cursor::START, false);
    for _ in 0..CALLS_MAX {
        let longest = if is_long { usize::MAX } else { bounds.longest };
        let wanted = Wanted { space: world.space, now: 1, longest, plan };
        let Bounds { items, bytes, mut room, .. } = bounds;
        let mut budget = ScanBudget { items, bytes, buckets: WALKED_MAX, looked_at: 0 };
        let went = world.store.scan_within(&wanted, cursor, &mut budget, &mut |copied| {
            let mut value = Vec::new();
            copied.item.codec.decode(copied.item.stored, VALUE_MAX, &mut value).unwrap();
            assert!(copied.is_whole());
            if !selects.is_match(&value) {
                return Visited::Next;
            }
            if room == 0 {
                return Visited::NotTaken;
            }
            room -= 1;
            let key = u32::from_be_bytes(copied.item.key.try_into().unwrap());
            *told.entry(key).or_insert(0) += 1;
            if room == 0 && key.is_multiple_of(2) { Visited::Last } else { Visited::Next }
        });
        looked_at += u64::from(budget.looked_at);
        assert!((budget.looked_at as usize) <= 2 * items + 1, "{budget:?}");
        assert!(went.cursor > cursor || went.cursor == Cursor::END || went.is_long, "{went:?}");
        (cursor, is_long) = (went.cursor, went.is_long && budget.looked_at == 0);
        (&mut *steps).take(3).for_each(|step| world.take(step));
        if cursor == Cursor::END && !went.is_long {
            return (told, looked_at);
        }
    }
    panic!("the scan does not end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_lives_and_passes_throughout_is_told_once(
        steps in prop::collection::vec(step(), 0..200),
        bounds in bounds(),
        packed: bool,
        by_plan: bool,
    ) {
        let codec = if packed { Codec::Lz4 { head: 4 } } else { Codec::None };
        let (mut world, plan) = (World::new(codec), plan());
        let plan = by_plan.then_some(&plan);
        let (told, _) = scan_all(&mut world, plan, bounds, &mut steps.into_iter());
        for (key, had) in &world.had {
            let times = told.get(key).copied().unwrap_or(0);
            prop_assert!(times <= 1, "key {key} was told {times} times");
            prop_assert!(had.ever || times == 0, "key {key} never passed");
            prop_assert!(!had.always || times == 1, "key {key} was missed");
        }
    }

    #[test]
    fn each_item_is_looked_at_once(bounds in bounds(), packed: bool) {
        let codec = if packed { Codec::Lz4 { head: 4 } } else { Codec::None };
        let (mut world, plan) = (World::new(codec), plan());
        let (told, looked_at) = scan_all(&mut world, Some(&plan), bounds, &mut [].into_iter());
        prop_assert_eq!(looked_at, u64::from(KEYS));
        prop_assert_eq!(told.len() as u32, KEYS / 2);
    }
}
