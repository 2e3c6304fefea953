//! A tablespace's keys and values, written to a file.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use csv::Writer;
use remora_store::client::{About, StoreClient};
use remora_store::rdb::{RdbWriter, database_of};
use remora_store::select::schema::Schema;
use remora_store::tablespace::TablespaceId;
use remora_store::way::connect::ClientOptions;
use serde_json::{Map, Value};

use super::progress::Progress;
use super::{StoreArgs, key_name, read_schema};
use crate::output;
use crate::sink::Sink;

/// The longest piece of an answer.
pub(super) const PIECE: usize = 1 << 20;
/// Rows between two looks at the progress.
const SHOWN: u64 = 256;
/// Keys that are named whose values are no rows of the schema.
const NAMED: usize = 3;

/// `remora store dump`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  remora store dump 127.0.0.2 --out pairs.csv            for `remora store load`
  remora store dump 127.0.0.2 --schema orders.schema     a column for each of the schema's
  remora store dump 127.0.0.2 --format resp | redis-cli --pipe
  remora store dump 127.0.0.2 --format rdb --out dump.rdb   for Redis to start with

Keys that are there from the beginning to the end come exactly once: while a cluster's slots move,
a dump ends with an error, and FILE stays as it was. CSV has no expiry and no
version; JSON has both, Redis' commands and RDB the expiry. RDB has all databases (db0, db1 and so
on) unless one tablespace is named.")]
pub(super) struct Dump {
    #[command(flatten)]
    store: StoreArgs,
    /// How keys and values are written
    #[arg(long, value_enum, default_value_t = Format::Csv)]
    format: Format,
    /// A file that says what columns the values have; each becomes a field
    #[arg(long, value_name = "FILE")]
    schema: Option<PathBuf>,
    /// Where to write: the file is replaced when all is there [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// How keys and values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line each, the columns' names before them
    Csv,
    /// Redis' commands, as its clients send them
    Resp,
    /// The file that Redis and Valkey save and start with, of version 9
    Rdb,
    /// A line of JSON each; bytes that are no text in hexadecimal digits
    Json,
}

impl Dump {
    pub(super) fn run(self) -> Result<ExitCode> {
        let schema = self.schema.as_deref().map(read_schema).transpose()?;
        let mut sink = Sink::create(self.out.as_deref().unwrap_or(Path::new("-")))?;
        let mut progress =
            if sink.is_shown() { Progress::hidden() } else { Progress::new("Dumping", None) };
        let mut sheet = Sheet::new(self.format, schema, BufWriter::new(&mut sink))?;
        let options = ClientOptions { piece: PIECE, ..ClientOptions::default() };
        let (mut rows, mut bytes, mut failed) = (0, 0, None);
        let mut strangers = Strangers::default();
        self.store.with_options(&options, |client| {
            for (database, space) in self.spaces(client)? {
                client.set_tablespace(space);
                client.items(|key, about, value| {
                    if !sheet.takes(value) {
                        strangers.note(key, value);
                    } else if failed.is_none() {
                        failed = sheet.item(database, key, about, value).err();
                    }
                    (rows, bytes) = (rows + 1, bytes + (key.len() + value.len()) as u64);
                    if rows % SHOWN == 0 {
                        progress.at(rows, bytes);
                    }
                })?;
            }
            Ok(())
        })?;
        let written = failed.map_or_else(|| sheet.finish(), Err);
        written.context("cannot write what the store has")?;
        strangers.refuse()?;
        sink.finish()?;
        progress.at(rows, bytes);
        eprintln!("{}", progress.finish("dumped", bytes));
        Ok(ExitCode::SUCCESS)
    }

    /// What is written: tablespaces, with the databases that they are to Redis.
    fn spaces(&self, client: &mut StoreClient) -> Result<Vec<(u64, TablespaceId)>> {
        let database = self.store.tablespace.as_deref().map(|name| database_of(name).unwrap_or(0));
        if self.format != Format::Rdb || database.is_some() {
            return Ok(vec![(database.unwrap_or(0), client.tablespace())]);
        }
        let all = client.tablespaces()?.into_iter();
        let databases =
            all.filter_map(|(info, _)| Some((database_of(&info.options.name)?, info.id)));
        let mut databases: Vec<_> = databases.collect();
        databases.sort_unstable();
        Ok(databases)
    }
}

/// Values that are no rows of the schema: their columns would be cut or empty.
#[derive(Debug, Default)]
struct Strangers {
    count: u64,
    /// The first ones' keys and lengths.
    first: Vec<String>,
}

