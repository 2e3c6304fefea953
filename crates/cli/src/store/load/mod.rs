//! Files into the store: rows of CSV or Parquet, many puts under way at once.
//!
//! `csv`, `parquet` and `rdb` read files; `shape` makes key and value of a row.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod rdb;
mod shape;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::csv::ByteRecord;
use anyhow::{Context, Result, anyhow};
use clap::Args;

use super::progress::Progress;
use super::{StoreArgs, read_schema};
use crate::failure::wrong_line;
use remora_command::flight::{self, Item};
use shape::Shape;

/// `remora store load`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store load 127.0.0.2 orders.csv --schema orders.schema --key id
  remora store load 127.0.0.2 lineitem.tbl --schema lineitem.schema --no-header --delimiter '|' \\
    --key orderkey --key linenumber --tablespace lineitem
  remora store load 127.0.0.2 pairs.csv            two columns: key and value
  remora store load 127.0.0.2 dump.rdb             what Redis has saved: its strings

With a schema a value is a row, whose columns `remora store scan` can select by; docs/selection.md
says what a schema file looks like. Several key columns are joined by a colon. An RDB file's
databases go into the tablespaces db0, db1 and so on; it is put only if its checksum is right.")]
pub(super) struct Load {
    #[command(flatten)]
    store: StoreArgs,
    /// The file; - is CSV from standard input
    file: PathBuf,
    /// A file that says what columns the values have [default: one column, as it is]
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// A column of which the key is made; may be given several times [default: `key`, or the first]
    #[arg(long = "key", value_name = "COLUMN")]
    keys: Vec<String>,
    /// What stands between fields of CSV
    #[arg(long, default_value_t = ',', value_parser = one_byte)]
    delimiter: char,
    /// The first line of CSV is a row, too: the columns are those of the schema
    #[arg(long, requires = "schema")]
    no_header: bool,
    /// Puts that are under way at once
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,
}

fn one_byte(text: &str) -> Result<char, String> {
    let mut chars = match text {
        "\\t" => "\t".chars(),
        text => text.chars(),
    };
    match (chars.next().filter(char::is_ascii), chars.next()) {
        (Some(delimiter), None) => Ok(delimiter),
        _ => Err("write one character of ASCII; \\t is a tab".to_owned()),
    }
}

/// Rows of a file.
trait Rows {
    /// The columns' names.
    fn columns(&self) -> &[String];
    /// Reads the next row; `false` at the end.
    fn read(&mut self, row: &mut ByteRecord) -> Result<bool>;
    /// Where the row is that was read last, for a person.
    fn place(&self) -> String;
    /// Bytes of the file that were read.
    fn bytes(&self) -> u64;
}

impl Load {
    pub(super) fn run(self) -> Result<ExitCode> {
        if rdb::is_rdb(&self.file) {
            if self.schema.is_some() || !self.keys.is_empty() {
                let why = anyhow!("an RDB file has keys and values: leave out --schema and --key");
                return Err(wrong_line(why));
            }
            rdb::load(&self.file, &self.store, self.in_flight.into())?;
            return Ok(ExitCode::SUCCESS);
        }
        let schema = self.schema.as_deref().map(read_schema).transpose()?;
        let (mut rows, len) = self.open(schema.as_ref())?;
        let name = self.file.display().to_string();
        let shape = Shape::new(rows.columns(), &self.keys, schema).with_context(|| name.clone())?;
        let mut progress = Progress::new("Loading", len);
        let mut row = ByteRecord::new();
        let done = self.store.with_many(self.in_flight.into(), |client| {
            let next = |done: u64| {
                if done.is_multiple_of(256) {
                    progress.at(done, rows.bytes());
                }
                if !rows.read(&mut row).with_context(|| name.clone())? {
                    return Ok(None);
                }
                let place = format!("{name}, {}", rows.place());
                let mut item = Item { place, ..Item::default() };
                let made = shape.item(&row, &mut item.key, &mut item.value);
                made.with_context(|| item.place.clone())?;
                Ok(Some(item))
            };
            flight::put_all(client, self.in_flight.into(), next)
        })?;
        progress.at(done, rows.bytes());
        println!("{}", progress.finish("loaded", rows.bytes()));
        Ok(ExitCode::SUCCESS)
    }

    /// Opens the file; says how long it is, if that is known.
    fn open(
        &self,
        schema: Option<&remora_store::select::schema::Schema>,
    ) -> Result<(Box<dyn Rows>, Option<u64>)> {
        let columns = schema.filter(|_| self.no_header).map(|schema| {
            schema.columns().iter().map(|column| column.name.clone()).collect::<Vec<_>>()
        });
        let delimiter = self.delimiter as u8;
        if self.file.as_os_str() == "-" {
            let rows = csv::CsvRows::new(std::io::stdin(), delimiter, columns)?;
            return Ok((Box::new(rows), None));
        }
        let unreadable = || format!("cannot read {}", self.file.display());
        let file = File::open(&self.file).with_context(unreadable)?;
        let about = file.metadata().with_context(unreadable)?;
        let len = about.is_file().then_some(about.len());
        if is_parquet(&self.file) {
            return Ok((open_parquet(file).with_context(unreadable)?, len));
        }
        let rows = csv::CsvRows::new(file, delimiter, columns).with_context(unreadable)?;
        Ok((Box::new(rows), len))
    }
}

/// Does the file begin as Parquet's do?
fn is_parquet(path: &Path) -> bool {
    begins_with(path, b"PAR1")
}

/// Does the file begin so? A pipe does not: what is read of it to see that is gone.
fn begins_with<const LEN: usize>(path: &Path, magic: &[u8; LEN]) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut begin = [0; LEN];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
    read.is_ok() && begin == *magic
}

#[cfg(feature = "parquet")]
fn open_parquet(file: File) -> Result<Box<dyn Rows>> {
    Ok(Box::new(parquet::ParquetRows::new(file)?))
}

#[cfg(not(feature = "parquet"))]
fn open_parquet(_: File) -> Result<Box<dyn Rows>> {
    anyhow::bail!(
        "it is Parquet, which this program was built without: build it with \
         `cargo build --release -p remora-cli --features parquet`, or convert the file to CSV"
    )
}
