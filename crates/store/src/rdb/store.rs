//! RDB files into a store, and out of one.
//!
//! Redis' databases are tablespaces: database N is the one named `dbN`.

use std::io::{self, Read, Write};
use std::ops::ControlFlow;

use super::{RdbError, RdbReader, RdbReport, RdbWriter};
use crate::item::VALUE_MAX;
use crate::journal::Journal;
use crate::memory::Memory;
use crate::scan::{BATCH_MAX, Cursor};
use crate::store::{Change, Expiry, Store, UpdateError, Value};
use crate::tablespace::{TablespaceError, TablespaceId, TablespaceOptions};

/// What an import came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// What the file had.
    pub file: RdbReport,
    /// Strings that are in the store now.
    pub strings: u64,
    /// Strings whose time was over: they were left out.
    pub expired: u64,
    /// Strings with an empty key, which the store does not have: they were left out.
    pub empty_keys: u64,
}

/// Why an import ended early. What came before is in the store.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file.
    #[error(transparent)]
    File(#[from] RdbError),
    /// A tablespace for a database.
    #[error("database {database} has no tablespace: {source}")]
    Tablespace {
        /// The database.
        database: u64,
        /// Why not.
        source: TablespaceError,
    },
    /// The store does not take a string.
    #[error("after {strings} strings the store takes no more: {source}")]
    Store {
        /// How many it took.
        strings: u64,
        /// Why not.
        source: UpdateError,
    },
}

/// The name of a database's tablespace.
#[must_use]
pub fn database_name(database: u64) -> String {
    format!("db{database}")
}

/// The database whose tablespace has this name.
#[must_use]
pub fn database_of(name: &str) -> Option<u64> {
    let database = name.strip_prefix("db")?.parse().ok()?;
    (database_name(database) == name).then_some(database)
}

/// Puts all strings of a file into a store, in place of those that have the same keys. What has no
/// expiry in the file never expires, whatever a tablespace's default is. `now` is in ms of Unix
/// time.
///
/// # Errors
///
/// [`ImportError`].
pub fn import<R: Read, M: Memory, J: Journal>(
    reader: R,
    store: &Store<M, J>,
    now: u64,
) -> Result<Imported, ImportError> {
    let mut reader = RdbReader::new(reader)?;
    let mut imported = Imported::default();
    let mut current = None;
    while let Some(entry) = reader.next()? {
        if entry.key.is_empty() {
            imported.empty_keys += 1;
        } else if entry.expires_ms.is_some_and(|at| at <= now) {
            imported.expired += 1;
        } else {
            let id = match current {
                Some((database, id)) if database == entry.database => id,
                _ => tablespace(store, entry.database)?,
            };
            current = Some((entry.database, id));
            let value = Value::Given(entry.value);
            let change = Change::Put { value, flags: 0, expiry: Expiry::of_item(entry.expires_ms) };
            let put = store.update(id, entry.key, now, &mut |_, _| change);
            let strings = imported.strings;
            put.map_err(|source| ImportError::Store { strings, source })?;
            imported.strings += 1;
        }
    }
    imported.file = reader.report().clone();
    Ok(imported)
}

fn tablespace<M: Memory, J: Journal>(
    store: &Store<M, J>,
    database: u64,
) -> Result<TablespaceId, ImportError> {
    let name = database_name(database);
    if let Some(id) = store.tablespace(&name) {
        return Ok(id);
    }
    let created = store.create_tablespace(&TablespaceOptions::new(&name));
    created.map_err(|source| ImportError::Tablespace { database, source })
}

/// What an export came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Strings that were written.
    pub strings: u64,
    /// Strings that could not be decoded: the store's memory was damaged by somebody who has access
    /// to it.
    pub damaged: u64,
}

