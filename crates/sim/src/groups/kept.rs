//! A node's store: the one that live nodes have.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use remora_store::journal::Unlogged;
use remora_store::log::{Fields, Operation, Position};
use remora_store::memory::Heap;
use remora_store::replica::apply;
use remora_store::scan::Cursor;
use remora_store::store::{Options, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};

/// All that a store has: keys, with versions and values.
pub(crate) type Table = BTreeMap<u8, (u64, Vec<u8>)>;

/// The tablespace of all keys.
const SPACE: TablespaceId = TablespaceId(0);
const LIMIT: u64 = 1 << 20;

pub(crate) struct Kept(Store<Heap, Unlogged>);

impl Kept {
    /// A store that has this.
    pub(crate) fn new(table: &Table) -> Kept {
        let options = Options::new(LIMIT, 7);
        let memory = Heap::new(options.memory_len());
        let store = Store::new(memory, Unlogged::default(), options).unwrap();
        assert_eq!(store.create_tablespace(&TablespaceOptions::new("world")).unwrap(), SPACE);
        let kept = Kept(store);
        for (key, (version, value)) in table {
            let fields = Fields { key: &[*key], value, ..Fields::of(Operation::Put) };
            kept.apply(Position::from_number(*version), &fields);
        }
        kept
    }

    /// Carries out a record.
    pub(crate) fn apply(&self, position: Position, fields: &Fields<'_>) {
        apply(&self.0, position, fields).expect("a change that the store can make");
    }

    /// The number that a key is; 0 if it is not there.
    pub(crate) fn number(&self, key: u8) -> u64 {
        let mut value = Vec::new();
        let found = self.0.get(SPACE, &[key], 0, &mut value);
        found.map_or(0, |_| number(&value))
    }

    /// All that is there.
    pub(crate) fn table(&self) -> Table {
        let (mut table, mut cursor) = (Table::new(), Cursor::START);
        loop {
            cursor = self.0.scan(SPACE, cursor, 0, 64, &mut |item| {
                table.insert(item.key[0], (item.version, item.stored.to_vec()));
                ControlFlow::Continue(())
            });
            if cursor == Cursor::END {
                return table;
            }
        }
    }
}

/// The number that a value begins with.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"))
}