impl Strangers {
    fn note(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        if self.first.len() < NAMED {
            let key = remora::printable(&String::from_utf8_lossy(key));
            self.first.push(format!("`{key}` ({} bytes)", value.len()));
        }
    }

    fn refuse(&self) -> Result<()> {
        let and_more = if self.count > self.first.len() as u64 { " and others" } else { "" };
        ensure!(
            self.count == 0,
            "values of {} are no rows of the schema, as they are shorter or longer, or hold bytes \
             that are no text: {}{and_more}; give the schema that they were put with, name the \
             tablespace that has only such rows (--tablespace), or dump without --schema",
            match self.count {
                1 => "1 key".to_owned(),
                count => format!("{count} keys"),
            },
            self.first.join(", "),
        );
        Ok(())
    }
}

/// What is written to.
enum Sheet<W: Write> {
    Csv(Box<Csv<W>>),
    Resp(W),
    Rdb(Box<RdbWriter<W>>),
    Json(W, Option<Schema>),
}

/// Lines of CSV. The names of the columns are written before the first, or at the end.
struct Csv<W: Write> {
    to: Writer<W>,
    has_names: bool,
    schema: Option<Schema>,
}

impl<W: Write> Csv<W> {
    fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.has_names, true) {
            return Ok(());
        }
        let columns = self.schema.as_ref().map_or(&[][..], Schema::columns);
        self.to.write_field(key_name(columns))?;
        match &self.schema {
            None => self.to.write_field("value")?,
            Some(schema) => {
                for column in schema.columns() {
                    self.to.write_field(&column.name)?;
                }
            }
        }
        Ok(self.to.write_record(None::<&[u8]>)?)
    }

    fn item(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.begin()?;
        self.to.write_field(key)?;
        match &self.schema {
            None => self.to.write_field(value)?,
            Some(schema) => {
                for column in schema.columns() {
                    self.to.write_field(column.show(value).to_string())?;
                }
            }
        }
        Ok(self.to.write_record(None::<&[u8]>)?)
    }
}

impl<W: Write> Sheet<W> {
    fn new(format: Format, schema: Option<Schema>, to: W) -> Result<Sheet<W>> {
        Ok(match format {
            Format::Resp => Sheet::Resp(to),
            Format::Rdb => Sheet::Rdb(Box::new(RdbWriter::new(to)?)),
            Format::Json => Sheet::Json(to, schema),
            Format::Csv => {
                let to = Writer::from_writer(to);
                Sheet::Csv(Box::new(Csv { to, has_names: false, schema }))
            }
        })
    }

    /// Whether a value can be written without a loss.
    fn takes(&self, value: &[u8]) -> bool {
        let schema = match self {
            Sheet::Csv(csv) => csv.schema.as_ref(),
            Sheet::Json(_, schema) => schema.as_ref(),
            Sheet::Resp(_) | Sheet::Rdb(_) => None,
        };
        schema.is_none_or(|schema| schema.is_shown_whole(value))
    }