/// Writes all databases of a store as a file, while it serves: a key that changes meanwhile is as
/// it was before or after. `now` is in ms of Unix time.
///
/// # Errors
///
/// What the writer says.
pub fn export<W: Write, M: Memory, J: Journal>(
    store: &Store<M, J>,
    writer: W,
    now: u64,
) -> io::Result<Exported> {
    let mut writer = RdbWriter::new(writer)?;
    let mut exported = Exported::default();
    let mut value = Vec::new();
    let mut databases: Vec<_> = (store.tablespaces().into_iter())
        .filter_map(|info| Some((database_of(&info.options.name)?, info.id)))
        .collect();
    databases.sort_unstable();
    for (database, id) in databases {
        let mut cursor = Cursor::START;
        loop {
            let mut written = Ok(());
            cursor = store.scan(id, cursor, now, BATCH_MAX, &mut |item| {
                value.clear();
                if item.codec.decode(item.stored, VALUE_MAX, &mut value).is_err() {
                    exported.damaged += 1;
                } else if written.is_ok() {
                    written = writer.put(database, item.key, &value, item.expires_ms);
                    exported.strings += 1;
                }
                if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            written?;
            if cursor == Cursor::END {
                break;
            }
        }
    }
    writer.finish()?;
    Ok(exported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use crate::journal::Unlogged;
    use crate::memory::Heap;
    use crate::store::Options;

    fn store() -> Store<Heap> {
        let options = Options::new(8 << 20, 5);
        Store::new(Heap::new(options.memory_len()), Unlogged::default(), options).unwrap()
    }

    fn value(store: &Store<Heap>, database: u64, key: &[u8]) -> Option<(Vec<u8>, Option<u64>)> {
        let id = store.tablespace(&database_name(database))?;
        let mut value = Vec::new();
        let found = store.get(id, key, 5, &mut value)?;
        Some((value, found.expires_ms))
    }

    #[test]
    fn databases_have_names_and_other_tablespaces_none() {
        assert_eq!(database_of(&database_name(15)), Some(15));
        for other in ["db", "db01", "db-1", "memcached", "dbx"] {
            assert_eq!(database_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_of_redis_goes_in_and_out_again() {
        let saved = include_bytes!("../../tests/data/redis-7.0.15.rdb");
        let first = store();
        let compressed =
            TablespaceOptions { codec: Codec::Lz4 { head: 0 }, ..TablespaceOptions::new("db0") };
        first.create_tablespace(&compressed).unwrap();
        let imported = import(&saved[..], &first, 5).unwrap();
        assert_eq!((imported.strings, imported.expired, imported.empty_keys), (10, 0, 0));
        assert_eq!(imported.file.skipped["stream"], 1);
        // What is no database is not exported.
        let other = first.create_tablespace(&TablespaceOptions::new("memcached")).unwrap();
        first.put(other, b"key", b"value", 0, None, 5).unwrap();
        let mut file = Vec::new();
        let exported = export(&first, &mut file, 5).unwrap();
        assert_eq!(exported, Exported { strings: 10, damaged: 0 });
        let second = store();
        assert_eq!(import(&file[..], &second, 5).unwrap().strings, 10);
        assert_eq!(value(&second, 0, b"int16"), Some((b"30000".to_vec(), None)));
        assert_eq!(value(&second, 0, b"long"), value(&first, 0, b"long"));
        assert_eq!(value(&second, 0, b"long").unwrap().0.len(), 1000);
        let later = Some((b"later".to_vec(), Some(4_102_444_800_123)));
        assert_eq!(value(&second, 5, b"expires"), later);
        assert_eq!(second.tablespace("memcached"), None);
    }

    #[test]
    fn what_the_store_does_not_have_is_left_out_and_counted() {
        let mut writer = RdbWriter::new(Vec::new()).unwrap();
        writer.put(0, b"", b"no key", None).unwrap();
        writer.put(0, b"late", b"too late", Some(5)).unwrap();
        writer.put(0, b"here", b"in time", Some(6)).unwrap();
        let store = store();
        let imported = import(&writer.finish().unwrap()[..], &store, 5).unwrap();
        assert_eq!((imported.strings, imported.expired, imported.empty_keys), (1, 1, 1));
        assert!(value(&store, 0, b"here").is_some());
        assert!(value(&store, 0, b"late").is_none());
    }

    /// What never expires where it comes from does not expire here.
    #[test]
    fn an_import_has_no_default_expiry() {
        let store = store();
        let brief =
            TablespaceOptions { default_expiry_ms: Some(50), ..TablespaceOptions::new("db0") };
        store.create_tablespace(&brief).unwrap();
        let mut writer = RdbWriter::new(Vec::new()).unwrap();
        writer.put(0, b"for ever", b"1", None).unwrap();
        writer.put(0, b"a while", b"2", Some(900)).unwrap();
        import(&writer.finish().unwrap()[..], &store, 5).unwrap();
        assert_eq!(value(&store, 0, b"for ever"), Some((b"1".to_vec(), None)));
        assert_eq!(value(&store, 0, b"a while"), Some((b"2".to_vec(), Some(900))));
    }

    #[test]
    fn a_file_that_does_not_fit_says_how_far_it_came() {
        let mut writer = RdbWriter::new(Vec::new()).unwrap();
        for key in 0..200u8 {
            writer.put(0, &[key], &[key; 100_000], None).unwrap();
        }
        let refused = import(&writer.finish().unwrap()[..], &store(), 5).unwrap_err().to_string();
        assert!(refused.contains("strings the store takes no more"), "{refused}");
    }
}
