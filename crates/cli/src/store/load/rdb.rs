//! Redis' RDB files: strings, each into the tablespace of its database.
//!
//! A file is read twice: its checksum stands at its end, and nothing of a damaged file is put.

use std::fs::File;
use std::io::Seek;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use remora::wait_for;
use remora_command::flight::{self, Item};
use remora_store::client::AsyncStoreClient;
use remora_store::rdb::{RdbReader, RdbReport, database_name};
use remora_store::tablespace::TablespaceOptions;
use remora_store::way::call::EXPIRY_NEVER;
use remora_store::way::clock::now_ms;

use crate::store::StoreArgs;
use crate::store::progress::Progress;

/// How long the store may take to find or make a tablespace.
const PATIENCE: Duration = Duration::from_secs(10);

/// Does the file begin as RDB files do?
pub(super) fn is_rdb(path: &Path) -> bool {
    super::begins_with(path, b"REDIS")
}

/// Puts a file's strings into the tablespaces of their databases, or into the one that is named.
pub(super) fn load(path: &Path, store: &StoreArgs, in_flight: usize) -> Result<()> {
    let unreadable = || format!("cannot read {}", path.display());
    let report = check(path).with_context(unreadable)?;
    let mut strings = Strings::open(path).with_context(unreadable)?;
    let mut progress = Progress::new("Loading", Some(strings.bytes()?.1));
    let (mut all, mut databases) = (0, 0);
    store.with_many(in_flight, |client| {
        while let Some(database) = strings.database().with_context(unreadable)? {
            databases += 1;
            match &store.tablespace {
                None => turn_to(client, database)?,
                Some(name) if databases > 1 => bail!(
                    "{} has several databases: without --tablespace each goes into its own (the \
                     first one's keys are in `{name}` now)",
                    path.display()
                ),
                Some(_) => {}
            }
            let before = all;
            all += flight::put_all(client, in_flight, |done| {
                if done.is_multiple_of(256) {
                    progress.at(before + done, strings.bytes()?.0);
                }
                strings.take(database).with_context(unreadable)
            })?;
        }
        Ok(())
    })?;
    let bytes = strings.bytes()?.0;
    progress.at(all, bytes);
    println!("{}", progress.finish("loaded", bytes));
    let out = left_out(&report, &strings);
    if !out.is_empty() {
        println!("Left out: {}", out.join(", "));
    }
    Ok(())
}

/// Reads a whole file, up to its checksum.
fn check(path: &Path) -> Result<RdbReport> {
    let mut reader = RdbReader::new(File::open(path)?)?;
    while reader.next()?.is_some() {}
    Ok(reader.report().clone())
}

/// What of a file the store does not have, in words.
fn left_out(report: &RdbReport, strings: &Strings) -> Vec<String> {
    let others = report.skipped.iter().map(|(kind, count)| (*count, format!("of type {kind}")));
    let rest = [
        (report.too_long, "longer than the store takes"),
        (strings.late, "whose time was over"),
        (strings.keyless, "with an empty key"),
    ];
    let rest = rest.map(|(count, why)| (count, why.to_owned()));
    let all = others.chain(rest).filter(|(count, _)| *count > 0);
    all.map(|(count, why)| format!("{count} {why}")).collect()
}

/// Turns a client to the tablespace of a database, which is made if it is not there.
fn turn_to(client: &mut AsyncStoreClient, database: u64) -> Result<()> {
    let name = database_name(database);
    let late = || anyhow!("the store does not answer");
    let found = wait_for(client.find_tablespace(&name), PATIENCE).ok_or_else(late)??;
    let id = match found {
        Some(id) => id,
        None => {
            let options = TablespaceOptions::new(&name);
            wait_for(client.create_tablespace(&options), PATIENCE).ok_or_else(late)??
        }
    };
    client.set_tablespace(id);
    Ok(())
}

/// A file's strings that the store can have.
struct Strings {
    reader: RdbReader<File>,
    /// The same file: it says how far the reader is.
    file: File,
    /// The next string, with its database.
    ahead: Option<(u64, Item)>,
    /// Strings that were left out, since their time was over.
    late: u64,
    /// Strings that were left out, since their key is empty.
    keyless: u64,
}

impl Strings {
    fn open(path: &Path) -> Result<Strings> {
        let file = File::open(path)?;
        let reader = RdbReader::new(file.try_clone()?)?;
        Ok(Strings { reader, file, ahead: None, late: 0, keyless: 0 })
    }

    /// How many bytes were read, and how many there are.
    fn bytes(&mut self) -> Result<(u64, u64)> {
        Ok((self.file.stream_position()?, self.file.metadata()?.len()))
    }

    /// The database of the next string; `None` at the end.
    fn database(&mut self) -> Result<Option<u64>> {
        while self.ahead.is_none() {
            let Some(entry) = self.reader.next()? else { break };
            if entry.key.is_empty() {
                self.keyless += 1;
            } else if entry.expires_ms.is_some_and(|at| at <= now_ms()) {
                self.late += 1;
            } else {
                let place = format!("the key {}", entry.key.escape_ascii());
                let (key, value) = (entry.key.to_vec(), entry.value.to_vec());
                let expires_ms = entry.expires_ms.unwrap_or(EXPIRY_NEVER);
                self.ahead = Some((entry.database, Item { key, value, expires_ms, place }));
            }
        }
        Ok(self.ahead.as_ref().map(|(database, _)| *database))
    }

    /// The next string, if it is of this database.
    fn take(&mut self, database: u64) -> Result<Option<Item>> {
        let is_next = self.database()? == Some(database);
        Ok(self.ahead.take_if(|_| is_next).map(|(_, item)| item))
    }
}