    fn item(&mut self, database: u64, key: &[u8], about: &About, value: &[u8]) -> Result<()> {
        match self {
            Sheet::Rdb(to) => to.put(database, key, value, about.expires_ms)?,
            Sheet::Csv(csv) => csv.item(key, value)?,
            Sheet::Resp(to) => match about.expires_ms {
                None => command(to, &[b"SET", key, value])?,
                Some(at) => command(to, &[b"SET", key, value, b"PXAT", at.to_string().as_bytes()])?,
            },
            Sheet::Json(to, schema) => {
                let object = json(key, about, value, schema.as_ref());
                output::json_line_to(to, &object)?;
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Sheet::Csv(mut csv) => {
                csv.begin()?;
                csv.to.flush()?;
            }
            Sheet::Rdb(to) => _ = to.finish()?,
            Sheet::Resp(mut to) | Sheet::Json(mut to, _) => to.flush()?,
        }
        Ok(())
    }
}

/// Writes a command of Redis' protocol.
fn command(to: &mut impl Write, words: &[&[u8]]) -> io::Result<()> {
    write!(to, "*{}\r\n", words.len())?;
    for word in words {
        write!(to, "${}\r\n", word.len())?;
        to.write_all(word)?;
        to.write_all(b"\r\n")?;
    }
    Ok(())
}

fn json(key: &[u8], about: &About, value: &[u8], schema: Option<&Schema>) -> Map<String, Value> {
    let mut object = Map::new();
    put_text(&mut object, "key", key);
    object.insert("version".into(), about.version.into());
    object.insert("flags".into(), about.flags.into());
    object.insert("expires_ms".into(), about.expires_ms.into());
    match schema {
        None => put_text(&mut object, "value", value),
        Some(schema) => {
            let fields = schema.columns().iter();
            let row: Map<String, Value> =
                fields.map(|c| (c.name.clone(), c.show(value).to_string().into())).collect();
            object.insert("row".into(), row.into());
        }
    }
    object
}

/// Text as it is; other bytes as hexadecimal digits, under a name that says so.
pub(super) fn put_text(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.insert(name.into(), text.into()),
        Err(_) => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            object.insert(format!("{name}_hex"), digits.into())
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumped(format: Format, schema: Option<&str>) -> String {
        let schema = schema.map(|text| Schema::parse(text).unwrap());
        let mut bytes = Vec::new();
        let mut sheet = Sheet::new(format, schema, &mut bytes).unwrap();
        let about = About { version: 7, flags: 1, expires_ms: None };
        sheet.item(0, b"a,\"b\"", &about, b"\x05x\ny").unwrap();
        sheet.item(0, b"\xFF", &About { expires_ms: Some(9), ..about }, b"\x06").unwrap();
        sheet.finish().unwrap();
        bytes.iter().map(|byte| char::from(*byte)).collect()
    }

    #[test]
    fn items_are_written_in_three_ways() {
        let csv = "key,value\n\"a,\"\"b\"\"\",\"\x05x\ny\"\n\u{FF},\x06\n";
        assert_eq!(dumped(Format::Csv, None), csv);
        let rows = "key,n,t\n\"a,\"\"b\"\"\",5,\"x\ny\"\n\u{FF},6,\n";
        assert_eq!(dumped(Format::Csv, Some("n u8\nt text")), rows);
        let resp = "*3\r\n$3\r\nSET\r\n$5\r\na,\"b\"\r\n$4\r\n\x05x\ny\r\n\
                    *5\r\n$3\r\nSET\r\n$1\r\n\u{FF}\r\n$1\r\n\x06\r\n$4\r\nPXAT\r\n$1\r\n9\r\n";
        assert_eq!(dumped(Format::Resp, None), resp);
        let json = dumped(Format::Json, Some("n u8\nt text"));
        let lines: Vec<Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!((&lines[0]["key"], &lines[0]["row"]["t"]), (&"a,\"b\"".into(), &"x\ny".into()));
        assert_eq!((&lines[1]["key_hex"], &lines[1]["expires_ms"]), (&"ff".into(), &9.into()));
    }

    #[test]
    fn keys_have_a_column_of_their_own() {
        let rows = dumped(Format::Csv, Some("key u8\n_key u8\nt text"));
        assert!(rows.starts_with("__key,key,_key,t\n"), "{rows}");
        let nothing = |schema: Option<&str>| {
            let (schema, mut bytes) = (schema.map(|text| Schema::parse(text).unwrap()), Vec::new());
            Sheet::new(Format::Csv, schema, &mut bytes).unwrap().finish().unwrap();
            String::from_utf8(bytes).unwrap()
        };
        assert_eq!(nothing(None), "key,value\n");
        assert_eq!(nothing(Some("n u8")), "key,n\n");
    }

    #[test]
    fn values_that_are_no_rows_are_refused() {
        let takes = |schema: &str, value: &[u8]| {
            let schema = Schema::parse(schema).unwrap();
            let sheet = Sheet::new(Format::Csv, Some(schema), Vec::new()).unwrap();
            sheet.takes(value)
        };
        let found = [b"".as_slice(), b"a", b"ab", b"abc"].map(|value| takes("n u16", value));
        assert_eq!(found, [false, false, true, false]);
        assert!(takes("n u8\nt text", b"abc") && !takes("n u8\nt text", b""));
        assert!(!takes("n u8\nt text", b"\x05\xff\xfe") && takes("c char(4)", b"ab\0\0"));
        let days = |days: i32| takes("d date", &days.to_le_bytes());
        assert!(days(9_000) && !days(i32::MAX));
        let mut strangers = Strangers::default();
        strangers.refuse().unwrap();
        (0..5u8).for_each(|n| strangers.note(&[b'k', b'0' + n, 0x1b], b"x"));
        let error = strangers.refuse().unwrap_err().to_string();
        let words = "values of 5 keys are no rows of the schema, as they are shorter or longer, \
                     or hold bytes that are no text: `k0?` (1 bytes), `k1?` (1 bytes), \
                     `k2?` (1 bytes) and others; ";
        assert!(error.starts_with(words), "{error}");
    }
}
